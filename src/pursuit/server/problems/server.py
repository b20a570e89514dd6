"""A problem as a server of the SDK, which opens everything that it needs when it runs.

Each client has an attempt and a process of the problem's server for itself, unless the manifest shares one attempt.
Making a server opens nothing, so it can be made anywhere.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from pursuit import __version__
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ServerConfig
from pursuit.core.tools import Tool
from pursuit.errors import PolicyDenied
from pursuit.policy.rules import Layers, Mode, decide_own
from pursuit.problems.attempts import Attempt, attempt_of, new_attempt_id, shared_attempt_id
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.runtime import Runtime
from pursuit.sandbox import Sandbox
from pursuit.server.errors import Context
from pursuit.server.gateway.authorization import denial
from pursuit.server.gateway.server import open_gateway
from pursuit.server.gateway.upstreams import GatewayLimits, GatewayOptions
from pursuit.server.problems.handler import HELLO_SECONDS, ProblemCalls, ProblemHandler, info_of
from pursuit.server.problems.listing import UpstreamListing
from pursuit.server.problems.session_manager import IDLE_SECONDS, MOST_CLIENTS, AttemptClient, SessionManager
from pursuit.server.problems.submission import Submission

NESTED = "PURSUIT_NESTED_PROBLEM"
"""The variable that tells a served problem that it is the server of another one: its attempts are no caller's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemOptions:
    """How a problem is served. `config` gives the operator's policy, and nothing else; `mode` overrides its mode.

    `subject` is the caller whose attempt it is, if no `attempt_id` says which: its last attempt goes on until it is
    over. Without either the attempt is a new one.

    An operator who serves a problem lets agents use its tools: without a `mode` no approvals are needed, though denials
    hold. `look_seconds`: how long a server that answered before delays a request. `submit_wait_seconds`: how long a
    submission waits for the one before.
    """

    state: Path | None = None
    config: Configuration | None = None
    mode: Mode | None = None
    server_name: str | None = None
    include_citation: bool = True
    attempt_id: str | None = None
    label: str = ""
    mission: str | None = None
    subject: str | None = None
    most_clients: int = MOST_CLIENTS
    idle_seconds: float = IDLE_SECONDS
    look_seconds: float = 5.0
    submit_wait_seconds: float = 30.0
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    http: bool = False


def problem_server(problem: Manifest, options: ProblemOptions | None = None, *, many: bool = False) -> Server[Any]:
    """A server that offers one problem; nothing is opened before it runs.

    A run of it is one client, unless it is for `many` (over HTTP). Raises `PolicyDenied` if the operator's own rules
    forbid the tool that scores.
    """
    chosen = replace(options or ProblemOptions(), http=many)
    _check_scorer(problem, chosen)

    def open_handler(client: AttemptClient) -> AbstractAsyncContextManager[ProblemHandler]:
        options = replace(
            chosen, attempt_id=client.attempt_id, label=chosen.label or client.who, subject=client.subject
        )
        return open_problem(problem, options, alone=client.alone)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[ProblemHandler | SessionManager]:
        if not many:
            async with open_problem(problem, chosen) as handler:
                yield handler
            return
        shared = chosen.attempt_id or (shared_attempt_id(problem) if problem.visibility.shared_attempt else None)
        async with anyio.create_task_group() as tasks:
            manager = SessionManager(
                open_handler=open_handler,
                tasks=tasks,
                info=info_of(problem, chosen.server_name),
                shared=shared,
                most=chosen.most_clients,
                idle_seconds=chosen.idle_seconds,
            )
            tasks.start_soon(manager.run)
            yield manager
            tasks.cancel_scope.cancel()

    name = chosen.server_name or problem.problem_id
    server: Server[Any] = Server(name, version=__version__, title=problem.title, lifespan=lifespan)
    server.middleware = [_handle]
    return server


