"""The gateway as an SDK server: one middleware that answers everything with the JSON of the servers behind it.

Owns: which method is whose, and the life of it all. Knows no transport. Invariant: what is relayed is never put through
the SDK's own models, which drop what they do not know.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.abc
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit import __version__
from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.errors import PursuitError, UpstreamUnavailable
from pursuit.policy.rules import Layers
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, wire_error
from pursuit.server.gateway import initialize
from pursuit.server.gateway.authorization import Authorizer
from pursuit.server.gateway.calls import Calls
from pursuit.server.gateway.clients import ClientRequest, Clients, ClientSession, OperatorRequest
from pursuit.server.gateway.lists import KINDS, Lists
from pursuit.server.gateway.pending_input import PendingCalls
from pursuit.server.gateway.protocol_versions import LEVELS, NEW_ONLY, OLD_ONLY, enveloped, is_modern
from pursuit.server.gateway.relay import Relay, no_answer
from pursuit.server.gateway.resources import Resources
from pursuit.server.gateway.routing import ASIDE_SECONDS, LOGGED, LegacySessions, Routing
from pursuit.server.gateway.subscriptions import AGAIN, FLAGS, Subscriptions, unstamped
from pursuit.server.gateway.task_calls import GatewayTaskCalls
from pursuit.server.gateway.tool_search import Search, check_names
from pursuit.server.gateway.upstreams import GatewayOptions, Upstreams
from pursuit.server.logs import event
from pursuit.server.signing import Seal
from pursuit.server.tasks.middleware import TaskDoor
from pursuit.service.audit import Caller
from pursuit.service.gateway import GatewayJournal, GatewayQuestions
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.transport import ClientSide

# From which level on a client of the old era wants to read log messages.
# Invariant: of several servers one that does not answer keeps nobody waiting for long, and the others are told all
# the same.

_log = logging.getLogger(__name__)


class Levels:
    """Answers `logging/setLevel`."""

    def __init__(self, roster: Upstreams, lines: Routing, relay: Relay, tasks: anyio.abc.TaskGroup) -> None:
        self._roster = roster
        self._lines = lines
        self._relay = relay
        self._tasks = tasks

    async def set(self, visit: ClientRequest) -> dict[str, Any]:
        """A server of the old era is told; to one of the new era each request says it."""
        level = visit.params.get("level")
        if self._roster.names.single:
            result = await self._tell(visit, self._roster.only)
        elif level in LEVELS:
            result = await self._tell_all(visit)
        else:
            raise _no_level()
        visit.guest.level = level if isinstance(level, str) else None
        return result

    async def _tell(self, visit: ClientRequest, upstream: McpUpstream) -> dict[str, Any]:
        session = visit.guest
        about = await (self._lines.about(session, upstream) if isinstance(session, ClientSession) else upstream.about())
        if not is_modern(about.protocol_version):
            told = self._roster.names.single or "logging" in about.capabilities
            return await self._relay.send(visit, upstream, visit.params) if told else {}
        if visit.params.get("level") not in LEVELS:
            raise _no_level()
        return {}

    async def _tell_all(self, visit: ClientRequest) -> dict[str, Any]:
        """Tells them side by side; the client waits only for those that answer soon."""

        async def tell(upstream: McpUpstream, done: anyio.Event) -> None:
            try:
                await self._tell(visit, upstream)
            except (PursuitError, CallFailed, MCPError) as error:
                event(_log, logging.WARNING, "it was not told the log level", server=upstream.name, why=str(error))
            finally:
                done.set()

        waiting = {upstream: anyio.Event() for upstream in self._roster.values()}
        for upstream, done in waiting.items():
            self._tasks.start_soon(tell, upstream, done)
        with anyio.move_on_after(ASIDE_SECONDS):
            for done in waiting.values():
                await done.wait()
        return {}


def _no_level() -> MCPError:
    return MCPError(INVALID_PARAMS, "there is no such log level")


Handler = Callable[[ClientRequest], Awaitable[dict[str, Any]]]
Clerk = Callable[[ClientRequest, Handler], Awaitable[dict[str, Any]]]
"""Answers a call of a tool, whether it is a task or not, and may make it by the gateway's own way."""


