"""One life of a connection to an MCP server.

Owns: raw requests, who hears which notification, and the doubt whether the server still lives, inside one task that
enters and leaves the transport. Does not know: which transport it is, or what to do when it breaks. Invariant: `own`
never raises, so that a broken server cannot cancel anybody else in the same task group.

The SDK's client session is not used: its typed methods refuse a whole listing for one odd schema, list tools behind
the caller's back, raise on a result that does not fit its output schema, and drop fields that they do not know.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any, Literal, cast

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream
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

from pursuit.core.tools import About, NotifyFn, UpstreamError
from pursuit.errors import PursuitError
from pursuit.upstream.transport import (
    CallBroken,
    ClientSide,
    ConnectionLost,
    Heard,
    HttpRefused,
    SessionGone,
    StderrTail,
    Wire,
)

# What a server says, without the secrets that its configuration holds.
# Invariant: in what it says of itself, in errors, progress and logs no secret is left; in lists the texts for people
# are blanked and names, addresses and schemas are not, which would change what can be called; the result of a request
# that succeeded is data and is not touched. What holds no secret comes out equal.

_TEXTS = frozenset({"description", "title"})
_TOLD = {"notifications/progress": "message", "notifications/message": "data"}


def blanked_answer(tail: StderrTail, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result: only a list and a tool's error are blanked."""
    if tail.secrets and result.get("isError") is True:
        return _everywhere(tail, result)
    if not tail.secrets or not method.endswith("/list"):
        return result
    entries: Any = result.get("tools")
    if method == "tools/list" and isinstance(entries, list):
        return {**result, "tools": [_tool(tail, entry) for entry in cast("list[Any]", entries)]}
    return _texts(tail, result)


def blanked_error(tail: StderrTail, error: UpstreamError) -> UpstreamError:
    """An error, in words and data."""
    return UpstreamError(error.code, tail.redacted(error.message), _everywhere(tail, error.data))


