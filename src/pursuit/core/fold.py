"""The fold from events to a mission's state and its row in a listing: the meaning of each event.

Pure: no clock, no I/O, no randomness. Invariant: the cost of a step does not grow with the mission's age.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from pursuit.core import events
from pursuit.core.best import Measured
from pursuit.core.budgets import child_id, give_back, learnt, lend
from pursuit.core.caps import BY_REASON
from pursuit.core.child_admission import COMPLETED
from pursuit.core.criteria import Check, MetricThreshold, MetricTrend, Predicate
from pursuit.core.mission import NOTE, QUEUE, Mission
from pursuit.core.observe import leaves, source_matches
from pursuit.core.progress import risen, standing
from pursuit.core.proposing import facts_before, mission_before, stored_settings
from pursuit.core.series import Gap, Point, distance, holds
from pursuit.core.state import (
    SCRIPT_SOURCE,
    TIMED,
    CallRecord,
    Exchange,
    IterationRecord,
    MissionState,
    Standing,
    error_key,
    script_view,
)


def _intended(state: MissionState, event: events.CallIntended) -> None:
    """A call is about to be sent; a repeated call counts again."""
    state.tool_calls += 1
    if event.task is not None:
        lend(state, event)
    if state.open is not None:
        state.open.calls[event.call_id] = CallRecord(
            call_id=event.call_id,
            iteration=event.iteration,
            tool=event.tool,
            args=event.args,
            purpose=event.purpose,
            order=event.order,
            attempt=event.attempt,
            criterion_id=event.criterion_id,
            repeatable=event.repeatable,
            task=event.task,
        )


def _refused(state: MissionState, event: events.CallRefused) -> None:
    """A call was not sent."""
    if state.open is not None:
        state.open.calls[event.call_id] = CallRecord(
            call_id=event.call_id,
            iteration=event.iteration,
            tool=event.tool,
            args=event.args,
            purpose=event.purpose,
            order=event.order,
            outcome=event.outcome,
            error=event.reason,
            unapproved=event.unapproved,
        )


def _settled(state: MissionState, event: events.CallSettled) -> None:
    call = state.call(event.call_id)
    if call is None:
        return
    call.outcome = event.outcome
    call.result, call.blob, call.preview = event.result, event.blob, event.preview
    call.digest, call.error, call.cut = event.digest, event.error, event.cut
    if call.task is not None:
        give_back(state, call, event)
        _child_ended(state, call, event)
    if call.tool in state.facts.tools:
        _performed(state, call, event)
    if event.outcome == "ok" and call.purpose != "check":  # the runtime's own checks are not work of the mission
        state.succeeded[call.tool] = state.succeeded.get(call.tool, 0) + 1
        state.last_success[call.tool] = events.Source(tool=call.tool, call_id=call.call_id, iteration=call.iteration)
        if call.tool == NOTE:
            state.conversation.notes = [*state.conversation.notes, str(call.args.get("text", ""))][-MAX_NOTES:]
    if event.outcome in ANSWERED:
        why = "reported no value" if event.outcome == "ok" else event.outcome
        state.series.reported(Gap((call.iteration, call.order), call.tool, call.call_id, why))
    _learn(state, event.metrics, event.events, tool=call.tool, call_id=call.call_id, order=call.order)
    if call.purpose != "check" and state.open is not None and state.open.guarded:
        _guard(state, call)


def _child_ended(state: MissionState, call: CallRecord, event: events.CallSettled) -> None:
    """Takes over a child's result; only the runtime's own event about its end counts."""
    child = state.children.get(child_id(call.task or ""))
    if child is None or event.outcome != "ok":
        return
    child.completed = any(one.get("event_name") == COMPLETED for one in event.events)
    child.metrics = leaves(event.metrics)


def _performed(state: MissionState, call: CallRecord, event: events.CallSettled) -> None:
    """Counts the usage that a proposer reports for its own call. Missing amounts are unknown, not zero."""
    call.change = event.change
    state.protected_turns += event.change is not None and bool(event.change.protected)
    if event.outcome == "failed":  # it was not sent
        return
    used = event.used or {}
    state.tokens += int(used.get("max_tokens", 0))
    state.cost_usd = round(state.cost_usd + used.get("max_cost_usd", 0.0), 9)
    state.uncounted = state.uncounted or "max_tokens" not in used
    state.unpriced = state.unpriced or "max_cost_usd" not in used


ANSWERED = frozenset({"ok", "failed", "timed_out", "unknown"})
"""The outcomes of calls that were made: after any of them, the tool's earlier values are out of date."""


