"""A problem as a server of the SDK, for one client or for many; it opens what it needs when it runs.

Each client has its own attempt and its own process of the problem's server, unless the manifest shares one attempt.
Making a server opens nothing, so it can be made anywhere.

Over HTTP a caller is its token, or without tokens its name in the address (`/mcp?client=NAME`). Each session of a
legacy client has a handler; a modern client, which has no session, has one until it is idle. A caller that reconnects
continues its attempt. After its submission, a new session of a legacy client, or a restart of this server, begins a
further attempt.

Invariant: two callers share an attempt only if the operator or the manifest says so. A client without a token or a name
may only read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from pursuit import __version__
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ServerConfig
from pursuit.core.tools import Tool
from pursuit.errors import InvalidArgument, PolicyDenied, PursuitError, UpstreamUnavailable, advice
from pursuit.policy.rules import Layers, Mode, decide_own
from pursuit.problems.attempts import Attempt, attempt_of, new_attempt_id, shared_attempt_id
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.problems.scorer import TOOL
from pursuit.runtime import Runtime
from pursuit.sandbox.sandbox import Sandbox
from pursuit.server.errors import Context, connection_of, is_modern, modern_result, owner_of, wire_error
from pursuit.server.gateway.authorization import denial
from pursuit.server.gateway.server import open_gateway
from pursuit.server.gateway.upstreams import GatewayLimits, GatewayOptions
from pursuit.server.logs import event
from pursuit.server.problems.handler import HELLO_SECONDS, ProblemCalls, ProblemHandler, info_of
from pursuit.server.problems.listing import UpstreamListing
from pursuit.server.problems.submission import PendingWatcher, Submission, refusal

MAX_CLIENTS = 32
"""Maximum open handlers: each client may have a process of the problem's server."""

IDLE_SECONDS = 1_800.0
MAX_LABEL = 100
_SHARED: Hashable = "all"
_UNKNOWN_CLIENT = InvalidArgument(
    "this server cannot distinguish you from other clients, and an attempt belongs to one client: give each client its "
    f"own address (/mcp?client=NAME) or its own token (`{advice('pursuit token')}`)"
)
_log = logging.getLogger(__name__)

NESTED = "PURSUIT_NESTED_PROBLEM"
"""The variable that tells a served problem that it is the server of another problem: its attempts do not belong to a
caller.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemOptions:
    """Options for serving a problem. `config` supplies only the operator's policy; `mode` overrides its mode.

    `subject` is the caller whose attempt it is, if `attempt_id` is not given: its last attempt continues until it is
    over. Without either, the attempt is new.

    An operator who serves a problem lets agents use its tools: without a `mode` no approvals are needed, but denials
    count. `look_seconds` limits how long a server that answered before may delay a request, `submit_wait_seconds` how
    long a submission waits for the previous one.
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
    most_clients: int = MAX_CLIENTS
    idle_seconds: float = IDLE_SECONDS
    look_seconds: float = 5.0
    submit_wait_seconds: float = 30.0
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    http: bool = False


class ProblemServer(Server[Any]):
    """A low-level server of the MCP SDK that offers one problem."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._runs: dict[anyio.Event, anyio.CancelScope] = {}

    @asynccontextmanager
    async def until_closed(self) -> AsyncGenerator[None]:
        """A run, which `aclose` cancels."""
        closed = anyio.Event()
        with anyio.CancelScope() as self._runs[closed]:
            try:
                yield
            finally:
                del self._runs[closed]
                closed.set()

    async def aclose(self) -> None:
        """Ends all runs, and waits until the problem's server and the ledger of each run are closed."""
        runs = tuple(self._runs.items())
        for _, scope in runs:
            scope.cancel()
        for closed, _ in runs:
            await closed.wait()


def problem_server(problem: Manifest, options: ProblemOptions | None = None, *, many: bool = False) -> ProblemServer:
    """A server that offers one problem; nothing is opened before it runs.

    A run serves one client, or with `many` several (over HTTP). Raises `PolicyDenied` if the operator's own rules
    forbid the tool that scores.
    """
    chosen = replace(options or ProblemOptions(), http=many)
    _check_scorer(problem, chosen)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[ProblemHandler | SessionManager]:
        if not many:
            async with server.until_closed(), open_problem(problem, chosen) as handler:
                yield handler
            return
        async with server.until_closed(), anyio.create_task_group() as tasks:
            manager = SessionManager(problem=problem, options=chosen, tasks=tasks)
            tasks.start_soon(manager.run)
            yield manager
            tasks.cancel_scope.cancel()

    name = chosen.server_name or problem.problem_id
    server = ProblemServer(name, version=__version__, title=problem.title, lifespan=lifespan)
    server.middleware = [_handle]
    return server


