"""Drives missions: in the foreground, for a waiting caller, or until another process takes them over.

Invariant: a run that was promised to a caller is in the ledger, so another process can resume it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import anyio
import msgspec

from pursuit.core.events import Identity, IterationProposed
from pursuit.core.history import Call, History, Iteration
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.observe import value_of
from pursuit.core.state import MissionState
from pursuit.core.truncate import cut_to
from pursuit.engine.context import Observer, WorkerRun
from pursuit.engine.driver import RunOrder, has_ended
from pursuit.engine.journal import Seen
from pursuit.errors import InvalidArgument, Overtaken, PursuitError, SessionNotFound
from pursuit.proposers.language import LanguageModel
from pursuit.service.audit import Caller, gist_of_proposal
from pursuit.service.service import Service

Begin = Callable[[RunOrder], Awaitable[None]]
"""Begins a run in the background; returns once it is in the ledger, and raises the error that refuses it."""


def is_same_proposal(begun: IterationProposed, proposal: Proposal) -> bool:
    """True if this proposal began the iteration; a client sends it again if the answer was lost."""
    calls = proposal.tool_calls or []
    return (
        begun.script == proposal.script
        and len(begun.calls) == len(calls)
        and all(
            asked.tool_name in (call.tool, call.tool.partition(".")[2]) and asked.args == call.args
            for asked, call in zip(calls, begun.calls, strict=True)
        )
    )


MAX_RESULT, MAX_RESULTS = 4_000, 64_000
"""Maximum characters of a call's result, and of all results together, in the answer to a client that drives."""


def _outcome_rows(iterations: Sequence[Iteration]) -> list[dict[str, Any]]:
    """Verdicts, metrics and call results, bounded; the oldest iterations lose all but their verdicts first."""
    rows: list[dict[str, Any]] = []
    left = MAX_RESULTS
    for one in reversed(iterations):
        row = {"iteration_index": one.index, "verdict": one.verdict, "verdict_reason": one.verdict_reason}
        found: dict[str, Any] = {
            "calls": [_call_outcome(call) for call in one.calls or ()],
            "metrics": {} if one.observation is None else one.observation.metrics,
        }
        if one.script is not None and (script := one.script.as_json()):
            found["script"] = cut_to(script, MAX_RESULT, _size)
        left -= _size(found)
        rows.append({**row, **found} if left >= 0 else {**row, "calls_omitted": len(found["calls"])})
    return rows[::-1]


def _call_outcome(call: Call) -> dict[str, Any]:
    found = {"tool": call.tool, "outcome": call.outcome, "error": call.error}
    kept: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    kept["args"] = cut_to(call.args, MAX_RESULT, _size)
    if call.result is not msgspec.UNSET and call.result is not None:
        kept["result"] = cut_to(value_of(call.result), MAX_RESULT, _size)
    return kept


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str))