def _guard(state: MissionState, call: CallRecord) -> None:
    """Counts identical calls in a row without any change: the count grows only if the result was seen before."""
    key = call.key
    changed = call.digest not in state.results_seen
    state.guard_count = 1 if key != state.guard_key or changed else state.guard_count + 1
    state.guard_key = key
    state.results_seen.add(call.digest)


def _learn(
    state: MissionState, metrics: dict[str, Any], events: list[dict[str, Any]], *, tool: str, call_id: str, order: int
) -> None:
    iteration = state.iteration_count if state.open is None else state.open.index
    place = (iteration, order)
    for name, value in metrics.items():
        # The call that was proposed later wins, not the call that returned later.
        if name not in state.metric_order or place >= state.metric_order[name]:
            state.metrics[name] = value
            state.metric_order[name] = place
    found = leaves(metrics)
    for name, value in found.items():
        point = Point(iteration, order, value, tool, call_id)
        state.series.add(name, point)
        _near(state, name, point)
    points = state.best_points
    if state.open is not None and (named := {name: found[name] for name in points.names if name in found}):
        state.open.measured[call_id] = named
        if state.confirms or (points.tool is not None and points.has_retests(tool)):
            _confirm(state, named, Point(iteration, order, 0.0, tool, call_id))
    for event in events:
        state.events.add(event["event_name"], tool=tool, call_id=call_id, iteration=iteration)


def _near(state: MissionState, name: str, point: Point) -> None:
    for criterion in state.thresholds:
        if criterion.metric == name and source_matches(criterion.source, point.tool):
            key, far = criterion.criterion_id, distance(criterion, point.value)
            if key not in state.nearest or far < state.nearest[key]:
                state.nearest[key] = far


def _confirm(state: MissionState, metrics: dict[str, float], at: Point) -> None:
    points = state.best_points
    retested = points.has_retests(at.tool)
    reported = [one for one in state.thresholds if one.metric in metrics and source_matches(one.source, at.tool)]
    wanted = [one for one in reported if one.confirm or (retested and one.required)]
    call = state.call(at.call_id)
    key, args = (SCRIPT_SOURCE, dict[str, Any]()) if call is None else (call.key, call.args)
    if retested:
        points.measure(key, metrics)
        if not points.has_retests(at.tool):
            state.confirmations.drop_retests()
            wanted = [one for one in wanted if one.confirm]
    missed = {one.criterion_id for one in reported if one.required and not holds(one, metrics[one.metric])}
    for criterion in wanted:
        state.confirmations.learn(
            criterion,
            msgspec.structs.replace(at, value=metrics[criterion.metric]),
            key=key,
            args=dict(args),
            worthwhile=missed <= {criterion.criterion_id},
            noisy=points.noisy is True,
        )


MAX_NOTES = 100
PROPOSER_DONE = "proposer_done"
EXTENDABLE = frozenset({*BY_REASON, PROPOSER_DONE})
"""The reasons of an end that a higher cap reverses: the mission reopens."""

MAX_TRAIL = 100
"""The most points of a trend: comparing all pairs takes half a millisecond."""
MAX_UNCHANGED = 300  # ten, the largest backoff, to this power still fits a float


def fold(events: Iterable[events.Event]) -> MissionState | None:
    """The state after all events; None if there are none."""
    state: MissionState | None = None
    for event in events:
        state = advance(state, event)
    return state


def advance(state: MissionState | None, event: events.Event) -> MissionState:
    """Applies one more event; changes the state in place and returns it."""
    if state is None:
        if not isinstance(event, events.MissionCreated):
            raise ValueError(f"a mission begins with MissionCreated, not {type(event).__name__}")
        state = _created(event)
    else:
        counts, steps = _FOLDS[type(event)]
        if counts:  # seconds that the driver has held the mission so far
            counted: Any = event
            state.elapsed = max(state.elapsed, counted.elapsed)
            state.counted_at = event.at
        for step in steps:
            step(state, event)
    state.seq += 1
    return state


