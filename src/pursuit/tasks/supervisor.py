"""The supervisor: a small process that starts commands, spools their output and records their exit.

It runs as a script that needs only the standard library, and so stays small. It outlives the process that started it:
after the end of its standard input it runs until the last command has ended.
Invariant: all bytes are in the spool in order or counted in a gap; `exit` is written after them.

On Linux each command runs below its own child subreaper (prctl(2)): what the command starts stays below it, in any
session and with any environment, for as long as the command runs. The subreaper is forked from the supervisor, reaps
orphans, and ends as the command ends.

In the folder of one command: `claim` (the process that may start it), `meta` (its processes), `out.N`, `err.N` (its
output), `out.N.gap` (how many bytes were dropped there) and `exit`. The command writes `meta` itself, before it calls
exec: a running command is always recorded, even if its supervisor dies, and an abandoned command does not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from pursuit.processes.subreaper import TAG, start_below, subreaping, this_process

READ = 1 << 18
LOOK_EVERY = 0.05
QUIET = 1.0
"""Seconds of silence, and in total, to wait after a command's end if another process holds its output open."""
MAX_DRAIN = 5.0
RETRY = 1.0
STREAMS = ("out", "err")


def segment_name(stream: str, number: int) -> str:
    return f"{stream}.{number:06d}"


def write_whole(path: str, body: dict[str, Any], *, lasting: bool = True) -> None:
    """Writes a file completely or not at all; a `lasting` one also survives a loss of power."""
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - it is a descriptor
        json.dump(body, file)
        if lasting:
            file.flush()
            os.fsync(descriptor)
    os.rename(f"{path}.new", path)  # noqa: PTH104 - pathlib is not worth its memory here


def write_once(path: str, body: dict[str, Any], *, lasting: bool = True) -> None:
    own = f"{path}.{os.getpid()}"
    write_whole(own, body, lasting=lasting)
    try:
        os.link(own, path)
    finally:
        os.unlink(own)  # noqa: PTH108 - pathlib is not worth its memory here


def claim(path: str, who: dict[str, Any]) -> None:
    """Claims the right to start a command, which is valid only while the claiming process runs."""
    write_once(path, who, lasting=False)


class Stream:
    def __init__(self, child: ChildProcess, name: str, descriptor: int) -> None:
        self.child = child
        self.name = name
        self.descriptor = descriptor
        self.is_open = True
        self.number = 0
        self.file = -1
        self.size = 0
        self.kept: dict[int, int] = {}
        self.dropped = 0

    def take(self, data: memoryview) -> None:
        """Spools the data, or counts it as dropped if the spool is full."""
        while data:
            fits = not self.dropped and self.size < self.child.segment and self.file >= 0
            if not fits and not self.child.has_room():
                self.dropped += len(data)
                return
            try:
                if self.file < 0 or self.dropped or self.size >= self.child.segment:
                    self._next()
                written = os.write(self.file, data[: self.child.segment - self.size])
            except OSError:  # a full disk must not stop the command
                self.dropped += len(data)
                return
            self.size += written
            self.kept[self.number] = self.size
            data = data[written:]

    def _next(self) -> None:
        """Begins a segment, after recording a gap before it."""
        self.close()
        if self.dropped:
            self.note_gap()
        path = self.child.path(segment_name(self.name, self.number + 1))
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.number, self.size = self.number + 1, 0
        self.kept[self.number] = 0

    def note_gap(self) -> None:
        write_whole(self.child.path(segment_name(self.name, self.number + 1) + ".gap"), {"dropped": self.dropped})
        self.number, self.dropped = self.number + 1, 0

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class ChildProcess:
    def __init__(self, request: dict[str, Any]) -> None:
        self.id: str = request["id"]
        self.folder: str = request["folder"]
        self.segment: int = request["segment"]
        self.unread: int = request["unread"]
        self.streams: list[Stream] = []
        self.code: int | None = None
        self.ended = 0.0
        self.last = 0.0
        self.noted = False
        self.looked = 0.0
        self.process: subprocess.Popen[bytes]

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def start(
        self,
        request: dict[str, Any],
        supervisor: dict[str, Any],
        unraised: tuple[int, int],
        become_subreaper: Callable[[], None] | None,
    ) -> None:
        """Starts it with its own pipes in its own session.

        Raises `OSError`, `ValueError` or `SubprocessError`.
        """
        pipes = [os.pipe() for _ in STREAMS]

        def prepare() -> None:
            below = {} if become_subreaper is None else {"subreaper": start_below(become_subreaper)}
            body = {**this_process(), "at": time.time(), **below, "supervisor": supervisor}
            write_once(self.path("meta"), body)
            # A command must not inherit the limit that was raised for us.
            resource.setrlimit(resource.RLIMIT_NOFILE, unraised)

        try:
            self.process = subprocess.Popen(  # noqa: S603 - its job is to run the operator's command
                request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                cwd=request["cwd"],
                env={**request["env"], TAG: self.id},
                start_new_session=become_subreaper is None,
                preexec_fn=prepare,  # noqa: PLW1509 - one thread only, so this is safe
            )
        except BaseException:
            for reading, _ in pipes:
                os.close(reading)
            raise
        finally:
            for _, writing in pipes:
                os.close(writing)
        for name, (reading, _) in zip(STREAMS, pipes, strict=True):
            os.set_blocking(reading, False)
            self.streams.append(Stream(self, name, reading))

    def has_room(self) -> bool:
        """True if fewer than `unread` bytes are unread; the reader removes what it has read."""
        if self._unread() < self.unread:
            return True
        now = time.monotonic()
        if now - self.looked < LOOK_EVERY:
            return False
        self.looked = now
        for stream in self.streams:
            for number in [number for number in stream.kept if number != stream.number]:
                if not os.path.exists(self.path(segment_name(stream.name, number))):  # noqa: PTH110
                    del stream.kept[number]
        return self._unread() < self.unread

    def _unread(self) -> int:
        return sum(sum(stream.kept.values()) for stream in self.streams)

    def is_complete(self, now: float) -> bool:
        """True if it has ended and its output is complete: its pipes are closed, or have been silent long enough."""
        if self.code is None:
            return False
        quiet = now - max(self.last, self.ended)
        return not any(one.is_open for one in self.streams) or quiet > QUIET or now - self.ended > MAX_DRAIN

    def note_end(self) -> None:
        """Records the exit, after everything else; it is not `noted` if the disk was full, and is tried again."""
        try:
            for stream in self.streams:
                stream.close()
                if stream.dropped:
                    stream.note_gap()
            write_whole(self.path("exit"), {"code": self.code, "at": time.time()})
        except OSError:
            # Without its folder the exit is of no use.
            self.noted = not os.path.isdir(self.folder)  # noqa: PTH112 - pathlib is not worth its memory here
        else:
            self.noted = True


