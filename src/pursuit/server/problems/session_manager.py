"""Many clients at one problem, over HTTP: a desk for each.

Owns: by what a client is known again, how many desks are open, and when one is closed. Does not know: what is asked.
Invariant: two clients are at one desk only if the operator or the manifest says so; who cannot be told apart from
others may look, and may not work.

A client of the old era is its session. One of the new era has none: it is its token, its name in the address
(`/mcp?client=NAME`), or both. Its desk may be closed while it is idle; its attempt stays the same while this server
runs.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult

from pursuit.errors import InvalidArgument, PursuitError, UpstreamUnavailable
from pursuit.problems.attempts import PREFIX, new_attempt_id
from pursuit.problems.brief import TOOL
from pursuit.server.errors import Context, wire_error
from pursuit.server.gateway.clients import connection_of
from pursuit.server.gateway.protocol_versions import enveloped, is_modern
from pursuit.server.logs import event
from pursuit.server.problems.handler import ProblemHandler
from pursuit.server.problems.submission import refusal

MOST_DESKS = 32
"""Each may have a process of the problem's server."""

IDLE_SECONDS = 1_800.0
LONGEST_LABEL = 100
_NOBODY = InvalidArgument(
    "this server cannot tell you from other clients, and an attempt is one client's: give each client an address of "
    "its own (/mcp?client=NAME), or a token (--require-token)"
)
_log = logging.getLogger(__name__)

OpenDesk = Callable[[str, bool, str], AbstractAsyncContextManager[ProblemHandler]]
"""Opens a desk for an attempt, given whether one client alone is at it, and who that is."""


@dataclass(slots=True, eq=False)
class _Opened:
    desk: ProblemHandler
    leave: anyio.Event
    left: anyio.Event


@dataclass(slots=True, eq=False, kw_only=True)
class _Place:
    """Where one client is served; `stays` if only the end of its session closes it."""

    attempt_id: str
    who: str = ""
    alone: bool = True
    stays: bool = False
    opened: _Opened | None = None
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    busy: int = 0
    used: float = 0.0