def _created(event: events.MissionCreated) -> MissionState:
    data = mission_before(event.mission)
    whole: dict[str, Any] = {**data, "proposer": stored_settings(data["proposer"])}
    mission = Mission(**whole)
    facts = event.facts or facts_before(data["proposer"])
    caps = mission.budget.caps
    criteria = tuple(mission.criteria)
    asks = any(isinstance(c, Check | Predicate) for c in criteria)
    thresholds = tuple(one for one in mission.criteria if isinstance(one, MetricThreshold))
    return MissionState(
        mission=mission,
        facts=facts,
        tools=tuple(event.tools),
        criteria=criteria,
        thresholds=thresholds,
        counting=tuple(one for one in criteria if not isinstance(one, MetricThreshold) or one.confirm),
        unseen=tuple(one for one in criteria if isinstance(one, MetricThreshold | MetricTrend)),
        picks=mission.picks,
        joins=any(one.same_call for one in thresholds),
        gives_up=asks or mission.picks,
        confirms=any(one.confirm for one in thresholds),
        asks=asks,
        news_counts=any(c.required and not isinstance(c, MetricThreshold) for c in mission.criteria),
        stagnation=mission.stagnation(facts),
        parameters=event.parameters,
        first_warnings=tuple(event.warnings),
        file=event.file,
        credential=event.credential,
        owner=event.owner,
        callers=tuple(dict.fromkeys([*([event.credential] if event.credential else ()), *event.callers])),
        parent=event.parent,
        operators_own=event.operators_own,
        origin=event.origin,
        mode=event.mode,
        created_at=event.at,
        budget=caps,
    )


def _run_claimed(state: MissionState, event: events.RunClaimed) -> None:
    state.elapsed_before += state.elapsed + event.waited
    state.elapsed = 0.0
    state.run = event.run
    state.host = event.host
    state.drivers = drivers_with(state, event.driver)
    state.driver = event.driver
    state.handed_in = event.proposal
    state.mode = event.mode or state.mode
    state.counted_at = event.at  # `waited` has the wait before the claim


def _stands_claimed(standing: Standing, event: events.RunClaimed) -> None:
    standing.run_goal = None if event.iterations is None else standing.iteration_count + event.iterations
    standing.background = event.background
    standing.failure = None
    if not standing.terminal and standing.status != "paused" and standing.waiting_for != "pace":
        _running(standing)
    if standing.started_at is None:
        standing.started_at = event.at


def drivers_with(state: MissionState, driver: events.Identity | None) -> tuple[str, ...]:
    """The tokens whose policy applies to a run of this driver; an open iteration keeps those of its run."""
    before = state.drivers if state.open is not None else ()
    own = () if driver is None or driver.credential is None else (driver.credential,)
    return tuple(dict.fromkeys([*before, *own]))


def _running(standing: Standing) -> None:
    standing.status = "running"
    standing.waiting_for = standing.wait_detail = standing.wait_until = None
    standing.failure = None


def _works(standing: Standing, _event: events.IterationProposed | events.TurnContinued | events.ModelAsked) -> None:
    """The proposer is asked or has answered, so any wait is over."""
    if standing.status == "waiting":
        _running(standing)


def _proposed(state: MissionState, event: events.IterationProposed) -> None:
    state.handed_in = None
    state.conversation.unanswered = 0
    view = script_view(state) if event.script is not None else None
    over = event.ends or bool(event.failed) or not (event.calls or event.script)
    state.open = IterationRecord(
        index=event.iteration,
        started_at=event.at,
        proposed=event,
        planned=list(event.calls),
        turn_over=over,
        failed=list(event.failed),
        view=view,
        guarded=not event.own_script if event.script is not None else state.facts.guarded,
    )
    if event.failed:
        state.proposer_failures += 1
    elif state.proposer_failures and (not event.calls or any(call.fault is None for call in event.calls)):
        state.proposer_failures = 0
    _answer_led_to(state, event)


def _continued(state: MissionState, event: events.TurnContinued) -> None:
    state.conversation.unanswered = 0
    if state.open is None:
        return
    state.open.planned.extend(event.calls)
    state.open.requests += 1
    state.open.turn_over = event.ends or not event.calls
    if any(call.fault is None for call in event.calls):
        state.proposer_failures = 0
    elif event.failed and all(call.fault is not None for call in state.open.planned):
        state.proposer_failures += 1
        state.open.failed = list(event.failed)
    _answer_led_to(state, event)