def blanked_notice(tail: StderrTail, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A notification: progress and logs."""
    key = _TOLD.get(method)
    if key is None or key not in params or not tail.secrets:
        return params
    return {**params, key: _everywhere(tail, params[key])}


def blanked_about(tail: StderrTail, about: About) -> About:
    """What a server says of itself."""
    words = about.instructions
    info = _everywhere(tail, about.server_info)
    return replace(about, server_info=info, instructions=None if words is None else tail.redacted(words))


def _tool(tail: StderrTail, entry: Any) -> Any:
    """What nobody can call has no name to keep: a warning says why it is left out, and may quote it."""
    schema: Any = cast("Mapping[str, Any]", entry).get("inputSchema") if isinstance(entry, Mapping) else None
    usable = isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("type", "object") == "object"
    return _texts(tail, entry) if usable else _everywhere(tail, entry)


def _everywhere(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, str):
        return tail.redacted(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {tail.redacted(key): _everywhere(tail, item) for key, item in table.items()}
    if isinstance(value, list):
        return [_everywhere(tail, item) for item in cast("list[Any]", value)]
    return value


def _texts(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {
            key: tail.redacted(item) if key in _TEXTS and isinstance(item, str) else _texts(tail, item)
            for key, item in table.items()
        }
    if isinstance(value, list):
        return [_texts(tail, item) for item in cast("list[Any]", value)]
    return value


# Which protocol a server speaks, and what it says about itself.
# Invariant: anything but a proper discovery leads to the handshake, unless the server says that it only speaks the
# new era or cannot be reached at all.

Era = Literal["auto", "legacy"]

CLIENT_INFO: Mapping[str, Any] = {"name": "pursuit", "version": version("pursuit")}
# What only the sender of a request may say; never handed on from somebody else's request.
ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY)
_LONGEST_PROBE = 10.0


class ProbeLost(Exception):
    """The server hung up on discovery: some of the old era do so on a first request that they do not know."""


def is_modern(protocol_version: str) -> bool:
    """Whether this version has no handshake."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


def envelope(protocol_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What each request of the new era says about who asks and what it can."""
    return {
        PROTOCOL_VERSION_META_KEY: protocol_version,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }


async def negotiate(wire: Wire, *, era: Era, capabilities: Mapping[str, Any], timeout: float) -> About:
    """Discovery first, then the handshake. Raises `UpstreamError`, `ProbeLost`, a failure of the wire, `ValueError`."""
    if era == "auto":
        # A short connect timeout must leave time for the handshake.
        about = await _discovered(wire, capabilities, min(timeout / 3, _LONGEST_PROBE))
        if about is not None:
            return about
    try:
        return await _handshake(wire, capabilities)
    except UpstreamError as error:
        # A slow start: the probe ran out of time here, and was taken up there after all.
        about = None
        if error.code == UNSUPPORTED_PROTOCOL_VERSION:
            about = await _discovered(wire, capabilities, timeout)
        if about is None:
            raise
        return about


async def _discovered(wire: Wire, capabilities: Mapping[str, Any], seconds: float) -> About | None:
    """None if it is not a server of the new era, or has not answered by then."""
    asked = LATEST_MODERN_VERSION
    with anyio.move_on_after(seconds):
        for _ in range(2):
            params = {"_meta": envelope(asked, capabilities)}
            try:
                return _read_discovery(wire, await wire.request("server/discover", params, cancellable=False))
            except UpstreamError as error:
                if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                    return None
                offered = _versions(error.data, "supported")
                if offered is not None and not any(one in HANDSHAKE_PROTOCOL_VERSIONS for one in offered):
                    common = [one for one in MODERN_PROTOCOL_VERSIONS if one in offered and one != asked]
                    if not common:
                        raise
                    asked = common[-1]
                    continue
                return None
            except ConnectionLost:
                raise ProbeLost from None
            except HttpRefused:
                return None
    return None


def _read_discovery(wire: Wire, result: Mapping[str, Any]) -> About | None:
    offered = _versions(result, "supportedVersions") or []
    common = [one for one in MODERN_PROTOCOL_VERSIONS if one in offered]
    capabilities = result.get("capabilities")
    if not common or not isinstance(capabilities, dict):
        return None
    meta = result.get("_meta")
    info = cast("dict[str, Any]", meta).get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
    wire.adopt(common[-1], modern=True)
    return _about(common[-1], cast("dict[str, Any]", capabilities), info, result.get("instructions"))


async def _handshake(wire: Wire, capabilities: Mapping[str, Any]) -> About:
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    result = await wire.request("initialize", params, cancellable=False)
    agreed, offered = result.get("protocolVersion"), result.get("capabilities", {})
    if not isinstance(agreed, str) or not isinstance(offered, dict):
        raise ValueError("its answer to the handshake is malformed")
    if agreed not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise ValueError(f"it wants to speak protocol version {agreed[:40]!r}, which is not known here")
    wire.adopt(agreed, modern=False)
    await wire.notify("notifications/initialized", None)
    return _about(agreed, cast("dict[str, Any]", offered), result.get("serverInfo"), result.get("instructions"))


def _about(agreed: str, capabilities: dict[str, Any], info: Any, instructions: Any) -> About:
    return About(
        protocol_version=agreed,
        capabilities=capabilities,
        server_info=cast("dict[str, Any]", info) if isinstance(info, dict) else None,
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _versions(data: Any, key: str) -> list[object] | None:
    found = cast("dict[str, object]", data).get(key) if isinstance(data, dict) else None
    return cast("list[object]", found) if isinstance(found, list) else None


# How long a server that left a request unanswered may take for a sign of life.
PATIENCE = 5.0
_LISTEN = "subscriptions/listen"
_RELISTEN = (1.0, 30.0)
_MOST_WAITING = 10_000
_CHANGES = {"tools": "toolsListChanged", "resources": "resourcesListChanged", "prompts": "promptsListChanged"}
_log = logging.getLogger(__name__)
# Strings, and never the same again: the dispatcher's own ids are numbers.
_listen_ids = count(1)

# Enters what the transport needs onto the stack; sets the event when the other side is gone.
Opener = Callable[[AsyncExitStack, anyio.Event, StderrTail], Awaitable[Wire]]


class Connection:
    """`settled` when it is known whether it works, `over` when no more can be asked, `done` when all is cleaned up."""

    def __init__(
        self, opener: Opener, *, era: Era, timeout: float, side: ClientSide, tail: StderrTail, listener: Heard
    ) -> None:
        self._opener = opener
        self.era: Era = era
        self._timeout = timeout
        self._side = side
        self._tail = tail
        self._listener = listener
        self._wire: Wire | None = None
        self._scope = anyio.CancelScope()
        self._closing = False
        self._tokens = count(1)
        self._routes: dict[str | int | None, Heard] = {}
        self.settled = anyio.Event()
        self.over = anyio.Event()
        self.done = anyio.Event()
        self.failure: str | None = None
        self.about: About | None = None
        self.lost_in_probe = False
        self.answers = 0
        self.abandoned = False
        self._in_flight = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._doubt: anyio.Event | None = None
        self._hung = False
        self._watching = False

    @property
    def spent(self) -> bool:
        """Whether it is of no more use."""
        return self.failure is not None or self.over.is_set()

    @property
    def began(self) -> bool:
        """Whether the transport was ever open."""
        return self._wire is not None

    @property
    def ended_by_us(self) -> bool:
        """Whether its end was our own wish."""
        return self._closing

    @property
    def modern(self) -> bool:
        """Whether the protocol is one without handshake and without requests from the server."""
        return self.about is not None and is_modern(self.about.protocol_version)

    def announces(self, kind: str) -> bool:
        """Whether a change of its list of tools (or resources, or prompts) will be heard."""
        if self.about is None or self._wire is None or not _declares(self.about, kind):
            return False
        return self._watching if self.modern else self._wire.hears

    async def own(self) -> None:
        """Connects, stays until the end, and cleans up; the owner task runs this and nothing else."""
        try:
            # The deadline is lifted once connected: a scope around the connect alone would not nest with the wire's.
            with self._scope as scope:
                scope.deadline = anyio.current_time() + self._timeout
                async with AsyncExitStack() as stack:
                    wire = self._wire = await self._opener(stack, self.over, self._tail)
                    tasks = await stack.enter_async_context(anyio.create_task_group())
                    stack.callback(tasks.cancel_scope.cancel)
                    self._tasks = tasks
                    await tasks.start(self._run, wire)
                    about = await negotiate(
                        wire, era=self.era, capabilities=self._side.capabilities, timeout=self._timeout
                    )
                    self.about = blanked_about(self._tail, about)
                    scope.deadline = math.inf
                    self.settled.set()
                    if self.modern:
                        tasks.start_soon(self._watch, self.about)
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

    async def _run(self, wire: Wire, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        await wire.run(self._heard, self._side.asked, task_status=task_status)
        self.over.set()

    def _fail(self, reason: str) -> None:
        if not self.settled.is_set():
            self.failure = self.failure or reason

    def _reason(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = cast("ExceptionGroup[Exception]", error).exceptions[0]
        if isinstance(error, ProbeLost):
            self.lost_in_probe = True
        match error:
            case PursuitError():
                return error.message
            case UpstreamError():
                return f"it refused the connection: {error.message}"
            case CallBroken():
                return str(error)
            case _ if self._wire is not None and self.over.is_set():
                return self._wire.ending()
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

        `on_notify` gets what belongs to this request, in order, and all of it before this returns: progress, unless
        none is wanted, and where the transport can tell (HTTP) logs too. Raises what a `Wire` raises.
        """
        if self._wire is None or self.over.is_set():
            raise ConnectionLost(sent=False)
        body = self._body(params, capabilities)
        # A stream that stays open is no work that anybody waits for.
        work = method != _LISTEN
        self._in_flight += work
        try:
            if on_notify is None:
                result = await self._wire.request(method, body)
            else:
                result = await self._overheard(self._wire, method, body, on_notify, progress=progress)
        except anyio.get_cancelled_exc_class():
            self._gave_up(self._wire, method)
            raise
        except UpstreamError as error:
            raise blanked_error(self._tail, error) from None
        finally:
            self._in_flight -= work
        self.answers += 1
        return blanked_answer(self._tail, method, result)

    async def _overheard(
        self, wire: Wire, method: str, body: dict[str, Any], on_notify: NotifyFn, *, progress: bool
    ) -> dict[str, Any]:
        """One request with its notifications, which are delivered beside it and in order."""
        send, receive = anyio.create_memory_object_stream[tuple[str, Mapping[str, Any]]](_MOST_WAITING)

        def deliver(told: str, params: Mapping[str, Any]) -> None:
            # A caller who is slower than its server loses notifications, not memory.
            with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
                send.send_nowait((told, params))

        listening = f"listen-{next(_listen_ids)}" if method == _LISTEN else None
        token = next(self._tokens)
        if listening is None and progress:
            body["_meta"] = {**body.get("_meta", {}), "progressToken": token}
        key = listening or token
        self._routes[key] = deliver
        outcome: dict[str, Any] | Exception = ConnectionLost()
        try:
            async with anyio.create_task_group() as delivering:
                delivering.start_soon(_deliver, receive, on_notify)
                try:
                    heard = partial(self._heard_within, deliver)
                    outcome = await wire.request(method, body, request_id=listening, heard=heard)
                except (UpstreamError, ConnectionLost, CallBroken, SessionGone, ValueError) as error:
                    # Kept until the group is left: it would come out wrapped.
                    outcome = error
                send.close()
        finally:
            del self._routes[key]
            send.close()
            receive.close()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _gave_up(self, wire: Wire, method: str) -> None:
        """A request was not waited for: a process that answers nothing at all any more is of no use to anybody."""
        self.abandoned = True
        if wire.can_hang and method != _LISTEN and self._doubt is None and self._tasks and not self.over.is_set():
            self._doubt = anyio.Event()
            self._tasks.start_soon(self._check, wire, self._doubt)

    async def _check(self, wire: Wire, doubt: anyio.Event) -> None:
        try:
            with anyio.move_on_after(PATIENCE) as scope, suppress(UpstreamError, ConnectionLost):
                params = self._body({}, None)
                # The new era has no ping.
                await wire.request("server/discover" if self.modern else "ping", params, cancellable=False)
            # One that is busy with somebody else's request may take its time.
            if scope.cancelled_caught and not self._in_flight:
                self._hung = True
                self.over.set()
        finally:
            self._doubt = None
            doubt.set()

    async def cleared(self) -> None:
        """Waits until it is known whether a server that left a request unanswered answers at all."""
        if self._doubt is not None:
            await self._doubt.wait()

    def _body(self, params: Mapping[str, Any], capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
        body = dict(params)
        given = body.pop("_meta", None)
        meta: dict[str, Any] = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
        for key in (*ENVELOPE_KEYS, "progressToken"):
            meta.pop(key, None)
        if self.about is not None and self.modern:
            meta |= envelope(
                self.about.protocol_version, self._side.capabilities if capabilities is None else capabilities
            )
        if meta:
            body["_meta"] = meta
        return body

    def _heard(self, method: str, params: Mapping[str, Any]) -> None:
        """Takes a notification, in the order of the wire: to the request that it belongs to, or to the listener."""
        params = blanked_notice(self._tail, method, params)
        if method == "notifications/progress":
            route = self._routes.get(_hashable(params.get("progressToken")))
        elif method == "notifications/cancelled":
            return
        else:
            route = self._routes.get(_subscription(params))
            if route is None:
                self._listener(method, params)
        if route is not None:
            route(method, params)

    def _heard_within(self, deliver: Heard, method: str, params: Mapping[str, Any]) -> None:
        """The same for what came on a request's own stream: what is about no list and no resource is that request's."""
        if method.endswith(("/list_changed", "/updated", "/progress", "/cancelled")):
            self._heard(method, params)
        else:
            deliver(method, blanked_notice(self._tail, method, params))

    async def _watch(self, about: About) -> None:
        """In the new era changes come on a stream that must be asked for, and asked for again when it breaks."""
        wanted = {name: True for kind, name in _CHANGES.items() if _declares(about, kind)}
        if not wanted:
            return

        async def told(method: str, params: Mapping[str, Any]) -> None:
            if method == "notifications/subscriptions/acknowledged":
                self._watching = True
            else:
                self._listener(method, params)

        pause = _RELISTEN[0]
        while True:
            try:
                await self.request(_LISTEN, {"notifications": wanted}, on_notify=told)
            except (ConnectionLost, SessionGone):
                return
            except UpstreamError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
            except CallBroken:
                pass
            if self._watching:
                # Whatever changed meanwhile was not heard.
                self._watching, pause = False, _RELISTEN[0]
                for kind, name in _CHANGES.items():
                    if name in wanted:
                        self._listener(f"notifications/{kind}/list_changed", {})
            await anyio.sleep(pause)
            pause = min(pause * 2, _RELISTEN[1])

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Sends a notification; what cannot be delivered is dropped."""
        if self._wire is not None and not self.over.is_set():
            await self._wire.notify(method, params)

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        if self._hung:
            return "it no longer answered anything"
        return self._wire.ending() if self._wire is not None else "it is closed"

    async def aclose(self) -> None:
        """Asks the owner to leave, and waits until it has."""
        self._closing = True
        self.over.set()
        if not self.settled.is_set():
            self._scope.cancel()
        await self.done.wait()


async def _deliver(receive: MemoryObjectReceiveStream[tuple[str, Mapping[str, Any]]], on_notify: NotifyFn) -> None:
    async for method, params in receive:
        try:
            await on_notify(method, params)
        except Exception:  # noqa: BLE001 - the boundary to the caller's function, which may not break its own call
            _log.exception("a listener failed at %s", method)


def _declares(about: About, kind: str) -> bool:
    offered = about.capabilities.get(kind)
    return isinstance(offered, Mapping) and cast("Mapping[str, Any]", offered).get("listChanged") is True


def _subscription(params: Mapping[str, Any]) -> Any:
    meta = params.get("_meta")
    return (
        _hashable(cast("Mapping[str, Any]", meta).get(SUBSCRIPTION_ID_META_KEY)) if isinstance(meta, Mapping) else None
    )


def _hashable(value: Any) -> str | int | None:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
