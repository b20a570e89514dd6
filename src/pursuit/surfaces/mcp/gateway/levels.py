"""From which level on a client of the old era wants to read log messages.

Owns: who is told. Does not know: the messages. Invariant: of several servers one that does not answer keeps nobody
waiting for long, and the others are told all the same.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit.core.tools import CallFailed
from pursuit.errors import PursuitError
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.gateway.eras import LEVELS, is_modern
from pursuit.surfaces.mcp.gateway.guests import Session, Visit
from pursuit.surfaces.mcp.gateway.lines import ASIDE_SECONDS, Lines
from pursuit.surfaces.mcp.gateway.relay import Relay
from pursuit.surfaces.mcp.gateway.roster import Roster
from pursuit.upstream.client import McpUpstream

_log = logging.getLogger(__name__)


class Levels:
    """Answers `logging/setLevel`."""

    def __init__(self, roster: Roster, lines: Lines, relay: Relay, tasks: anyio.abc.TaskGroup) -> None:
        self._roster = roster
        self._lines = lines
        self._relay = relay
        self._tasks = tasks

    async def set(self, visit: Visit) -> dict[str, Any]:
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

    async def _tell(self, visit: Visit, upstream: McpUpstream) -> dict[str, Any]:
        session = visit.guest
        about = await (self._lines.about(session, upstream) if isinstance(session, Session) else upstream.about())
        if not is_modern(about.protocol_version):
            told = self._roster.names.single or "logging" in about.capabilities
            return await self._relay.send(visit, upstream, visit.params) if told else {}
        if visit.params.get("level") not in LEVELS:
            raise _no_level()
        return {}

    async def _tell_all(self, visit: Visit) -> dict[str, Any]:
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