def _answer_led_to(state: MissionState, event: events.IterationProposed | events.TurnContinued) -> None:
    """Links the calls to the answer that requested them."""
    iteration = state.open
    last = state.conversation.exchanges[-1] if state.conversation.exchanges else None
    if iteration is None or last is None or last.iteration != event.iteration or last.planned:
        return
    last.planned, last.calls = list(event.calls), iteration.calls
    if isinstance(event, events.IterationProposed) and event.script is not None:
        last.script = iteration


def _conversation_began(state: MissionState, event: events.ConversationBegan) -> None:
    state.conversation.began = event


def _model_asked(state: MissionState, event: events.ModelAsked) -> None:
    """A repeated request counts again, because the previous one was sent, too. Meanwhile the mission runs."""
    talk = state.conversation
    _not_answered(state, 1)
    talk.in_flight = (event.estimate, event.estimate_usd)
    talk.unanswered = talk.unanswered + 1 if event.model == talk.asked_of else 1
    talk.asked_of = event.model
    talk.question_size = event.size
    talk.tools_offered = event.tools or talk.tools_offered
    if event.purpose == "turn":
        talk.asking = Exchange(
            iteration=event.iteration, attempt=event.attempt, said=event.said, words_told=event.words_told
        )


def _not_answered(state: MissionState, requests: int) -> None:
    """Counts unanswered requests by their estimate: the provider may charge for them."""
    talk = state.conversation
    tokens, dollars = talk.in_flight
    state.tokens += requests * tokens
    talk.estimated_tokens += requests * tokens
    state.cost_usd = round(state.cost_usd + requests * dollars, 9)
    talk.in_flight = (0, 0.0)


def _model_answered(state: MissionState, event: events.ModelAnswered) -> None:
    talk = state.conversation
    state.tokens += event.tokens
    talk.cached_tokens += event.cached
    state.cost_usd = round(state.cost_usd + (event.cost_usd or 0.0), 9)  # ten times 0.1 is 1
    state.unpriced = state.unpriced or (event.error is None and event.cost_usd is None)
    talk.densest = learnt(talk.densest, size=talk.question_size, tokens=event.read)
    _not_answered(state, event.lost)
    talk.unanswered = 0
    if event.error is None:
        talk.outages = 0
    if event.purpose == "summary":
        return
    talk.answers[event.attempt] = event
    asked, talk.asking = talk.asking, None
    if event.error is not None:
        return
    if event.read:
        talk.counted_size, talk.counted_tokens = talk.question_size, event.read
    if talk.began is not None and asked is not None:
        talk.words_told = asked.words_told
        asked.answered = event
        talk.exchanges.append(asked)


def _compacted(state: MissionState, event: events.ConversationCompacted) -> None:
    """Drops the exchanges that the summary replaces; the last request no longer tells the size of the next."""
    talk = state.conversation
    del talk.exchanges[: event.replaced]
    talk.compactions += 1
    if event.summary:
        talk.summary, talk.notes_then = event.summary, list(talk.notes)
    talk.trimmed.update(event.trimmed)
    talk.counted_size = talk.counted_tokens = 0


def _approval(
    state: MissionState,
    event: events.ApprovalAsked | events.ApprovalExpired | events.ApprovalAnswered | events.ApprovalShown,
) -> None:
    """The mission continues once no question is open."""
    state.approvals.apply(event)
    if state.waiting_for == "approval" and not state.approvals.open():
        _running(state)


def _script_ended(state: MissionState, event: events.ScriptEnded) -> None:
    if state.open is not None:
        state.open.script = event
    if event.claimed:
        state.claimed.update(event.observed)
        return
    order = len(state.open.calls) if state.open is not None else 0
    call_id = f"{SCRIPT_SOURCE}-{event.iteration}"
    # A script reports only what it chooses: only a new value of the same name, or an error, makes an old one stale.
    for name in event.observed if event.error is None else ("",):
        place = (state.current_index, order)
        state.series.reported(Gap(place, SCRIPT_SOURCE, call_id, event.error or "has no such element"), name)
    _learn(state, event.observed, event.events, tool=SCRIPT_SOURCE, call_id=call_id, order=order)
    if event.memory is not None:
        state.memory = event.memory


