"""The verbs: start, drive, stop, extend, look, prove, forget.

Owns: what each verb means and which errors it answers with. Knows no surface, no transport and no SQL.
Invariant: a verb that is refused has changed nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pursuit.engine.clock import Clock
from pursuit.engine.driver import Driver
from pursuit.engine.report import assemble
from pursuit.engine.run import Observer
from pursuit.engine.states import States
from pursuit.errors import (
    Conflict,
    InvalidArgument,
    NoIterations,
    NotPaused,
    PursuitError,
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
from pursuit.model.listing import cut_short, summary_of
from pursuit.model.mission import Mission, Proposal, parse_proposal
from pursuit.model.state import STATUSES, MissionState
from pursuit.service.admission import admit
from pursuit.service.audit import Audit, gist_of_mission, gist_of_proposal
from pursuit.service.caller import OPERATOR, Caller
from pursuit.service.caps import cap_faults
from pursuit.service.gateway import gateway_lines
from pursuit.service.history import history_page
from pursuit.service.proposals import check_proposal, is_of
from pursuit.service.status import list_row, status_of
from pursuit.tools.pool import Pool

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
    """One process's view of the missions in a ledger; `caller` is who asks where a verb is not told."""

    ledger: Ledger
    states: States
    driver: Driver
    pool: Pool
    clock: Clock
    checks: Mapping[str, Mapping[str, Any]]
    audit: Audit
    caller: Caller = OPERATOR

    async def start(self, mission: Mission, *, file: Path | None = None, caller: Caller | None = None) -> Started:
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
            by=str(caller or self.caller),
        )
        summary = summary_of(advance(None, created))
        async with self.control(caller, "start", mission_id, gist_of_mission(mission)):
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
        after: int | None = None,
        observer: Observer | None = None,
        caller: Caller | None = None,
    ) -> dict[str, Any]:
        """Drives so many iterations; stops early at the end, at a wait, or when it is the client's turn.

        A caller who says how many iterations it knows of (`after`) gets an answer that was lost once more, and
        nothing new is begun. An error on the way carries the iterations that were done in its details.
        """
        repeated, proposal = await self._before(mission_id, iterations, proposal, after)
        if repeated is not None:
            return repeated
        state, head = await self._load(mission_id)
        before = state.iteration_count
        asked = {"max_iterations_this_call": iterations, "after": after, "proposal": gist_of_proposal(proposal)}
        async with self.control(caller, "iterate", mission_id, asked):
            try:
                state = await self.driver.drive(mission_id, iterations=iterations, proposal=proposal, observer=observer)
            except PursuitError as error:
                error.details["iterations"] = await self._verdicts(mission_id, before, iterations, head)
                raise
        rows = await self._verdicts(mission_id, before, iterations, head)
        return {"session_id": mission_id, "status": state.status, "iterations": rows}

    async def iterate_later(
        self,
        mission_id: str,
        *,
        iterations: int = 1,
        proposal: Proposal | None = None,
        after: int | None = None,
        drive: Callable[[int, Proposal | None], Awaitable[None]],
        caller: Caller | None = None,
    ) -> dict[str, Any]:
        """Hands a run to `drive`, which returns once the run is in the ledger, and answers at once."""
        repeated, proposal = await self._before(mission_id, iterations, proposal, after)
        if repeated is not None:
            return repeated
        asked = {"max_iterations_this_call": iterations, "after": after, "proposal": gist_of_proposal(proposal)}
        async with self.control(caller, "iterate", mission_id, {**asked, "background": True}):
            await drive(iterations, proposal)
        return {"session_id": mission_id, "status": (await self.state(mission_id)).status, "iterations": []}

    async def _before(
        self, mission_id: str, iterations: int, proposal: Proposal | None, after: int | None
    ) -> tuple[dict[str, Any] | None, Proposal | None]:
        """The answer that a caller missed, or None; and the proposal, unless its iteration has begun already."""
        if iterations < 1:
            raise InvalidArgument(f"max_iterations_this_call must be at least 1, not {iterations}")
        state, _head = await self._load(mission_id)
        done = state.iteration_count
        if after is not None and after > done:
            raise InvalidArgument(
                f"after={after}, but {mission_id} has finished {done} iterations", iteration_count=done
            )
        if after is not None and after < done:
            status = state.status
            rows = await self._verdicts(mission_id, after, iterations, 0)
            return {"session_id": mission_id, "status": status, "iterations": rows}, None
        if proposal is None:
            return None, None
        if after is not None and state.open is not None and is_of(state.open.proposed, proposal):
            return None, None
        await check_proposal(state, proposal, self.driver.source)
        return None, proposal

    async def _verdicts(self, mission_id: str, first: int, limit: int, after: int) -> list[dict[str, Any]]:
        page = await history_page(self.ledger, mission_id, full=False, first=first, limit=limit, after=after)
        keys = ("iteration_index", "verdict", "verdict_reason")
        return [{key: row[key] for key in keys} for row in page.iterations]

    async def run(
        self, mission_id: str, *, observer: Observer | None = None, caller: Caller | None = None
    ) -> MissionState:
        """Drives any mission that has not ended until it ends or waits; a paused or failed one is resumed first."""
        await self._load(mission_id)
        async with self.control(caller, "run", mission_id):
            return await self.driver.drive(mission_id, observer=observer, resume=True)

    async def go_on(self, mission_id: str, *, observer: Observer | None = None) -> MissionState:
        """Drives an interrupted run as far as it was to go; a mission that was paused meanwhile stays paused."""
        state = await self.state(mission_id)
        if not state.interrupted:
            return state
        left = None if state.run_goal is None else state.run_goal - state.iteration_count
        kept = None if state.handed_in is None else parse_proposal(state.handed_in)
        return await self.driver.drive(
            mission_id, iterations=left, proposal=kept, observer=observer, background=state.background
        )

    async def interrupted(self, *, background: bool = False) -> list[str]:
        """The missions whose run stopped short of how far it was to go; with `background` those that nobody awaits."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self.ledger.streams(kind="mission", status=("running", "waiting"), cursor=cursor)
            for row in page.rows:
                if cut_short(row.status, row.summary, self.clock.now()) and (
                    row.summary.get("background") or not background
                ):
                    found.append(row.name)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def pause(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        """Stops it where it is; it stays resumable."""
        async with self.control(caller, "pause", mission_id, {"reason": reason}):
            return await self.say(
                mission_id, MissionPaused(at=self.clock.now(), by=str(caller or self.caller), reason=_text(reason))
            )

    async def resume(self, mission_id: str, *, caller: Caller | None = None) -> MissionState:
        """Lets a paused or failed mission go on; it does not drive it."""
        async with self.control(caller, "resume", mission_id):
            state = await self.state(mission_id)
            if state.terminal:
                raise _has_ended(mission_id, state)
            if state.status not in ("paused", "failed"):
                raise NotPaused(f"{mission_id} is {state.status}, neither paused nor failed", session_id=mission_id)
            return await self.say(mission_id, MissionResumed(at=self.clock.now(), by=str(caller or self.caller)))

    async def abort(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        """Ends it as terminated, also in the middle of a call."""
        async with self.control(caller, "abort", mission_id, {"reason": reason}):
            word = AbortOrdered(at=self.clock.now(), by=str(caller or self.caller), reason=_text(reason))
            state = await self.say(mission_id, word)
            return await self.driver.close(mission_id) or state

    async def complete(
        self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None
    ) -> MissionState:
        """Ends it as completed, on the operator's word."""
        async with self.control(caller, "complete", mission_id, {"reason": reason}):
            word = CompletionOrdered(at=self.clock.now(), by=str(caller or self.caller), reason=_text(reason))
            state = await self.say(mission_id, word)
            return await self.driver.close(mission_id) or state

    async def extend(self, mission_id: str, caps: Mapping[str, float], *, caller: Caller | None = None) -> MissionState:
        """Raises caps. A mission that waits for budget goes on; one that ended by budget can be resumed."""
        state = await self.state(mission_id)
        if state.terminal and state.verdict_reason not in CAP_REASONS:
            raise _has_ended(mission_id, state)
        faults = cap_faults(caps, state)
        if faults:
            raise ValidationFailed(faults)
        async with self.control(caller, "extend", mission_id, caps):
            word = BudgetExtended(at=self.clock.now(), by=str(caller or self.caller), caps=dict(caps))
            return await self.say(mission_id, word, reopen=True)

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

    async def audited(self, mission_id: str | None = None, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Who asked for what, the newest lines, oldest first; a mission that is forgotten still has its lines."""
        if mission_id is not None:
            _require_id(mission_id)
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

    async def forget(self, mission_id: str, *, caller: Caller | None = None) -> None:
        """Removes an ended mission, blobs included; a tombstone stays, and the audit."""
        async with self.control(caller, "forget", mission_id):
            await self._forget(mission_id)

    async def _forget(self, mission_id: str) -> None:
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
        _require_id(mission_id)
        return await self.states.look(mission_id)

    def control(
        self, caller: Caller | None, verb: str, mission_id: str, arguments: Mapping[str, Any] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Puts a control call into the audit, unless it is about what could not be a mission."""
        _require_id(mission_id)
        return self.audit.control(caller or self.caller, verb, mission_id, arguments)

    async def say(self, mission_id: str, word: OperatorWord, *, reopen: bool = False) -> MissionState:
        """Appends an operator's word at the head, whoever drives."""
        await self._load(mission_id)
        state, head = await self.states.take(mission_id)
        if state.terminal and not reopen:
            raise _has_ended(mission_id, state)
        advance(state, word)
        told = await self.ledger.append(
            mission_id, ANY, [Draft(*encode(word))], status=state.status, summary=summary_of(state)
        )
        if told.seq == head + 1:
            self.states.give(mission_id, state, told.seq)
        return await self._settled_status(mission_id, state.status, head)

    async def _settled_status(self, mission_id: str, said: str, head: int) -> MissionState:
        """The state with whatever a driver appended at the same moment; its listing is put right if that changed it."""
        now, seq = await self.states.look(mission_id)
        if now.status != said and seq > head + 1:
            with suppress(Conflict):  # whoever appended since has put it right
                await self.ledger.append(mission_id, seq, [], status=now.status, summary=summary_of(now))
        return now


def _require_id(mission_id: str) -> None:
    if MISSION_ID.fullmatch(mission_id) is None:
        raise InvalidArgument(
            f"{mission_id!r} is not a mission id; one is `mission-` and 16 hex digits", session_id=mission_id
        )


def _text(reason: str | None) -> str | None:
    """A reason as it can be stored."""
    return None if reason is None else reason.encode(errors="replace").decode()[:LONGEST_REASON]


def _has_ended(mission_id: str, state: MissionState) -> SessionTerminal:
    text = f"{mission_id} has ended: {state.status} ({state.verdict_reason})"
    return SessionTerminal(text, session_id=mission_id, status=state.status)
