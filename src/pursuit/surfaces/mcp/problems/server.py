"""A problem as a server of the SDK, which opens everything that it needs when it is run.

Owns: the life of it all: the ledger, the upstream, the gateway in front of it, the desk. Knows no transport.
Invariant: making one does nothing, so that it can be made anywhere; each run is one client with an attempt of its own
(unless the manifest shares one) and an upstream of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from pursuit import __version__
from pursuit.app import Runtime
from pursuit.errors import UpstreamUnavailable
from pursuit.problems.attempts import Attempt, new_attempt_id, shared_attempt_id
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.sandbox import Sandbox
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.gateway.options import GatewayOptions
from pursuit.surfaces.mcp.gateway.server import Gateway, gateway_server
from pursuit.surfaces.mcp.problems.asking import Besides, besides
from pursuit.surfaces.mcp.problems.desk import Desk
from pursuit.surfaces.mcp.problems.offer import Offer
from pursuit.tools.configuration import Configuration
from pursuit.tools.policy import Mode


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


def problem_server(problem: Manifest, options: ProblemOptions | None = None) -> Server[Any]:
    """A server that offers one problem; nothing is opened before it runs."""
    chosen = options or ProblemOptions()

    @asynccontextmanager
    async def opened(_: Server[Any]) -> AsyncGenerator[Desk]:
        async with open_desk(problem, chosen) as desk:
            yield desk

    name = chosen.server_name or problem.problem_id
    server: Server[Any] = Server(name, version=__version__, title=problem.title, lifespan=opened)
    server.middleware = [_answered]
    return server


async def _answered(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Hands a message to the desk of this run; what that does not answer is the SDK's."""
    desk: Desk = ctx.lifespan_context
    return await desk(ctx, call_next)


@asynccontextmanager
async def open_desk(problem: Manifest, options: ProblemOptions) -> AsyncGenerator[Desk]:
    """Everything for one client of a problem."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(_runtime(problem, options))
        sandbox = await stack.enter_async_context(Sandbox())
        gateway_options = GatewayOptions(alone=True, reloads=False)
        inner, gateway = await stack.enter_async_context(gateway_server(runtime, gateway_options))
        attempt = Attempt(
            runtime.service.ledger,
            time.time,
            problem,
            options.attempt_id or _attempt_id(problem),
            by=str(runtime.service.caller),
            label=options.label,
            mission=options.mission,
        )
        yield Desk(
            problem,
            attempt,
            partial(_through, inner),
            Looking(problem, gateway).look,
            sandbox,
            server_name=options.server_name,
            citations=options.include_citation,
        )


def _attempt_id(problem: Manifest) -> str:
    return shared_attempt_id(problem) if problem.visibility.shared_attempt else new_attempt_id()


def _runtime(problem: Manifest, options: ProblemOptions) -> Runtime:
    """The operator's policy and the problem's own server, and no other one."""
    given = options.config or Configuration()
    servers = {} if problem.server is None else {UPSTREAM: problem.server}
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

    async def look(self) -> Offer:
        """What is there; of an upstream that cannot be reached nothing is known."""
        upstream = self._gateway.roster.only
        try:
            tools = await upstream.tools()
            self._besides = self._besides or await besides(upstream)
            resources, prompts = self._besides
        except UpstreamUnavailable:
            return Offer(problem=self._problem)
        return Offer(
            problem=self._problem,
            tools=frozenset(tool.name for tool in tools),
            resources=resources,
            prompts=prompts,
            definitions=tuple(tool.definition for tool in tools),
        )
