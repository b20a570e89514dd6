"""The stdio transport: a server as a child process, spoken to over its stdin and stdout.

However `stdio` is left, the process and each child that stayed in its process group is gone and reaped, within
`stdin_grace + term_grace` and a little; nothing reaches our terminal.

asyncio's own subprocess protocol is used instead of streams and reader tasks: stderr is drained and the exit is seen
even while no task waits, a message costs no extra task switch, and the transport has a public `close`.

If *we* are killed with SIGKILL, the server sees the end of its stdin; on Linux it also gets SIGTERM from the kernel.
util-linux's `setpriv` arranges that where it works, and then becomes the server. A `preexec_fn` could do the same: it
runs Python between fork and exec, which may deadlock when other threads hold locks, and Python 3.12 warns. The kernel
watches the *thread* that started the server, which must live as long as the pool; the event loop's thread does.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL
from typing import Self, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from pursuit.config.servers import ClientSettings, ServerConfig
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.transport import (
    DispatcherStream,
    TooDeep,
    closed_stream_error,
    read_message,
    too_large,
    write_message,
)

_POLL = 0.01
KILL_GRACE = 2.0
# How long stdout and stderr may stay open after the exit: a grandchild may hold them.
_DRAIN = 0.25


def command_line(config: ServerConfig, env: Mapping[str, str]) -> Sequence[str]:
    """The argv to run, its program looked up in the server's own PATH. Raises `OSError` that says what is missing."""
    command = config.command or ""
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise FileNotFoundError(f"the working directory {config.cwd} does not exist")
    program = shutil.which(command, path=env.get("PATH", os.defpath))
    if program is None:
        why = "is not executable" if "/" in command and Path(command).exists() else "was not found"
        raise FileNotFoundError(f"the command {command!r} {why}")
    words = (program, *config.args)
    if config.isolation is not None:
        words = tuple(config.isolation.words(words, Path(config.cwd or ".").absolute()))
    return (*_death_signal_launcher(shutil.which("setpriv")), *words)


