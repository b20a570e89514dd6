"""One turn of the engine: propose, execute, observe, verify, evaluate, decide.

Owns: the order of the steps, which is the product. Each step that reaches outside is durable first; what is
pure rides in the commit of its cause, so that an iteration with one call costs two commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pursuit.core.decision import Decision, decide, facts_of, is_checkpoint, reached_cap
from pursuit.core.evaluate import Answer, evaluate
from pursuit.core.events import (
    CriterionResult,
    Event,
    IterationEnded,
    IterationProposed,
    MissionEnded,
    PlannedCall,
    WaitBegan,
)
from pursuit.core.mission import ClientProposer, Proposal
from pursuit.core.state import Iteration, MissionState
from pursuit.engine.admission import MustWait, Planned
from pursuit.engine.context import Run, Tools
from pursuit.engine.execute import execute, run_script, running_tasks
from pursuit.engine.verify import answers_for
from pursuit.proposers.contract import Failed, Proposer, Waiting

# Whether a proposal fits its mission: its tools, their schemas, its scripts.


def faults_in(state: MissionState, tools: Tools, proposal: Proposal, *, own: bool) -> list[str]:
    """Why a proposal cannot be carried out as it is; a script that is not our `own` needs permission."""
    faults: list[str] = []
    if proposal.script is not None and not own and not state.mission.allow_scripted_strategies:
        faults.append("script: this mission has allow_scripted_strategies = false")
    for place, call in enumerate(proposal.tool_calls or ()):
        name = qualified(state, call.tool_name)
        if name is None:
            known = ", ".join(state.tools[:20])
            faults.append(f"tool_calls[{place}].tool_name: {call.tool_name!r} is not a tool of this mission ({known})")
            continue
        faults.extend(f"tool_calls[{place}].args: {fault}" for fault in tools.check(name, call.args))
    return faults


def qualified(state: MissionState, name: str) -> str | None:
    """The tool's full name; a bare one is accepted if it is unique."""
    if name in state.tools:
        return name
    matching = [tool for tool in state.tools if tool.partition(".")[2] == name]
    return matching[0] if len(matching) == 1 else None


REPAIRS = 2


class Asked(msgspec.Struct, frozen=True):
    """What the sandbox and the checks answered (None: they were not asked), and when that was."""

    answers: Mapping[str, Answer] | None
    now: float
    elapsed: float


async def turn(run: Run, proposer: Proposer) -> bool:
    """Advances the mission by one iteration, or goes on with an open one; False if it has to wait."""
    if run.state.open is None and not await propose(run, proposer):
        return False
    try:
        await act(run)
        asked = await verify(run)
    except MustWait:
        return False
    await conclude(run, asked)
    return True


async def propose(run: Run, proposer: Proposer) -> bool:
    """Begins an iteration with what the proposer wants; a bad proposal goes back to it with the reasons.

    A proposer that waits for budget has none left to go on with, so the mission ends there or waits.
    """
    run.tell("propose")
    reasons: list[str] = []
    for _ in range(1 + REPAIRS):
        answer = await proposer.propose(run.state, reasons)
        match answer:
            case Waiting():
                await _begin_wait(run, answer)
                return False
            case Failed():
                reasons = [answer.reason]
                if answer.final:
                    break
            case Proposal():
                reasons = faults_in(run.state, run.tools, answer, own=proposer.operators_own)
                if not reasons:
                    run.journal.stage(_proposed(run, answer, proposer))
                    return True
    kind = run.state.mission.proposer.kind
    failed = IterationProposed(at=run.clock.now(), iteration=run.state.iteration_count, proposer=kind, failed=reasons)
    run.journal.stage(failed)
    return True


async def act(run: Run) -> None:
    """Executes what the open iteration was proposed to do."""
    iteration = run.state.open
    if iteration is None:
        return
    run.tell("execute")
    proposed = iteration.proposed
    if proposed.script is not None and iteration.script is None:
        await run_script(run, iteration, proposed.script)
    elif proposed.calls:
        calls = [
            Planned(call_id=call.call_id, tool=call.tool, args=call.args, order=order)
            for order, call in enumerate(proposed.calls)
        ]
        await execute(run, calls)


async def verify(run: Run) -> Asked:
    """Asks the sandbox and runs the checks, if the criteria are due."""
    run.tell("verify")
    if not run.state.asks:
        return Asked({}, run.clock.now(), run.elapsed())
    asked = Asked(None, run.clock.now(), run.elapsed())
    if not _due(run.state, asked):
        return asked
    answers = await answers_for(run)
    return Asked(None if run.state.stopped else answers, run.clock.now(), run.elapsed())


