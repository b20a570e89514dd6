"""The stdio transport: a server as a child process; messages use its stdin and stdout.

However `stdio` is left, the process and each child in its process group have ended and are reaped soon after
`stdin_grace + term_grace`; nothing reaches our terminal.

asyncio's own subprocess protocol is used: it drains stderr and notices the exit even while no task waits, a message
costs no extra task switch, and the transport has a public `close`.

If *we* are killed with SIGKILL, the server sees the end of its stdin; on Linux it also gets SIGTERM from the kernel.
util-linux's `setpriv` arranges that where it works, and then becomes the server. A `preexec_fn` could do the same: it
runs Python between fork and exec, which may deadlock when other threads hold locks, and Python 3.12 warns. The kernel
watches the *thread* that started the server, which must live as long as the pool; the event loop's thread does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Self, cast

import anyio
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
# The bytes of a too long message that are read to learn which request it answers.
_BEGINNING = 1024


def command_line(config: ServerConfig, env: Mapping[str, str]) -> Sequence[str]:
    """The argv to run, with the program found in the server's own PATH; the `OSError` names what is missing."""
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
    """The prefix that ends a command when this process ends; empty where that fails, which is tried once."""
    if sys.platform != "linux" or launcher is None:
        return ()
    words = (launcher, "--pdeathsig", "TERM", "--")
    try:
        # Other builds of setpriv lack the option, and a container may forbid it.
        tried = subprocess.run([*words, "true"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if tried.returncode == 0 else ()


class StdioProcess(asyncio.subprocess.SubprocessStreamProtocol, DispatcherStream):
    """The process, as both streams of the SDK's dispatcher; sets `closed` when the connection ends for any reason."""

    def __init__(self, tail: StderrTail, closed: anyio.Event, settings: ClientSettings) -> None:
        super().__init__(limit=settings.limits.result, loop=asyncio.get_running_loop())
        self._closed = closed
        self._settings = settings
        self._tail = tail
        self._stderr_done = anyio.Event()
        self._exited = anyio.Event()
        self._fault: str | None = None
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd == 2:
            self._tail.feed(cast("bytes", data))
        else:
            super().pipe_data_received(fd, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        if fd == 2:
            self._stderr_done.set()
        elif fd == 0:
            self._closed.set()

    def process_exited(self) -> None:
        """Called by asyncio at the exit. A grandchild may hold stdout open, so the end of stdout is soon assumed."""
        super().process_exited()
        self._exited.set()
        asyncio.get_running_loop().call_later(_DRAIN, self._closed.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        """The next message; a faulty one fails the call that it answers, or ends the connection."""
        while (found := await self._line()) is not None:
            line, fault = found
            try:
                message = read_message(line) if fault is None else _failed_answer(line, fault)
            except TooDeep as error:
                fault = f"it sent a message that {error}"
                message = _failed_answer(line, fault)
            except ValueError:
                self._note_stray(line.strip())
                continue
            if message is None:
                self._fault = fault
                break
            self._spoke, self._tail.stray = True, None
            return SessionMessage(message)
        self._closed.set()  # first, so that a waiting caller already sees it
        raise anyio.EndOfStream

    async def _line(self) -> tuple[bytes, str | None] | None:
        """The next line, or the beginning of a line that is too long and the reason to refuse it; None at the end."""
        stdout = cast("asyncio.StreamReader", self.stdout)
        beginning = b""
        while True:
            try:
                line = await stdout.readuntil()
            except asyncio.IncompleteReadError:
                return None
            except asyncio.LimitOverrunError as error:
                skipped = await stdout.readexactly(error.consumed)
                beginning = beginning or skipped[:_BEGINNING]
                continue
            if not beginning:
                return line, None
            return beginning, too_large("it sent a line of", "result", self._settings.limits.result)

    def _note_stray(self, line: bytes) -> None:
        """Records a line that is not a message. If nothing else ever comes, this is not an MCP server."""
        shown = self._tail.redact_bytes(line)[:500]
        if shown and self._spoke:
            self._tail.add(b"(on stdout) " + shown)
        elif shown and self._tail.stray is None:
            self._tail.stray = shown.decode(errors="replace")

    async def send(self, item: SessionMessage, /) -> None:
        """Writes one message; a request waits while the pipe is full, a notification never does."""
        if self._closed.is_set():
            raise closed_stream_error(item)
        stdin = cast("asyncio.StreamWriter", self.stdin)
        stdin.write(write_message(item.message) + b"\n")
        if isinstance(item.message, JSONRPCRequest):
            with suppress(ConnectionError):  # no answer will come
                await stdin.drain()

    def close_reason(self) -> str:
        if self._fault:
            return self._fault
        code = self.transport.get_returncode()
        if code is None:
            return "it closed its pipes"
        return f"its process was ended by {signal_name(-code)}" if code < 0 else f"its process exited with {code}"

    async def stop(self) -> None:
        """Closes stdin, waits, then ends the process group, including children that a clean exit left behind."""
        cast("asyncio.StreamWriter", self.stdin).close()
        await _within(self._settings.stdin_grace, self._exited)
        await end_group(self.transport.get_pid(), self._settings.term_grace)
        await _within(KILL_GRACE, self._exited)
        await _within(_DRAIN, self._stderr_done)
        self._closed.set()
        self.transport.close()


@asynccontextmanager
async def stdio(config: ServerConfig, tail: StderrTail, closed: anyio.Event) -> AsyncGenerator[StdioProcess]:
    """Runs the process of an expanded configuration while the block runs.

    Raises `OSError` or `ValueError` if it cannot be started.
    """
    env = get_default_environment() | dict(config.env)
    argv = command_line(config, env)
    process = StdioProcess(tail, closed, config.client)
    await start_protocol(process, argv, cwd=config.cwd, env=env)
    try:
        yield process
    finally:
        # Bounded inside; a cancelled owner must not leave the process behind.
        with anyio.CancelScope(shield=True):
            await process.stop()


def _failed_answer(line: bytes, fault: str) -> JSONRPCError | None:
    """The failure of the request that a line answers; None if the beginning of the line does not name the request."""
    try:
        found = from_json(line[:_BEGINNING], allow_partial=True)
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