def _answer(mission_id: str, state: MissionState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = {row["iteration_index"] for row in rows}
    warnings = [one.message for one in state.raised if one.iteration in done]
    answer: dict[str, Any] = {"session_id": mission_id, "status": state.status, "iterations": rows}
    if state.status == "paused" and state.paused_why is not None:
        answer["paused_reason"] = state.paused_why
    return {**answer, "warnings": warnings} if warnings else answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner(Service):
    async def run(
        self,
        mission_id: str,
        *,
        observer: Observer | None = None,
        caller: Caller | None = None,
        mode: str | None = None,
        begin: Begin | None = None,
    ) -> MissionState:
        """Drives any mission that has not ended until it ends or waits; a paused or failed one is resumed first.

        While it waits for a task, no process drives it; it continues here when the task has ended. `mode` is recorded
        as the policy mode that the operator chose. With `begin`, the run is in the background.
        """
        await self._require_parent(mission_id)
        async with self.audit.control(caller or self.caller, "run", mission_id):
            driver = (caller or self.caller).identity
            order = RunOrder(mission_id, resume=True, observer=observer, mode=mode, driver=driver)
            if begin is None:
                return await self.drive(order)
            await begin(order)
        return await self.state(mission_id)

    async def iterate(
        self,
        mission_id: str,
        *,
        iterations: int = 1,
        proposal: Proposal | None = None,
        after: int | None = None,
        observer: Observer | None = None,
        caller: Caller | None = None,
        sampler: LanguageModel | None = None,
        mode: str | None = None,
        begin: Begin | None = None,
        seen: Seen | None = None,
    ) -> dict[str, Any]:
        """Drives up to `iterations` iterations; stops early at the end, at a wait, or when it is the client's turn.

        A caller who passes the number of iterations that it knows (`after`) gets a lost answer again, and nothing new
        is started. An error carries the finished iterations in its details. `sampler` is the caller's own language
        model, for missions whose proposer is `sampling`; `mode` is recorded as in `run`. With `begin`, the run is in
        the background, and the answer is without iterations. `seen` is the mission as the caller has just read it.
        """
        if iterations < 1:
            raise InvalidArgument(f"max_iterations_this_call must be at least 1, not {iterations}")
        seen = await self._require_parent(mission_id, seen)
        repeated, proposal, head = await self._before(mission_id, seen, iterations, proposal, after)
        if repeated is not None:
            return repeated
        who = caller or self.caller
        first: list[int] = []  # where this run began: earlier iterations of other drivers are not in this answer
        order = RunOrder(
            mission_id,
            iterations=iterations,
            proposal=proposal,
            after=after,
            observer=observer,
            sampler=sampler,
            mode=mode,
            driver=who.identity,
            claimed=lambda state: first.append(state.iteration_count),
        )
        order = await self.driver.checked(seen[0], order)
        asked = {"max_iterations_this_call": iterations, "after": after, "proposal": gist_of_proposal(proposal)}
        asked |= {} if begin is None else {"background": True}
        audited = self.audit.control(who, "iterate", mission_id, asked, later=begin is None)
        counted = nullcontext() if who.subject is None else self.limits.driving(who, mission_id)
        async with audited as told, counted:
            try:
                if begin is not None:
                    await begin(order)
                    return _answer(mission_id, await self.state(mission_id), [])
                state = await self.driver.drive(replace(order, told=told))
            except Overtaken:
                return await self.missed(mission_id, iterations, after or 0)
            except PursuitError as error:
                error.details["iterations"] = await self._outcomes(mission_id, first, iterations, head)
                raise
        return _answer(mission_id, state, await self._outcomes(mission_id, first, iterations, head))

    async def _before(
        self, mission_id: str, seen: Seen, iterations: int, proposal: Proposal | None, after: int | None
    ) -> tuple[dict[str, Any] | None, Proposal | None, int]:
        """The answer that a caller missed, or None; the proposal, unless its iteration has begun; the head."""
        state, head = seen
        head = head if state.open is None else 0  # the calls of an open iteration are before the head
        done = state.iteration_count
        if after is not None and after > done:
            raise InvalidArgument(
                f"after={after}, but {mission_id} has finished {done} iterations", iteration_count=done
            )
        if after is not None and after < done:
            return await self.missed(mission_id, iterations, after), None, head
        if proposal is None or after is None or state.open is None:
            return None, proposal, head
        return None, None if is_same_proposal(state.open.proposed, proposal) else proposal, head

    async def missed(self, mission_id: str, iterations: int, after: int) -> dict[str, Any]:
        """The answer of an earlier `iterate`, for a client that did not receive it."""
        state = await self.state(mission_id)
        return _answer(mission_id, state, await self._outcomes(mission_id, [after], iterations, 0))

    async def _outcomes(self, mission_id: str, first: Sequence[int], limit: int, head: int) -> list[dict[str, Any]]:
        """The iterations from `first` on with the results of their calls; empty if none was begun."""
        if not first:
            return []
        ended = History.read(await self.ledger.read(mission_id, head)).ended_from(first[0])
        return _outcome_rows([one.shown(full=True) for one in ended if one.index < first[0] + limit])

    async def drive(self, order: RunOrder) -> MissionState:
        """Drives a mission until it ends or waits; waits for its tasks here."""
        state = await self.driver.drive(order)
        while await self._woken(order.mission_id, state):
            state = await self.driver.drive(replace(order, resume=False, mode=None))
        return await self.state(order.mission_id)

    async def continue_run(
        self, mission_id: str, *, placed: WorkerRun | None = None, driver: Identity | None = None
    ) -> MissionState:
        """Drives an interrupted run to its goal; a mission that was paused in the meantime stays paused.

        A `placed` run is in the background; if it has not begun, it runs to the end, for that `driver`.
        """
        while True:
            state = await self.state(mission_id)
            left = None if state.run_goal is None else max(0, state.run_goal - state.iteration_count)
            if left == 0:
                return state
            order = RunOrder(
                mission_id,
                iterations=left,
                proposal=None if state.handed_in is None else parse_proposal(state.handed_in),
                background=state.background or placed is not None,
                after=state.iteration_count,
                driver=state.driver or driver,
                placed=placed,
            )
            try:
                state = await self.driver.drive(order)
            except Overtaken:  # another process drove it before this one had the lock
                continue
            if order.background or not await self._woken(mission_id, state):
                return await self.state(mission_id)

    async def hand_over(self, order: RunOrder) -> None:
        """Records a run as `Driver.drive` does, after the same checks, and leaves it to the workers."""
        leaving = anyio.Event()
        leaving.set()
        job = self.job_of(await self.state(order.mission_id))
        await self.driver.drive(replace(order, background=True, placed=WorkerRun(leaving=leaving), job=job))
        await self.place(order.mission_id)

    async def _woken(self, mission_id: str, state: MissionState) -> bool:
        """Waits until the mission's task has ended, or its wall clock is used up.

        False if the mission does not wait for a task, or another process drives it.
        """
        over = anyio.current_time() + state.wait_left(self.clock.now())
        with self.ledger.wakeup() as wakeup:
            while state.status == "waiting" and state.waiting_for == "task":
                if anyio.current_time() >= over or not await self._works(state.wait_detail):
                    return True
                with anyio.CancelScope(deadline=over):
                    await wakeup.wait()
                state = await self.state(mission_id)
        return False

    async def _require_parent(self, mission_id: str, seen: Seen | None = None) -> Seen:
        """The state and the head of a mission to drive. Raises for a child whose parent has ended, and ends it."""
        state, head = seen or await self.states.look(mission_id)
        parent = state.parent
        if parent is None or state.terminal:
            return state, head
        try:
            gone = (await self.state(parent)).terminal
        except SessionNotFound:
            gone = True
        if gone:
            state = await self.abort(mission_id, reason="its parent was ended", caller=Caller(who=parent))
            raise has_ended(mission_id, state)
        return await self.states.look(mission_id)
