"""Over which connection a client's request goes to a server.

Owns: the choice between the connection that all share, one that a client of the old era has for itself, and one that
is lent for a single call; and the way of a server's questions and words back to that client. Does not know: what is
asked. Invariant: a server's question reaches the client whose call it belongs to, or is refused.

A server of the old era keeps a state for each connection (log level, subscriptions) and pushes its questions over it
without saying to which call they belong. So a client of the old era that can be asked, or that sets such a state, has a
connection of its own; where there is only one client at all (stdio), the shared connection is its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from pursuit.core.tools import About, CallFailed, NotifyFn, UpstreamError
from pursuit.errors import UpstreamUnavailable
from pursuit.server.gateway.clients import Client, ClientRequest, ClientSession
from pursuit.server.gateway.protocol_versions import is_modern, is_wanted, log_level
from pursuit.upstream.client import McpUpstream, Waiting
from pursuit.upstream.transport import ClientSide

HeardFrom = Callable[[McpUpstream, str, Mapping[str, Any]], None]
"""Called with the server, the method and its parameters."""

HELLO_SECONDS = 10.0
"""How long a client waits for the slowest of several servers when it comes."""

ASIDE_SECONDS = 2.0
"""How long a request that concerns several servers waits for those that it can do without."""

MOST_OWN = 64
"""How many clients have a process of a server for themselves, at most."""

MOST_APART = 16
"""How many calls to a server have a process of their own for the sake of their logs; further ones go without logs."""

LOGGED = "notifications/message"
_log = logging.getLogger(__name__)
NEEDED: Mapping[str, str] = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
"""What a client must have said that it can, to be asked this."""

_STATEFUL = frozenset({"resources/subscribe", "resources/unsubscribe", "logging/setLevel"})


class UpstreamChannel(Protocol):
    """What raw requests go through."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
        waiting: Waiting = nullcontext,
    ) -> dict[str, Any]:
        """Sends one request and returns the raw result; the server is asked for progress if that is wanted."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends a notification if there is a connection."""
        ...

    async def about(self) -> About:
        """What the server says about itself on this connection."""
        ...


@dataclass(slots=True, eq=False)
class Route:
    """The connection of one client of the old era to one server; `separate` if it is not the one that all share."""

    session: ClientSession
    server: str
    visits: list[ClientRequest] = field(default_factory=list[ClientRequest])
    talk: UpstreamChannel | None = None
    separate: bool = False
    opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Puts a server's question to the client: within the call that is under way, if there is one."""
        needed = NEEDED.get(method)
        if needed is not None and not self.session.can(needed):
            raise UpstreamError(METHOD_NOT_FOUND, f"{method}: the client says that it cannot")
        try:
            asked = self.visits[-1] if self.visits else self.session
            return await asked.ask(method, params)
        except UpstreamError:
            if method == "roots/list":
                return {"roots": []}
            raise

    def heard(self, method: str, params: Mapping[str, Any]) -> None:
        """What the server says outside of requests is for this client."""
        self.session.tell_from(self.server, method, params)


@dataclass(slots=True, eq=False)
class _Public:
    """The connection of the old era that clients share which need none of their own, at a server that speaks both."""

    talk: UpstreamChannel | None = None
    old: bool = False
    opening: anyio.Lock = field(default_factory=anyio.Lock)


