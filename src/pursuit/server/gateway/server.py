"""The gateway: an MCP server in front of the configured servers.

It is a middleware of the SDK's server that answers each request with the JSON of the servers behind it. Relayed
messages never pass through the SDK's own models, which drop fields that they do not know.

A request passes through `Gateway.dispatch`, a handler of its method, `Relay.send` and the connection. A `tools/call`
also passes through the task middleware before `dispatch` and the `on_tool_call` middleware after it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.abc
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_PARAMS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from pursuit import __version__
from pursuit.core.tools import CallFailed, InitializeResult, UpstreamError, without_meta
from pursuit.errors import PursuitError, UpstreamUnavailable
from pursuit.policy.rules import Layers
from pursuit.runtime import Runtime
from pursuit.server.audited_reads import audited_reads
from pursuit.server.errors import (
    FIRST_VERSIONS,
    LEVELS,
    TASKS,
    Context,
    as_object,
    capabilities_of,
    is_modern,
    modern_result,
    request_limits,
    wire_error,
)
from pursuit.server.gateway.authorization import Authorizer
from pursuit.server.gateway.clients import ClientRequest, Clients, ClientSession, GatewayClient, OperatorRequest
from pursuit.server.gateway.lists import KINDS, Lists
from pursuit.server.gateway.pending_input import PendingCalls
from pursuit.server.gateway.protocol_versions import LEGACY_ONLY, MODERN_ONLY
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.resources import GatewayResources
from pursuit.server.gateway.routing import LOG_MESSAGE, LegacySessions, Routing
from pursuit.server.gateway.subscriptions import FLAGS, RETRY_SECONDS, GatewaySubscriptions
from pursuit.server.gateway.tool_calls import (
    Handler,
    TaskPerformer,
    ToolCallMiddleware,
    ToolCalls,
    ToolSearch,
    check_names,
    no_answer,
)
from pursuit.server.gateway.upstreams import INFO, GatewayOptions, Upstreams
from pursuit.server.logs import event
from pursuit.server.signing import Signer
from pursuit.server.tasks import protocol
from pursuit.server.tasks.middleware import TaskMiddleware
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import GatewayJournal
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import LIST_CHANGES
from pursuit.upstream.tasks import EXTENSION
from pursuit.upstream.transport import ClientFeatures

_UNREACHABLE: Mapping[str, Any] = {kind: {"listChanged": True} for kind in LIST_CHANGES}
"""The capabilities assumed for a server that cannot be reached now."""

_ROUTED = frozenset({"tools", "resources", "prompts", "completions", "logging"})
"""The capabilities of several servers: for these requests the gateway knows the server."""

_FORWARDED = frozenset({"notifications/progress", "notifications/roots/list_changed"})
"""The notifications of clients that MCP defines for servers, except those that the gateway handles itself."""

_log = logging.getLogger(__name__)

Found = Mapping[str, InitializeResult | None]
"""Each server's description of itself; None for a server that cannot be reached."""


