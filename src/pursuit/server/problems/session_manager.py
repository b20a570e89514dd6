"""Serves many clients at one problem over HTTP: a handler for each, and an attempt for each caller.

A caller is its token, or without tokens its name in the address (`/mcp?client=NAME`). Each session of a legacy client
has a handler; a modern client, which has no session, has one while it is not idle. A caller that connects again goes on
with its attempt. After its submission a new session of a legacy client, or a restart of this server, begins a further
one.

Invariant: two callers share an attempt only if the operator or the manifest says so. A client without a token or a name
may read, and may not work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult

from pursuit.errors import InvalidArgument, PursuitError, UpstreamUnavailable, advice
from pursuit.problems.brief import TOOL
from pursuit.server.errors import Context, connection_of, is_modern, owner_of, wire_error
from pursuit.server.gateway.protocol_versions import modern_result
from pursuit.server.logs import event
from pursuit.server.problems.handler import ProblemHandler
from pursuit.server.problems.submission import refusal

MOST_CLIENTS = 32
"""Each client may have a process of the problem's server."""

IDLE_SECONDS = 1_800.0
LONGEST_LABEL = 100
_SHARED: Hashable = "all"
_UNKNOWN_CLIENT = InvalidArgument(
    "this server cannot tell you from other clients, and an attempt is one client's: give each client an address of "
    f"its own (/mcp?client=NAME), or a token of its own (`{advice('pursuit token')}`)"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptClient:
    """A client of a problem: who it is for people and for the ledger, and its attempt if that is known.

    `alone`: the attempt has one client only.
    """

    who: str = ""
    subject: str | None = None
    attempt_id: str | None = None
    alone: bool = True


OpenHandler = Callable[[AttemptClient], AbstractAsyncContextManager[ProblemHandler]]
"""Opens a handler for a client."""


@dataclass(slots=True, eq=False)
class _Opened:
    handler: ProblemHandler
    close: anyio.Event
    closed: anyio.Event


@dataclass(slots=True, eq=False, kw_only=True)
class _Session:
    """One client; `lasting` if only the end of its MCP session closes it. `busy` is its number of requests."""

    client: AttemptClient
    lasting: bool = False
    opened: _Opened | None = None
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    busy: int = 0
    used: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class SessionManager:
    """Hands each message to its client's handler; with `shared` all clients work at that one attempt."""

    open_handler: OpenHandler
    tasks: anyio.abc.TaskGroup
    info: Mapping[str, Any]
    shared: str | None = None
    most: int = MOST_CLIENTS
    idle_seconds: float = IDLE_SECONDS
    _attempts: dict[Hashable, str] = field(init=False, default_factory=dict[Hashable, str])
    """The attempt of each modern client, which stays the same while this server runs."""
    _sessions: dict[Hashable, _Session] = field(init=False, default_factory=dict[Hashable, _Session])
    _open: int = field(init=False, default=0)
    _closing: set[anyio.Event] = field(init=False, default_factory=set[anyio.Event])

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers one message of a client."""
        key, session = self._session(ctx)
        if ctx.request_id is None and session.opened is None:
            return await call_next(ctx)
        anonymous = session.client.subject is None and self.shared is None
        if anonymous and ctx.method == "tools/call" and (ctx.params or {}).get("name") != TOOL:
            refused = refusal(_UNKNOWN_CLIENT)
            return modern_result(ctx.method, refused, self.info) if is_modern(ctx.protocol_version) else refused
        session.busy += 1
        try:
            handler = await self._handler(session)
            return await handler(ctx, call_next)
        except PursuitError as error:
            raise wire_error(error) from error
        finally:
            session.busy -= 1
            session.used = anyio.current_time()
            unused = session.opened is None and not session.busy and not session.lasting
            if unused and self._sessions.get(key) is session:
                del self._sessions[key]

    def _session(self, ctx: Context) -> tuple[Hashable, _Session]:
        """The session of a message, and its key."""
        key = self._key(ctx)
        known = self._sessions.get(key)
        if known is not None:
            return key, known
        if key == _SHARED:
            session = _Session(client=AttemptClient(attempt_id=self.shared, alone=False), lasting=True)
        else:
            subject, modern = _subject(ctx), is_modern(ctx.protocol_version)
            known_id = self._attempts.get(key) if modern else None
            alone = subject is not None
            client = AttemptClient(who=_who(ctx), subject=subject, attempt_id=known_id, alone=alone)
            session = _Session(client=client, lasting=not modern)
            if not modern:
                connection_of(ctx).exit_stack.callback(self._ended, key)
        self._sessions[key] = session
        return key, session

    def _key(self, ctx: Context) -> Hashable:
        if self.shared is not None:
            return _SHARED
        return _subject(ctx) if is_modern(ctx.protocol_version) else connection_of(ctx)

    def _ended(self, key: Hashable) -> None:
        """Closes the handler of an MCP session that has ended."""
        session = self._sessions.pop(key, None)
        if session is not None and session.opened is not None:
            self._close(session.opened)

    def _close(self, opened: _Opened) -> None:
        self._closing.add(opened.closed)
        opened.close.set()

    async def _handler(self, session: _Session) -> ProblemHandler:
        async with session.opening:
            if session.opened is None:
                await self._check_limit()
                self._open += 1
                opened: _Opened = await self.tasks.start(self._hold, session)
                session.opened = opened
                if session.client.subject is not None and not session.lasting:
                    self._attempts[session.client.subject] = opened.handler.submission.attempt.attempt_id
            return session.opened.handler

    async def _check_limit(self) -> None:
        """Closes idle handlers if there are too many; raises `UpstreamUnavailable`."""
        if self._open >= self.most:
            await self.close_idle()
        for closed in tuple(self._closing) if self._open >= self.most else ():
            await closed.wait()
        if self._open >= self.most:
            raise UpstreamUnavailable(f"the limit of {self.most} concurrent clients is reached; try again later")

    async def close_idle(self) -> None:
        """Closes the handlers of clients that have sent nothing for a while."""
        now = anyio.current_time()
        closing: list[anyio.Event] = []
        # Without an await in this loop, no request and no other `close_idle` runs in between.
        for key, session in list(self._sessions.items()):
            if session.lasting or session.busy or now - session.used < self.idle_seconds:
                continue
            del self._sessions[key]
            if session.opened is not None:
                self._close(session.opened)
                closing.append(session.opened.closed)
        for closed in closing:
            await closed.wait()

    async def run(self) -> None:
        """Closes idle handlers until it is cancelled."""
        while True:
            await anyio.sleep(max(1.0, self.idle_seconds / 4))
            await self.close_idle()

    async def _hold(self, session: _Session, *, task_status: anyio.abc.TaskStatus[_Opened]) -> None:
        """Keeps a handler open until its client has gone."""
        close, closed = anyio.Event(), anyio.Event()
        opened: _Opened | None = None
        try:
            async with self.open_handler(session.client) as handler:
                opened = _Opened(handler, close, closed)
                task_status.started(opened)
                await close.wait()
        except Exception as error:  # a failure of one handler does not reach the others
            if opened is None:
                raise
            event(
                _log,
                logging.ERROR,
                "a session failed",
                attempt=opened.handler.submission.attempt.attempt_id,
                why=repr(error),
            )
        finally:
            self._open -= 1
            if session.opened is opened:
                session.opened = None
            self._closing.discard(closed)
            closed.set()


def _subject(ctx: Context) -> str | None:
    """The caller: its token, else the name that it gives itself; a token has one attempt, whatever its name."""
    token = get_access_token()
    if token is not None:
        return owner_of(token)
    name = _name_in_address(ctx)
    return f"name:{name}" if name else None


def _name_in_address(ctx: Context) -> str:
    return "" if ctx.request is None else str(ctx.request.query_params.get("client", ""))


def _who(ctx: Context) -> str:
    """The label of a client where attempts are compared."""
    token = get_access_token()
    names = (_name_in_address(ctx), "" if token is None else token.client_id)
    return " ".join(name for name in names if name)[:LONGEST_LABEL]