def _iteration_ended(state: MissionState, event: events.IterationEnded) -> None:
    iteration, state.open = state.open, None
    if state.approvals.asked:
        state.approvals.end_iteration()
    state.conversation.answers = {}
    state.conversation.fallback = 0
    if state.unseen:
        state.unseen = tuple([one for one in state.unseen if state.series.latest(one.metric, one.source) is None])
    state.last_ended = event
    if not state.terminal:
        state.verdict, state.verdict_reason = event.verdict, event.reason
    for result in event.criteria:
        state.results[result.criterion_id] = result
    if event.facts.checkpoint:
        _checkpoint(state, event)
    if iteration is None:
        return
    if iteration.measured:
        state.best_points.learn(_measured(state, iteration), state.series)
    state.last = iteration
    state.recent.append(iteration)
    if state.stagnation is not None:
        state.sequences.append(iteration.sequence())
    for tool, error in iteration.errors():
        state.errors_seen.add(error_key(tool, error))
    if not state.news_counts and state.mission.pace is None:
        return  # no rule depends on new outputs then
    outputs = iteration.outputs()
    seen = outputs in state.outputs_seen
    state.unchanged = min(state.unchanged + 1, MAX_UNCHANGED) if seen else 0
    if state.news_counts:
        state.news = not event.facts.checkpoint and (state.news or state.is_new(iteration))
        state.shapes_seen.add(iteration.shape())
    state.outputs_seen.add(outputs)


def _stands_iterated(standing: Standing, event: events.IterationEnded) -> None:
    standing.iteration_count = event.iteration + 1


def _measured(state: MissionState, iteration: IterationRecord) -> Iterator[Measured]:
    """The calls that reported a metric of a threshold or goal, in the order in which they were proposed."""
    calls, points = iteration.calls, state.best_points
    made: list[str] = [*iteration.measured]
    if len(made) > 1:
        made.sort(key=lambda one: calls[one].order if one in calls else len(calls))
    for call_id in made:
        call = calls.get(call_id)
        tool, args = (SCRIPT_SOURCE, {}) if call is None else (call.tool, call.args)
        key = call.key if call is not None and points.tool is not None and points.has_retests(tool) else ""
        metrics = iteration.measured[call_id]
        yield Measured(iteration=iteration.index, call_id=call_id, tool=tool, args=args, metrics=metrics, key=key)


def _checkpoint(state: MissionState, event: events.IterationEnded) -> None:
    state.checkpoints += 1
    state.checkpoint_at = event.at
    state.no_progress = event.facts.no_progress
    for one in event.criteria:
        if one.status == "met":
            state.ever_met.add(one.criterion_id)
    for criterion in state.counting:
        if (result := state.results.get(criterion.criterion_id)) is None:
            continue
        if isinstance(criterion, Check):
            state.standings.add(standing(result))
            if criterion.confirm and result.evidence.get("confirm", {}).get("met") is False:
                state.rejected[criterion.criterion_id] = state.rejected.get(criterion.criterion_id, 0) + 1
        if (now := risen(state, criterion, result)) is not None:
            state.levels[criterion.criterion_id] = now
    for criterion_id, far in state.nearest.items():
        if criterion_id not in state.least or far < state.least[criterion_id]:
            state.least[criterion_id] = far
        if state.stagnation is not None:
            state.trail.setdefault(criterion_id, deque(maxlen=MAX_TRAIL)).append(far)
    state.nearest = {}


def _warned(state: MissionState, event: events.MissionWarned) -> None:
    if event.code == events.ISOLATION:
        state.isolation = event.message
    else:
        state.raised = (*state.raised, event)


def _wait_began(state: MissionState, event: events.WaitBegan) -> None:
    talk = state.conversation
    if event.waiting_for == "approval" and state.facts.tools:
        state.approvals.keep()
    if event.waiting_for in ("model", "input", "budget"):
        _not_answered(state, event.lost)  # nothing is in flight now, and refused requests are not charged
    if event.waiting_for == "model":
        talk.outages += 1
        talk.fallback = talk.fallback if event.fallback is None else event.fallback
        if event.window is not None and talk.asked_of is not None:
            talk.windows[talk.asked_of] = event.window
        if event.not_before is not None and talk.asked_of is not None:
            talk.not_before[talk.asked_of] = event.not_before


def _stands_waiting(standing: Standing, event: events.WaitBegan) -> None:
    if standing.status in ("running", "pending", "waiting"):
        standing.status = "waiting"
        standing.waiting_for, standing.wait_detail, standing.wait_until = event.waiting_for, event.detail, event.until
        standing.wait_seconds = math.inf if event.until is None else event.until - event.at


def _failed(state: MissionState, event: events.MissionFailed) -> None:
    _not_answered(state, event.lost)