class Gateway:
    """The parts of a gateway, and the dispatch of a client's messages to them."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup, options: GatewayOptions) -> None:
        alone, limits = options.alone, options.limits
        self.info = options.info or INFO
        self._runtime = runtime
        self._tasks = tasks
        self._options = options
        self._clients = Clients(limits.ask_seconds)
        self._retried: set[McpUpstream] = set()
        self._routing = Routing(tasks, alone=alone, limits=limits)
        self._legacy_sessions = LegacySessions(limits)
        self.upstreams = Upstreams(runtime.toolbox.host.pool, self._notified, tasks, options.spelling)
        self._audit = runtime.runner.audit
        self._journal = GatewayJournal(
            runtime.runner.ledger,
            runtime.runner.clock,
            servers=tuple(self.upstreams),
            by=str(runtime.runner.caller),
            patience=runtime.toolbox.settings.approval_timeout,
            limits=runtime.runner.limits,
        )
        self._channels = runtime.runner.channels
        self._approvals = Approvals(runtime.runner)
        authorizer = self._authorizer = Authorizer(
            layers=self._layers,
            journal=self._journal,
            approvals=self._approvals,
            audit=self._audit,
            channels=self._channels,
            pins=runtime.toolbox.host.pool.pins,
        )
        self._relay = Relay(self._routing, self._legacy_sessions, PendingCalls(tasks), authorizer)
        self.lists = Lists(self.upstreams, self._relay, limits, lambda late: tasks.start_soon(self._retry, late))
        resources = GatewayResources(self.upstreams, self._relay, limits)
        self._tool_calls = ToolCalls(
            upstreams=self.upstreams,
            relay=self._relay,
            lists=self.lists,
            resources=resources,
            authorizer=authorizer,
            default_timeout=lambda: runtime.toolbox.settings.call_timeout,
            info=self.info,
            outbound=self._clients.outbound,
            searchable=options.search,
        )
        self._subscriptions = GatewaySubscriptions(
            upstreams=self.upstreams,
            resources=resources,
            relay=self._relay,
            routing=self._routing,
            tasks=tasks,
            limits=limits,
        )
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(KINDS, self.lists.page),
            "resources/read": resources.request_resource,
            "resources/subscribe": self._subscriptions.subscribe,
            "resources/unsubscribe": self._subscriptions.unsubscribe,
            "subscriptions/listen": self._subscriptions.listen,
            "logging/setLevel": self._set_level,
            "prompts/get": resources.get_prompt,
            "completion/complete": resources.complete,
        }

    async def server(self, on_tool_call: ToolCallMiddleware = lambda call, call_next: call_next(call)) -> Server[Any]:
        """The gateway as a server of the SDK; `on_tool_call` wraps each call of a tool."""
        runtime, search = self._runtime, self._options.search
        call: Handler = partial(self._tool_calls.handle, middleware=on_tool_call)
        handlers = {**self._handlers, "tools/call": call}
        if search:
            tool_search = ToolSearch(self.upstreams, self.lists, call)
            handlers |= {"tools/list": tool_search.list_tools, "tools/call": tool_search.call_tool}
        performer = partial(
            TaskPerformer,
            call=handlers["tools/call"],
            approvals=self._approvals,
            stream=self._journal.stream,
            outbound=self._clients.outbound,
        )
        await runtime.tasks.maintain()
        task_middleware = TaskMiddleware(
            await runtime.tasks.host(),
            self._tasks,
            plan=self._tool_calls.plan,
            performer=performer,
            seal=lambda: Signer.beside(runtime.state_path),
            info=lambda: self.info,
            channels=self._channels,
            strict=self._tool_calls.strict,
        )
        server: Server[Any] = Server(str(INFO["name"]), version=__version__, get_tool_input_schema=self.lists.schema)
        # The SDK's own first middleware only records spans, which are not collected here. `Authorizer.recorded` records
        # the calls of tools.
        watched = [*request_limits(runtime.runner), *audited_reads(self._audit, lambda _tool: False)]
        server.middleware = [*watched, self._adopt, task_middleware, partial(self.dispatch, handlers=handlers)]
        return server

    async def close(self) -> None:
        """Stops listening to servers, and writes the end of the journal."""
        self.upstreams.close()
        with anyio.CancelScope(shield=True):
            await self._journal.close()

    def _layers(self, caller: Caller) -> Layers:
        """The policy for this caller; read each time, because a reload replaces the toolbox."""
        host = self._runtime.toolbox.host
        return host.layers(None, None, *host.caller_layers(caller.credential))

    async def _adopt(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Gives the only client, over stdio, its connections before its first request reaches a server."""
        if self._options.alone and ctx.request is None and is_modern(ctx.protocol_version) and not any(self._clients):
            await self._legacy_sessions.adopt(capabilities_of(ctx), self.upstreams.values())
        return await call_next(ctx)

    async def dispatch(self, ctx: Context, call_next: CallNext, handlers: Mapping[str, Handler]) -> HandlerResult:
        """Answers one message of a client; `call_next` is the SDK's own handling."""
        if ctx.request_id is None:
            return await self._notification(ctx, call_next)
        if ctx.method in (LEGACY_ONLY if is_modern(ctx.protocol_version) else MODERN_ONLY) or ctx.method == "ping":
            return await call_next(ctx)
        if ctx.method == "initialize":
            return await self._initialize(ctx)
        client = self._clients.of(ctx)
        if client is None:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        if ctx.method == "server/discover":
            return discover_result(await self._ask_all(McpUpstream.about, self._options.hello_seconds))
        handler = handlers.get(ctx.method)
        if handler is None:
            if not self.upstreams.names.single:
                return await call_next(ctx)
            handler = self._relay_unknown
        try:
            result = await handler(ClientRequest(ctx, client))
        except PursuitError as error:
            raise wire_error(error) from error
        except CallFailed as error:
            raise no_answer(error) from None
        return modern_result(ctx.method, result, self.info) if client.modern and "resultType" not in result else result

    async def _relay_unknown(self, request: ClientRequest) -> dict[str, Any]:
        """A method that MCP does not define goes to the only server if the configuration lists it."""
        upstream = self.upstreams.only
        recorded = partial(self._authorizer.custom, request.ctx, upstream.config, relayed=True)
        return await self._relay.send(request, upstream, request.params, around=recorded)

    async def _initialize(self, ctx: Context) -> dict[str, Any]:
        session = self._clients.initialize(ctx)
        await self._routing.adopt(session, self.upstreams)
        found = await self._ask_all(partial(self._routing.about, session))
        return initialize_result(ctx.params or {}, found)

    async def _ask_all(
        self, about: Callable[[McpUpstream], Awaitable[InitializeResult]], seconds: float | None = None
    ) -> Found:
        """Asks all servers for their descriptions; `seconds` limits an only server."""
        found: dict[str, InitializeResult | None] = dict.fromkeys(self.upstreams)

        async def ask(name: str, upstream: McpUpstream) -> None:
            try:
                found[name] = await about(upstream)
            except PursuitError as error:
                _log.warning("%s", error.message)

        # A hanging server does not delay the others.
        with anyio.move_on_after(self._options.limits.connect_seconds if len(found) > 1 else seconds):
            async with anyio.create_task_group() as tasks:
                for name, upstream in self.upstreams.items():
                    tasks.start_soon(ask, name, upstream)
        return found

    async def _notification(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        client = self._clients.of(ctx)
        if isinstance(client, ClientSession):
            if ctx.method == "notifications/initialized":
                client.ready.set()
                self._tasks.start_soon(self._serve_session, client)
            elif ctx.method != "notifications/cancelled":
                await self._forward(ctx, client)
        return await call_next(ctx)

    async def _forward(self, ctx: Context, client: ClientSession) -> None:
        """Sends a client's notification to its servers; handles one that MCP does not define like a custom request."""
        for route in self._routing.routes_of(client):
            upstream = self.upstreams.get(route.server)
            if route.channel is None or upstream is None:
                continue
            if ctx.method in _FORWARDED:
                await route.channel.notify(ctx.method, ctx.params)
                continue
            with suppress(MCPError, CallFailed):  # a notification gets no response; a refusal is in the audit
                async with self._authorizer.custom(ctx, upstream.config) as note:
                    await route.channel.notify(ctx.method, ctx.params)
                    if note is not None:
                        note({})

    async def _serve_session(self, session: ClientSession) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.send_queued)
            await session.closed.wait()
            self._routing.forget(session)
            tasks.cancel_scope.cancel()

    async def _set_level(self, request: ClientRequest) -> dict[str, Any]:
        """Answers `logging/setLevel`: legacy servers get the level now, modern servers with each request."""
        level, result = request.params.get("level"), None
        if self.upstreams.names.single:
            result = await self._set_level_at(request, self.upstreams.only)
        elif level in LEVELS:
            await self._set_level_at_all(request)
        if result is None and level not in LEVELS:
            raise MCPError(INVALID_PARAMS, "this log level does not exist")
        request.client.level = level
        return result or {}

    async def _set_level_at(self, request: ClientRequest, upstream: McpUpstream) -> dict[str, Any] | None:
        """The server's own answer; None if it is not asked."""
        client, routing = request.client, self._routing
        about = await (routing.about(client, upstream) if isinstance(client, ClientSession) else upstream.about())
        able = self.upstreams.names.single or "logging" in about.capabilities
        if able and not is_modern(about.protocol_version):
            return await self._relay.send(request, upstream, request.params)
        return None

    async def _set_level_at_all(self, request: ClientRequest) -> None:
        """Sets the level at all servers; the client waits only for those that answer soon."""

        async def set_level(upstream: McpUpstream, done: anyio.Event) -> None:
            try:
                await self._set_level_at(request, upstream)
            except (PursuitError, CallFailed, MCPError) as error:
                event(_log, logging.WARNING, "the log level is not set", server=upstream.name, why=str(error))
            finally:
                done.set()

        waiting = {upstream: anyio.Event() for upstream in self.upstreams.values()}
        for upstream, done in waiting.items():
            self._tasks.start_soon(set_level, upstream, done)
        with anyio.move_on_after(self._options.limits.optional_seconds):
            for done in waiting.values():
                await done.wait()

    async def call_as_operator(self, ctx: Context | None, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a tool of the only server for the operator, over the connection of a client's request or a new one.

        After that, clients get only responses from the server. Raises `CallFailed`.
        """
        self._clients.outbound.closed = True
        try:
            if ctx is not None:
                client = self._clients.of(ctx) or GatewayClient({}, self._clients.outbound)
                request = OperatorRequest(ctx, client, name, arguments)
                return await self._tool_calls.perform(self._tool_calls.resolve(request))
            side = ClientFeatures(heard=lambda _method, _params: None)
            async with self.upstreams.only.lease(side, separate=True) as channel:
                params = {"name": name, "arguments": dict(arguments)}
                return await channel.request("tools/call", params, progress=False)
        except UpstreamUnavailable as error:
            raise CallFailed(error.message, sent=False) from None
        except MCPError as error:
            raise CallFailed(error.message, answered=True) from None
        except UpstreamError as error:
            raise CallFailed(f"the server refused the call: {error.message}", answered=True) from None

    async def has_tool(self, ctx: Context, name: str) -> bool:
        """True if a client sees a tool of this name, or if that cannot be determined now."""
        owner, client = self.upstreams.names.owner(name), self._clients.of(ctx)
        if owner is None or client is None:
            return False
        try:
            return await self.lists.find(ClientRequest(ctx, client), *owner) is not None
        except (CallFailed, UpstreamUnavailable, MCPError):
            return True

    def _notified(self, upstream: McpUpstream, method: str, params: Mapping[str, Any]) -> None:
        """Forwards a notification outside of requests on the connection that all clients share."""
        if method == "notifications/tools/list_changed":
            self.lists.changed(upstream.name)
        body = without_meta(params, SUBSCRIPTION_ID_META_KEY)  # legacy clients do not open streams
        if method == LOG_MESSAGE and is_modern(upstream.protocol_version or ""):
            self._routing.log_message(upstream, body)
            return
        for session in self._clients:
            if not self._routing.has_own(session, upstream):
                session.notify_from(upstream.name, method, body)

    async def _retry(self, upstream: McpUpstream) -> None:
        """Polls a server that is missing from the lists until it answers, and then notifies clients."""
        if upstream in self._retried:
            return
        self._retried.add(upstream)
        pause = RETRY_SECONDS[0]
        while self.upstreams.get(upstream.name) is upstream:
            try:
                await upstream.tools()
            except PursuitError:
                await anyio.sleep(pause)
                pause = min(pause * 2, RETRY_SECONDS[1])
                continue
            event(_log, logging.INFO, "the server responds again", server=upstream.name)
            for method in FLAGS.values():
                self._notified(upstream, method, {})
            self._subscriptions.changed()
            break
        self._retried.discard(upstream)

    async def reload(self) -> None:
        """Reloads the configuration; a faulty one changes nothing."""
        try:
            reloaded = await self._runtime.reload(check_names if self._options.search else None)
        except PursuitError as error:
            event(_log, logging.ERROR, "the configuration was not reloaded", why=str(error.as_dict()))
            return
        fresh = self.upstreams.refresh()
        self.lists.changed()
        for session in self._clients:
            await self._routing.adopt(session, fresh)
            for method in FLAGS.values():
                session.notify(method, {})
        self._subscriptions.end()
        event(
            _log,
            logging.INFO,
            "the configuration was reloaded",
            removed=reloaded.removed,
            updated=reloaded.updated,
            connected=reloaded.connected,
            failed=dict(reloaded.failed),
        )


@asynccontextmanager
async def open_gateway(runtime: Runtime, options: GatewayOptions | None = None) -> AsyncGenerator[Gateway]:
    async with anyio.create_task_group() as tasks:
        gateway = Gateway(runtime, tasks, options or GatewayOptions())
        try:
            yield gateway
        finally:
            await gateway.close()
            tasks.cancel_scope.cancel()


def initialize_result(params: Mapping[str, Any], found: Found) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    result: dict[str, Any] = {
        "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities_of_all(found),
        "serverInfo": _server_info(found),
    }
    # The tasks are those of the gateway; versions before 2025-11-25 have none.
    if asked not in HANDSHAKE_PROTOCOL_VERSIONS or asked in FIRST_VERSIONS:
        result["capabilities"]["tasks"] = TASKS
    return _with_instructions(result, found)


def discover_result(found: Found) -> dict[str, Any]:
    able = capabilities_of_all(found)
    result: dict[str, Any] = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": {**able, "extensions": {**as_object(able.get("extensions")), EXTENSION: {}}},
    }
    return modern_result("server/discover", _with_instructions(result, found), _server_info(found))


def _server_info(found: Found) -> Mapping[str, Any]:
    if len(found) == 1:
        about = next(iter(found.values()))
        if about is not None and about.server_info is not None:
            return about.server_info
    return INFO


def _with_instructions(result: dict[str, Any], found: Found) -> dict[str, Any]:
    """Adds the servers' instructions: those of one server unchanged, those of several under their names."""
    given = {name: about.instructions for name, about in found.items() if about is not None and about.instructions}
    if len(found) == 1:
        text = next(iter(given.values()), None)
    else:
        text = "\n\n".join(f"## {name}\n{instructions}" for name, instructions in given.items()) or None
    return result if text is None else {**result, "instructions": text}


def capabilities_of_all(found: Found) -> dict[str, Any]:
    """The capabilities of all servers together, without tasks."""
    union: dict[str, Any] = {}
    for about in found.values():
        union = _merged(union, dict(_UNREACHABLE) if about is None else protocol.without_tasks(about.capabilities))
    if len(found) > 1:
        # The method of an extension does not name its server.
        return {key: value for key, value in union.items() if key in _ROUTED}
    return union


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    union = dict(one)
    for key, value in other.items():
        mine = union.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            union[key] = _merged(cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", value))
        elif not mine:
            union[key] = value
    return union
