"""The clients of a gateway, their requests, and the messages to them.

Only this module of the gateway uses the SDK's session directly: the SDK's own methods drop fields that they do not
know, so a client's capabilities and all messages to it are raw JSON here.

Invariant: notifications outside of a request keep their order, and a slow client delays only itself. Once the outbound
filter is closed, clients get only responses.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

import anyio
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pursuit.config.servers import LIMITS
from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.server.errors import Context, as_object, connection_of, is_modern
from pursuit.upstream.transport import NotificationQueue

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
INTERACTIVE = ("elicitation", "sampling", "roots", "tasks")
_CLIENT_META_KEYS = ("progressToken", LOG_LEVEL_META_KEY)


class Timeout:
    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._scope: anyio.CancelScope | None = None

    @contextmanager
    def running(self) -> Generator[None]:
        """Cancels the block when the time is over, and so the request at the server; raises `CallFailed`."""
        if self.seconds is None:
            yield
            return
        with anyio.CancelScope() as self._scope:
            self.reset()
            yield
        if self._scope.cancelled_caught:
            raise CallFailed(f"no answer within {self.seconds:g} s; the call was cancelled")

    def reset(self) -> None:
        """Restarts the time, because the server shows progress."""
        if self._scope is not None and self.seconds is not None:
            self._scope.deadline = anyio.current_time() + self.seconds

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Excludes the time that the client takes, or that a call waits for a turn."""
        if self._scope is not None:
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self.reset()


class OutboundFilter:
    """Filters what servers send to the clients of a gateway besides responses.

    The operator's first call closes it for good: later messages of the server may reveal something about that call.
    """

    def __init__(self, ask_seconds: float = 55.0) -> None:
        """`ask_seconds` limits a client's answer to a server's request; servers themselves give up after a minute."""
        self.ask_seconds = ask_seconds
        self.closed = False

    def drops(self, method: str) -> bool:
        """True if a notification is dropped; the gateway itself sends the acknowledgement of a subscription."""
        return self.closed and method != ACKNOWLEDGED

    async def ask(
        self, channel: Any, method: str, params: Mapping[str, Any], seconds: float | None = None
    ) -> dict[str, Any]:
        """Sends a server's request to a client; raises `UpstreamError`."""
        if self.closed:
            raise cannot_ask(method)
        seconds = seconds or self.ask_seconds
        try:
            with anyio.fail_after(seconds):
                return await channel.send_raw_request(method, params or None)
        except NoBackChannelError as error:
            raise UpstreamError(METHOD_NOT_FOUND, str(error)) from None
        except MCPError as error:
            raise UpstreamError(error.code, error.message, error.data) from None
        except TimeoutError:
            raise UpstreamError(REQUEST_TIMEOUT, f"{method}: the client did not answer in {seconds:g} s") from None


def cannot_ask(method: str) -> UpstreamError:
    return UpstreamError(METHOD_NOT_FOUND, f"{method}: there is no client to ask here")


class GatewayClient:
    """A client as one request describes it; a modern client is unknown outside its requests."""

    def __init__(self, capabilities: Mapping[str, Any], outbound: OutboundFilter, *, modern: bool = True) -> None:
        self.capabilities = capabilities
        self.modern = modern
        self.outbound = outbound
        self.level: str | None = None

    @property
    def interactive(self) -> bool:
        return any(self.capabilities.get(one) is not None for one in INTERACTIVE)

    def can(self, capability: str) -> bool:
        return self.capabilities.get(capability) is not None

    @property
    def has_forms(self) -> bool:
        """True if its user can fill in a form; an empty `elicitation` means forms, the oldest mode."""
        declared = self.capabilities.get("elicitation")
        return isinstance(declared, Mapping) and (not declared or "form" in declared)


