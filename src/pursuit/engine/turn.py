"""One iteration: propose, execute, observe, verify, evaluate, decide.

A language model that works in turns is asked again after its calls, until it stops calling; then the criteria are
evaluated. Each external effect is durable first. Pure steps share the commit of their cause, so an iteration with one
call costs two commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from pursuit.core.decision import Decision, decide, facts_of, is_checkpoint, missing_metrics, reached_cap
from pursuit.core.evaluate import Answer, evaluate
from pursuit.core.events import (
    CriterionResult,
    Event,
    IterationEnded,
    IterationProposed,
    MissionEnded,
    MissionFailed,
    PlannedCall,
    ProposerRemembered,
    TurnContinued,
    WaitBegan,
)
from pursuit.core.fold import PROPOSER_DONE
from pursuit.core.mission import Proposal
from pursuit.core.state import IterationRecord, MissionState
from pursuit.engine.call_admission import MustWait, Planned, wait_for_answers
from pursuit.engine.context import Run
from pursuit.engine.execute import execute, leave_result, run_script, running_tasks
from pursuit.engine.verify import answers_for
from pursuit.errors import Fault
from pursuit.proposers.contract import AnswerCall, Blocked, Done, Failed, Proposed, Turn, Waiting
from pursuit.upstream.host import UpstreamTools

MAX_MEMORY = 64 * 1024
REPAIRS = 2
"""The number of times that a faulty proposal goes back to its proposer."""


def faults_in(state: MissionState, tools: UpstreamTools, proposal: Proposal) -> list[Fault]:
    """The faults of a proposal: unknown tools, wrong arguments, scripts that the mission does not allow."""
    faults: list[Fault] = []
    if proposal.script is not None and not state.facts.authored and not state.mission.allow_scripted_strategies:
        faults.append(Fault(field="script", reason="this mission has allow_scripted_strategies = false"))
    for place, call in enumerate(proposal.tool_calls or ()):
        name = qualified(state, call.tool_name)
        if name is None:
            reason = f"{call.tool_name!r} is not a tool of this mission ({', '.join(state.tools[:20])})"
            faults.append(Fault(field=f"tool_calls[{place}].tool_name", reason=reason))
            continue
        if wrong := tools.check(name, call.args):
            faults += [Fault(field=f"tool_calls[{place}].args", reason=why) for why in wrong]
    return faults


def qualified(state: MissionState, name: str) -> str | None:
    """The tool's full name; a bare name is accepted if it is unique."""
    if name in state.tools:
        return name
    matching = [tool for tool in state.tools if tool.partition(".")[2] == name]
    return matching[0] if len(matching) == 1 else None


class Verified(msgspec.Struct, frozen=True):
    """The answers of the sandbox and the checks (None: they were not asked), and their time."""

    answers: Mapping[str, Answer] | None
    now: float
    elapsed: float


async def turn(run: Run) -> bool:
    """Advances the mission by one iteration, or continues an open one; False if it must wait."""
    if run.state.open is None and not await propose(run):
        return False
    try:
        await act(run)
        while run.state.open is not None and run.proposer.after_calls(run.state) and _goes_on(run):
            if not await propose_more(run):
                return False
            await act(run)
        if run.observer is not None:
            run.report_phase("verify")
        verified = await verify(run) if run.state.asks else Verified({}, run.clock.now(), run.elapsed())
    except MustWait:
        return False
    await conclude(run, verified)
    return True


def _goes_on(run: Run) -> bool:
    """True unless a stop or a cap ends the turn of the proposer."""
    state = run.state
    free = not (state.stopped or run.stop_ordered)
    return free and reached_cap(state, elapsed=run.elapsed(), iterations=state.iteration_count) is None


