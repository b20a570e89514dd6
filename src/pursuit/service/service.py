"""The verbs: start, drive, stop, extend, look, prove, forget.

Owns: what each verb means and which errors it answers with. Knows no surface, no transport and no SQL.
Invariant: a verb that is refused has changed nothing.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pursuit.engine.clock import Clock
from pursuit.engine.driver import Driver
from pursuit.engine.journal import load_state
from pursuit.engine.report import assemble
from pursuit.engine.run import Observer
from pursuit.errors import (
    Conflict,
    Fault,
    InvalidArgument,
    NoIterations,
    NotPaused,
    SessionNotFound,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.archive import export_stream
from pursuit.ledger.contract import ANY, Draft, Ledger, Verification
from pursuit.model.decide import decide
from pursuit.model.events import (
    AbortOrdered,
    AnyEvent,
    BudgetExtended,
    CompletionOrdered,
    MissionCreated,
    MissionPaused,
    MissionResumed,
    OperatorWord,
    decode,
    encode,
)
from pursuit.model.fold import CAP_REASONS, advance
from pursuit.model.listing import summary_of
from pursuit.model.mission import CAPS, ClientProposer, Mission, Proposal
from pursuit.model.state import STATUSES, MissionState
from pursuit.service.admission import admit
from pursuit.service.history import history_page
from pursuit.service.status import list_row, status_of
from pursuit.tools.pool import Pool

WHOLE_CAPS = frozenset({"max_iterations", "max_tool_calls", "max_tokens"})
LONGEST_CURSOR = 18
LONGEST_REASON = 8_192
MISSION_ID = re.compile(r"mission-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A mission that was accepted."""

    session_id: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process's view of the missions in a ledger."""

    ledger: Ledger
    driver: Driver
    pool: Pool
    clock: Clock
    checks: Mapping[str, Mapping[str, Any]]

    async def start(self, mission: Mission, *, file: Path | None = None) -> Started:
        """Accepts a mission: its tools are resolved and stored; nothing runs yet."""
        admitted = await admit(mission, self.pool, self.checks)
        mission_id = f"mission-{secrets.token_hex(8)}"
        created = MissionCreated(
            at=self.clock.now(),
            mission=admitted.mission.model_dump(mode="json"),
            tools=list(admitted.tools),
            parameters=admitted.parameters,
            warnings=list(admitted.warnings),
            file=str(file) if file is not None else None,
        )
        summary = summary_of(advance(None, created))
        await self.ledger.append(mission_id, 0, [Draft(*encode(created))], status="pending", summary=summary)
        return Started(session_id=mission_id, warnings=admitted.warnings)

    async def state(self, mission_id: str) -> MissionState:
        """The state of a mission now."""
        return (await self._load(mission_id))[0]

    async def status(self, mission_id: str) -> dict[str, Any]:
        """What a person or an agent wants to know of a mission."""
        return status_of(mission_id, await self.state(mission_id))

    async def iterate(
        self,
        mission_id: str,
        *,
        iterations: int = 1,
        proposal: Proposal | None = None,
        observer: Observer | None = None,
    ) -> dict[str, Any]:
        """Drives so many iterations; stops early at the end, at a wait, or when it is the client's turn."""
        if iterations < 1:
            raise InvalidArgument(f"max_iterations_this_call must be at least 1, not {iterations}")
        state, head = await self._load(mission_id)
        if proposal is not None:
            await self._check_proposal(state, proposal)
        before = state.iteration_count
        state = await self.driver.drive(mission_id, iterations=iterations, proposal=proposal, observer=observer)
        page = await history_page(self.ledger, mission_id, full=False, first=before, limit=iterations, after=head)
        keys = ("iteration_index", "verdict", "verdict_reason")
        rows = [{key: row[key] for key in keys} for row in page.iterations]
        return {"session_id": mission_id, "status": state.status, "iterations": rows}

    async def _check_proposal(self, state: MissionState, proposal: Proposal) -> None:
        """A bad proposal of a client is an error to the client and counts nothing."""
        if not isinstance(state.mission.proposer, ClientProposer):
            raise InvalidArgument(f"this mission's proposer is {state.mission.proposer.kind!r}; it takes no proposal")
        faults: list[Fault] = []
        if proposal.script is not None and not state.mission.allow_scripted_strategies:
            faults.append(Fault(field="proposal.script", reason="this mission has allow_scripted_strategies = false"))
        tools = await self.driver.source.tools_for(state.tools)
        for place, call in enumerate(proposal.tool_calls or ()):
            at = f"proposal.tool_calls[{place}]"
            names = [t for t in state.tools if t == call.tool_name or t.partition(".")[2] == call.tool_name]
            if len(names) != 1:
                known = ", ".join(state.tools[:20])
                faults.append(Fault(field=f"{at}.tool_name", reason=f"{call.tool_name!r} is not one of {known}"))
                continue
            faults += [Fault(field=f"{at}.args", reason=reason) for reason in tools.check(names[0], call.args)]
        if faults:
            raise ValidationFailed(faults)

    async def run(self, mission_id: str, *, observer: Observer | None = None) -> MissionState:
        """Drives any mission that has not ended until it ends or waits; a paused or failed one is resumed first."""
        await self._load(mission_id)
        return await self.driver.drive(mission_id, observer=observer, resume=True)

    async def go_on(self, mission_id: str, *, observer: Observer | None = None) -> MissionState:
        """Drives an interrupted run as far as it was to go; a mission that was paused meanwhile stays paused."""
        state = await self.state(mission_id)
        left = None if state.run_goal is None else max(0, state.run_goal - state.iteration_count)
        return state if left == 0 else await self.driver.drive(mission_id, iterations=left, observer=observer)

    async def interrupted(self) -> list[str]:
        """The missions whose run stopped short of how far it was to go."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self.ledger.streams(kind="mission", status=("running", "waiting"), cursor=cursor)
            for row in page.rows:
                state = await self.state(row.name)
                if state.interrupted:
                    found.append(row.name)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def pause(self, mission_id: str, *, reason: str | None = None, by: str = "operator") -> MissionState:
        """Stops it where it is; it stays resumable."""
        return await self._say(mission_id, MissionPaused(at=self.clock.now(), by=by, reason=_text(reason)))

    async def resume(self, mission_id: str, *, by: str = "operator") -> MissionState:
        """Lets a paused or failed mission go on; it does not drive it."""
        state = await self.state(mission_id)
        if state.terminal:
            raise _has_ended(mission_id, state)
        if state.status not in ("paused", "failed"):
            raise NotPaused(f"{mission_id} is {state.status}, neither paused nor failed", session_id=mission_id)
        return await self._say(mission_id, MissionResumed(at=self.clock.now(), by=by))

    async def abort(self, mission_id: str, *, reason: str | None = None, by: str = "operator") -> MissionState:
        """Ends it as terminated, also in the middle of a call."""
        state = await self._say(mission_id, AbortOrdered(at=self.clock.now(), by=by, reason=_text(reason)))
        return await self.driver.close(mission_id) or state

    async def complete(self, mission_id: str, *, reason: str | None = None, by: str = "operator") -> MissionState:
        """Ends it as completed, on the operator's word."""
        state = await self._say(mission_id, CompletionOrdered(at=self.clock.now(), by=by, reason=_text(reason)))
        return await self.driver.close(mission_id) or state

    async def extend(self, mission_id: str, caps: Mapping[str, float], *, by: str = "operator") -> MissionState:
        """Raises caps. A mission that waits for budget goes on; one that ended by budget can be resumed."""
        state = await self.state(mission_id)
        if state.terminal and state.verdict_reason not in CAP_REASONS:
            raise _has_ended(mission_id, state)
        faults = _cap_faults(caps, state)
        if faults:
            raise ValidationFailed(faults)
        return await self._say(mission_id, BudgetExtended(at=self.clock.now(), by=by, caps=dict(caps)), reopen=True)

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

    async def verify(self, *, expect: str | None = None) -> Verification:
        """Checks the whole ledger, and against a root that was written down earlier."""
        return await self.ledger.verify(expect=expect)

    async def export(self, mission_id: str, path: Path) -> None:
        """One file that can be verified elsewhere."""
        await self._load(mission_id)
        await export_stream(self.ledger, mission_id, path)

    async def forget(self, mission_id: str) -> None:
        """Removes an ended mission, blobs included; a tombstone stays."""
        state = await self.state(mission_id)
        if not state.terminal:
            raise InvalidArgument(f"{mission_id} is {state.status}; abort it before forgetting it")
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            raise Conflict(f"{mission_id} is still being wound up by another process", session_id=mission_id)
        try:
            if not (await self.state(mission_id)).terminal:
                raise Conflict(f"{mission_id} was taken up again at this moment", session_id=mission_id)
            await self.ledger.forget(mission_id)
        finally:
            await claim.release()

    async def _load(self, mission_id: str) -> tuple[MissionState, int]:
        if MISSION_ID.fullmatch(mission_id) is None:
            raise InvalidArgument(
                f"{mission_id!r} is not a mission id; one is `mission-` and 16 hex digits", session_id=mission_id
            )
        row = await self.ledger.row(mission_id)
        if row is not None and row.status == "forgotten":
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        return await load_state(self.ledger, mission_id)

    async def _say(self, mission_id: str, word: OperatorWord, *, reopen: bool = False) -> MissionState:
        """Appends an operator's word at the head, whoever drives."""
        state, head = await self._load(mission_id)
        if state.terminal and not reopen:
            raise _has_ended(mission_id, state)
        advance(state, word)
        await self.ledger.append(
            mission_id, ANY, [Draft(*encode(word))], status=state.status, summary=summary_of(state)
        )
        return await self._settled_status(mission_id, state, head)

    async def _settled_status(self, mission_id: str, said: MissionState, head: int) -> MissionState:
        """The state with whatever a driver appended at the same moment; its listing is put right if that changed it."""
        now, seq = await load_state(self.ledger, mission_id)
        if now.status != said.status and seq > head + 1:
            with suppress(Conflict):  # whoever appended since has put it right
                await self.ledger.append(mission_id, seq, [], status=now.status, summary=summary_of(now))
        return now