async def _handle(ctx: Context, call_next: CallNext) -> HandlerResult:
    handler: ProblemHandler | SessionManager = ctx.lifespan_context
    return await handler(ctx, call_next)


@asynccontextmanager
async def open_problem(
    problem: Manifest, options: ProblemOptions, *, alone: bool = True
) -> AsyncGenerator[ProblemHandler]:
    """Everything for one client of a problem, or for several clients of one attempt."""
    attempt_id, number = options.attempt_id, 1
    if attempt_id is None and problem.visibility.shared_attempt:
        attempt_id = shared_attempt_id(problem)
    info = info_of(problem, options.server_name)
    gateway_options = GatewayOptions(
        alone=alone, reloads=False, info=info, hello_seconds=HELLO_SECONDS, limits=options.limits
    )
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(_runtime(problem, options))
        ledger = runtime.runner.ledger
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
            by=str(runtime.runner.caller),
            label=options.label,
            mission=options.mission,
            subject=options.subject,
            number=number,
        )
        await attempt.refresh()
        # A scorer may take long: clients wait for it, and so does closing.
        async with anyio.create_task_group() as tasks:
            submission = Submission(
                problem=problem,
                attempt=attempt,
                call_as_operator=gateway.call_as_operator,
                expressions=sandbox,
                tasks=tasks,
                watcher=PendingWatcher(attempt, tasks),
                wait_seconds=options.submit_wait_seconds,
            )
            listing = UpstreamListing(problem, attempt, lambda: gateway.upstreams.only, seconds=options.look_seconds)
            calls = ProblemCalls(listing, submission)
            tasks.start_soon(submission.catch_up)
            inner = await gateway.server(on_tool_call=calls)
            try:
                yield ProblemHandler(
                    calls=calls,
                    chain=partial(_through, inner),
                    has_tool=gateway.has_tool,
                    server_name=options.server_name,
                    citations=options.include_citation,
                )
            finally:
                calls.close()


def _check_scorer(problem: Manifest, options: ProblemOptions) -> None:
    """The scorer is the operator's and needs no approval; if it were denied, no attempt would get a score."""
    scorer = problem.scorer
    policy = (options.config or Configuration.model_construct()).policy
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
    """A runtime with the operator's policy and only the problem's server."""
    given = options.config or Configuration.model_construct()
    servers: dict[str, ServerConfig] = {}
    if problem.server is not None:
        # The server's stderr may be about the scorer, and agents read why a call failed. If the server is itself a
        # served problem, each of its processes belongs to one attempt here.
        env = {**problem.server.env, NESTED: "1"} if problem.server.command else problem.server.env
        servers[UPSTREAM] = problem.server.model_copy(update={"discreet": True, "pin": "off", "env": env})
    configuration = given.model_copy(update={"servers": servers, "commands": {}, "checks": {}})
    # A problem without a server gets one without tools, so that the rest is the same.
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