class Routing:
    """All connections of clients to servers; `alone` is whether there is only one client for all time."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, alone: bool, heard: HeardFrom) -> None:
        self._tasks = tasks
        self._alone = alone
        self._heard = heard
        self._lines: dict[tuple[ClientSession, McpUpstream], Route] = {}
        self._public: dict[McpUpstream, _Public] = {}
        self._under_way: dict[McpUpstream, list[ClientRequest]] = {}
        self._apart: dict[McpUpstream, int] = {}

    async def adopt(self, session: ClientSession, upstreams: Mapping[str, McpUpstream]) -> None:
        """Makes the shared connections those of the only client, in its own era if they speak it."""
        if not self._alone:
            return

        waiting = [anyio.Event() for _ in upstreams]
        for done, (name, upstream) in zip(waiting, upstreams.items(), strict=True):
            line = self._lines[session, upstream] = Route(session, name, talk=upstream)
            self._tasks.start_soon(_adopt, line, upstream, done)
        # One that hangs must not keep the client from all the others; it is adopted when it answers.
        with anyio.move_on_after(HELLO_SECONDS if len(upstreams) > 1 else None):
            for done in waiting:
                await done.wait()

    def forget(self, session: ClientSession) -> None:
        """A client has gone; the connections that it held are given back by their holders."""
        for key in [key for key in self._lines if key[0] is session]:
            del self._lines[key]

    def has_own(self, session: ClientSession, upstream: McpUpstream) -> bool:
        """Whether a client has a connection for itself that is not the shared one."""
        line = self._lines.get((session, upstream))
        return line is not None and line.separate

    def has_public(self, upstream: McpUpstream) -> bool:
        """Whether clients of the old era without a connection of their own share another one than all others."""
        public = self._public.get(upstream)
        return public is not None and public.old

    def lines_of(self, session: ClientSession) -> list[Route]:
        """Every connection of a client."""
        return [line for (owner, _), line in self._lines.items() if owner is session]

    def logged(self, upstream: McpUpstream, params: Mapping[str, Any]) -> None:
        """Hands on a log message of a server of the new era that does not say to which request it belongs (stdio).

        It can only be one that asked for such messages; where two clients did, neither may read the other's.
        """
        visits = [visit for visit in self._under_way.get(upstream, ()) if is_wanted(_level(visit), params)]
        if not visits or (not self._alone and any(visit.guest is not visits[-1].guest for visit in visits)):
            _log.debug("a log message of %s belongs to nobody", upstream.name)
        else:
            self._told_log(visits[-1], LOGGED, params)

    def _told_log(self, visit: ClientRequest, method: str, params: Mapping[str, Any]) -> None:
        """Tells a client a log message of its request."""
        if method != LOGGED or not is_wanted(_level(visit), params):
            return
        if isinstance(visit.guest, ClientSession):
            visit.guest.tell(method, params)
        else:
            self._tasks.start_soon(visit.tell, method, params)

    @asynccontextmanager
    async def talk(self, visit: ClientRequest, upstream: McpUpstream) -> AsyncGenerator[UpstreamChannel]:
        """What the request of a client goes through. Raises `UpstreamUnavailable`."""
        talk, visits = await self._reach(visit, upstream)
        if self._disputed(visit, upstream, visits):
            side = ClientSide(capabilities=visit.guest.capabilities, heard=partial(self._told_log, visit))
            self._apart[upstream] = self._apart.get(upstream, 0) + 1
            try:
                async with upstream.leased(side, apart=True) as lent:
                    yield lent
            finally:
                self._apart[upstream] -= 1
            return
        visits.append(visit)
        try:
            if talk is not None:
                yield talk
            else:
                able = dict[str, Any]() if visit.aside else visit.guest.capabilities
                async with upstream.leased(ClientSide(capabilities=able)) as lent:
                    yield lent
        finally:
            visits.remove(visit)

    def _disputed(self, visit: ClientRequest, upstream: McpUpstream, visits: list[ClientRequest]) -> bool:
        """Whether the logs of this call, and of another client's that is under way, could not be told apart."""
        if self._alone or _level(visit) is None or upstream.config.command is None:
            return False
        if self._apart.get(upstream, 0) >= MOST_APART:
            return False
        modern = visits is self._under_way.get(upstream) and is_modern(upstream.protocol_version or "")
        others = (other for other in visits if other.guest is not visit.guest)
        return modern and any(_level(other) is not None for other in others)

    async def about(self, session: ClientSession, upstream: McpUpstream) -> About:
        """What a server says about itself to this client."""
        line = await self._line(session, upstream, "initialize")
        talk = (line.talk if line is not None else None) or await self._common(upstream) or upstream
        return await talk.about()

    async def _reach(
        self, visit: ClientRequest, upstream: McpUpstream
    ) -> tuple[UpstreamChannel | None, list[ClientRequest]]:
        """The connection to use, if it is a lasting one, and the requests that are under way on it."""
        guest, others = visit.guest, self._under_way.setdefault(upstream, [])
        if isinstance(guest, ClientSession):
            line = await self._line(guest, upstream, visit.method)
            if line is not None and line.talk is not None:
                # At a server that only speaks the new era nothing is asked over it, but its logs must be told apart.
                modern = is_modern((await line.talk.about()).protocol_version)
                return line.talk, others if modern else line.visits
            return await self._common(upstream), others
        return None if is_modern((await upstream.about()).protocol_version) else upstream, others

    async def _line(self, session: ClientSession, upstream: McpUpstream, method: str) -> Route | None:
        line = self._lines.get((session, upstream))
        if line is None:
            if not session.interactive and method not in _STATEFUL:
                return None
            self._require_place(upstream)
            line = self._lines[session, upstream] = Route(session, upstream.name)
        async with line.opening:
            if line.talk is None:
                side = ClientSide(capabilities=session.capabilities, answer=line.answer, heard=line.heard)
                talk: UpstreamChannel = await self._tasks.start(self._hold, side, upstream, session.gone)
                line.separate = not is_modern((await talk.about()).protocol_version)
                line.talk = talk
        return line

    def _require_place(self, upstream: McpUpstream) -> None:
        own = [line for (_, one), line in self._lines.items() if one is upstream and (line.separate or not line.talk)]
        if upstream.config.command is not None and len(own) >= MOST_OWN:
            reason = f"{MOST_OWN} clients have a process of it for themselves, which is the limit; try again later"
            raise UpstreamUnavailable(f"server {upstream.name!r}: {reason}", server=upstream.name)

    async def _common(self, upstream: McpUpstream) -> UpstreamChannel | None:
        """The connection for clients of the old era that need none of their own; None at one of the new era only."""
        if not is_modern((await upstream.about()).protocol_version):
            return upstream
        public = self._public.setdefault(upstream, _Public())
        async with public.opening:
            talk = public.talk
            if talk is None:
                side = ClientSide(heard=partial(self._heard, upstream))
                talk = await self._tasks.start(self._hold, side, upstream, anyio.Event())
                public.old = not is_modern((await talk.about()).protocol_version)
                public.talk = talk
        return talk if public.old else None

    async def _hold(
        self,
        side: ClientSide,
        upstream: McpUpstream,
        gone: anyio.Event,
        *,
        task_status: anyio.abc.TaskStatus[UpstreamChannel],
    ) -> None:
        """Keeps a connection of the old era until nobody needs it."""
        async with upstream.leased(side, old=True) as talk:
            task_status.started(talk)
            await gone.wait()