async def propose(run: Run) -> bool:
    """Begins an iteration with a proposal; a faulty proposal goes back to its proposer with the reasons.

    A proposer without remaining budget ends the mission, or makes it wait.
    """
    if run.observer is not None:
        run.report_phase("propose")
    reasons: list[str] = []
    for _ in range(1 + REPAIRS):
        answer = await run.proposer.propose(run.state, reasons)
        if not isinstance(answer, Failed | Blocked) and (reasons := _refused(run, answer)):
            continue
        match answer:
            case Proposal():
                run.journal.stage(_proposed(run, answer))
                return True
            case Waiting() | Blocked() | Done():
                await _stop(run, answer)
                return False
            case Failed():
                reasons = [answer.reason]
                if answer.final:
                    break
            case Turn():
                run.journal.stage(_begun(run, answer))
                return True
    run.journal.stage(_begun(run, Turn(failed=reasons)))
    return True


def _refused(run: Run, answer: Proposed) -> list[str]:
    """The faults of a proposal, or of the memory that is stored in its commit."""
    faults: Sequence[Fault] = ()
    if isinstance(answer, Proposal) and answer is not run.checked:
        faults = faults_in(run.state, run.tools, answer)
    return list(map(str, faults)) or _remember(run)


def _remember(run: Run) -> list[str]:
    """Stages the proposer's memory; returns faults if it cannot be stored."""
    if not run.proposer.memory and not run.state.remembered:
        return []
    try:
        body = json.dumps(dict(run.proposer.memory), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return [f"memory: must be JSON ({error})"]
    if len(body) > MAX_MEMORY:
        return [f"memory: has {len(body)} bytes; the limit is {MAX_MEMORY}"]
    data = json.loads(body)  # the proposer may change what it holds
    if data == run.state.remembered:
        return []
    kind = run.state.mission.proposer.kind
    run.journal.stage(ProposerRemembered(at=run.clock.now(), kind=kind, data=data))
    return []


async def propose_more(run: Run) -> bool:
    """Asks the model for its next calls in the same iteration; False if the mission waits for it.

    If the budget does not allow another request, the turn is over.
    """
    if run.observer is not None:
        run.report_phase("propose")
    answer = await run.proposer.propose(run.state, ())
    match answer:
        case Proposal():  # the rest of the turn
            names = [(qualified(run.state, one.tool_name) or one.tool_name, one) for one in answer.tool_calls or ()]
            failed = [] if answer.script is None else ["script: only the first answer of an iteration can be a script"]
            wanted = [AnswerCall(tool=name, args=dict(one.args), wanted_id="") for name, one in names]
            answer = Turn(calls=wanted, ends=True, failed=failed)
        case Failed():
            answer = Turn(failed=[answer.reason], ends=True)
        case Waiting(waiting_for="budget"):
            answer = Turn(ends=True)
        case Waiting() | Blocked() | Done():
            await _stop(run, answer)
            return False
        case Turn():
            pass
    calls = _planned(run, answer)
    failed = list(answer.failed) or _remember(run) or _all_faulty(run, calls)
    run.journal.stage(
        TurnContinued(
            at=run.clock.now(),
            iteration=run.state.current_index,
            calls=calls,
            rationale=answer.rationale,
            failed=failed,
            ends=answer.ends or bool(failed),
        )
    )
    return True


async def act(run: Run) -> None:
    """Executes the calls, or the script, of the open iteration."""
    iteration = run.state.open
    if iteration is None:
        return
    if run.observer is not None:
        run.report_phase("execute")
    proposed = iteration.proposed
    if proposed.script is not None and iteration.script is None:
        await run.journal.flush()  # a script may take a while before its first call
        await run_script(run, iteration, proposed.script)
    if iteration.planned:
        calls = [
            Planned(  # the end of a call's id is its position in the iteration
                call_id=call.call_id,
                tool=call.tool,
                args=call.args,
                order=int(call.call_id.rpartition(":")[2]),
                fault=call.fault,
            )
            for call in iteration.planned
        ]
        await execute(run, calls)
    if run.state.facts.tools:
        await wait_for_answers(run)


async def verify(run: Run) -> Verified:
    """Asks the sandbox and runs the checks, if the criteria are due."""
    unasked = Verified(None, run.clock.now(), run.elapsed())
    if not _due(run.state, unasked):
        return unasked
    answers = await answers_for(run)
    return Verified(None if run.state.stopped else answers, run.clock.now(), run.elapsed())


async def conclude(run: Run, verified: Verified) -> None:
    """Evaluates and decides in one commit, which takes concurrent events of the operator into account.

    If criteria turn out to be due that were not checked, the iteration stays open until they are.
    """
    if run.observer is not None:
        run.report_phase("evaluate")

    def close(state: MissionState) -> Sequence[Event]:
        if state.status == "paused" or (state.stop is not None and running_tasks(state)):
            return ()  # running tasks are stopped before the iteration closes
        if state.stop is None and (_unfinished(state) or (verified.answers is None and _due(state, verified))):
            return ()
        return closing(state, verified.answers or {}, now=verified.now, elapsed=verified.elapsed)

    if run.proposer.keeps_result and any(_completes(one) for one in close(run.state)):
        await leave_result(run)  # before the end: an ended mission is not driven again
    await run.journal.record(close)
    if run.observer is not None:
        run.report_phase("ended" if run.state.terminal else "decided")


def _completes(one: Event) -> bool:
    return isinstance(one, MissionEnded) and one.status == "completed"


def closing(state: MissionState, answers: Mapping[str, Answer], *, now: float, elapsed: float) -> list[Event]:
    """The events that end the open iteration: its verdict, and the end or the wait that follows from it."""
    iteration = state.open
    if iteration is None:
        return []
    cap = reached_cap(state, elapsed=elapsed)
    checkpoint = is_checkpoint(state, now=now, cap=cap)
    consulted = checkpoint and state.stop is None  # a stop does not change the criteria
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
    warnings = missing_metrics(state, now=now) if state.stop is None else []
    return [ended, *warnings, *_after(state, iteration, decision, cap, now=now, elapsed=elapsed)]


def _after(
    state: MissionState, iteration: IterationRecord, decision: Decision, cap: str | None, *, now: float, elapsed: float
) -> list[Event]:
    """The end of the mission, or its wait before the next iteration; None if neither applies."""
    if decision.final:
        return [ending(decision, now=now, elapsed=elapsed)]
    if cap is not None:
        return [WaitBegan(at=now, waiting_for="budget", detail=cap, elapsed=elapsed)]
    if state.facts.proposed_by_client:
        return [WaitBegan(at=now, waiting_for="proposal", elapsed=elapsed)]
    pace = state.mission.pace
    if pace is None:
        return []
    unchanged = state.unchanged + 1 if iteration.outputs() in state.outputs_seen else 0
    seconds = min(pace.seconds * pace.backoff**unchanged, pace.max_seconds or pace.seconds * 10)
    until = max(now, iteration.started_at + seconds)
    return [WaitBegan(at=now, waiting_for="pace", until=until, elapsed=elapsed)]


def ending(decision: Decision, *, now: float, elapsed: float) -> MissionEnded:
    """The last event of a mission."""
    status = "completed" if decision.verdict == "complete" else "terminated"
    return MissionEnded(at=now, status=status, verdict=decision.verdict, reason=decision.reason, elapsed=elapsed)


def _proposed(run: Run, proposal: Proposal) -> IterationProposed:
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
        own_script=run.state.facts.authored,
        rationale=proposal.rationale,
    )