@dataclass(slots=True, eq=False, kw_only=True)
class _Session:
    """The handler of one client with its own options; `alone` if its attempt has no other client.

    `lasting` if only the end of its MCP session closes it. `busy` is its number of requests. While it is open it has a
    `handler`, until `close` is set.
    """

    options: ProblemOptions
    alone: bool
    lasting: bool = False
    handler: ProblemHandler | None = None
    close: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    busy: int = 0
    used: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class SessionManager:
    """Passes each message to its client's handler; with a `shared` attempt all clients have the same one."""

    problem: Manifest
    options: ProblemOptions
    tasks: anyio.abc.TaskGroup
    shared: str | None = field(init=False)
    _attempts: dict[Hashable, str] = field(init=False, default_factory=dict[Hashable, str])
    """The attempt of each modern client, which does not change while this server runs."""
    _sessions: dict[Hashable, _Session] = field(init=False, default_factory=dict[Hashable, _Session])
    _open: int = field(init=False, default=0)
    _closing: set[anyio.Event] = field(init=False, default_factory=set[anyio.Event])

    def __post_init__(self) -> None:
        shared = shared_attempt_id(self.problem) if self.problem.visibility.shared_attempt else None
        self.shared = self.options.attempt_id or shared

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        key, session = self._session(ctx)
        if ctx.request_id is None and session.handler is None:
            return await call_next(ctx)
        anonymous = session.options.subject is None and self.shared is None
        if anonymous and ctx.method == "tools/call" and (ctx.params or {}).get("name") != TOOL:
            refused = refusal(_UNKNOWN_CLIENT)
            info = info_of(self.problem, self.options.server_name)
            return modern_result(ctx.method, refused, info) if is_modern(ctx.protocol_version) else refused
        session.busy += 1
        try:
            handler = await self._handler(session)
            return await handler(ctx, call_next)
        except PursuitError as error:
            raise wire_error(error) from error
        finally:
            session.busy -= 1
            session.used = anyio.current_time()
            unused = session.handler is None and not session.busy and not session.lasting
            if unused and self._sessions.get(key) is session:
                del self._sessions[key]

    def _session(self, ctx: Context) -> tuple[Hashable, _Session]:
        key = self._key(ctx)
        known = self._sessions.get(key)
        if known is not None:
            return key, known
        if key == _SHARED:
            options = replace(self.options, attempt_id=self.shared, subject=None)
            session = _Session(options=options, alone=False, lasting=True)
        else:
            subject, modern = _subject(ctx), is_modern(ctx.protocol_version)
            known_id, label = self._attempts.get(key) if modern else None, self.options.label or _who(ctx)
            options = replace(self.options, attempt_id=known_id, label=label, subject=subject)
            session = _Session(options=options, alone=subject is not None, lasting=not modern)
            if not modern:
                connection_of(ctx).exit_stack.callback(self._ended, key)
        self._sessions[key] = session
        return key, session

    def _key(self, ctx: Context) -> Hashable:
        if self.shared is not None:
            return _SHARED
        return _subject(ctx) if is_modern(ctx.protocol_version) else connection_of(ctx)

    def _ended(self, key: Hashable) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._close(session)

    def _close(self, session: _Session) -> list[anyio.Event]:
        """Closes a session; the event is its end, if it was open."""
        if session.handler is None:
            return []
        self._closing.add(session.closed)
        session.close.set()
        return [session.closed]

    async def _handler(self, session: _Session) -> ProblemHandler:
        async with session.opening:
            if session.handler is None:
                await self._check_limit()
                self._open += 1
                handler: ProblemHandler = await self.tasks.start(self._hold, session)
                if session.options.subject is not None and not session.lasting:
                    self._attempts[session.options.subject] = handler.submission.attempt.attempt_id
                return handler
            return session.handler

    async def _check_limit(self) -> None:
        """Closes idle handlers if there are too many; raises `UpstreamUnavailable`."""
        if self._open >= self.options.most_clients:
            await self.close_idle()
        for closed in tuple(self._closing) if self._open >= self.options.most_clients else ():
            await closed.wait()
        if self._open >= self.options.most_clients:
            limit = f"the limit of {self.options.most_clients} concurrent clients is reached"
            raise UpstreamUnavailable(f"{limit}; try again later")

    async def close_idle(self) -> None:
        now = anyio.current_time()
        closing: list[anyio.Event] = []
        # Without an await in this loop, no request and no other `close_idle` runs in between.
        for key, session in list(self._sessions.items()):
            if session.lasting or session.busy or now - session.used < self.options.idle_seconds:
                continue
            del self._sessions[key]
            closing += self._close(session)
        for closed in closing:
            await closed.wait()

    async def run(self) -> None:
        while True:
            await anyio.sleep(max(1.0, self.options.idle_seconds / 4))
            await self.close_idle()

    async def _hold(self, session: _Session, *, task_status: anyio.abc.TaskStatus[ProblemHandler]) -> None:
        """Keeps a handler open until its client has disconnected."""
        session.close, session.closed = anyio.Event(), anyio.Event()
        try:
            async with open_problem(self.problem, session.options, alone=session.alone) as session.handler:
                task_status.started(session.handler)
                await session.close.wait()
        except Exception as error:  # a failure of one handler does not reach the others
            if session.handler is None:
                raise
            attempt = session.handler.submission.attempt.attempt_id
            event(_log, logging.ERROR, "a session failed", attempt=attempt, why=repr(error))
        finally:
            self._open -= 1
            session.handler = None
            self._closing.discard(session.closed)
            session.closed.set()


def _subject(ctx: Context) -> str | None:
    """The caller: its token, else the name that it states; a token has one attempt, whatever name it states."""
    token = get_access_token()
    if token is not None:
        return owner_of(token)
    name = _name_in_address(ctx)
    return f"name:{name}" if name else None


def _name_in_address(ctx: Context) -> str:
    return "" if ctx.request is None else str(ctx.request.query_params.get("client", ""))


def _who(ctx: Context) -> str:
    """The label of a client in comparisons of attempts."""
    token = get_access_token()
    names = (_name_in_address(ctx), "" if token is None else token.client_id)
    return " ".join(name for name in names if name)[:MAX_LABEL]