class SessionManager:
    """Leads each client to its desk; with `shared` all work at that one attempt; `info` is the server's name."""

    def __init__(
        self,
        open_desk: OpenDesk,
        tasks: anyio.abc.TaskGroup,
        *,
        info: Mapping[str, Any],
        shared: str | None = None,
        most: int = MOST_DESKS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._open_desk = open_desk
        self._tasks = tasks
        self._info = info
        self._shared = shared
        self._most = most
        self._idle_seconds = idle_seconds
        self._secret = secrets.token_bytes(32)
        self._places: dict[Hashable, _Place] = {}
        self._open = 0
        self._leaving: set[anyio.Event] = set()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers one message of a client."""
        key, place = self._place(ctx)
        if ctx.request_id is None and place.opened is None:
            return await call_next(ctx)
        if key == _LOBBY and ctx.method == "tools/call" and (ctx.params or {}).get("name") != TOOL:
            return enveloped(ctx.method, refusal(_NOBODY), self._info)
        place.busy += 1
        try:
            desk = await self._desk_at(place)
            return await desk(ctx, call_next)
        except PursuitError as error:
            raise wire_error(error) from error
        finally:
            place.busy -= 1
            place.used = anyio.current_time()
            if place.opened is None and not place.busy and not place.stays and self._places.get(key) is place:
                del self._places[key]

    def _place(self, ctx: Context) -> tuple[Hashable, _Place]:
        """Whose message it is, and the place for it."""
        key = self._key(ctx)
        known = self._places.get(key)
        if known is not None:
            return key, known
        if key == _ALL:
            place = _Place(attempt_id=self._shared or new_attempt_id(), alone=False, stays=True)
        elif is_modern(ctx.protocol_version):
            place = _Place(attempt_id=self._attempt_of(key), who=_who(ctx), alone=key != _LOBBY)
        else:
            place = _Place(attempt_id=new_attempt_id(), who=_who(ctx), stays=True)
            connection_of(ctx).exit_stack.callback(self._gone, key)
        self._places[key] = place
        return key, place

    def _key(self, ctx: Context) -> Hashable:
        if self._shared is not None:
            return _ALL
        if not is_modern(ctx.protocol_version):
            return connection_of(ctx)
        token = get_access_token()
        whose = "" if token is None else token.subject or token.client_id
        return (whose, _name_in_address(ctx))

    def _attempt_of(self, key: Hashable) -> str:
        """The same id for the same client while this server runs, whether its desk was closed or not."""
        return PREFIX + hmac.digest(self._secret, repr(key).encode(errors="replace"), "sha256").hex()[:32]

    def _gone(self, key: Hashable) -> None:
        """The session of a client has ended."""
        place = self._places.pop(key, None)
        if place is not None and place.opened is not None:
            self._ask_to_leave(place.opened)

    def _ask_to_leave(self, opened: _Opened) -> None:
        self._leaving.add(opened.left)
        opened.leave.set()

    async def _desk_at(self, place: _Place) -> ProblemHandler:
        async with place.opening:
            if place.opened is None:
                await self._make_room()
                self._open += 1
                opened: _Opened = await self._tasks.start(self._hold, place)
                place.opened = opened
            return place.opened.desk

    async def _make_room(self) -> None:
        """Closes what has been idle for long enough if there are too many; raises `UpstreamUnavailable`."""
        if self._open >= self._most:
            await self.close_idle()
        for left in tuple(self._leaving) if self._open >= self._most else ():
            await left.wait()
        if self._open >= self._most:
            raise UpstreamUnavailable(
                f"no place is free: clients at this problem at once, at most: {self._most}; try again later"
            )

    async def close_idle(self) -> None:
        """Closes the desks of clients that have not come for a while."""
        now = anyio.current_time()
        leaving: list[anyio.Event] = []
        # Nothing is awaited in here: others come, go and close meanwhile.
        for key, place in list(self._places.items()):
            if place.stays or place.busy or now - place.used < self._idle_seconds:
                continue
            del self._places[key]
            if place.opened is not None:
                self._ask_to_leave(place.opened)
                leaving.append(place.opened.left)
        for left in leaving:
            await left.wait()

    async def tend(self) -> None:
        """Closes idle desks now and then, for ever."""
        while True:
            await anyio.sleep(max(1.0, self._idle_seconds / 4))
            await self.close_idle()

    async def _hold(self, place: _Place, *, task_status: anyio.abc.TaskStatus[_Opened]) -> None:
        """Keeps a desk open until its client has gone."""
        leave, left = anyio.Event(), anyio.Event()
        opened: _Opened | None = None
        try:
            async with self._open_desk(place.attempt_id, place.alone, place.who) as desk:
                opened = _Opened(desk, leave, left)
                task_status.started(opened)
                await leave.wait()
        except Exception as error:  # what breaks at one desk must not reach the others
            if opened is None:
                raise
            event(_log, logging.ERROR, "a desk broke", attempt=place.attempt_id, why=repr(error))
        finally:
            self._open -= 1
            if place.opened is opened:
                place.opened = None
            self._leaving.discard(left)
            left.set()


def _name_in_address(ctx: Context) -> str:
    return "" if ctx.request is None else str(ctx.request.query_params.get("client", ""))


def _who(ctx: Context) -> str:
    """What a client is called where attempts are compared."""
    token = get_access_token()
    names = (_name_in_address(ctx), "" if token is None else token.client_id)
    return " ".join(name for name in names if name)[:LONGEST_LABEL]


_ALL: Hashable = "all"
_LOBBY: Hashable = ("", "")


@asynccontextmanager
async def reception(
    open_desk: OpenDesk, *, info: Mapping[str, Any], shared: str | None, most: int, idle: float
) -> AsyncGenerator[SessionManager]:
    """A reception whose desks are closed with it."""
    async with anyio.create_task_group() as tasks:
        found = SessionManager(open_desk, tasks, info=info, shared=shared, most=most, idle_seconds=idle)
        tasks.start_soon(found.tend)
        yield found
        tasks.cancel_scope.cancel()
