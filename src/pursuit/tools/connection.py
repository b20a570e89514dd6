"""One life of a connection to an MCP server.

Owns: the SDK's client session, from the negotiation of the protocol's era to the end, inside one task that enters and
leaves it; and raw requests over it. Does not know: which transport it is, or what to do when it breaks. Invariant:
`own` never raises, so that a broken server cannot cancel anybody else in the same task group.

Requests go straight to the dispatcher: the session's typed methods refuse a whole listing for one odd schema, list
tools behind the caller's back, and raise on a result that does not fit its output schema.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, cast

import anyio
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, Dispatcher
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from pursuit.errors import PursuitError
from pursuit.tools.contract import ProgressFn

Era = Literal["auto", "legacy"]

CLIENT_INFO = Implementation(name="pursuit", version=version("pursuit"))
_CLIENT_INFO_JSON = CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True)


class ConnectionLost(Exception):
    """The connection ended before the answer came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An open transport: where requests go, and why it ended once it has."""

    dispatcher: Dispatcher[Any]
    ending: Callable[[], str]


# Enters what the transport needs onto the stack; sets the event when the other side is gone.
Opener = Callable[[AsyncExitStack, anyio.Event], Awaitable[Line]]


class Connection:
    """`settled` when it is known whether it works, `over` when no more can be asked, `done` when all is cleaned up."""

    def __init__(self, opener: Opener, *, era: Era, timeout: float) -> None:
        self._opener = opener
        self.era: Era = era
        self._timeout = timeout
        self._line: Line | None = None
        self._scope = anyio.CancelScope()
        self._closing = False
        self._meta: Mapping[str, Any] = {}
        self.settled = anyio.Event()
        self.over = anyio.Event()
        self.done = anyio.Event()
        self.failure: str | None = None
        self.protocol_version: str | None = None
        self.lost_in_probe = False

    @property
    def spent(self) -> bool:
        """Whether it is of no more use."""
        return self.failure is not None or self.over.is_set()

    async def own(self) -> None:
        """Connects, stays until the end, and cleans up; the owner task runs this and nothing else."""
        try:
            # The deadline is lifted once connected: a scope around the connect alone would not nest with the session's.
            with self._scope as scope:
                scope.deadline = anyio.current_time() + self._timeout
                async with AsyncExitStack() as stack:
                    line = self._line = await self._opener(stack, self.over)
                    session = ClientSession(dispatcher=line.dispatcher, client_info=CLIENT_INFO)
                    await stack.enter_async_context(session)
                    await self._negotiate(session)
                    self._adopt(session.protocol_version)
                    scope.deadline = math.inf
                    self.settled.set()
                    await self.over.wait()
            if scope.cancelled_caught:
                self._fail("it is closed" if self._closing else f"it did not answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001 - the boundary: whatever breaks, it ends this connection only
            self._fail(self._reason(error))
        finally:
            self.over.set()
            self._fail("it is closed")
            self.settled.set()
            self.done.set()

    def _adopt(self, protocol_version: str | None) -> None:
        self.protocol_version = protocol_version
        if protocol_version in MODERN_PROTOCOL_VERSIONS:
            # 2026-07-28 has no handshake: each request says who asks and what it can.
            self._meta = {
                PROTOCOL_VERSION_META_KEY: protocol_version,
                CLIENT_INFO_META_KEY: _CLIENT_INFO_JSON,
                CLIENT_CAPABILITIES_META_KEY: {},
            }

    async def _negotiate(self, session: ClientSession) -> None:
        """Discovery first, then the handshake, unless the server says that it only speaks the new era."""
        if self.era == "auto" and await self._discovered(session):
            return
        try:
            await session.initialize()
        except MCPError as error:
            # A slow start: the probe ran out of time here, and was answered there after all.
            if error.code != UNSUPPORTED_PROTOCOL_VERSION or not await self._discovered(session):
                raise

    async def _discovered(self, session: ClientSession) -> bool:
        # The SDK bounds the probe by 10 s; a short connect timeout must leave time for the handshake.
        with anyio.move_on_after(self._timeout / 3):
            try:
                await session.discover()
            except MCPError as error:
                if self.over.is_set():
                    self.lost_in_probe = True
                    raise
                modern_only = error.code == UNSUPPORTED_PROTOCOL_VERSION and not _speaks_handshake(error.error.data)
                if modern_only:
                    raise
                return False
            except (ValidationError, RuntimeError):
                # An answer that is no discovery, or that shares no version: not a server of the new era.
                return False
            return True
        return False

    def _fail(self, reason: str) -> None:
        if not self.settled.is_set():
            self.failure = self.failure or reason

    def _reason(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = cast("ExceptionGroup[Exception]", error).exceptions[0]
        if self.over.is_set() and self._line is not None:
            return self._line.ending()
        match error:
            case PursuitError():
                return error.message
            case MCPError():
                return f"it refused the connection: {error.error.message}"
            case ValidationError():
                return f"its answer to the handshake is malformed ({error.error_count()} faults)"
            case OSError() | ValueError() | RuntimeError():
                return str(error)
            case _:
                return f"{type(error).__name__}: {error}"

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        on_progress: ProgressFn | None = None,
    ) -> dict[str, Any]:
        """Sends one request and returns the raw result; raises `MCPError` or `ConnectionLost`."""
        if self._line is None or self.over.is_set():
            raise ConnectionLost
        options: CallOptions = {}
        if on_progress is not None:
            options["on_progress"] = cast("Any", on_progress)
        body: dict[str, Any] = dict(params)
        if meta or self._meta:
            body["_meta"] = {**self._meta, **(meta or {})}
        try:
            return await self._line.dispatcher.send_raw_request(method, body, options)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and self.over.is_set():
                raise ConnectionLost from None
            raise

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        return self._line.ending() if self._line is not None else "it is closed"

    async def aclose(self) -> None:
        """Asks the owner to leave, and waits until it has."""
        self._closing = True
        self.over.set()
        if not self.settled.is_set():
            self._scope.cancel()
        await self.done.wait()


def _speaks_handshake(data: Any) -> bool:
    """Whether a refusal names a version of the handshake's era, or no versions at all."""
    supported: object = cast("dict[str, object]", data).get("supported") if isinstance(data, dict) else None
    versions = cast("list[object]", supported) if isinstance(supported, list) else None
    return versions is None or any(one not in MODERN_PROTOCOL_VERSIONS for one in versions)
