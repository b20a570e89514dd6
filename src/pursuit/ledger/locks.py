"""Locks on files beside the ledger: the driver's claim on a stream, and the queue of writing processes.

Each lock is an `flock`, so the kernel frees it when its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import anyio

from pursuit.errors import InvalidArgument, LedgerUnavailable
from pursuit.ledger.contract import Holder

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_SPINS = 30
_SPIN_SECONDS = 0.00005
# About 3 ms, the length of a few commits: giving up sooner leaves the lock to the process that happens to be awake, and
# doubled the p99 of an append beside two other writing processes.


@lru_cache(maxsize=4_096)
def require_name(stream: str) -> None:
    """Refuses a stream name that could not be a file name everywhere."""
    if _NAME.fullmatch(stream) is None:
        raise InvalidArgument(
            f"{stream!r} is not a stream name: use a-z, 0-9, '-' and '_', at most 128 of them, "
            "and start with a letter or digit",
            stream=stream,
        )


def make_private_folder(folder: Path) -> None:
    """Makes the folder and its missing parents, readable by the owner alone whatever the umask says."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        try:
            parent.mkdir(mode=PRIVATE_FOLDER)
        except FileExistsError:
            continue
        parent.chmod(PRIVATE_FOLDER)


def open_private(path: Path) -> int:
    """Opens a lock file; one that this makes is readable by the owner alone, whatever the umask says."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, PRIVATE_FILE)
        os.fchmod(descriptor, PRIVATE_FILE)
        return descriptor


class StreamClaim:
    """The driver's lock on one stream: see `contract.Claim`."""

    epoch = 0
    expired = False

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self.lost = anyio.Event()

    async def confirm(self) -> None:
        """The operating system frees the lock at the end of the process, and not before."""

    async def release(self) -> None:
        """Frees the lock. Doing it twice is harmless."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        # Unlinked while still held: a process that has just locked this inode notices it in `take_claim` and opens the
        # new file. Where unlinking is refused, the file stays without a lock, and the next holder uses it.
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(descriptor)


def take_claim(folder: Path, stream: str) -> StreamClaim | None:
    """Takes the lock of a stream, or None if a holder in this or another process has it."""
    require_name(stream)
    path = folder / f"{stream}.lock"
    try:
        make_private_folder(folder)
        while True:
            descriptor = open_private(path)
            held = False
            try:
                if _try_lock(descriptor, fcntl.LOCK_EX):
                    held = _is_still_at(path, descriptor)
                elif not _try_lock(descriptor, fcntl.LOCK_SH):
                    return None
                if held:
                    _sign(descriptor)
                    return StreamClaim(path, descriptor)
            finally:
                if not held:
                    os.close(descriptor)
            # The file was unlinked by its last holder, or `is_claimed` had its shared lock on it: try again.
            time.sleep(_SPIN_SECONDS)
    except OSError as error:
        raise LedgerUnavailable(
            f"cannot lock {path}: {error.strerror}; the ledger's folder must be writable and on a disk with file locks",
            path=str(path),
        ) from error


def _sign(descriptor: int) -> None:
    """Writes the holder into its lock file, for `holder_of`; a disk that is full does not refuse the lock."""
    body = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()}).encode()
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, body, 0)


def holder_of(folder: Path, stream: str) -> Holder | None:
    """The process that took the lock of a stream last, as its lock file says; None if that cannot be read."""
    require_name(stream)
    try:
        return Holder(**json.loads((folder / f"{stream}.lock").read_bytes()))
    except (OSError, ValueError, TypeError):  # a file of an older release is empty
        return None


def is_claimed(folder: Path, stream: str) -> bool:
    """Whether a live process holds the lock of a stream; where that cannot be found out, the answer is yes.

    Takes a shared lock for a moment. `take_claim` tells it from the exclusive one of a driver and tries again, so
    asking never refuses a claim.
    """
    require_name(stream)
    path = folder / f"{stream}.lock"
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            if not _try_lock(descriptor, fcntl.LOCK_SH):
                return True
            if _is_still_at(path, descriptor):
                return False
        except OSError:
            return True
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one that others would open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class WriteQueue:
    """Lets writing processes in one at a time, as a courtesy: SQLite's own lock is what keeps them apart.

    Waiting here costs a microsecond per try, where a refused BEGIN costs a back-off of milliseconds.
    """

    def __init__(self, path: Path | None) -> None:
        self._descriptor = None if path is None else open_private(path)
        """None for a database that cannot be written, where nothing queues."""

    @classmethod
    def beside(cls, database: Path) -> WriteQueue:
        """The queue of a database file."""
        return cls(database.with_name(f"{database.name}-gate"))

    def try_enter(self) -> bool:
        """Whether this process may write now; waits at most 3 ms. True also where the file system has no locks."""
        if self._descriptor is None:
            return True
        for _ in range(_SPINS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_SPIN_SECONDS)
            except OSError:
                return True
            else:
                return True
        return False

    def leave(self) -> None:
        """Lets the next process in."""
        if self._descriptor is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the lock file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