class ClientSession(GatewayClient):
    """A legacy client, while its connection exists."""

    def __init__(self, capabilities: Mapping[str, Any], outbound: OutboundFilter, connection: Connection) -> None:
        super().__init__(capabilities, outbound, modern=False)
        self.closed = anyio.Event()
        self.ready = anyio.Event()
        self.resource_uris: dict[tuple[str, str], str] = {}
        self._connection = connection
        self._queue = NotificationQueue(LIMITS.queued)

    def notify_from(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        """Forwards a server's notification, with the URI under which the client subscribed to a resource.

        Keeps back the status of a server's task, because the client does not know that task's id.
        """
        if method.startswith("notifications/tasks"):
            return
        uri = params.get("uri")
        shown = self.resource_uris.get((server, uri)) if isinstance(uri, str) else None
        self.notify(method, params if shown is None else {**params, "uri": shown})

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queues a notification that does not belong to a request."""
        if self.outbound.drops(method):
            return
        self._queue.put(method, params)

    async def send_queued(self) -> None:
        async for method, params in self._queue:
            await self._connection.notify(method, params or None)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the client a server's request outside of the client's own requests; raises `UpstreamError`."""
        await self.ready.wait()
        return await self.outbound.ask(self._connection, method, params)


class PendingWork(Protocol):
    """A call that a server still processes while its client is asked; `outcome` is None if it was cancelled."""

    over: anyio.Event
    outcome: dict[str, Any] | Exception | None

    def cancel(self) -> None:
        """Ends it, and so the request at the server."""
        ...


class ClientRequest:
    """One request of a client, and the connection to the client until the request is answered.

    `sent` is true if the server may have seen it. `pending` is the server's unfinished work after an answer that asks
    the client.
    """

    __slots__ = ("client", "ctx", "method", "params", "pending", "sent", "timeout")
    detached = False
    """True if no client waits for the call; then the call has no default timeout."""

    operator = False
    """True if the call is the operator's: its client gets no notifications and no requests."""

    def __init__(self, ctx: Context, client: GatewayClient) -> None:
        self.ctx = ctx
        self.client = client
        self.timeout = Timeout()
        self.method = ctx.method
        self.params: Mapping[str, Any] = ctx.params or {}
        self.sent = False
        self.pending: PendingWork | None = None

    @property
    def token(self) -> Any:
        return as_object(self.params.get("_meta")).get("progressToken")

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends the client a notification about this request, if it is still there."""
        if self.client.outbound.drops(method):
            return
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            channel = self.ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
            await channel.notify(method, params)

    @asynccontextmanager
    async def queueing(self) -> AsyncGenerator[None]:
        """The block waits for a turn at the server: the request counts as not sent, and its time stops."""
        self.sent = False
        async with self.timeout.paused():
            yield
        self.sent = True

    def task_created(self) -> None:
        """Called when the server makes a task of the call."""

    async def keep_task_handle(self, handle: Mapping[str, Any]) -> None:
        """Called with the data by which another process finds the server's task."""

    async def ask(self, method: str, params: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Sends a legacy client a server's request while its own request waits; raises `UpstreamError`."""
        async with self.timeout.paused():
            channel = self.ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
            return await self.client.outbound.ask(channel, method, params, seconds)


class OperatorRequest(ClientRequest):
    """A call of the operator that uses the connection of a client's request.

    It uses the connection of the client's own calls, without the client's capabilities and options.
    """

    operator = True
    detached = True

    def __init__(self, ctx: Context, client: GatewayClient, name: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(ctx, client)
        self.method = "tools/call"
        given = as_object((ctx.params or {}).get("_meta"))
        meta = {key: value for key, value in given.items() if key not in _CLIENT_META_KEYS}
        if CLIENT_CAPABILITIES_META_KEY in given:
            meta[CLIENT_CAPABILITIES_META_KEY] = {}
        self.params = {"name": name, "arguments": dict(arguments), **({"_meta": meta} if meta else {})}

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Drops it."""

    async def ask(self, method: str, params: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Refuses."""
        raise cannot_ask(method)


class Clients:
    """The sessions of the connected legacy clients, and the outbound filter of all clients."""

    def __init__(self, ask_seconds: float) -> None:
        self.outbound = OutboundFilter(ask_seconds)
        self._sessions: dict[Connection, ClientSession] = {}

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(tuple(self._sessions.values()))

    def initialize(self, ctx: Context) -> ClientSession:
        connection = connection_of(ctx)
        capabilities = as_object((ctx.params or {}).get("capabilities"))
        known = self._sessions.get(connection)
        if known is not None:
            known.capabilities = capabilities
            return known
        session = self._sessions[connection] = ClientSession(capabilities, self.outbound, connection)
        connection.exit_stack.callback(self._close, connection)
        return session

    def of(self, ctx: Context) -> GatewayClient | None:
        """The client of a request; None for a legacy client that has not sent `initialize`."""
        if not is_modern(ctx.protocol_version):
            return self._sessions.get(connection_of(ctx))
        meta = as_object((ctx.params or {}).get("_meta"))
        return GatewayClient(as_object(meta.get(CLIENT_CAPABILITIES_META_KEY)), self.outbound)

    def _close(self, connection: Connection) -> None:
        self._sessions.pop(connection).closed.set()