def _stands_failed(standing: Standing, event: events.MissionFailed) -> None:
    if not standing.terminal:
        standing.status = "failed"
        standing.failure = event


def _stands_ended(standing: Standing, event: events.MissionEnded) -> None:
    if not standing.terminal:
        standing.status = event.status
        standing.verdict, standing.verdict_reason = event.verdict, event.reason
    standing.ended_at = event.at
    standing.waiting_for = standing.wait_detail = standing.wait_until = None
    standing.closed = True


def _report_written(state: MissionState, event: events.ReportWritten) -> None:
    if state.closed:  # otherwise a concurrent extension of the budget has made it stale
        state.report = event.digest


def _hear(state: MissionState, event: events.OperatorEvent) -> None:
    """Keeps the operator's message for the model's next request."""
    if event.reason:
        state.words = [*state.words, event.reason]


def _paused(state: MissionState, event: events.MissionPaused) -> None:
    _hear(state, event)
    if not state.terminal:
        _end_wait(state, event)
        if state.status != "paused" or event.by != state.parent:  # a parent does not take over a person's pause
            state.paused_by, state.paused_why = event.by, event.reason
        state.status = "paused"
        state.run, state.background = None, False  # the run is over; resuming the mission begins another


def _end_wait(state: MissionState, event: events.OperatorEvent) -> None:
    """Ends a wait and counts it; a driver that holds the mission counts the same seconds in its next event."""
    if state.waiting_for is not None:
        state.elapsed += event.waited
    state.waiting_for = state.wait_detail = state.wait_until = None


def _resumed(state: MissionState, event: events.MissionResumed) -> None:
    _hear(state, event)
    if event.model is not None:
        state.mission, state.conversation.fallback = state.mission.with_model(event.model), 0
    if event.reopens and state.can_go_on:
        state.no_progress, state.proposer_failures, state.trail = 0, 0, {}


def _stands_resumed(standing: Standing, event: events.MissionResumed) -> None:
    if event.reopens and standing.can_go_on:
        _reopened(standing, event.by)
    if standing.status in ("paused", "failed") or (event.model is not None and standing.waiting_for == "model"):
        _running(standing)
        if standing.started_at is None:
            standing.status = "pending"


def _ordered(state: MissionState, event: events.AbortOrdered | events.CompletionOrdered) -> None:
    if state.terminal:
        return
    state.stop = event
    state.ended_at = event.at
    _end_wait(state, event)
    if isinstance(event, events.AbortOrdered):
        state.status, state.verdict, state.verdict_reason = "terminated", "terminate", "user_abort"
    else:
        state.status, state.verdict, state.verdict_reason = "completed", "complete", "forced_complete"


def _extended(state: MissionState, event: events.BudgetExtended) -> None:
    _hear(state, event)
    state.budget = {**state.budget, **event.caps}
    if state.status == "waiting" and state.waiting_for == "budget":
        _running(state)
    elif state.status == "terminated" and state.verdict_reason in EXTENDABLE:
        _reopened(state, event.by)


def _reopened(standing: Standing, by: str) -> None:
    standing.status, standing.paused_by, standing.paused_why = "paused", by, None
    standing.ended_at = standing.verdict = standing.verdict_reason = standing.report = None
    standing.closed = False


_STANDS: Mapping[type[Any], Callable[[Standing, Any], None]] = {
    events.RunClaimed: _stands_claimed,
    events.ModelAsked: _works,
    events.IterationProposed: _works,
    events.TurnContinued: _works,
    events.IterationEnded: _stands_iterated,
    events.WaitBegan: _stands_waiting,
    events.MissionFailed: _stands_failed,
    events.MissionEnded: _stands_ended,
    events.MissionResumed: _stands_resumed,
}
"""How the events of a driver change the standing of a mission, after their step."""


_fields_of_standing = attrgetter(*Standing.__slots__)


def standing_after(state: MissionState, events: Sequence[events.Event]) -> Standing:
    """The standing of a mission once these events of a driver are folded; the state does not change."""
    standing: Standing | None = None
    for event in events:
        if type(event) not in _STANDS:
            continue
        step = _STANDS[type(event)]
        if standing is None and step is _works and state.status == "running":
            continue  # it changes nothing
        standing = standing or Standing(*_fields_of_standing(state))
        step(standing, event)
    return standing or state


