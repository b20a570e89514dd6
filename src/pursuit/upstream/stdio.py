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
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Self, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest
from pydantic_core import from_json

from pursuit.config.servers import ClientSettings, ServerConfig
from pursuit.processes.groups import end_group, start_protocol
from pursuit.processes.subreaper import signal_name
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.transport import (
    CallBroken,
    DispatcherStream,
    TooDeep,
    closed_stream_error,
    read_message,
    too_large,
    write_message,
)

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
        self._skipping = False
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
        for line in lines:
            self._keep(line)
            if not self._skipping:
                self._deliver(b"".join(self._partial))
            self._partial, self._partial_size, self._skipping = [], 0, False
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        """Keeps a part of a line, which is skipped beyond the limit."""
        self._partial.append(part)
        self._partial_size += len(part)
        most = self._settings.limits.result
        if self._partial_size > most and not self._skipping:
            self._deliver(b"".join(self._partial), too_large("it sent a line of", "result", most))
            self._skipping = True
        if self._skipping:
            self._partial.clear()

    def _deliver(self, line: bytes, fault: str | None = None) -> None:
        """Hands a message on; one with a fault fails the call that it answers, or ends the connection."""
        if not line.strip() or self._fault:
            return
        try:
            message = read_message(line) if fault is None else _failed_answer(line, fault)
        except TooDeep as error:
            self._deliver(line, f"it sent a message that {error}")
            return
        except ValueError:
            # Stray prints to stdout are common. If nothing else ever comes, it is not an MCP server.
            shown = self._tail.redact_bytes(line)[:500]
            if self._spoke:
                self._tail.add(b"(on stdout) " + shown)
            elif self._tail.stray is None:
                self._tail.stray = shown.decode(errors="replace").strip()
            return
        if message is None:
            self._fault = fault or ""
            self._partial, self._partial_size = [], 0
            self._end()
            return
        self._spoke, self._tail.stray = True, None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._send.send_nowait(SessionMessage(message))
            self._unread.append(len(line))
            self._unread_size += len(line)
        if not self._paused and self._unread_size > self._settings.limits.queued:
            self._paused = True
            self._reading().pause_reading()

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
        return f"its process was ended by {signal_name(-code)}" if code < 0 else f"its process exited with {code}"

    async def stop(self) -> None:
        """Closes stdin, waits, then ends the process group: also children that a clean exit has left behind."""
        stdin = self.transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        await _within(self._settings.stdin_grace, self.exited)
        await end_group(self.transport.get_pid(), self._settings.term_grace)
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
    env = get_default_environment() | dict(config.env)
    argv = command_line(config, env)
    process = StdioProcess(tail, closed, config.client)
    try:
        await start_protocol(process, argv, cwd=config.cwd, env=env)
    except BaseException:
        process.discard()
        raise
    try:
        yield process
    finally:
        # Bounded inside; a cancelled owner must not leave the process behind.
        with anyio.CancelScope(shield=True):
            await process.stop()


def _failed_answer(line: bytes, fault: str) -> JSONRPCError | None:
    """The failure of the request that a line answers; None if the first KiB of the line does not show which one."""
    try:
        found = from_json(line[:1024], allow_partial=True)
    except ValueError:
        return None
    given = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    known = given.get("id")
    answers = "method" not in given and ("result" in given or "error" in given)
    if not answers or type(known) not in (int, str) or [*given][-1] == "id":  # the last value may be cut
        return None
    return JSONRPCError(jsonrpc="2.0", id=known, error=ErrorData(code=0, message=fault, data=CallBroken(fault)))


async def _within(seconds: float, event: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
