"""Sign-in to the page: one-time links, sessions, and the page's address, in one file beside the ledger.

Invariants: neither a link's key nor a cookie is stored, only their hashes; a key works once; a session ends with its
token. Every process that serves the same ledger reads the same file, so a session outlives a restart of the server.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from pursuit.config.files import SESSIONS_FILE
from pursuit.server.bind import PAGE_PATH
from pursuit.server.tokens import PrivateFile, TokenHolder, Tokens, fingerprint
from pursuit.service.audit import Caller, local_subject, user_name

CLIENT: Final = "page"
"""The name of the page as a client in the audit."""
CHALLENGE_HEADER: Final = "Pursuit-Challenge"
"""The path at which a server proves to `pursuit page` that it can read the session file, unlike other users'."""
MOST: Final = 1_000
"""Maximum number of sessions and keys; the oldest are dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    link_seconds: float = 3_600.0
    session_seconds: float = 12 * 3_600.0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A key or a session: the hash of its secret, its token's owner, and its expiry.

    `local` if it came from a link that this machine's user created: the audit names that user.
    """

    sha256: str
    owner: str
    expires: float
    local: bool = False


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None
    secret: str = ""
    keys: tuple[Kept, ...] = ()
    sessions: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A signed-in operator; each form must send `csrf` back."""

    holder: TokenHolder
    local: bool
    csrf: str

    @property
    def name(self) -> str:
        return user_name() if self.local else self.holder.name

    @property
    def caller(self) -> Caller:
        person = local_subject() if self.local else f"token:{self.holder.owner}"
        return Caller(who=self.name, transport="http", client=CLIENT, holder=person)

    def may(self, scope: str) -> bool:
        """True if the token has a scope; write implies read."""
        granted = self.holder.granted
        return scope in granted or (scope == "missions:read" and "missions:write" in granted)


class Sessions:
    def __init__(
        self, path: Path, tokens: Tokens, limits: SessionLimits | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._file = PrivateFile(path)
        self._tokens = tokens
        self.limits = limits or SessionLimits()
        self._now = now
        self._seen: tuple[int, int, int] | None = None
        self._kept = _Document()

    @classmethod
    def beside(cls, tokens: Tokens) -> Sessions:
        return cls(tokens.path.with_name(SESSIONS_FILE), tokens)

    def served(self) -> str | None:
        """The address at which a live server serves this ledger's page; None without such a server."""
        url, challenge = self._read().url, secrets.token_urlsafe(32)
        if url is None or not self._read().secret:
            return None
        with suppress(OSError, httpx2.HTTPError, httpx2.InvalidURL):
            answer = httpx2.get(f"{url}/sign-in", timeout=10.0, headers={CHALLENGE_HEADER: challenge})
            if hmac.compare_digest(answer.headers.get(CHALLENGE_HEADER, ""), self.proof(challenge)):
                return url
        return None

    def proof(self, challenge: str) -> str:
        """The answer that only a server with this file can give: another user's server may have taken the port."""
        return hmac.new(self._read().secret.encode(), challenge.encode(errors="replace"), sha256).hexdigest()

    def serve_at(self, url: str) -> str:
        """Stores and returns the page's address, for `pursuit page`; `url` is any address of the server."""
        parts = urlsplit(url)
        root = f"{parts.scheme}://{parts.netloc}{PAGE_PATH}"
        with self._file.alone():
            self._write(msgspec.structs.replace(self._read(), url=root, secret=secrets.token_urlsafe(32)))
        return root

    def link(self, root: str) -> str:
        return f"{root}/sign-in?key={self.link_key()}"

    def link_key(self) -> str:
        return self._add("keys", self._tokens.of_page().owner, self.limits.link_seconds, local=True)

    def redeem(self, key: str) -> str | None:
        """Exchanges a key for the cookie of a new session; None if the key was already used or has expired."""
        shown = fingerprint(key)
        with self._file.alone():
            document = self._read()
            found = next((one for one in document.keys if hmac.compare_digest(one.sha256, shown)), None)
            if found is None:
                return None
            self._write(msgspec.structs.replace(document, keys=tuple(one for one in document.keys if one is not found)))
        if found.expires <= self._now():
            return None
        return self._add("sessions", found.owner, self.limits.session_seconds, local=found.local)

    def begin(self, token: str) -> str | None:
        holder = self._tokens.holder(token)
        if holder is None or not holder.operator:
            return None
        return self._add("sessions", holder.owner, self.limits.session_seconds)

    def find(self, cookie: str) -> Session | None:
        shown, now = fingerprint(cookie), self._now()
        kept = [one for one in self._read().sessions if hmac.compare_digest(one.sha256, shown) and now < one.expires]
        found = kept[0] if kept else None
        holder = None if found is None else self._tokens.owned(found.owner)
        if found is None or holder is None or not holder.operator:
            return None
        csrf = hmac.new(cookie.encode(errors="surrogatepass"), b"csrf", sha256).hexdigest()
        return Session(holder=holder, local=found.local, csrf=csrf)

    def owners(self) -> dict[str, str]:
        return {one.name: f"token:{one.owner}" for one in self._tokens.holders() if not one.operator}

    def end(self, cookie: str) -> None:
        shown = fingerprint(cookie)
        with self._file.alone():
            document = self._read()
            left = tuple(one for one in document.sessions if one.sha256 != shown)
            self._write(msgspec.structs.replace(document, sessions=left))

    def _add(self, where: str, owner: str, seconds: float, *, local: bool = False) -> str:
        secret, now = secrets.token_urlsafe(32), self._now()
        kept = Kept(sha256=fingerprint(secret), owner=owner, expires=now + seconds, local=local)
        with self._file.alone():
            document = self._read()
            live = [one for one in getattr(document, where) if now < one.expires]
            self._write(msgspec.structs.replace(document, **{where: (*live, kept)[-MOST:]}))
        return secret

    def _read(self) -> _Document:
        """Reads the file again whenever it has changed; an absent or damaged file allows no sign-in."""
        try:
            at = self._file.path.stat()
            seen = (at.st_mtime_ns, at.st_size, at.st_ino)
            if seen != self._seen:
                self._kept = msgspec.json.decode(self._file.path.read_bytes(), type=_Document)
                self._seen = seen
        except (OSError, msgspec.DecodeError):
            self._seen, self._kept = None, _Document()
        return self._kept

    def _write(self, document: _Document) -> None:
        self._file.write(msgspec.json.encode(document).decode())