def _text(reason: str | None) -> str | None:
    """A reason as it can be stored."""
    return None if reason is None else reason.encode(errors="replace").decode()[:LONGEST_REASON]


def _has_ended(mission_id: str, state: MissionState) -> SessionTerminal:
    text = f"{mission_id} has ended: {state.status} ({state.verdict_reason})"
    return SessionTerminal(text, session_id=mission_id, status=state.status)


def _cap_faults(caps: Mapping[str, float], state: MissionState) -> list[Fault]:
    if not caps:
        return [Fault(field="budget", reason=f"give at least one of {', '.join(CAPS)}")]
    faults: list[Fault] = []
    for name, value in caps.items():
        before = state.budget.get(name)
        if before is None:
            faults.append(Fault(field=name, reason=f"is not a cap; the caps are {', '.join(CAPS)}"))
        elif value != -1 and not 0 < value < math.inf:
            faults.append(Fault(field=name, reason="must be a positive number, or -1 for no cap"))
        elif name in WHOLE_CAPS and value != int(value):
            faults.append(Fault(field=name, reason="must be a whole number"))
        elif before == -1 or (value != -1 and value < before):
            faults.append(Fault(field=name, reason=f"can only be raised; it is {before:g} now (-1 is no cap)"))
    after = {**state.budget, **caps}
    endless = after["max_iterations"] == -1 and after["max_wall_clock_seconds"] == -1
    if endless and not state.mission.budget.unbounded:
        faults.append(Fault(field="budget", reason="max_iterations or max_wall_clock_seconds must stay a real cap"))
    return faults