async def _adopt(line: Route, upstream: McpUpstream, done: anyio.Event) -> None:
    side = ClientSide(capabilities=line.session.capabilities, answer=line.answer)
    try:
        await upstream.become(side, era="legacy")
        await upstream.about()
    except UpstreamUnavailable:
        await upstream.become(side)
    finally:
        done.set()


def _level(visit: ClientRequest) -> str | None:
    return log_level(visit.params) if visit.guest.modern else visit.guest.level


def needs_own(guest: Client, level: str | None) -> bool:
    """Whether a call of a client of the new era must have a connection to a server of the old era for itself."""
    return guest.interactive or level is not None


# Connections to servers of the old era that calls of clients of the new era take in turns.
# Invariant: one call at a time is at a desk, so that a server's question belongs to it; a call that finds it taken
# gets a connection for itself; no more than `MOST_AT_ONCE` calls are at one server, and the others wait for their
# turn. Clients of the new era have no sessions, but servers of the old era keep things for a connection (a browser, a
# train of thought): whoever comes back after a while must find them there.

MOST_DESKS = 4
"""For each server: what clients say that they can do is theirs to choose."""

MOST_AT_ONCE = 16
"""For each server: at one that is a process, each of these calls may need a process of its own."""


class _LegacySession:
    """One connection; `at` is the side of the call that is at it now."""

    def __init__(self) -> None:
        self.at: ClientSide | None = None
        self.talk: UpstreamChannel | None = None
        self.over = anyio.Event()

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.at is not None and self.at.answer is not None:
            return await self.at.answer(method, params)
        if method == "roots/list":
            return {"roots": []}
        raise UpstreamError(INVALID_REQUEST, f"{method}: no call is under way that it could belong to")

    def heard(self, method: str, params: Mapping[str, Any]) -> None:
        if self.at is not None and self.at.heard is not None:
            self.at.heard(method, params)


class LegacySessions:
    """The lasting connections; `alone` is whether all calls are of one client."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, alone: bool) -> None:
        self._tasks = tasks
        self._alone = alone
        self._desks: dict[McpUpstream, dict[str, _LegacySession]] = {}
        self._turns: dict[McpUpstream, anyio.Semaphore] = {}

    @asynccontextmanager
    async def taken(self, upstream: McpUpstream, side: ClientSide) -> AsyncGenerator[UpstreamChannel]:
        """A connection for one call, which waits for its turn. Raises `UpstreamUnavailable`."""
        turns = self._turns.setdefault(upstream, anyio.Semaphore(MOST_AT_ONCE))
        async with turns, self._at_desk(upstream, side) as talk:
            yield talk

    @asynccontextmanager
    async def _at_desk(self, upstream: McpUpstream, side: ClientSide) -> AsyncGenerator[UpstreamChannel]:
        desk = self._free(upstream, side)
        if desk is None:
            async with upstream.leased(side) as talk:
                yield talk
            return
        desk.at = side
        try:
            talk = desk.talk
            if talk is None:
                talk = desk.talk = await self._open(desk, upstream, side.capabilities)
            yield talk
        except (anyio.get_cancelled_exc_class(), CallFailed):
            # The server may still ask on its behalf, and the next call may be another client's.
            if not self._alone:
                self._leave(upstream, desk)
            raise
        finally:
            desk.at = None

    def _free(self, upstream: McpUpstream, side: ClientSide) -> _LegacySession | None:
        desks = self._desks.setdefault(upstream, {})
        key = json.dumps(side.capabilities, sort_keys=True)
        if key not in desks and len(desks) < MOST_DESKS:
            desks[key] = _LegacySession()
        desk = desks.get(key)
        return desk if desk is not None and desk.at is None else None

    def _leave(self, upstream: McpUpstream, desk: _LegacySession) -> None:
        desk.over.set()
        self._desks[upstream] = {key: one for key, one in self._desks[upstream].items() if one is not desk}

    async def _open(
        self, desk: _LegacySession, upstream: McpUpstream, capabilities: Mapping[str, Any]
    ) -> UpstreamChannel:
        return await self._tasks.start(self._hold, desk, upstream, capabilities)

    async def _hold(
        self,
        desk: _LegacySession,
        upstream: McpUpstream,
        capabilities: Mapping[str, Any],
        *,
        task_status: anyio.abc.TaskStatus[UpstreamChannel],
    ) -> None:
        async with upstream.leased(ClientSide(capabilities=capabilities, answer=desk.answer, heard=desk.heard)) as talk:
            task_status.started(talk)
            await desk.over.wait()