def _remembered(state: MissionState, event: events.ProposerRemembered) -> None:
    state.remembered = event.data


_STEPS: Mapping[type[Any], Callable[[MissionState, Any], None]] = {
    events.RunClaimed: _run_claimed,
    events.ConversationBegan: _conversation_began,
    events.ModelAsked: _model_asked,
    events.ModelAnswered: _model_answered,
    events.IterationProposed: _proposed,
    events.TurnContinued: _continued,
    events.ConversationCompacted: _compacted,
    events.CallIntended: _intended,
    events.CallRefused: _refused,
    events.CallSettled: _settled,
    events.ApprovalAsked: _approval,
    events.ApprovalExpired: _approval,
    events.ApprovalAnswered: _approval,
    events.ApprovalShown: _approval,
    events.ScriptEnded: _script_ended,
    events.IterationEnded: _iteration_ended,
    events.MissionWarned: _warned,
    events.WaitBegan: _wait_began,
    events.MissionFailed: _failed,
    events.ReportWritten: _report_written,
    events.MissionPaused: _paused,
    events.MissionResumed: _resumed,
    events.AbortOrdered: _ordered,
    events.CompletionOrdered: _ordered,
    events.BudgetExtended: _extended,
    events.ProposerRemembered: _remembered,
}


_FOLDS: Mapping[type[Any], tuple[bool, Sequence[Callable[[MissionState, Any], None]]]] = {
    kind: ("elapsed" in kind.__struct_fields__, [step for step in (_STEPS.get(kind), _STANDS.get(kind)) if step])
    for kind in (*_STEPS, *_STANDS)
}
"""For each event: whether it counts seconds, and its steps."""


DIRECTIVE_PREVIEW = 500


class Listing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A mission's row without its status; fields that do not apply are absent. Each append stores it."""

    directive: str
    iteration_count: int
    waiting_for: events.WaitingFor | None = None
    wait_until: float | None = None
    task: str | None = None
    parent: str | None = None
    run_goal: int | None = None
    background: bool = False
    owner: str | None = None
    share: list[str] = []
    queue: str = QUEUE


Shown = tuple[Any, ...]
shown_of: Callable[[Standing], Shown] = attrgetter(
    *("status", "iteration_count", "waiting_for", "wait_until", "wait_detail", "run_goal", "background")
)
"""The fields of a mission's row that change."""


def listing_of(state: MissionState, at: Standing | None = None) -> Listing:
    """The row of a mission for this state, or for a later standing (`standing_after`)."""
    at = at or state
    mission = state.mission
    return Listing(
        mission.directive[:DIRECTIVE_PREVIEW],
        at.iteration_count,
        at.waiting_for,
        at.wait_until,
        at.wait_detail if at.waiting_for == "task" else None,
        state.parent,
        at.run_goal,
        at.background,
        state.owner,
        mission.share,
        mission.queue,
    )


def cut_short(status: str, summary: Mapping[str, Any], now: float) -> bool:
    """True if a row shows a run that stopped, or may still be running, before it reached its goal.

    An expired question is a reason to continue: its call is then refused. A task that the mission waits for may have
    ended in the meantime.
    """
    waiting_for = summary.get("waiting_for") if status == "waiting" else None
    expired = waiting_for == "approval" and now >= summary.get("wait_until", math.inf)
    timed = waiting_for in TIMED and (waiting_for != "limit" or summary.get("wait_until") is not None)
    can_go_on = status == "running" or waiting_for == "task" or timed or expired
    goal = summary.get("run_goal")
    return can_go_on and (goal is None or summary.get("iteration_count", 0) < goal)


def due_in(state: MissionState, now: float) -> float | None:
    """Seconds until a driver has something to do; None if someone must act first.

    A mission that waits for a task is due when the task has ended, or at the latest when its own time is up.
    """
    if state.terminal:
        return None if state.closed else 0.0
    if state.status == "waiting" and state.waiting_for in TIMED | {"approval", "task"}:
        return None if state.wait_until is None else state.wait_left(now)
    if state.status == "running":
        return None if state.run_goal is not None and state.iteration_count >= state.run_goal else 0.0
    clients_turn = state.facts.proposed_by_client
    return 0.0 if state.status == "pending" and not clients_turn else None


def summary_of(state: MissionState) -> dict[str, Any]:
    """The fields of a listing beside the status, for this state."""
    return msgspec.to_builtins(listing_of(state))
