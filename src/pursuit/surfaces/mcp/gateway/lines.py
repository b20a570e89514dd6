"""Over which connection a client's request goes to a server.

Owns: the choice between the connection that all share, one that a client of the old era has for itself, and one that
is lent for a single call; and the way of a server's questions and words back to that client. Does not know: what is
asked. Invariant: a server's question reaches the client whose call it belongs to, or is refused.

A server of the old era keeps a state for each connection (log level, subscriptions) and pushes its questions over it
without saying to which call they belong. So a client of the old era that can be asked, or that sets such a state, has a
connection of its own; where there is only one client at all (stdio), the shared connection is its own.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND

from pursuit.surfaces.mcp.gateway.eras import is_wanted, log_level
from pursuit.surfaces.mcp.gateway.guests import Guest, Session, Visit
from pursuit.tools.connection import ClientSide
from pursuit.tools.contract import NotifyFn, UpstreamError
from pursuit.tools.session import McpUpstream

LOGGED = "notifications/message"
_log = logging.getLogger(__name__)
_NEEDED: Mapping[str, str] = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
_STATEFUL = frozenset({"resources/subscribe", "resources/unsubscribe", "logging/setLevel"})


class Talk(Protocol):
    """What raw requests go through."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Sends one request and returns the raw result; the server is asked for progress if that is wanted."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends a notification if there is a connection."""
        ...


@dataclass(slots=True, eq=False)
class Line:
    """The connection of one client of the old era to one server."""

    session: Session
    server: str
    visits: list[Visit] = field(default_factory=list[Visit])
    talk: Talk | None = None
    opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Puts a server's question to the client: within the call that is under way, if there is one."""
        needed = _NEEDED.get(method)
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


class Lines:
    """All connections of clients to servers; `alone` is whether there is only one client for all time."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, alone: bool) -> None:
        self._tasks = tasks
        self._alone = alone
        self._lines: dict[tuple[Session, McpUpstream], Line] = {}
        self._under_way: dict[McpUpstream, list[Visit]] = {}

    def adopt(self, session: Session, upstreams: Mapping[str, McpUpstream]) -> None:
        """Makes the shared connections those of the only client; before they are opened."""
        if not self._alone:
            return
        for name, upstream in upstreams.items():
            line = self._lines[session, upstream] = Line(session, name, talk=upstream)
            upstream.become(ClientSide(capabilities=session.capabilities, answer=line.answer))

    def forget(self, session: Session) -> None:
        """A client has gone; the connections that it held are given back by their holders."""
        for key in [key for key in self._lines if key[0] is session]:
            del self._lines[key]

    def own(self, session: Session, upstream: McpUpstream) -> Line | None:
        """The connection that a client has for itself, if it has one that is not the shared one."""
        line = self._lines.get((session, upstream))
        return line if line is not None and line.talk is not upstream else None

    def lines_of(self, session: Session) -> list[Line]:
        """Every connection of a client."""
        return [line for (owner, _), line in self._lines.items() if owner is session]

    def logged(self, upstream: McpUpstream, params: Mapping[str, Any]) -> None:
        """Hands on a log message of a server of the new era that does not say to which request it belongs (stdio).

        It can only be one that asked for such messages; where two clients did, neither may read the other's.
        """
        visits = [visit for visit in self._under_way.get(upstream, ()) if is_wanted(_level(visit), params)]
        if not visits or (len(visits) > 1 and not self._alone):
            _log.debug("a log message of %s belongs to nobody", upstream.name)
        elif isinstance(visits[-1].guest, Session):
            visits[-1].guest.tell(LOGGED, params)
        else:
            self._tasks.start_soon(visits[-1].tell, LOGGED, params)

    @asynccontextmanager
    async def talk(self, visit: Visit, upstream: McpUpstream, *, modern: bool) -> AsyncGenerator[Talk]:
        """What the request of a client goes through; `modern` is the server's era. Raises `UpstreamUnavailable`."""
        guest = visit.guest
        if modern:
            under_way = self._under_way.setdefault(upstream, [])
            under_way.append(visit)
            try:
                async with upstream.leased(ClientSide(capabilities=guest.capabilities)) as talk:
                    yield talk
            finally:
                under_way.remove(visit)
            return
        line = await self._line(guest, upstream, visit.method) if isinstance(guest, Session) else None
        if line is None or line.talk is None:
            yield upstream
            return
        line.visits.append(visit)
        try:
            yield line.talk
        finally:
            line.visits.remove(visit)

    async def _line(self, session: Session, upstream: McpUpstream, method: str) -> Line | None:
        line = self._lines.get((session, upstream))
        if line is None:
            if not session.interactive and method not in _STATEFUL:
                return None
            line = self._lines[session, upstream] = Line(session, upstream.name)
        async with line.opening:
            if line.talk is None:
                line.talk = await self._tasks.start(self._hold, line, upstream)
        return line

    async def _hold(self, line: Line, upstream: McpUpstream, *, task_status: anyio.abc.TaskStatus[Talk]) -> None:
        """Keeps a connection for a client until it has gone."""
        side = ClientSide(capabilities=line.session.capabilities, answer=line.answer, heard=line.heard)
        async with upstream.leased(side) as talk:
            task_status.started(talk)
            await line.session.gone.wait()


def _level(visit: Visit) -> str | None:
    return log_level(visit.params) if visit.guest.modern else visit.guest.level


def needs_own(guest: Guest, level: str | None) -> bool:
    """Whether a call of a client of the new era must have a connection to a server of the old era for itself."""
    return guest.interactive or level is not None