class Supervisor:
    def __init__(self, control: socket.socket) -> None:
        self.control: socket.socket | None = control
        self.selector = selectors.DefaultSelector()
        self.children: dict[str, ChildProcess] = {}
        self.buffer = memoryview(bytearray(READ))
        self.said = b""
        self.become_subreaper = subreaping()
        self.me = this_process()
        self.unraised = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.unraised[1], self.unraised[1]))
        control.setblocking(False)
        self.selector.register(control, selectors.EVENT_READ)
        self.wake, waker = socket.socketpair()
        self.waker = waker  # kept, or it would be closed
        for one in (self.wake, waker):
            one.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        # Handlers and not SIG_IGN, which the commands would inherit.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        self.selector.register(self.wake, selectors.EVENT_READ)

    def run(self) -> None:
        while self.control is not None or self.children:
            for key, _ in self.selector.select(self._patience()):
                if key.fileobj is self.control:
                    self._receive()
                elif key.fileobj is self.wake:
                    self._reap()
                else:
                    self._drain(key.data)
            self._finish()

    def _patience(self) -> float | None:
        return RETRY / 4 if any(one.code is not None and not one.noted for one in self.children.values()) else None

    def _receive(self) -> None:
        assert self.control is not None  # noqa: S101 - only called while it is open
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(self.control)
            self.control.close()
            self.control = None
            return
        *requests, self.said = (self.said + data).split(b"\n")
        for request in requests:
            self._start(json.loads(request))

    def _start(self, request: dict[str, Any]) -> None:
        """Starts one command, unless it was abandoned or started before; `meta` records the outcome."""
        child = ChildProcess(request)
        try:
            claim(child.path("claim"), self.me)
        except FileExistsError:
            return
        except OSError as error:
            self._refuse(child, str(error))
            return
        try:
            child.start(request, self.me, self.unraised, self.become_subreaper)
        except (OSError, ValueError) as error:
            self._refuse(child, str(error))
            return
        except subprocess.SubprocessError:  # Python does not tell which error occurred in the forked process
            self._refuse(child, f"its processes cannot be recorded in {child.folder}, or cannot be created")
            return
        self.children[child.id] = child
        for stream in child.streams:
            self.selector.register(stream.descriptor, selectors.EVENT_READ, stream)

    def _refuse(self, child: ChildProcess, why: str) -> None:
        with contextlib.suppress(OSError):
            write_whole(child.path("meta"), {"refused": f"the command was not started: {why}"})
            # A reader that found `meta` before exec failed waits for the exit.
            write_whole(child.path("exit"), {"code": 127, "at": time.time()})

    def _drain(self, stream: Stream) -> None:
        try:
            count = os.readv(stream.descriptor, [self.buffer])
        except BlockingIOError:
            return
        if count == 0:
            self.selector.unregister(stream.descriptor)
            os.close(stream.descriptor)
            stream.is_open = False
            return
        if stream.child.noted:
            return  # a process outlives the command: its output is dropped, but a broken pipe must not end it
        stream.child.last = time.monotonic()
        stream.take(self.buffer[:count])

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        for child in self.children.values():
            if child.code is None and child.process.poll() is not None:
                child.code, child.ended = child.process.returncode, time.monotonic()

    def _finish(self) -> None:
        now = time.monotonic()
        for child in [one for one in self.children.values() if one.code is not None]:
            if not child.noted and child.is_complete(now):
                child.note_end()
            if child.noted and not any(stream.is_open for stream in child.streams):
                del self.children[child.id]


def main() -> None:
    if os.fork():  # the process that started us does not wait for our end
        os._exit(0)
    os.chdir("/")
    Supervisor(socket.socket(fileno=0)).run()