class Gateway:
    """Everything behind the middleware, which it is itself."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup, options: GatewayOptions) -> None:
        self.info = options.info or initialize.INFO
        self._runtime = runtime
        self._tasks = tasks
        self._options = options
        self._guests = Clients()
        self._awaits: set[McpUpstream] = set()
        self._lines = Routing(tasks, alone=options.alone, heard=self._heard_publicly)
        self._relay = Relay(self._lines, LegacySessions(tasks, alone=options.alone), PendingCalls(tasks), self._barred)
        self.roster = Upstreams(runtime.toolbox.host.pool, self._heard, tasks, options.spelling)
        self.lists = Lists(self.roster, self._relay, lambda late: tasks.start_soon(self._awaited, late))
        self.journal = GatewayJournal(
            runtime.service.ledger,
            runtime.service.clock,
            servers=tuple(self.roster),
            by=str(runtime.service.caller),
            patience=runtime.toolbox.settings.approval_timeout,
        )
        gate = Authorizer(self._layers, self.journal)
        resources = Resources(self.roster, self._relay)
        self._calls = calls = Calls(
            self.roster,
            relay=self._relay,
            lists=self.lists,
            resources=resources,
            gate=gate,
            patience=self._patience,
            info=self.info,
        )
        self._listens = Subscriptions(self.roster, resources, self._lines, tasks)
        self._answers: dict[str, Handler] = {
            **dict.fromkeys(KINDS, self.lists.page),
            "tools/call": self._called,
            "resources/read": resources.about_uri,
            "resources/subscribe": self._listens.subscribe,
            "resources/unsubscribe": self._listens.unsubscribe,
            "subscriptions/listen": self._listens.listen,
            "logging/setLevel": Levels(self.roster, self._lines, self._relay, tasks).set,
            "prompts/get": resources.about_name,
            "completion/complete": resources.complete,
        }
        self._call: Handler = calls.call
        self.clerk: Clerk | None = None
        if options.search:
            search = Search(self.roster, self.lists, calls)
            self._answers["tools/list"] = search.listing
            self._call = search.call

        self.errands = GatewayTaskCalls(
            self.roster,
            self.lists,
            self._called,
            questions=GatewayQuestions(runtime.service.ledger, runtime.service.clock),
            more=options.search,
        )

    def _layers(self, caller: Caller) -> Layers:
        """The policy of now for this caller: the toolbox is another one after a reload."""
        host = self._runtime.toolbox.host
        return host.layers(None, None, *host.caller_layer(caller.credential))

    def _barred(self, server: str) -> str | None:
        """Why a server may be sent nothing that no person was asked about."""
        asked = [rule.reason for rule in self._runtime.toolbox.host.pool.asked_first() if rule.server == server]
        return asked[0] if asked and self._runtime.toolbox.host.layers().mode != "auto" else None

    def _patience(self) -> float:
        return self._runtime.toolbox.settings.call_timeout

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers one message of a client."""
        if ctx.request_id is None:
            return await self._told(ctx, call_next)
        if ctx.method in (OLD_ONLY if is_modern(ctx.protocol_version) else NEW_ONLY) or ctx.method == "ping":
            return await call_next(ctx)
        if ctx.method == "initialize":
            return await self._greeted(ctx)
        guest = self._guests.of(ctx)
        if guest is None:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        if ctx.method == "server/discover":
            return initialize.discovered(await initialize.everyone(self.roster, seconds=self._options.hello_seconds))
        answer = self._answers.get(ctx.method)
        if answer is None:
            if not self.roster.names.single:
                return await call_next(ctx)
            answer = self._custom
        try:
            result = guest.readable(await answer(ClientRequest(ctx, guest)))
        except PursuitError as error:
            raise wire_error(error) from error
        except CallFailed as error:
            raise no_answer(error) from None
        except MCPError as error:
            raise MCPError(error.code, guest.readable(error.message), guest.readable(error.error.data)) from None
        return enveloped(ctx.method, result, self.info) if guest.modern and "resultType" not in result else result

    async def _greeted(self, ctx: Context) -> dict[str, Any]:
        session = self._guests.arrive(ctx)
        await self._lines.adopt(session, self.roster)
        found = await initialize.everyone(self.roster, partial(self._lines.about, session))
        return session.readable(initialize.initialized(ctx.params or {}, found))

    async def _told(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        guest = self._guests.of(ctx)
        if ctx.method == "notifications/initialized" and isinstance(guest, ClientSession):
            guest.ready.set()
            self._tasks.start_soon(self._attend, guest)
        elif ctx.method not in ("notifications/cancelled", "notifications/initialized") and isinstance(
            guest, ClientSession
        ):
            for line in self._lines.lines_of(guest):
                if line.talk is not None:
                    await line.talk.notify(ctx.method, ctx.params)
        return await call_next(ctx)

    async def _attend(self, session: ClientSession) -> None:
        """Tells a client what there is to tell, for as long as it is there."""
        async with anyio.create_task_group() as attending:
            attending.start_soon(session.pump)
            await session.gone.wait()
            self._lines.forget(session)
            attending.cancel_scope.cancel()

    async def _called(self, visit: ClientRequest) -> dict[str, Any]:
        """Every call of a tool comes by here, also as a task."""
        return await (self._call(visit) if self.clerk is None else self.clerk(visit, self._call))

    async def _custom(self, visit: ClientRequest) -> dict[str, Any]:
        """What the protocol does not know goes to the only server as it is."""
        return await self._relay.send(visit, self.roster.only, visit.params)

    async def aside(self, ctx: Context | None, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a tool of the only server for the operator, in the place of a client's request, or of none's.

        From here on the server speaks to clients only by answering them. Raises `CallFailed`.
        """
        self._guests.silence.kept = True
        try:
            if ctx is not None:
                return await self._calls.aside(OperatorRequest(ctx, self._guests.of_aside(ctx), name, arguments))
            side = ClientSide(heard=lambda _method, _params: None)
            async with self.roster.only.leased(side, apart=True) as talk:
                params = {"name": name, "arguments": dict(arguments)}
                return await talk.request("tools/call", params, progress=False)
        except UpstreamUnavailable as error:
            raise CallFailed(error.message, sent=False) from None
        except MCPError as error:
            raise CallFailed(error.message, answered=True) from None
        except UpstreamError as error:
            raise CallFailed(f"the server refused the call: {error.message}", answered=True) from None

    async def knows(self, ctx: Context, name: str) -> bool:
        """Whether a client sees a tool of this name; one that cannot be asked now may have it."""
        owner, guest = self.roster.names.owner(name), self._guests.of(ctx)
        if owner is None or guest is None:
            return False
        try:
            return await self.lists.find(ClientRequest(ctx, guest), *owner) is not None
        except (CallFailed, UpstreamUnavailable, MCPError):
            return True

    def _heard(self, upstream: McpUpstream, method: str, params: Mapping[str, Any]) -> None:
        """Hands on what a server says outside of any request on the connection that all share."""
        if method == "notifications/tools/list_changed":
            self.lists.changed(upstream.name)
        words = unstamped(params)
        if method == LOGGED and is_modern(upstream.protocol_version or ""):
            self._lines.logged(upstream, words)
        elif not self._lines.has_public(upstream):
            self._heard_publicly(upstream, method, words)

    def _heard_publicly(self, upstream: McpUpstream, method: str, params: Mapping[str, Any]) -> None:
        """Tells the clients of the old era that have no connection of their own."""
        if method == "notifications/tools/list_changed":
            self.lists.changed(upstream.name)
        for session in self._guests:
            if not self._lines.has_own(session, upstream):
                session.tell_from(upstream.name, method, params)

    async def _awaited(self, upstream: McpUpstream) -> None:
        """Says that the lists have changed when a server that was late, or could not be reached, is there."""
        if upstream in self._awaits:
            return
        self._awaits.add(upstream)
        pause = AGAIN[0]
        while self.roster.get(upstream.name) is upstream:
            try:
                await upstream.tools()
            except PursuitError:
                await anyio.sleep(pause)
                pause = min(pause * 2, AGAIN[1])
                continue
            event(_log, logging.INFO, "it is there now", server=upstream.name)
            for method in FLAGS.values():
                self._heard(upstream, method, {})
            self._listens.changed()
            break
        self._awaits.discard(upstream)

    async def reload(self) -> None:
        """Reads the configuration again and serves what it says from now on; a faulty one changes nothing."""
        try:
            reloaded = await self._runtime.reload(check_names if self._options.search else None)
        except PursuitError as error:
            event(_log, logging.ERROR, "the configuration was not read again", why=str(error.as_dict()))
            return
        fresh = self.roster.refresh()
        self.lists.changed()
        for session in self._guests:
            await self._lines.adopt(session, fresh)
            for method in FLAGS.values():
                session.tell(method, {})
        self._listens.end()
        event(
            _log,
            logging.INFO,
            "the configuration was read again",
            removed=reloaded.removed,
            updated=reloaded.updated,
            connected=reloaded.connected,
            failed=dict(reloaded.failed),
        )


@asynccontextmanager
async def gateway_server(
    runtime: Runtime, options: GatewayOptions | None = None
) -> AsyncGenerator[tuple[Server[Any], Gateway]]:
    """A server in front of the configured ones of an open runtime."""
    async with anyio.create_task_group() as tasks:
        gateway = Gateway(runtime, tasks, options or GatewayOptions())
        server: Server[Any] = Server(
            str(initialize.INFO["name"]), version=__version__, get_tool_input_schema=gateway.lists.schema
        )
        await runtime.tasks.tend()
        door = TaskDoor(
            await runtime.tasks.host(),
            plan=gateway.errands.plan,
            performer=gateway.errands.performer,
            seal=lambda: Seal.beside(runtime.state_path),
            info=lambda: gateway.info,
            strict=gateway.errands.strict,
        )
        # The SDK's own first middleware only records spans, which nobody collects here.
        server.middleware = [door, gateway]
        try:
            async with door:
                yield server, gateway
        finally:
            gateway.roster.leave()
            with anyio.CancelScope(shield=True):
                await gateway.journal.close()
            tasks.cancel_scope.cancel()
