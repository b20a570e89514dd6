"""Serves MCP over standard input and output.

While it serves, other writes to standard output go to standard error, and children read an empty standard input.
Invariant: the client gets only complete JSON-RPC lines, an invalid line is refused without affecting later ones, and a
signal ends the server immediately.

The SDK's transport reads each line in a worker thread, which a signal cannot interrupt. Pipes, sockets and terminals
are read without one; anything else (a file) is left to the SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from pursuit.config.servers import LIMITS
from pursuit.upstream.transport import DispatcherStream, TooDeep, write_message

MAX_LINE = LIMITS.result
TOO_LONG = b"(too long)\n"
LAST_ANSWERS = 1.0
"""Seconds for responses to requests just before the end of the input."""


async def serve_stdio(server: Server[Any]) -> None:
    """Serves one client until it closes our standard input."""
    options = server.create_initialization_options()
    if _can_wait(0) and _can_wait(1):
        async with _own_pipes() as (inbox, outbox):
            await server.run(inbox, outbox, options)
    else:
        async with stdio_server() as (read, write):
            await server.run(read, write, options)


def _can_wait(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


@asynccontextmanager
async def _own_pipes() -> AsyncGenerator[tuple[MemoryObjectReceiveStream[SessionMessage | Exception], _Outbox]]:
    """The streams of the client's messages and of ours."""
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    terminal = os.dup(0) if os.isatty(0) else None
    for descriptor, other in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.dup(2))):
        os.dup2(other, descriptor)
        os.close(other)
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    lines = asyncio.StreamReader(limit=MAX_LINE)
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(source, "rb", 0))
    writing, protocol = await loop.connect_write_pipe(_Writable, os.fdopen(sink, "wb", 0))
    outbox = _Outbox(writing, protocol)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, lines, send, outbox)
            yield receive, outbox
            tasks.cancel_scope.cancel()
    finally:
        reading.close()
        writing.close()
        if terminal is not None:  # the shell shares the terminal and expects blocking reads
            os.set_blocking(terminal, True)
            os.close(terminal)


async def _read(
    lines: asyncio.StreamReader, send: MemoryObjectSendStream[SessionMessage | Exception], outbox: _Outbox
) -> None:
    with send, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            line = await _line(lines)
            if not line:
                break
            if not line.strip():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError as error:
                refusal = _refusal(line, error)
                if refusal is not None:
                    await outbox.send(SessionMessage(refusal))
                continue
            match message:
                case JSONRPCRequest():
                    outbox.owed.add(message.id)
                case JSONRPCNotification(method="notifications/cancelled", params={"requestId": int() | str() as id_}):
                    outbox.owed.discard(id_)  # cancelled requests get no response
                case _:
                    pass
            await send.send(SessionMessage(message))
        for _ in range(10):  # in parts, of which loading the modules for a first request uses up only one
            with anyio.move_on_after(LAST_ANSWERS / 10):
                await outbox.settled()


async def _line(lines: asyncio.StreamReader) -> bytes:
    """The next line, empty at the end; returns `TOO_LONG` in place of a line beyond the limit."""
    too_long = False
    while True:
        try:
            line = await lines.readuntil()
        except asyncio.LimitOverrunError as beyond:
            await lines.readexactly(beyond.consumed)
            too_long = True
            continue
        except asyncio.IncompleteReadError as end:
            line = end.partial
        return TOO_LONG if too_long else line


def _refusal(line: bytes, error: ValidationError) -> JSONRPCError | None:
    """The error for an invalid line, so that its client does not wait forever; None for a response."""
    said: object = None
    with suppress(ValueError, RecursionError):
        said = json.loads(line)
    given = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    if "method" not in given and ("result" in given or "error" in given):
        return None
    fault = error.errors(include_url=False, include_input=False)[0]
    if line is TOO_LONG:
        code, why = PARSE_ERROR, f"a message has at most {MAX_LINE} bytes (limit `result`)"
    elif "recursion limit" in fault["msg"]:
        code, why = PARSE_ERROR, f"a message {TooDeep()}"
    elif fault["type"] == "json_invalid":
        code, why = PARSE_ERROR, fault["msg"]
    else:
        code, why = INVALID_REQUEST, "not one JSON-RPC 2.0 message: it needs jsonrpc, method and an id; no batches"
    number = given.get("id")
    known = number if isinstance(number, int | str) and not isinstance(number, bool) else None
    if isinstance(known, str):
        known = known.encode(errors="replace").decode()
    return JSONRPCError(jsonrpc="2.0", id=known, error=ErrorData(code=code, message=why))


class _Writable(asyncio.Protocol):
    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.lost = False

    def pause_writing(self) -> None:
        self.ready.clear()

    def resume_writing(self) -> None:
        self.ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.ready.set()


class _Outbox(DispatcherStream):
    """The server's messages to the client; `owed` holds the unanswered requests."""

    def __init__(self, transport: asyncio.WriteTransport, protocol: asyncio.BaseProtocol) -> None:
        self._transport = transport
        self._protocol = cast("_Writable", protocol)
        self._paid = anyio.Event()
        self.owed: set[int | str] = set()

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self.owed.discard(message.id)
            if not self.owed:
                self._paid.set()
                self._paid = anyio.Event()
        if self._protocol.lost or self._transport.is_closing():
            raise anyio.BrokenResourceError
        self._transport.write(write_message(message) + b"\n")
        await self._protocol.ready.wait()

    async def settled(self) -> None:
        while self.owed:
            await self._paid.wait()

    async def aclose(self) -> None:
        self._transport.close()
