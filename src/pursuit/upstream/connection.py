"""One connection to an MCP server: opening, negotiation, requests and notifications, closing.

There are two protocol eras. In the *legacy* one (versions up to 2025-11-25) a connection starts with the `initialize`
handshake, and the server sends requests and notifications at any time. In the *modern* one (2026-07-28) there is no
handshake: `server/discover` describes the server, each request states its client in `_meta`, questions to the client
come as results, and notifications outside of requests come on a stream that `subscriptions/listen` opens.

One owner task runs `McpConnection.run`, which enters and leaves the transport and never raises: a broken server cannot
cancel others in the same task group. What to do after the end of a connection is decided in `client`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any, Literal, cast

import anyio
import anyio.abc
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import InitializeResult, NotifyFn, UpstreamError, as_object
from pursuit.errors import PursuitError
from pursuit.upstream.redaction import StderrTail, redact_about, redact_error, redact_notification, redact_result
from pursuit.upstream.tasks import Generation, task_generation
from pursuit.upstream.transport import (
    CallBroken,
    ClientFeatures,
    ConnectionLost,
    HttpRefused,
    NotificationQueue,
    OnNotification,
    OpenTransport,
    SessionGone,
    Transport,
)

Era = Literal["auto", "legacy"]

CLIENT_INFO: Mapping[str, Any] = {"name": "pursuit", "version": version("pursuit")}
# Only the sender of a request may set these in `_meta`; they are never forwarded from another client's request.
ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY)
_MAX_PROBE = 10.0
_LISTEN = "subscriptions/listen"
LIST_CHANGES = {"tools": "toolsListChanged", "resources": "resourcesListChanged", "prompts": "promptsListChanged"}
_log = logging.getLogger(__name__)
# Strings, because the ids of the SDK's dispatchers are numbers; unique in the process.
_listen_ids = count(1)


class ProbeLost(Exception):
    """The server closed the connection on discovery: some legacy servers do so on an unknown first request."""


async def negotiate(
    transport: Transport, *, era: Era, capabilities: Mapping[str, Any], timeout: float
) -> InitializeResult:
    """Tries discovery, then the handshake.

    Any answer except a valid discovery leads to the handshake, unless the server is modern only or unreachable. Raises
    `UpstreamError`, `ProbeLost`, a failure of the transport, or `ValueError`.
    """
    if era == "auto":
        # A short connect timeout must leave time for the handshake.
        about = await _discover(transport, capabilities, min(timeout / 3, _MAX_PROBE))
        if about is not None:
            return about
    try:
        return await _initialize(transport, capabilities)
    except UpstreamError as error:
        # A modern server that started slowly: the probe timed out here, and the server refuses the handshake.
        about = None
        if error.code == UNSUPPORTED_PROTOCOL_VERSION:
            about = await _discover(transport, capabilities, timeout)
        if about is None:
            raise
        return about


async def _discover(transport: Transport, capabilities: Mapping[str, Any], seconds: float) -> InitializeResult | None:
    params = {"_meta": _envelope(LATEST_MODERN_VERSION, capabilities)}
    with anyio.move_on_after(seconds):
        try:
            return _read_discovery(transport, await transport.request("server/discover", params, cancellable=False))
        except UpstreamError as error:
            offered = _versions(error.data, "supported") if error.code == UNSUPPORTED_PROTOCOL_VERSION else None
            if offered is not None and not any(one in HANDSHAKE_PROTOCOL_VERSIONS for one in offered):
                raise
        except ConnectionLost:
            raise ProbeLost from None
        except HttpRefused:
            pass
    return None


def _read_discovery(transport: Transport, result: Mapping[str, Any]) -> InitializeResult | None:
    offered = _versions(result, "supportedVersions") or []
    common = [one for one in MODERN_PROTOCOL_VERSIONS if one in offered]
    capabilities = result.get("capabilities")
    if not common or not isinstance(capabilities, dict):
        return None
    info = as_object(result.get("_meta")).get(SERVER_INFO_META_KEY)
    transport.set_protocol_version(common[-1], modern=True)
    return _about(common[-1], cast("dict[str, Any]", capabilities), info, result.get("instructions"))


async def _initialize(transport: Transport, capabilities: Mapping[str, Any]) -> InitializeResult:
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    result = await transport.request("initialize", params, cancellable=False)
    agreed, offered = result.get("protocolVersion"), result.get("capabilities", {})
    if not isinstance(agreed, str) or not isinstance(offered, dict):
        raise ValueError("its response to the handshake is malformed")
    if agreed not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise ValueError(f"it offers protocol version {agreed[:40]!r}, which is not supported")
    transport.set_protocol_version(agreed, modern=False)
    await transport.notify("notifications/initialized", None)
    return _about(agreed, cast("dict[str, Any]", offered), result.get("serverInfo"), result.get("instructions"))


def _about(agreed: str, capabilities: dict[str, Any], info: Any, instructions: Any) -> InitializeResult:
    return InitializeResult(
        protocol_version=agreed,
        capabilities=capabilities,
        server_info=cast("dict[str, Any]", info) if isinstance(info, dict) else None,
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _versions(data: Any, key: str) -> list[object] | None:
    found = as_object(data).get(key)
    return cast("list[object]", found) if isinstance(found, list) else None


def _envelope(protocol_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {
        PROTOCOL_VERSION_META_KEY: protocol_version,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }


@dataclass(slots=True, eq=False, kw_only=True)
class McpConnection:
    """A connection: `ready` is set after success or failure, `closed` at the end, `finished` after the cleanup."""

    open_transport: OpenTransport
    config: ServerConfig
    era: Era
    features: ClientFeatures
    tail: StderrTail
    on_notification: OnNotification
    ready: anyio.Event = field(init=False, default_factory=anyio.Event)
    closed: anyio.Event = field(init=False, default_factory=anyio.Event)
    finished: anyio.Event = field(init=False, default_factory=anyio.Event)
    failure: str | None = field(init=False, default=None)
    about: InitializeResult | None = field(init=False, default=None)
    tasks: Generation | None = field(init=False, default=None)
    lost_in_probe: bool = field(init=False, default=False)
    closed_by_us: bool = field(init=False, default=False)
    answers: int = field(init=False, default=0)
    call_abandoned: bool = field(init=False, default=False)
    _transport: Transport | None = field(init=False, default=None)
    _scope: anyio.CancelScope = field(init=False, default_factory=anyio.CancelScope)
    _tasks: anyio.abc.TaskGroup | None = field(init=False, default=None)
    _progress_tokens: count[int] = field(init=False, default_factory=lambda: count(1))
    _routes: dict[str | int | None, OnNotification] = field(init=False, default_factory=dict[Any, OnNotification])
    _in_flight: int = field(init=False, default=0)
    _probe: anyio.Event | None = field(init=False, default=None)
    _hung: bool = field(init=False, default=False)
    _subscribed: bool = field(init=False, default=False)

    @property
    def usable(self) -> bool:
        """True if it can serve requests, now or once it is ready."""
        return self.failure is None and not self.closed.is_set()

    @property
    def opened(self) -> bool:
        return self._transport is not None

    @property
    def modern(self) -> bool:
        return self.about is not None and self.about.protocol_version in MODERN_PROTOCOL_VERSIONS

    def announces(self, kind: str) -> bool:
        """True if the server notifies of changes of its list of tools (or resources, or prompts)."""
        if self.about is None or self._transport is None or not _declares_changes(self.about, kind):
            return False
        return self._subscribed if self.modern else self._transport.receives_notifications

    async def run(self) -> None:
        """Connects, stays until the end, and cleans up; the owner task runs only this."""
        try:
            # One scope for the whole life, whose deadline is lifted once connected: a scope around only the connect
            # would not nest with the task group of the transport, which is entered inside and left later.
            with self._scope as scope:
                scope.deadline = anyio.current_time() + self.config.timeouts.connect
                async with AsyncExitStack() as stack:
                    transport = self._transport = await self.open_transport(stack, self.closed, self.tail)
                    tasks = await stack.enter_async_context(anyio.create_task_group())
                    stack.callback(tasks.cancel_scope.cancel)
                    self._tasks = tasks
                    await tasks.start(self._receive, transport)
                    about = await negotiate(
                        transport,
                        era=self.era,
                        capabilities=self.features.capabilities,
                        timeout=self.config.timeouts.connect,
                    )
                    self.about, self.tasks = redact_about(self.tail, about), task_generation(about)
                    scope.deadline = math.inf
                    self.ready.set()
                    if self.modern:
                        tasks.start_soon(self._subscribe, self.about)
                    await self.closed.wait()
            if scope.cancelled_caught:
                self._fail("it is closed" if self.closed_by_us else too_slow(self.config.timeouts.connect))
        except Exception as error:  # noqa: BLE001 - the boundary: what breaks ends this connection only
            self._fail(self._reason(error))
        finally:
            self.closed.set()
            self._fail("it is closed")
            self.ready.set()
            self.finished.set()

    async def _receive(self, transport: Transport, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        await transport.run(self._dispatch, self.features.handle_request, task_status=task_status)
        self.closed.set()

    def _fail(self, reason: str) -> None:
        if not self.ready.is_set():
            self.failure = self.failure or reason

    def _reason(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = cast("ExceptionGroup[Exception]", error).exceptions[0]
        self.lost_in_probe = isinstance(error, ProbeLost)
        match error:
            case PursuitError():
                return error.message
            case UpstreamError():
                return f"it refused the connection: {error.message}"
            case CallBroken():
                return str(error)
            case _ if self._transport is not None and self.closed.is_set():
                return self._transport.close_reason()
            case OSError() | ValueError() | RuntimeError():
                return str(error)
            case _:
                return f"{type(error).__name__}: {error}"

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] | None = None,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Sends one request and returns the raw result.

        `on_notify` gets the notifications of this request, in order, and all of them before this returns: progress,
        unless `progress` is False, and log messages where the transport can tell (HTTP). Raises what a `Transport`
        raises.
        """
        if self._transport is None or self.closed.is_set():
            raise ConnectionLost(sent=False)
        body = self._body(params, capabilities)
        # A stream that stays open does not mean that the server is busy.
        works = method != _LISTEN
        self._in_flight += works
        try:
            if on_notify is None:
                result = await self._transport.request(method, body)
            else:
                result = await self._request_with_notifications(
                    self._transport, method, body, on_notify, progress=progress
                )
        except anyio.get_cancelled_exc_class():
            self._abandon(self._transport, method)
            raise
        except UpstreamError as error:
            raise redact_error(self.tail, error) from None
        finally:
            self._in_flight -= works
        self.answers += 1
        return redact_result(self.tail, method, result) if self.tail.secrets else result

    async def _request_with_notifications(
        self, transport: Transport, method: str, body: dict[str, Any], on_notify: NotifyFn, *, progress: bool
    ) -> dict[str, Any]:
        """Sends one request and delivers its notifications concurrently, in order."""
        queue = NotificationQueue(self.config.client.limits.queued)

        listen_id = f"listen-{next(_listen_ids)}" if method == _LISTEN else None
        token = next(self._progress_tokens)
        if listen_id is None and progress:
            body["_meta"] = {**body.get("_meta", {}), "progressToken": token}
        key = listen_id or token
        self._routes[key] = queue.put
        outcome: dict[str, Any] | Exception = ConnectionLost()
        try:
            async with anyio.create_task_group() as delivering:
                delivering.start_soon(_deliver, queue, on_notify)
                try:
                    own_stream = partial(self._dispatch_own, queue.put)
                    outcome = await transport.request(method, body, request_id=listen_id, on_notification=own_stream)
                except (UpstreamError, ConnectionLost, CallBroken, SessionGone, ValueError) as error:
                    # Raised after the task group, which would wrap it in an exception group.
                    outcome = error
                queue.close()
        finally:
            del self._routes[key]
            queue.close()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _abandon(self, transport: Transport, method: str) -> None:
        """Checks after an abandoned request that a possibly hanging process still answers."""
        self.call_abandoned = True
        if not transport.can_hang or method == _LISTEN or self._probe is not None or self.closed.is_set():
            return
        if self._tasks is not None:
            self._probe = anyio.Event()
            self._tasks.start_soon(self._check_alive, transport, self._probe)

    async def _check_alive(self, transport: Transport, probe: anyio.Event) -> None:
        try:
            with anyio.move_on_after(self.config.client.hang_probe) as scope, suppress(UpstreamError, ConnectionLost):
                # The modern era has no ping.
                method = "server/discover" if self.modern else "ping"
                await transport.request(method, self._body({}, None), cancellable=False)
            # A server that is busy with another request may be slow.
            if scope.cancelled_caught and not self._in_flight:
                self._hung = True
                self.closed.set()
        finally:
            self._probe = None
            probe.set()

    async def wait_for_probe(self) -> None:
        """Waits for the result of the probe of a server that did not answer a request."""
        if self._probe is not None:
            await self._probe.wait()

    def _body(self, params: Mapping[str, Any], capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
        body = dict(params)
        meta = dict(as_object(body.pop("_meta", None)))
        for key in (*ENVELOPE_KEYS, "progressToken"):
            meta.pop(key, None)
        if self.about is not None and self.modern:
            declared = self.features.capabilities if capabilities is None else capabilities
            meta |= _envelope(self.about.protocol_version, declared)
        if meta:
            body["_meta"] = meta
        return body

    def _dispatch(self, method: str, params: Mapping[str, Any]) -> None:
        """Passes a notification to its request, or to the listener of the connection."""
        params = redact_notification(self.tail, method, params)
        if method == "notifications/cancelled":
            return
        if method == "notifications/progress":
            route = self._routes.get(_hashable(params.get("progressToken")))
        else:
            subscription = as_object(params.get("_meta")).get(SUBSCRIPTION_ID_META_KEY)
            route = self._routes.get(_hashable(subscription), self.on_notification)
        if route is not None:
            route(method, params)

    def _dispatch_own(self, deliver: OnNotification, method: str, params: Mapping[str, Any]) -> None:
        """Like `_dispatch`, for a request's own stream: notifications not about lists or resources belong to it."""
        if method.endswith(("/list_changed", "/updated", "/progress", "/cancelled")):
            self._dispatch(method, params)
        else:
            deliver(method, redact_notification(self.tail, method, params))

    async def _subscribe(self, about: InitializeResult) -> None:
        wanted = {name: True for kind, name in LIST_CHANGES.items() if _declares_changes(about, kind)}
        if not wanted:
            return

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            if method == "notifications/subscriptions/acknowledged":
                self._subscribed = True
            else:
                self.on_notification(method, params)

        shortest, longest = self.config.client.reopen_pauses
        pause = shortest
        warned = False
        while True:
            try:
                await self.request(_LISTEN, {"notifications": wanted}, on_notify=on_notify)
            except (ConnectionLost, SessionGone):
                return
            except (UpstreamError, CallBroken) as error:
                if isinstance(error, UpstreamError) and error.code == METHOD_NOT_FOUND:
                    return
                if not (self._subscribed or warned):
                    warned = True
                    text = "server %r: changes of its lists are not noticed, since subscriptions/listen failed: %s"
                    _log.warning(text, self.config.name, self.tail.redact(str(error)))
            if self._subscribed:
                # Changes while the stream is closed are not notified: assume a change of each kind.
                self._subscribed, pause = False, shortest
                for kind, name in LIST_CHANGES.items():
                    if name in wanted:
                        self.on_notification(f"notifications/{kind}/list_changed", {})
            await anyio.sleep(pause)
            pause = min(pause * 2, longest)

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._transport is not None and not self.closed.is_set():
            await self._transport.notify(method, params)

    def close_reason(self) -> str:
        if self._hung:
            return "it stopped answering"
        return self._transport.close_reason() if self._transport is not None else "it is closed"

    async def aclose(self) -> None:
        self.closed_by_us = True
        self.closed.set()
        if not self.ready.is_set():
            self._scope.cancel()
        await self.finished.wait()


def too_slow(seconds: float) -> str:
    return f"it did not answer within {seconds:g} s"


async def _deliver(queue: NotificationQueue, on_notify: NotifyFn) -> None:
    async for method, params in queue:
        try:
            await on_notify(method, params)
        except Exception:  # noqa: BLE001 - the boundary to the caller's function, which must not break the call
            _log.exception("a notification handler failed at %s", method)


def _declares_changes(about: InitializeResult, kind: str) -> bool:
    return as_object(about.capabilities.get(kind)).get("listChanged") is True


def _hashable(value: Any) -> str | int | None:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