def _all_faulty(run: Run, calls: Sequence[PlannedCall]) -> list[str]:
    """The reasons why a turn without a valid call ends, after as many answers as a faulty proposal gets."""
    iteration = run.state.open
    asked = 1 if iteration is None else 1 + iteration.requests
    several = run.proposer.tries_again(run.state) and asked <= REPAIRS
    planned = [*(() if iteration is None else iteration.planned), *calls]
    if several or not calls or any(call.fault is None for call in planned):
        return []
    return [f"{call.tool}: {call.fault}" for call in calls]


def _begun(run: Run, answer: Turn) -> IterationProposed:
    """The event that begins an iteration with a model's answer."""
    calls = _planned(run, answer)
    failed = list(answer.failed) or ([] if answer.ends else _all_faulty(run, calls))
    if answer.script is not None and not run.state.mission.allow_scripted_strategies:
        failed = ["script: this mission has allow_scripted_strategies = false"]
    return IterationProposed(
        at=run.clock.now(),
        iteration=run.state.iteration_count,
        proposer=run.state.mission.proposer.kind,
        calls=calls,
        script=None if failed else answer.script,
        rationale=answer.rationale,
        failed=failed,
        ends=answer.ends,
    )


def _planned(run: Run, answer: Turn) -> list[PlannedCall]:
    """The calls of an answer with their ids; arguments that do not fit the tool's schema become faults."""
    iteration = run.state.open
    made = () if iteration is None else iteration.calls.values()
    first = max((call.order for call in made), default=-1) + 1
    planned: list[PlannedCall] = []
    for order, call in enumerate(answer.calls, first):
        fault = call.fault
        # `perform` gets the arguments of a tool of the proposer itself as they are.
        if fault is None and call.tool in run.state.tools and call.tool not in run.state.facts.tools:
            fault = "; ".join(run.tools.check(call.tool, call.args)) or None
        planned.append(
            PlannedCall(
                call_id=f"{run.mission_id}:{run.state.current_index}:{order}",
                tool=call.tool,
                args=call.args,
                wanted_id=call.wanted_id,
                fault=fault,
            )
        )
    return planned