@cache
def _death_signal_launcher(launcher: str | None) -> Sequence[str]:
    """The words before a command that end it with us; none where they do not work, which is tried once."""
    if sys.platform != "linux" or launcher is None:
        return ()
    words = (launcher, "--pdeathsig", "TERM", "--")
    try:
        # Other builds of setpriv know no such option, and a container may forbid what it does.
        tried = subprocess.run([*words, "true"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if tried.returncode == 0 else ()


def signal_group(group: int, number: int) -> bool:
    """Signals each process of the group; returns whether there was one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member changed its user, or macOS says so of a zombie: the group may still have a process.
        pass
    return True


async def gone(group: int) -> None:
    """Waits until the group has no process left; the end of a process that is not our child can only be polled for."""
    while signal_group(group, 0):  # noqa: ASYNC110 - there is no event for it
        await anyio.sleep(_POLL)


class StdioProcess(asyncio.SubprocessProtocol, DispatcherStream):
    """The process and its pipes; sets `closed` when the connection has ended for any reason."""

    def __init__(self, tail: StderrTail, closed: anyio.Event, settings: ClientSettings) -> None:
        self._send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self.read_stream = _ReadStream(receive, self._taken)
        self._closed = closed
        self._settings = settings
        self.exited = anyio.Event()
        self.returncode: int | None = None
        self._tail = tail
        self._stderr_done = anyio.Event()
        self._writable = anyio.Event()
        self._writable.set()
        self._stdin_lost = False
        self._paused = False
        self._unread: deque[int] = deque()
        self._unread_size = 0
        """The bytes of the messages that wait to be read; the pipe is paused while they are too many."""
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._fault: str | None = None
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport (asyncio calls this)."""
        self.transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Takes what the server wrote (asyncio calls this)."""
        if fd == 2:
            self._tail.feed(data)
            return
        if self._fault:
            return
        *lines, rest = data.split(b"\n")
        if lines:
            self._deliver(b"".join((*self._partial, lines[0])))
            for line in lines[1:]:
                self._deliver(line)
            self._partial, self._partial_size = [], 0
        self._partial.append(rest)
        self._partial_size += len(rest)
        most = self._settings.limits.result
        if self._partial_size > most:
            self._break(too_large("it sent a line of", "result", most))

    def _deliver(self, line: bytes) -> None:
        if not line.strip() or self._fault:
            return
        most = self._settings.limits.result
        if len(line) > most:
            self._break(too_large("it sent a line of", "result", most))
            return
        try:
            message = read_message(line)
        except TooDeep as error:
            # Whose answer it is cannot be read, so all calls that wait get the reason.
            self._break(f"it sent a message that {error}")
            return
        except ValueError:
            # Stray prints to stdout are common. If nothing else ever comes, it is not an MCP server.
            shown = self._tail.redact_bytes(line)[:500]
            if self._spoke:
                self._tail.add(b"(on stdout) " + shown)
            elif self._tail.stray is None:
                self._tail.stray = shown.decode(errors="replace").strip()
            return
        self._spoke, self._tail.stray = True, None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._send.send_nowait(SessionMessage(message))
            self._unread.append(len(line))
            self._unread_size += len(line)
        if not self._paused and self._unread_size > self._settings.limits.queued:
            self._paused = True
            self._reading().pause_reading()

    def _break(self, fault: str) -> None:
        self._fault = fault
        self._partial, self._partial_size = [], 0
        self._end()

    def _taken(self) -> None:
        self._unread_size -= self._unread.popleft()
        if self._paused and self._unread_size <= self._settings.limits.queued // 2:
            self._paused = False
            self._reading().resume_reading()

    def _reading(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self.transport.get_pipe_transport(1))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Notes the end of one pipe (asyncio calls this)."""
        if fd == 2:
            self._stderr_done.set()
        else:
            self._end()

    def process_exited(self) -> None:
        """Notes the exit (asyncio calls this); a grandchild may hold stdout open, so its end is soon assumed."""
        self.returncode = self.transport.get_returncode()
        self.exited.set()
        asyncio.get_running_loop().call_later(_DRAIN, self._end)

    def _end(self) -> None:
        """Ends the connection: `closed` first, so that a waiting caller already sees it."""
        self._closed.set()
        self._stdin_lost = True
        self._writable.set()
        self._send.close()

    def pause_writing(self) -> None:
        """The pipe is full (asyncio calls this)."""
        self._writable = anyio.Event()

    def resume_writing(self) -> None:
        """The pipe has room again (asyncio calls this)."""
        self._writable.set()

    async def send(self, item: SessionMessage, /) -> None:
        """Writes one message; a request waits while the pipe is full, so that a cancellation never does."""
        if self._stdin_lost:
            raise closed_stream_error(item)
        cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0)).write(write_message(item.message) + b"\n")
        if not self._writable.is_set() and isinstance(item.message, JSONRPCRequest):
            await self._writable.wait()

    def close_reason(self) -> str:
        """Why the connection ended, as the end of a sentence."""
        if self._fault:
            return self._fault
        code = self.returncode
        if code is None:
            return "it closed its pipes"
        return f"its process was ended by {_signal_name(-code)}" if code < 0 else f"its process exited with {code}"

    async def stop(self) -> None:
        """Closes stdin, waits, then ends the process group: also children that a clean exit has left behind."""
        stdin = self.transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        await _within(self._settings.stdin_grace, self.exited)
        # The leader's pid is the group's id, and stays taken as long as the group has a member.
        group = self.transport.get_pid()
        if signal_group(group, signal.SIGTERM):
            with anyio.move_on_after(self._settings.term_grace):
                await gone(group)
            signal_group(group, signal.SIGKILL)
        await _within(KILL_GRACE, self.exited)
        await _within(_DRAIN, self._stderr_done)
        self.discard()
        self.transport.close()

    def discard(self) -> None:
        """Closes the streams; asyncio itself cleans up after a spawn that failed."""
        self._end()
        self.read_stream.close()


class _ReadStream(DispatcherStream):
    """The read stream for the SDK's dispatcher; `taken` resumes a paused pipe."""

    def __init__(self, inner: MemoryObjectReceiveStream[SessionMessage | Exception], taken: Callable[[], None]) -> None:
        self._inner = inner
        self._taken = taken
        self.close = inner.close

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        self._taken()
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


@asynccontextmanager
async def stdio(config: ServerConfig, tail: StderrTail, closed: anyio.Event) -> AsyncGenerator[StdioProcess]:
    """Runs the process of an expanded configuration for as long as the block.

    Raises `OSError` or `ValueError` if it cannot be started.
    """
    loop = asyncio.get_running_loop()
    env = get_default_environment() | dict(config.env)
    argv = command_line(config, env)
    pipe = asyncio.subprocess.PIPE
    process = StdioProcess(tail, closed, config.client)
    try:
        # Quick, and shielded: a cancellation in the middle would leave a process that is never stopped.
        with anyio.CancelScope(shield=True):
            await loop.subprocess_exec(
                lambda: process,
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=env,
                cwd=config.cwd,
                start_new_session=True,
            )
    except BaseException:
        process.discard()
        raise
    try:
        yield process
    finally:
        # Bounded inside; a cancelled owner must not leave the process behind.
        with anyio.CancelScope(shield=True):
            await process.stop()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Most real-time signals have no name of their own.
        return f"signal {number}"


async def _within(seconds: float, event: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