async def _handle(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Hands a message to the handler of this run; the SDK answers what the handler does not."""
    handler: ProblemHandler | SessionManager = ctx.lifespan_context
    return await handler(ctx, call_next)


@asynccontextmanager
async def open_problem(
    problem: Manifest, options: ProblemOptions, *, alone: bool = True
) -> AsyncGenerator[ProblemHandler]:
    """Everything for one client of a problem, or for several at one attempt."""
    attempt_id, number = options.attempt_id, 1
    if attempt_id is None and problem.visibility.shared_attempt:
        attempt_id = shared_attempt_id(problem)
    info = info_of(problem, options.server_name)
    gateway_options = GatewayOptions(
        alone=alone, reloads=False, info=info, hello_seconds=HELLO_SECONDS, limits=options.limits
    )
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(_runtime(problem, options))
        ledger = runtime.service.ledger
        begun = attempt_id is not None and (options.subject is None or await ledger.row(attempt_id) is not None)
        if not begun and options.subject is not None:
            attempt_id, number = await attempt_of(ledger, time.time, problem, options.subject)
        sandbox = await stack.enter_async_context(Sandbox())
        gateway = await stack.enter_async_context(open_gateway(runtime, gateway_options))
        attempt = Attempt(
            ledger,
            time.time,
            problem,
            attempt_id or new_attempt_id(),
            by=str(runtime.service.caller),
            label=options.label,
            mission=options.mission,
            subject=options.subject,
            number=number,
        )
        await attempt.refresh()
        # A scorer may take its time: no client waits for it in vain, and closing waits for it.
        async with anyio.create_task_group() as tasks:
            submission = Submission(
                problem=problem,
                attempt=attempt,
                call_as_operator=gateway.call_as_operator,
                expressions=sandbox,
                tasks=tasks,
            )
            listing = UpstreamListing(problem, attempt, lambda: gateway.upstreams.only, seconds=options.look_seconds)
            calls = ProblemCalls(listing, submission, wait_seconds=options.submit_wait_seconds)
            tasks.start_soon(submission.catch_up)
            inner = await gateway.server(on_tool_call=calls)
            try:
                yield ProblemHandler(
                    calls,
                    chain=partial(_through, inner),
                    has_tool=gateway.has_tool,
                    server_name=options.server_name,
                    citations=options.include_citation,
                )
            finally:
                calls.close()


def _check_scorer(problem: Manifest, options: ProblemOptions) -> None:
    """No approval is needed for the scorer, which is the operator's; if it were denied, no attempt had a score."""
    scorer = problem.scorer
    policy = (options.config or Configuration()).policy
    if scorer.tool is not None:
        tool = Tool(server=UPSTREAM, name=scorer.tool, input_schema={}, definition={})
        why = denial(policy, tool, scorer.arguments)
    elif scorer.function is not None or scorer.command:
        tool = Tool(server="judge", name=problem.problem_id, input_schema={}, definition={})
        layers = Layers(operator=replace(policy, mode=options.mode or "auto"))
        ruling = decide_own(layers, tool, {"argv": list(scorer.command)})
        why = f"{tool.qualified} is denied by policy: {ruling.reason}" if ruling.decision == "deny" else None
    else:
        return
    if why is not None:
        raise PolicyDenied(f"the problem {problem.problem_id!r} cannot be judged: {why}", tool=tool.qualified)


def _runtime(problem: Manifest, options: ProblemOptions) -> Runtime:
    """A runtime with the operator's policy and the problem's own server only."""
    given = options.config or Configuration()
    servers: dict[str, ServerConfig] = {}
    if problem.server is not None:
        # The server's stderr may be about the scorer, and agents read why a call failed. If it is a served problem
        # itself, each of its processes belongs to one attempt here.
        env = {**problem.server.env, NESTED: "1"} if problem.server.command else problem.server.env
        servers[UPSTREAM] = replace(problem.server, discreet=True, pin="off", env=env)
    configuration = replace(given, servers=servers, commands={}, checks={})
    # A problem without a server gets one without tools, so that all else is the same.
    own: dict[str, Any] = {} if servers else {UPSTREAM: []}
    runtime = Runtime(state=options.state, config=configuration, servers=own, mode=options.mode or "auto")
    runtime.serves_http = options.http
    return runtime


async def _through(server: Server[Any], ctx: Context, last: CallNext) -> HandlerResult:
    """Sends a message through the middleware of the gateway."""
    call_next = last
    for middleware in reversed(server.middleware):
        call_next = partial(middleware, call_next=call_next)
    return await call_next(ctx)
