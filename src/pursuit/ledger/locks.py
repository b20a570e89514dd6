"""Locks on files beside the ledger: the driver's claim on a stream, and the queue of writing processes.

Each lock is an `flock`, which the kernel frees when its holder dies.
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

FileId = tuple[int, int]
"""The device and the inode of a file, which are unique while it is open."""

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
    """Creates the folder and its missing parents, readable only by the owner, whatever the umask."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        try:
            parent.mkdir(mode=PRIVATE_FOLDER)
        except FileExistsError:
            continue
        parent.chmod(PRIVATE_FOLDER)


def open_private(path: Path) -> int:
    """Opens a lock file, or creates it, readable only by the owner, whatever the umask."""
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
        """Does nothing: the operating system frees the lock only at the end of the process."""

    async def release(self) -> None:
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
    """Writes the holder into its lock file, for `holder_of`; a full disk does not prevent the lock."""
    body = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()}).encode()
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, body, 0)


def holder_of(folder: Path, stream: str) -> Holder | None:
    """The process that last took the lock of a stream, by its lock file; None if that cannot be read."""
    require_name(stream)
    try:
        return Holder(**json.loads((folder / f"{stream}.lock").read_bytes()))
    except (OSError, ValueError, TypeError):  # a file of an older release is empty
        return None


def is_claimed(folder: Path, stream: str) -> bool:
    """True if a live process holds the lock of a stream, or if that cannot be determined.

    Takes a shared lock briefly. `take_claim` distinguishes it from a driver's exclusive lock and tries again, so this
    check never makes a claim fail.
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
    """True if others would open the same file as the locked one."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def displaced(path: Path, file: FileId) -> LedgerUnavailable | None:
    """Why the open `file` is no longer the ledger at `path`; None if it is. SQLite would continue silently."""
    try:
        if file_id(path) == file:
            return None
        what = "another file has taken its place"
    except FileNotFoundError:
        what = "it was deleted or moved"
    except OSError as error:
        what = f"its file cannot be read ({error.strerror})"
    advice = "Nothing more is stored or sent. Move the file back, or restore it from a backup, then start again"
    why = f"the ledger {path} is gone: {what} while it was in use. {advice}"
    return LedgerUnavailable(why, path=str(path), reason=what)


def file_id(path: Path) -> FileId:
    found = os.stat(path)  # noqa: PTH116 - once per commit, and pathlib doubles its cost
    return found.st_dev, found.st_ino


class WriteQueue:
    """Lets writing processes in one at a time, as an optimisation: SQLite's own lock keeps them apart.

    Waiting here costs a microsecond per try, where a refused BEGIN costs a back-off of milliseconds.
    """

    def __init__(self, path: Path | None) -> None:
        self._descriptor = None if path is None else open_private(path)
        """None for a read-only database, which needs no queue."""

    @classmethod
    def beside(cls, database: Path) -> WriteQueue:
        return cls(database.with_name(f"{database.name}-gate"))

    def try_enter(self) -> bool:
        """True if this process may write now; waits at most 3 ms. True even on file systems without locks."""
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
        if self._descriptor is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
