"""The bearer tokens of clients and operators, stored as hashes in one file beside the ledger.

Invariants: tokens are never stored, except the token of this machine's user (`Tokens.local`), in a separate file; with
a damaged file no token is accepted; concurrent changes of the file lose no entries.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from pursuit.config.files import TOKENS_FILE
from pursuit.errors import InvalidArgument, LedgerUnavailable, PursuitError, advice
from pursuit.ledger.locks import PRIVATE_FILE, make_private_folder, open_private
from pursuit.upstream.fixed_patterns import TOKEN_NAME

LOCAL_FILE: Final = "http.token"
LOCAL_NAME: Final = "local"
PAGE_NAME: Final = "page"
PREFIX: Final = "pursuit_"

Right = Literal["approve-own"]
RIGHTS: tuple[Right, ...] = get_args(Right)
"""`approve-own`: its user may answer approvals of its own calls over HTTP, if that channel is listed."""

Scope = Literal["missions:read", "missions:write", "tools:call", "tasks:*", "approvals:answer"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
CLIENT_SCOPES: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope != "approvals:answer")

_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHolder:
    """A token's name, hash and role; an operator's token sees the missions of all clients."""

    name: Annotated[str, msgspec.Meta(pattern=rf"\A{TOKEN_NAME.pattern}\Z")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    created_at: str
    operator: bool = False
    subject: str | None = None
    """The hash of the first token in the chain of rotations that led to this one."""
    may: tuple[Right, ...] = ()
    """Additional rights."""
    expires_at: str | None = None
    scopes: tuple[Scope, ...] | None = None
    """None means all scopes of a client; for an operator also that of answering approvals."""

    @property
    def granted(self) -> tuple[Scope, ...]:
        return (SCOPES if self.operator else CLIENT_SCOPES) if self.scopes is None else self.scopes

    @property
    def expired(self) -> bool:
        """True if the token has expired or its expiry is unreadable."""
        try:
            return self.expires_at is not None and datetime.fromisoformat(self.expires_at) <= datetime.now(tz=UTC)
        except (ValueError, TypeError):  # TypeError: a time without a zone
            return True

    @property
    def owner(self) -> str:
        return self.subject or self.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenFile:
    version: Literal[1]
    tokens: tuple[TokenHolder, ...]


class NameTaken(InvalidArgument):
    """Another token already has that name."""


class PrivateFile:
    """A file that only its owner can read, changed by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def alone(self) -> Generator[None]:
        """Locks the file against changes by other processes."""
        try:
            make_private_folder(self.path.parent)
            lock = open_private(self.path.with_name(f"{self.path.name}.lock"))
        except OSError as error:
            raise _unusable(self.path, "change", error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise _unusable(self.path, "change", error) from error
        finally:
            os.close(lock)

    def write(self, text: str) -> None:
        """Replaces the file atomically; a crash leaves the old one or the new one."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.unlink(missing_ok=True)  # left by a process that died; we hold the lock
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w") as file:
            os.fchmod(file.fileno(), PRIVATE_FILE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Tokens:
    """The tokens in one file; the file is read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._entries: tuple[TokenHolder, ...] = ()

    @classmethod
    def beside(cls, ledger: Path) -> Tokens:
        return cls(ledger.with_name(TOKENS_FILE))

    def make(
        self,
        name: str,
        *,
        operator: bool = False,
        may: Sequence[Right] = (),
        scopes: Sequence[Scope] | None = None,
        seconds: float | None = None,
    ) -> str:
        """Creates a token of 256 random bits that expires after `seconds`; only its hash is stored."""
        require_name(name)
        token, granted = _new_token(), None if scopes is None else tuple(scopes)
        entry = _entry(name, token, operator=operator, may=tuple(may), scopes=granted)
        if seconds is not None:
            ends = datetime.fromisoformat(entry.created_at) + timedelta(seconds=seconds)
            entry = replace(entry, expires_at=_iso(ends))
        with self._alone() as entries:
            if any(one.name == name for one in entries):
                raise NameTaken(
                    f"a token named {name!r} already exists; choose another name, or revoke it first", name=name
                )
            self._write((*entries, entry))
        return token

    @property
    def local_file(self) -> Path:
        """The file with the token that `local` returns, readable only by its owner."""
        return self.path.with_name(LOCAL_FILE)

    def local(self) -> tuple[str, bool]:
        """The client token of this machine's user, and whether it was created just now."""
        with self._alone() as entries:
            kept = self._kept()
            if any(one.sha256 == fingerprint(kept) for one in entries):
                return kept, False
            taken, token = {one.name for one in entries}, _new_token()
            names = (LOCAL_NAME, *(f"{LOCAL_NAME}-{number}" for number in range(2, len(taken) + 3)))
            name = next(name for name in names if name not in taken)
            PrivateFile(self.local_file).write(f"{token}\n")
            self._write((*entries, _entry(name, token)))
            return token, True

    def local_if_needed(self) -> str | None:
        """A token for this machine's user, if clients do not have any token."""
        return None if any(not one.operator and not one.expired for one in self.holders()) else self.local()[0]

    def rotate(self, name: str) -> str:
        """Replaces the token of that name by a new one, which keeps its records; the old token is refused.

        An expiring token gets its full lifetime again.
        """
        token, now = _new_token(), datetime.now(tz=UTC)
        with self._alone() as entries:
            before = _named(entries, name)
            ends = before.expires_at
            if ends is not None:
                ends = _iso(now + (datetime.fromisoformat(ends) - datetime.fromisoformat(before.created_at)))
            after = replace(
                before, sha256=fingerprint(token), created_at=_iso(now), expires_at=ends, subject=before.owner
            )
            if fingerprint(self._kept()) == before.sha256:
                PrivateFile(self.local_file).write(f"{token}\n")
            self._write([after if one is before else one for one in entries])
        return token

    def free_name(self) -> str:
        taken = {entry.name for entry in self.holders()}
        return next(name for number in range(1, len(taken) + 2) if (name := f"token-{number}") not in taken)

    def names(self) -> list[dict[str, Any]]:
        """Name, role, creation time, further rights, scopes and expiry of each token."""
        return [
            {
                "name": entry.name,
                "role": role_of(operator=entry.operator),
                "created_at": entry.created_at,
                **({"may": list(entry.may)} if entry.may else {}),
                **({} if entry.scopes is None else {"scopes": list(entry.scopes)}),
                **({} if entry.expires_at is None else {"expires_at": entry.expires_at, "expired": entry.expired}),
            }
            for entry in self.holders()
        ]

    def revoke(self, name: str) -> None:
        """Removes a token; servers refuse it from the next request."""
        with self._alone() as entries:
            gone = _named(entries, name)
            self._write(tuple(one for one in entries if one is not gone))
            if fingerprint(self._kept()) == gone.sha256:
                self.local_file.unlink()

    def holder(self, token: str) -> TokenHolder | None:
        """The holder of the token, or None if it is unknown, revoked or expired."""
        shown = fingerprint(token)
        # Compares all, so that the time does not depend on which token matches.
        found = [entry for entry in self.holders() if hmac.compare_digest(entry.sha256, shown)]
        return None if not found or found[0].expired else found[0]

    def owned(self, owner: str) -> TokenHolder | None:
        """The valid token whose records belong to this owner: the original or its latest rotation."""
        return next((one for one in self.holders() if one.owner == owner and not one.expired), None)

    def of_page(self) -> TokenHolder:
        """The operator's token behind the page's sign-in links; created if missing.

        Only its hash is stored, so no client can present it; revoking it ends the page's sessions.
        """
        with self._alone() as entries:
            found = next((one for one in entries if one.name == PAGE_NAME and one.operator), None)
            if found is None:
                if any(one.name == PAGE_NAME for one in entries):
                    raise NameTaken(f"a client's token is named {PAGE_NAME!r}; revoke it first", name=PAGE_NAME)
                found = _entry(PAGE_NAME, _new_token(), operator=True)
                self._write((*entries, found))
            return found

    def holders(self) -> tuple[TokenHolder, ...]:
        try:
            at = self.path.stat()
        except FileNotFoundError:
            self._seen, self._entries = None, ()
            return ()
        except OSError as error:
            raise _unusable(self.path, "read", error) from error
        seen = (at.st_mtime_ns, at.st_size, at.st_ino)
        if seen != self._seen:
            self._entries = _read(self.path)
            self._seen = seen
        return self._entries

    @contextmanager
    def _alone(self) -> Generator[tuple[TokenHolder, ...]]:
        """The entries of the file, under its lock."""
        with PrivateFile(self.path).alone():
            yield _read(self.path) if self.path.exists() else ()

    def _kept(self) -> str:
        """The token in `local_file`; empty if missing."""
        try:
            return self.local_file.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def _write(self, entries: Sequence[TokenHolder]) -> None:
        document = _TokenFile(version=1, tokens=tuple(entries))
        body = json.dumps(msgspec.to_builtins(document), indent=1)
        PrivateFile(self.path).write(f"{body}\n")


def _new_token() -> str:
    return PREFIX + secrets.token_urlsafe(_BYTES)


def _entry(name: str, token: str, **more: Any) -> TokenHolder:
    return TokenHolder(name=name, sha256=fingerprint(token), created_at=_iso(datetime.now(tz=UTC)), **more)


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def _named(entries: Sequence[TokenHolder], name: str) -> TokenHolder:
    """The token of that name; raises `InvalidArgument`."""
    found = next((one for one in entries if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in entries) or "none"
        raise InvalidArgument(f"unknown token {name!r}; known: {known}", name=name)
    return found


def role_of(*, operator: bool) -> str:
    return "operator" if operator else "client"


def require_name(name: str) -> None:
    if TOKEN_NAME.fullmatch(name) is None:
        raise InvalidArgument(f"{name!r} is not a token name: use 1 to 64 letters, digits, '.', '_' and '-'", name=name)


def fingerprint(token: str) -> str:
    """The hash that is stored of a token; 256 random bits need no salt and no slow hash."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


def _read(path: Path) -> tuple[TokenHolder, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TokenFile).tokens
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unusable(path, "read", error) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"{path} is damaged ({error}), so no token is accepted; repair it, or remove it and create new tokens "
            f"with `{advice('pursuit token')}`",
            path=str(path),
        ) from error


def _unusable(path: Path, verb: str, error: OSError) -> PursuitError:
    return LedgerUnavailable(
        f"cannot {verb} {path}: {error.strerror or error}; it and its folder must be yours", path=str(path)
    )
