"""A server as a child process, spoken to over its stdin and stdout.

Owns: the spawn, the framing (one JSON-RPC message a line), the drain of stderr, and the end of the whole process
group. Does not know: what the messages mean, or how a command is found (`launch`). Invariant: whichever way `stdio` is
left, the process and every child that stayed in its group is gone and reaped, within `GRACE + TERM_GRACE` and a little;
nothing reaches our terminal.

asyncio's own subprocess protocol is used instead of streams and reader tasks: stderr is drained and the exit is seen
even while nobody awaits, a message costs no extra task switch, and the transport has a public `close`.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from pursuit.tools.launch import Launch, command_line, gone, signal_group
from pursuit.tools.stderr import StderrTail
from pursuit.tools.wire import read_message, unwritable, write_message

GRACE = 2.0
TERM_GRACE = 2.0
KILL_GRACE = 2.0
LONGEST_LINE = 64 * 1024 * 1024
_PAUSE_AT = 512
_DRAIN = 0.25


class StdioLine(asyncio.SubprocessProtocol):
    """The process and its pipes; `over` is set when the conversation has ended, for whatever reason."""

    def __init__(self, tail: StderrTail, over: anyio.Event) -> None:
        self._send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self.inbox = _Inbox(receive, self._taken)
        self.outbox = _Outbox(self)
        self.over = over
        self.exited = anyio.Event()
        self.returncode: int | None = None
        self._tail = tail
        self._stderr_done = anyio.Event()
        self._writable = anyio.Event()
        self._writable.set()
        self._stdin_lost = False
        self._paused = False
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._fault: str | None = None

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
        if self._partial_size > LONGEST_LINE:
            self._fault = f"it sent a line of more than {LONGEST_LINE >> 20} MiB"
            self._end()

    def _deliver(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = read_message(line)
        except ValueError:
            # Stray prints to stdout are common; they cost nothing but a line in the tail.
            self._tail.add(b"(on stdout) " + self._tail.blank(line)[:500])
            return
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._send.send_nowait(SessionMessage(message))
        if not self._paused and self._send.statistics().current_buffer_used > _PAUSE_AT:
            self._paused = True
            self._reading().pause_reading()

    def _taken(self) -> None:
        if self._paused and self._send.statistics().current_buffer_used < _PAUSE_AT // 2:
            self._paused = False
            self._reading().resume_reading()

    def _reading(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self.transport.get_pipe_transport(1))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Notes the end of one pipe (asyncio calls this)."""
        if fd == 2:
            self._stderr_done.set()
            return
        self._stdin_lost = self._stdin_lost or fd == 0
        self._end()

    def process_exited(self) -> None:
        """Notes the exit (asyncio calls this); a grandchild may hold stdout open, so its end is soon assumed."""
        self.returncode = self.transport.get_returncode()
        self.exited.set()
        asyncio.get_running_loop().call_later(_DRAIN, self._end)

    def _end(self) -> None:
        """Ends the conversation: `over` first, so that a waiting caller already sees it."""
        self.over.set()
        self._stdin_lost = True
        self._writable.set()
        self._send.close()

    def pause_writing(self) -> None:
        """The pipe is full (asyncio calls this)."""
        self._writable = anyio.Event()

    def resume_writing(self) -> None:
        """The pipe has room again (asyncio calls this)."""
        self._writable.set()

    async def write(self, item: SessionMessage) -> None:
        """Writes one message; a request waits while the pipe is full, so that a cancellation never does."""
        if self._stdin_lost:
            raise unwritable(item)
        cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0)).write(write_message(item.message) + b"\n")
        if not self._writable.is_set() and isinstance(item.message, JSONRPCRequest):
            await self._writable.wait()

    def ending(self) -> str:
        """Why the conversation is over, as the end of a sentence."""
        if self._fault:
            return self._fault
        code = self.returncode
        if code is None:
            return "it closed its pipes"
        return f"its process was ended by {_signal_name(-code)}" if code < 0 else f"its process exited with {code}"

    async def stop(self) -> None:
        """Closes stdin, waits, then ends the group: also what a server that left in good order has left behind."""
        stdin = self.transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        await _within(GRACE, self.exited)
        # The leader's pid is the group's id, and stays taken as long as the group has a member.
        group = self.transport.get_pid()
        if signal_group(group, signal.SIGTERM):
            with anyio.move_on_after(TERM_GRACE):
                await gone(group)
            signal_group(group, signal.SIGKILL)
        await _within(KILL_GRACE, self.exited)
        await _within(_DRAIN, self._stderr_done)
        self.discard()
        self.transport.close()

    def discard(self) -> None:
        """Closes the streams; asyncio itself cleans up after a spawn that failed."""
        self._end()
        self.inbox.close()


class _Inbox:
    """The read stream that the SDK's dispatcher takes; `taken` lets a paused pipe go on."""

    def __init__(self, inner: MemoryObjectReceiveStream[SessionMessage | Exception], taken: Callable[[], None]) -> None:
        self._inner = inner
        self._taken = taken

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        self._taken()
        return item

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        self._inner.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._inner.close()


class _Outbox:
    """The write stream that the SDK's dispatcher takes; closing stdin is left to `StdioLine.stop`."""

    def __init__(self, line: StdioLine) -> None:
        self._line = line

    async def send(self, item: SessionMessage, /) -> None:
        await self._line.write(item)

    async def aclose(self) -> None:
        """Nothing yet: `stop` closes the pipe."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Nothing yet: `stop` closes the pipe."""


@asynccontextmanager
async def stdio(launch: Launch, *, tail: StderrTail, over: anyio.Event) -> AsyncGenerator[StdioLine]:
    """Runs the process for as long as the block; raises `OSError` or `ValueError` if it cannot be started."""
    loop = asyncio.get_running_loop()
    argv = command_line(launch)
    pipe = asyncio.subprocess.PIPE
    line = StdioLine(tail, over)
    try:
        # Quick, and shielded: a cancel in the middle of it would leave a process that nobody stops.
        with anyio.CancelScope(shield=True):
            await loop.subprocess_exec(
                lambda: line,
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=dict(launch.env),
                cwd=launch.cwd,
                start_new_session=True,
            )
    except BaseException:
        line.discard()
        raise
    try:
        yield line
    finally:
        # Bounded inside; a cancelled owner must not leave the process behind.
        with anyio.CancelScope(shield=True):
            await line.stop()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Most real-time signals have no name of their own.
        return f"signal {number}"


async def _within(seconds: float, event: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