def _due(state: MissionState, at: Verified) -> bool:
    """True if the criteria must be evaluated."""
    if state.stopped or _unfinished(state):
        return False
    return is_checkpoint(state, now=at.now, cap=reached_cap(state, elapsed=at.elapsed))


def _unfinished(state: MissionState) -> bool:
    """True if a stop interrupted the iteration; when resumed, it continues at the same call."""
    iteration = state.open
    if iteration is None:
        return False
    if iteration.proposed.script is not None and iteration.script is None:
        return True
    made = iteration.calls
    return [one for one in iteration.planned if (c := one.call_id) not in made or made[c].outcome is None] != []


async def _begin_wait(run: Run, wait: Waiting) -> None:
    def build(state: MissionState) -> Sequence[Event]:
        waits = state.status == "waiting" and state.waiting_for == wait.waiting_for
        if state.stopped or (waits and wait.waiting_for != "pace"):
            return ()
        now, elapsed = run.clock.now(), run.elapsed()
        if wait.waiting_for == "budget" and state.mission.budget.on_exhausted == "stop":
            return [ending(Decision("terminate", wait.detail or "max_tokens"), now=now, elapsed=elapsed)]
        return [
            WaitBegan(
                at=now,
                waiting_for=wait.waiting_for,
                detail=wait.detail,
                until=None if wait.until is None else now + wait.until,
                fallback=wait.fallback,
                lost=wait.lost,
                not_before=None if wait.after is None else now + wait.after,
                window=wait.window,
                elapsed=elapsed,
            )
        ]

    await run.journal.record(build)


async def _stop(run: Run, answer: Waiting | Blocked | Done) -> None:
    """Makes the mission wait, stops it until the operator has fixed a problem, or ends it."""
    now, elapsed = run.clock.now(), run.elapsed()
    match answer:
        case Waiting():
            await _begin_wait(run, answer)
            return
        case Blocked():
            event = MissionFailed(at=now, error=answer.reason, trace="", elapsed=elapsed, lost=answer.lost)
        case Done():
            event = ending(Decision("terminate", PROPOSER_DONE, answer.reason), now=now, elapsed=elapsed)
    await run.journal.record(lambda state: () if state.stopped else [event])