async def conclude(run: Run, asked: Asked) -> None:
    """Evaluates and decides in one commit; a word of the operator that comes in between is weighed in.

    Criteria that were not asked and turn out to be due keep the iteration open until they are.
    """
    run.tell("evaluate")

    def close(state: MissionState) -> Sequence[Event]:
        if state.status == "paused" or (state.stop is not None and running_tasks(state)):
            return ()  # what works still is stopped before the iteration is closed
        if state.stop is None and (_unfinished(state) or (asked.answers is None and _due(state, asked))):
            return ()
        return closing(state, asked.answers or {}, now=asked.now, elapsed=asked.elapsed)

    await run.journal.record(close)
    run.tell("ended" if run.state.terminal else "decided")


def closing(state: MissionState, answers: Mapping[str, Answer], *, now: float, elapsed: float) -> list[Event]:
    """The events that end the open iteration: its verdict, and the end or the wait that follows from it."""
    iteration = state.open
    if iteration is None:
        return []
    cap = reached_cap(state, elapsed=elapsed)
    checkpoint = is_checkpoint(state, now=now, cap=cap)
    consulted = checkpoint and state.stop is None  # a stop leaves the criteria as they stood
    results: Sequence[CriterionResult] = evaluate(state, answers) if consulted else ()
    facts = facts_of(state, results, checkpoint=checkpoint, cap=cap)
    decision = decide(facts)
    ended = IterationEnded(
        at=now,
        iteration=iteration.index,
        verdict=decision.verdict,
        reason=decision.reason,
        facts=facts,
        rationale=decision.rationale,
        criteria=list(results),
        elapsed=elapsed,
    )
    return [ended, *_after(state, iteration, decision, cap, now=now, elapsed=elapsed)]


def _after(
    state: MissionState, iteration: Iteration, decision: Decision, cap: str | None, *, now: float, elapsed: float
) -> list[Event]:
    """The end of the mission, or what it waits for before the next iteration."""
    if decision.final:
        return [ending(decision, now=now, elapsed=elapsed)]
    if cap is not None:
        return [WaitBegan(at=now, waiting_for="budget", detail=cap, elapsed=elapsed)]
    if isinstance(state.mission.proposer, ClientProposer):
        return [WaitBegan(at=now, waiting_for="proposal", elapsed=elapsed)]
    pace = state.mission.pace
    if pace is None:
        return []
    unchanged = state.unchanged + 1 if iteration.outputs() in state.outputs_seen else 0
    seconds = min(pace.seconds * pace.backoff**unchanged, pace.max_seconds or pace.seconds * 10)
    until = max(now, iteration.started_at + seconds)
    return [WaitBegan(at=now, waiting_for="pace", until=until, elapsed=elapsed)]


def ending(decision: Decision, *, now: float, elapsed: float) -> MissionEnded:
    """The last event of a mission's life."""
    status = "completed" if decision.verdict == "complete" else "terminated"
    return MissionEnded(at=now, status=status, verdict=decision.verdict, reason=decision.reason, elapsed=elapsed)


def _proposed(run: Run, proposal: Proposal, proposer: Proposer) -> IterationProposed:
    index = run.state.iteration_count
    calls = [
        PlannedCall(
            call_id=f"{run.mission_id}:{index}:{order}",
            tool=qualified(run.state, call.tool_name) or call.tool_name,
            args=dict(call.args),
        )
        for order, call in enumerate(proposal.tool_calls or ())
    ]
    return IterationProposed(
        at=run.clock.now(),
        iteration=index,
        proposer=run.state.mission.proposer.kind,
        calls=calls,
        script=proposal.script,
        own_script=proposer.operators_own,
        rationale=proposal.rationale,
    )


def _due(state: MissionState, asked: Asked) -> bool:
    """Whether the criteria are to be consulted."""
    if state.stopped or _unfinished(state):
        return False
    return is_checkpoint(state, now=asked.now, cap=reached_cap(state, elapsed=asked.elapsed))


def _unfinished(state: MissionState) -> bool:
    """Whether a stop left the iteration in the middle; it goes on at the same call when resumed."""
    iteration = state.open
    if iteration is None:
        return False
    if iteration.proposed.script is not None:
        return iteration.script is None
    for planned in iteration.proposed.calls:
        call = iteration.calls.get(planned.call_id)
        if call is None or call.outcome is None:
            return True
    return False


async def _begin_wait(run: Run, wait: Waiting) -> None:
    def build(state: MissionState) -> Sequence[Event]:
        if state.stopped or (state.status == "waiting" and state.waiting_for == wait.waiting_for):
            return ()
        now, elapsed = run.clock.now(), run.elapsed()
        if wait.waiting_for == "budget" and state.mission.budget.on_exhausted == "stop":
            return [ending(Decision("terminate", wait.detail or "max_tokens"), now=now, elapsed=elapsed)]
        return [WaitBegan(at=now, waiting_for=wait.waiting_for, detail=wait.detail, elapsed=elapsed)]

    await run.journal.record(build)
