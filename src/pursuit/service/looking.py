"""What can be asked of missions without changing one.

Owns: the verbs that look and prove, and which errors they answer with. Knows no surface, no transport and no SQL.
Invariant: nothing here changes a mission, but that a report which a dead driver owed is written.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pursuit.core.decision import decide
from pursuit.core.events import AnyEvent, decode
from pursuit.core.fold import advance
from pursuit.core.report import cut_short
from pursuit.core.state import STATUSES, MissionState
from pursuit.engine.context import Clock
from pursuit.engine.driver import Driver, assemble
from pursuit.engine.lessons import recall
from pursuit.engine.state_cache import States
from pursuit.errors import InvalidArgument, NoIterations
from pursuit.ledger.archive import export_stream
from pursuit.ledger.contract import Ledger, Verification
from pursuit.service.audit import Audit
from pursuit.service.gateway import gateway_lines
from pursuit.service.history import history_page
from pursuit.service.status import list_row, status_of
from pursuit.tasks.limits import RUNNING

LONGEST_CURSOR = 18
MISSION_ID = re.compile(r"mission-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """One process's view of the missions in a ledger."""

    ledger: Ledger
    states: States
    driver: Driver
    clock: Clock
    audit: Audit

    async def state(self, mission_id: str) -> MissionState:
        """The state of a mission now."""
        return (await self._load(mission_id))[0]

    async def status(self, mission_id: str) -> dict[str, Any]:
        """What a person or an agent wants to know of a mission."""
        status = status_of(mission_id, await self.state(mission_id))
        for child in status.get("children", ()):
            row = await self.ledger.row(child["session_id"])
            child["status"] = "pending" if row is None else row.status
            child["directive"] = "" if row is None else row.summary.get("directive", "")
        return status

    async def interrupted(self, *, background: bool = False) -> list[str]:
        """The missions whose run stopped short of how far it was to go; with `background` those that nobody awaits.

        Of those that nobody awaits, one that waits for a task is there once the task has ended. Children go on with
        their parents.
        """
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self.ledger.streams(kind="mission", status=("running", "waiting"), cursor=cursor)
            for row in page.rows:
                wanted = row.summary.get("background") or not background
                if not wanted or "parent" in row.summary or not cut_short(row.status, row.summary, self.clock.now()):
                    continue
                if not background or not await self._works(row.summary.get("task")):
                    found.append(row.name)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def checkpoint(self, mission_id: str) -> dict[str, Any]:
        """The cascade again over the latest iteration."""
        state = await self.state(mission_id)
        if state.last_ended is None:
            raise NoIterations(f"{mission_id} has not finished an iteration yet", session_id=mission_id)
        decision = decide(state.last_ended.facts)
        return {
            "session_id": mission_id,
            "iteration_index": state.last_ended.iteration,
            "verdict": decision.verdict,
            "verdict_reason": decision.reason,
        }

    async def history(self, mission_id: str, *, full: bool = False, cursor: str | None = None) -> dict[str, Any]:
        """The iterations, a hundred a page."""
        await self._load(mission_id)
        if cursor is not None and (len(cursor) > LONGEST_CURSOR or not cursor.isdecimal()):
            raise InvalidArgument(f"cursor {cursor[:40]!r} is not one that history gave")
        page = await history_page(self.ledger, mission_id, full=full, first=int(cursor or 0))
        answer: dict[str, Any] = {"session_id": mission_id, "iterations": page.iterations}
        if page.next_first is not None:
            answer["next_cursor"] = str(page.next_first)
        return answer

    async def list(self, *, status: str | None = None, cursor: str | None = None, limit: int = 100) -> dict[str, Any]:
        """The missions, newest first."""
        page = await self.ledger.streams(kind="mission", status=status or STATUSES, cursor=cursor, limit=limit)
        answer: dict[str, Any] = {"sessions": [list_row(row) for row in page.rows]}
        if page.next_cursor is not None:
            answer["next_cursor"] = page.next_cursor
        return answer

    async def lessons(self, words: str, *, limit: int = 10) -> dict[str, Any]:
        """What ended missions learned that has to do with these words, the best match first."""
        return {"missions": [one.as_json() for one in await recall(self.ledger, words, limit=limit)]}

    async def watch(self, mission_id: str) -> AsyncIterator[tuple[AnyEvent, MissionState]]:
        """Every event of a mission, past and future, with the state after it."""
        await self._load(mission_id)
        state: MissionState | None = None
        async for stored in self.ledger.watch(mission_id):
            event = decode(stored.type, stored.body)
            state = advance(state, event)
            yield event, state

    async def report(self, mission_id: str) -> dict[str, Any]:
        """The final report as it was written, or as it stands now for a mission that goes on."""
        state = await self.state(mission_id)
        if state.terminal and (not state.closed or state.report is None):
            state = await self.driver.close(mission_id) or state
        body = await self.ledger.blob(state.report) if state.report is not None else None
        return await assemble(self.ledger, mission_id, state) if body is None else msgspec.json.decode(body)

    async def audited(self, mission_id: str | None = None, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Who asked for what, the newest lines, oldest first; a mission that is forgotten still has its lines."""
        if mission_id is not None:
            require_id(mission_id)
            return await self.audit.lines(mission_id=mission_id, limit=limit)
        lines = [*await self.audit.lines(limit=limit), *await gateway_lines(self.ledger, limit=limit)]
        return sorted(lines, key=lambda line: line["at"])[-limit:]

    async def verify(self, *, expect: str | None = None) -> Verification:
        """Checks the whole ledger, and against a root that was written down earlier."""
        return await self.ledger.verify(expect=expect)

    async def export(self, mission_id: str, path: Path) -> None:
        """One file that can be verified elsewhere."""
        await self._load(mission_id)
        await export_stream(self.ledger, mission_id, path)

    async def _works(self, task_id: str | None) -> bool:
        """Whether a task that a mission waits for has not ended."""
        row = await self.ledger.row(task_id) if task_id is not None else None
        return row is not None and row.status in RUNNING

    async def _load(self, mission_id: str) -> tuple[MissionState, int]:
        require_id(mission_id)
        return await self.states.look(mission_id)


def new_mission_id() -> str:
    """An id that no mission has."""
    return f"mission-{secrets.token_hex(8)}"


def require_id(mission_id: str) -> None:
    """Refuses what cannot be the id of a mission before it reaches storage."""
    if MISSION_ID.fullmatch(mission_id) is None:
        raise InvalidArgument(
            f"{mission_id!r} is not a mission id; one is `mission-` and 16 hex digits", session_id=mission_id
        )
