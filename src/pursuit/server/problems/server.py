"""A problem as a server of the SDK, which opens everything that it needs when it is run.

Owns: the life of it all: the ledger, the upstream, the gateway in front of it, the desk. Knows no transport.
Invariant: making one does nothing, so that it can be made anywhere; each client has an attempt of its own (unless the
manifest shares one) and an upstream of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from pursuit import __version__
from pursuit.config.configuration import Configuration
from pursuit.core.tools import Tool
from pursuit.errors import PolicyDenied, UpstreamUnavailable
from pursuit.policy.rules import Mode
from pursuit.problems.attempts import Attempt, new_attempt_id, shared_attempt_id
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.runtime import Runtime
from pursuit.sandbox import Sandbox
from pursuit.server.errors import Context
from pursuit.server.gateway.authorization import denial
from pursuit.server.gateway.server import Gateway, gateway_server
from pursuit.server.gateway.upstreams import GatewayOptions
from pursuit.server.logs import event
from pursuit.server.problems.handler import HELLO_SECONDS, ProblemHandler, info_of
from pursuit.server.problems.listing import Besides, Offer, besides
from pursuit.server.problems.session_manager import IDLE_SECONDS, MOST_DESKS, SessionManager, reception
from pursuit.upstream.client import McpUpstream

LOOK_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemOptions:
    """How a problem is served. `config` gives the operator's policy, and nothing else; `mode` overrules its mode.

    Whoever serves a problem lets agents use its tools: without a `mode` nobody is asked, though denials hold.
    """

    state: Path | None = None
    config: Configuration | None = None
    mode: Mode | None = None
    server_name: str | None = None
    include_citation: bool = True
    attempt_id: str | None = None
    label: str = ""
    mission: str | None = None
    most_clients: int = MOST_DESKS
    idle_seconds: float = IDLE_SECONDS


def problem_server(problem: Manifest, options: ProblemOptions | None = None, *, many: bool = False) -> Server[Any]:
    """A server that offers one problem; nothing is opened before it runs.

    A run of it is one client, unless it is for `many` (over HTTP), who are told apart. Raises `PolicyDenied` if the
    operator's own rules forbid the tool that judges.
    """
    chosen = options or ProblemOptions()
    _check_judge(problem, chosen)

    def desk_for(attempt_id: str, alone: bool, who: str) -> AbstractAsyncContextManager[ProblemHandler]:
        own = replace(chosen, attempt_id=attempt_id, label=chosen.label or who)
        return open_desk(problem, own, alone=alone)

    @asynccontextmanager
    async def opened(_: Server[Any]) -> AsyncGenerator[ProblemHandler | SessionManager]:
        if not many:
            async with open_desk(problem, chosen) as desk:
                yield desk
            return
        shared = chosen.attempt_id or (shared_attempt_id(problem) if problem.visibility.shared_attempt else None)
        most, idle = chosen.most_clients, chosen.idle_seconds
        async with reception(
            desk_for, info=info_of(problem, chosen.server_name), shared=shared, most=most, idle=idle
        ) as found:
            yield found

    name = chosen.server_name or problem.problem_id
    server: Server[Any] = Server(name, version=__version__, title=problem.title, lifespan=opened)
    server.middleware = [_answered]
    return server


async def _answered(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Hands a message to whoever answers in this run; what that does not answer is the SDK's."""
    answering: ProblemHandler | SessionManager = ctx.lifespan_context
    return await answering(ctx, call_next)


