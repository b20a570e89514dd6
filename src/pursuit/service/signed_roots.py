"""Signed roots: the content of the ledger at a time, signed with a key that is kept elsewhere.

A line of a signatures file is JSON: root, time, public key, and an Ed25519 signature over the first two. An attacker
who rewrites the ledger can compute a new root and cannot sign it.
Invariant: lines are only appended, each whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import anyio
import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from pursuit.core.report import iso
from pursuit.engine.context import Clock
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.ledger.contract import Ledger
from pursuit.ledger.roots import parse_root

MAKE_KEY = "openssl genpkey -algorithm ed25519 -out FILE"
_MAX_LINE = 1_000
_TAG = b"pursuit signed root 1\0"
log = logging.getLogger(__name__)


class SignedRoot(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    at: str
    key: str
    signature: str

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}; make one with: {MAKE_KEY}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _wrong(path, f"is not an unencrypted private key in PEM form; make one with: {MAKE_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _wrong(path, f"is not an Ed25519 key; make one with: {MAKE_KEY}")
    return key


def load_public_key(given: str) -> str:
    """Returns a public key as hex; `given` is hex, or the PEM file of the private or the public key."""
    if len(given) == 64 and all(one in "0123456789abcdef" for one in given):
        return given
    path = Path(given)
    try:
        text = path.read_bytes()
        found = load_key(path).public_key() if b"PRIVATE" in text else load_pem_public_key(text)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _wrong(path, "is neither 64 hex digits nor a key in PEM form") from error
    if not isinstance(found, Ed25519PublicKey):
        raise _wrong(path, "is not an Ed25519 key")
    return found.public_bytes_raw().hex()


def sign_root(key: Ed25519PrivateKey, root: str, now: float) -> SignedRoot:
    at = iso(now) or ""
    signature = key.sign(_signed(root, at)).hex()
    return SignedRoot(root=root, at=at, key=key.public_key().public_bytes_raw().hex(), signature=signature)


def append_signature(path: Path, signed: SignedRoot) -> None:
    """Appends a line in one write: several processes may sign. Refuses a file with other content."""
    try:
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                msgspec.json.decode(file.readline(_MAX_LINE), type=SignedRoot)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, signed.line())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except msgspec.MsgspecError:
        raise _wrong(path, "does not begin with a signed root and is left unchanged; name another file") from None
    except OSError as error:
        raise _wrong(path, f"cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Signatures:
    """The content of a signatures file: roots to compare the ledger with, and the faults of invalid lines."""

    roots: Sequence[str]
    faults: Sequence[str]
    keys: frozenset[str]


def read_signatures(path: Path, public_key: str | None) -> Signatures:
    """Checks every signature; without a public key, all lines must have the key of the first line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from error
    roots: list[str] = []
    faults: list[str] = []
    keys: set[str] = set()
    if not lines:
        faults.append(f"{path}: contains no signatures")
    for number, line in enumerate(lines, start=1):
        try:
            signed = msgspec.json.decode(line, type=SignedRoot)
            parse_root(signed.root)
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed.key)).verify(
                bytes.fromhex(signed.signature), _signed(signed.root, signed.at)
            )
        except (msgspec.MsgspecError, ValueError, InvalidSignature, PursuitError):
            faults.append(f"{path}: line {number} is not a signed root, or it was changed")
            continue
        public_key = public_key or signed.key
        keys.add(signed.key)
        if signed.key != public_key:
            faults.append(f"{path}: line {number} is signed with another key, {signed.key}")
        roots.append(signed.root)
    return Signatures(roots, faults, frozenset(keys))


class RootSigner:
    """Signs the root after a number of events or minutes while it is open, and at its end if that is due."""

    def __init__(self, ledger: Ledger, clock: Clock, every: tuple[int, str], key: Path, signatures: Path) -> None:
        self._ledger = ledger
        self._clock = clock
        number, unit = every
        self._events, self._minutes = (number, None) if unit == "events" else (1, number)
        self._key = load_key(key)
        self._path = signatures
        self._signed_at = clock.now()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self.run)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            await self.sign_if_due()

    async def run(self) -> None:
        minutes = self._minutes
        with self._ledger.wakeup() as wakeup:
            while True:
                if minutes is None:
                    await wakeup.wait()
                else:
                    await anyio.sleep(60 * minutes)
                await self.sign_if_due()

    async def sign_if_due(self) -> None:
        """Signs if enough events were stored since the last line of the file, whichever process wrote it."""
        try:
            minutes = self._minutes
            late = minutes is not None and self._clock.now() >= self._signed_at + 60 * minutes
            grown = await self._ledger.stored() - self._last_signed()
            if grown >= self._events and (minutes is None or late):
                root, self._signed_at = await self._ledger.root(), self._clock.now()
                append_signature(self._path, sign_root(self._key, root, self._signed_at))
        except PursuitError as error:
            log.error("the root was not signed: %s", error)

    def _last_signed(self) -> int:
        """The number of events that the last root of the file covers, whichever process wrote it."""
        try:
            lines = self._path.read_bytes().splitlines()
            return parse_root(msgspec.json.decode(lines[-1], type=SignedRoot).root)[0] if lines else 0
        except (OSError, msgspec.MsgspecError, PursuitError):
            return 0


def _signed(root: str, at: str) -> bytes:
    return _TAG + f"{root}\n{at}".encode()


def _wrong(path: Path, reason: str) -> ValidationFailed:
    return ValidationFailed([Fault(field="", reason=reason, source=str(path))], f"{path} {reason}")