@asynccontextmanager
async def open_desk(
    problem: Manifest, options: ProblemOptions, *, alone: bool = True
) -> AsyncGenerator[ProblemHandler]:
    """Everything for one client of a problem, or for several at one attempt."""
    attempt_id = options.attempt_id or _attempt_id(problem)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(_runtime(problem, options))
        sandbox = await stack.enter_async_context(Sandbox())
        gateway_options = GatewayOptions(
            alone=alone, reloads=False, info=info_of(problem, options.server_name), hello_seconds=HELLO_SECONDS
        )
        inner, gateway = await stack.enter_async_context(gateway_server(runtime, gateway_options))
        attempt = Attempt(
            runtime.service.ledger,
            time.time,
            problem,
            attempt_id,
            by=str(runtime.service.caller),
            label=options.label,
            mission=options.mission,
        )
        await attempt.refresh()
        # A judge may take its time: no client waits for it in vain, and leaving waits for it.
        async with anyio.create_task_group() as tasks:
            desk = ProblemHandler(
                problem,
                attempt,
                partial(_through, inner),
                Looking(problem, gateway).look,
                aside=gateway.aside,
                knows=gateway.knows,
                expressions=sandbox,
                tasks=tasks,
                server_name=options.server_name,
                citations=options.include_citation,
            )
            gateway.clerk = desk.clerk
            tasks.start_soon(desk.submitting.catch_up)
            try:
                yield desk
            finally:
                desk.leave()


def _check_judge(problem: Manifest, options: ProblemOptions) -> None:
    """Nobody is asked about the judge, which is the operator's; one that is denied would leave all without a score."""
    scorer = problem.scorer
    if scorer.tool is None or options.config is None:
        return
    tool = Tool(server=UPSTREAM, name=scorer.tool, input_schema={}, definition={})
    why = denial(options.config.policy, tool, scorer.arguments)
    if why is not None:
        raise PolicyDenied(f"the problem {problem.problem_id!r} cannot be judged: {why}", tool=tool.qualified)


def _attempt_id(problem: Manifest) -> str:
    return shared_attempt_id(problem) if problem.visibility.shared_attempt else new_attempt_id()


def _runtime(problem: Manifest, options: ProblemOptions) -> Runtime:
    """The operator's policy and the problem's own server, and no other one."""
    given = options.config or Configuration()
    # What it writes to stderr may be about the judge, and agents read why a call failed.
    servers = {} if problem.server is None else {UPSTREAM: replace(problem.server, discreet=True)}
    configuration = replace(given, servers=servers, commands={}, checks={})
    # A problem without a server has one without tools, so that everything else is the same.
    handed_in: dict[str, Any] = {} if servers else {UPSTREAM: []}
    return Runtime(state=options.state, config=configuration, servers=handed_in, mode=options.mode or "auto")


async def _through(server: Server[Any], ctx: Context, last: CallNext) -> HandlerResult:
    """A message through the middleware of the gateway."""
    following = last
    for one in reversed(server.middleware):
        following = partial(one, call_next=following)
    return await following(ctx)


class Looking:
    """What the upstream has: its tools as they are now, resources and prompts as they were at the first look."""

    def __init__(self, problem: Manifest, gateway: Gateway) -> None:
        self._problem = problem
        self._gateway = gateway
        self._besides: Besides | None = None
        self._last: Offer | None = None
        self._told: set[str] = set()

    async def look(self) -> Offer:
        """What is there; one that cannot be reached has what it had, and before it was ever reached nothing."""
        upstream = self._gateway.roster.only
        # One that was there and does not answer now holds up no call that needs no answer of it.
        with anyio.move_on_after(None if self._last is None else LOOK_SECONDS):
            try:
                return await self._seen(upstream)
            except UpstreamUnavailable as error:
                return self._last or Offer(problem=self._problem, missing=error.message)
        return self._last or Offer(problem=self._problem, missing="it does not answer")

    async def _seen(self, upstream: McpUpstream) -> Offer:
        tools = await upstream.tools()
        resources, prompts = self._besides or (frozenset[str](), frozenset[str]())
        if self._besides is None:
            with suppress(UpstreamUnavailable):  # it refuses a list that it said it had: then it has none today
                self._besides = resources, prompts = await besides(upstream)
        self._last = Offer(
            problem=self._problem,
            tools=frozenset(tool.name for tool in tools),
            resources=resources,
            prompts=prompts,
            definitions=tuple(tool.definition for tool in tools),
        )
        for fault in self._last.faults():
            if str(fault) not in self._told:
                self._told.add(str(fault))
                event(_log, logging.ERROR, "the problem cannot be worked at", why=str(fault))
        return self._last
