"""The fold over random events: deterministic, bounded, and the operator's words never lose a race."""

from __future__ import annotations

import builtins
import dataclasses
import types
from collections import deque
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core import events as ev
from pursuit.core.best import BestPoints
from pursuit.core.caps import BY_REASON
from pursuit.core.confirmation import Confirmations
from pursuit.core.events import AnyEvent, Event, decode, encode
from pursuit.core.fold import advance, fold, listing_of, shown_of, standing_after
from pursuit.core.series import Events, Metrics
from pursuit.core.state import REMEMBERED, MissionState, Remembered
from pursuit.errors import LedgerTooNew
from simulation import Simulation, call, mission_data, threshold

word = st.text(max_size=6)
at = st.floats(0, 2e9)
seconds = st.floats(0, 1e6)
count = st.integers(0, 40)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | word,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3),
    max_leaves=6,
)
metrics = st.dictionaries(st.sampled_from(["mass", "loss", "x"]), numbers | st.lists(numbers, max_size=2), max_size=2)
call_ids = st.sampled_from(["c0", "c1", "c2"])
sightings = st.lists(st.fixed_dictionaries({"event_name": st.sampled_from(["done", "e"])}), max_size=2)
CREATED = ev.MissionCreated(at=1.0, mission=mission_data(criteria=[threshold()]), tools=["lab.run"])
# Fields whose values must fit together; every other one has any value of its type.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "approval_id": st.sampled_from(["a1", "a2"]),
    "at": at,
    "attempt": st.integers(1, 3),
    "call_id": call_ids,
    "caps": st.dictionaries(st.sampled_from(["max_iterations", "max_tokens"]), seconds),
    "code": st.just("metric_missing"),
    "events": sightings,
    "iterations": st.none() | st.integers(1, 9),
    "metrics": metrics,
    "no_progress": count,
    "observed": metrics,
    "reason": st.sampled_from(["criteria_met", "no_progress", "in_progress", *sorted(BY_REASON)]),
    "used": st.none(),
}
OF_KIND: dict[type[msgspec.Struct], dict[str, st.SearchStrategy[Any]]] = {
    ev.ApprovalAsked: {"args": st.just({"x": 1}), "accepts": st.none(), "require": st.just(1)},
    ev.MissionResumed: {"model": st.none(), "reopens": st.just(False)},
}


PLAIN = {Any: json_values, str: word, int: count, float: seconds}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that stands in an event."""
    match get_origin(kind):
        case None if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return of_struct(kind)
        case builtins.list:
            return st.lists(of_type(get_args(kind)[0]), max_size=2)
        case builtins.tuple:
            return st.lists(of_type(get_args(kind)[0]), max_size=2).map(tuple)
        case builtins.dict:
            return st.dictionaries(word, of_type(get_args(kind)[1]), max_size=2)
        case types.UnionType:
            return st.one_of([of_type(one) for one in get_args(kind)])
        case None:
            return PLAIN[kind] if kind in PLAIN else st.from_type(kind)
        case _:
            return st.from_type(kind)


def of_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__}
    given = {name: FIELDS[name] if name in FIELDS else of_type(hint) for name, hint in hints.items()}
    return st.builds(kind, **given | OF_KIND.get(kind, {}))


STRATEGIES: dict[type[Event], st.SearchStrategy[Any]] = {kind: of_struct(kind) for kind in get_args(AnyEvent)}
WORDS = [
    ev.MissionPaused,
    ev.MissionResumed,
    ev.AbortOrdered,
    ev.CompletionOrdered,
    ev.BudgetExtended,
    ev.ApprovalAnswered,
    ev.ApprovalShown,
]
# What a driver stages. A claim is recorded in the stream's own order: a pause before it and one after it differ.
OWN = [ev.ModelAnswered, ev.CallIntended, ev.CallSettled, ev.CallRefused, ev.ScriptEnded, ev.IterationProposed]
STANDS = [
    ev.RunClaimed,
    ev.ModelAsked,
    ev.TurnContinued,
    ev.IterationEnded,
    ev.WaitBegan,
    ev.MissionFailed,
    ev.MissionEnded,
    ev.MissionResumed,
]
later_events = st.one_of([strategy for kind, strategy in STRATEGIES.items() if kind is not ev.MissionCreated])
operator_words = st.one_of([STRATEGIES[kind] for kind in WORDS])
own_events = st.one_of([STRATEGIES[kind] for kind in OWN])


def plain(value: Any) -> Any:
    """A state, or a part of one, as data that can be compared."""
    match value:
        case Metrics():
            return {name: value.points(name) for name in value.names()}
        case BestPoints():
            return {key: value.of(key) for key in value._goals}
        case Events():
            return {name: value.find(name) for name in value.counts()}
        case Confirmations():
            return list(value.latest.values())
        case Remembered():
            return list(value._keys)
        case deque() | list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value


def folded(events: list[Event]) -> MissionState:
    state = advance(None, CREATED)
    for event in events:
        state = advance(state, event)
    return state


@settings(max_examples=150, deadline=None)
@given(st.one_of(list(STRATEGIES.values())))
def test_every_event_is_read_back_as_it_was_written(event: Event) -> None:
    name, body = encode(event)
    back = decode(name, body)
    assert (name, type(back), back) == (type(event).__name__, type(event), event)
    assert encode(back) == (name, body)


def test_an_unknown_event_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(LedgerTooNew):
        decode("Nonsense", b'{"type":"Nonsense"}')


@settings(max_examples=60, deadline=None)
@given(st.lists(later_events, max_size=12))
def test_the_fold_is_deterministic_also_over_stored_bytes(events: list[Event]) -> None:
    first = plain(folded(events))
    assert plain(folded(events)) == first
    stored = [decode(*encode(event)) for event in events]
    assert plain(fold([CREATED, *stored])) == first
    assert first["seq"] == len(events) + 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(later_events, max_size=10),
    st.lists(st.one_of([STRATEGIES[kind] for kind in (*OWN, *STANDS)]), min_size=1, max_size=3),
)
def test_the_row_that_is_stored_with_events_is_that_of_their_fold(events: list[Event], ahead: list[Event]) -> None:
    before, after = folded(events), folded([*events, *ahead])
    at = standing_after(before, ahead)
    assert (at.status, listing_of(before, at)) == (after.status, listing_of(after))
    assert shown_of(at) == shown_of(after)


def test_the_fold_begins_with_a_mission() -> None:
    assert fold([]) is None
    with pytest.raises(ValueError, match="begins with MissionCreated"):
        advance(None, ev.MissionPaused())


ASKED = ev.ApprovalAsked(
    at=4.0,
    approval_id="a1",
    call_id="c1",
    iteration=0,
    tool="lab.run",
    args={},
    description="d",
    reason="r",
    until=99.0,
)
CLAIMED = ev.RunClaimed(at=2.0, run="r", pid=1, host="h")
OPEN = [
    CLAIMED,
    ev.IterationProposed(at=3.0, iteration=0, proposer="client"),
    ev.CallIntended(at=3.0, call_id="c0", iteration=0, tool="lab.run", args={}),
]
CAPPED = ev.MissionEnded(at=4.0, status="terminated", verdict="terminate", reason="max_iterations")
SITUATIONS: dict[str, list[Event]] = {
    "pending": [],
    "paused before it ran": [ev.MissionPaused()],
    "running": [CLAIMED],
    "open": OPEN,
    "waiting": [*OPEN, ev.WaitBegan(waiting_for="approval")],
    "waiting for budget": [CLAIMED, ev.WaitBegan(waiting_for="budget", detail="max_iterations")],
    "asking": [*OPEN, ASKED, ev.WaitBegan(waiting_for="approval", until=99.0)],
    "paused": [*OPEN, ev.MissionPaused()],
    "failed": [*OPEN, ev.MissionFailed(error="e", trace="t")],
    "aborted": [*OPEN, ev.AbortOrdered(at=5.0)],
    "completed": [*OPEN, ev.CompletionOrdered(at=5.0)],
    "capped": [*OPEN, CAPPED],
    "extended": [*OPEN, CAPPED, ev.BudgetExtended(caps={"max_iterations": 9})],
}


SAID: list[Event] = [
    ev.MissionPaused(at=9.0),
    ev.MissionResumed(at=9.0),
    ev.AbortOrdered(at=9.0),
    ev.CompletionOrdered(at=9.0),
    ev.BudgetExtended(at=9.0, caps={"max_iterations": 9.0}),
    ev.ApprovalAnswered(at=9.0, approval_id="a1", answer="once"),
    ev.ApprovalAnswered(at=9.0, approval_id="a1", answer="mission"),
]
WRITTEN: list[Event] = [
    ev.IterationProposed(at=8.0, iteration=0, proposer="client"),
    ev.IterationProposed(at=8.0, iteration=0, proposer="client", failed=["bad"]),
    ev.CallIntended(at=8.0, call_id="c1", iteration=0, tool="lab.run", args={}),
    ev.CallSettled(at=8.0, call_id="c0", iteration=0, outcome="ok", metrics={"mass": 1.0}, elapsed=7.0),
    ev.CallRefused(at=8.0, call_id="c1", iteration=0, tool="lab.run", args={}, outcome="denied", reason="no"),
    ev.ScriptEnded(at=8.0, iteration=0, observed={"mass": 1.0}, events=[{"event_name": "done"}]),
    ev.ScriptEnded(at=8.0, iteration=0, observed={"mass": 1.0}, claimed=True),
    ev.ModelAnswered(at=8.0, iteration=0, attempt=0, tokens=3, cost_usd=0.1, elapsed=2.0),
]


@pytest.mark.guarantee("fold-words-commute")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_word_commutes_with_every_event_of_the_driver(situation: str) -> None:
    before = SITUATIONS[situation]
    assert {type(event) for event in WRITTEN} == set(OWN)
    for said in SAID:
        for own in WRITTEN:
            assert plain(folded([*before, said, own])) == plain(folded([*before, own, said])), (said, own)


@pytest.mark.guarantee("fold-words-commute")
@settings(max_examples=60, deadline=None)
@given(operator_words, st.lists(own_events, min_size=1, max_size=5), st.integers(0, 5))
def test_a_word_may_fall_anywhere_in_an_open_iteration(said: Event, own: list[Event], place: int) -> None:
    place = min(place, len(own))
    assert plain(folded([*OPEN, *own[:place], said, *own[place:]])) == plain(folded([*OPEN, said, *own]))


@settings(max_examples=75, deadline=None)
@given(st.lists(later_events, max_size=25))
def test_an_end_is_final_unless_the_budget_is_extended(events: list[Event]) -> None:
    state = advance(None, CREATED)
    for event in events:
        ended = state.terminal
        before = (state.status, state.verdict, state.verdict_reason)
        state = advance(state, event)
        if not ended or (state.status, state.verdict, state.verdict_reason) == before:
            continue
        assert isinstance(event, ev.BudgetExtended)
        assert before[2] in BY_REASON
        assert (state.status, state.verdict, state.ended_at, state.closed) == ("paused", None, None, False)


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name not in ("aborted", "completed", "capped")])
def test_of_abort_and_complete_the_first_wins(situation: str) -> None:
    abort, complete = ev.AbortOrdered(reason="a"), ev.CompletionOrdered(reason="c")
    aborted = folded([*SITUATIONS[situation], abort, complete])
    assert (aborted.status, aborted.verdict_reason, aborted.stop) == ("terminated", "user_abort", abort)
    completed = folded([*SITUATIONS[situation], complete, abort])
    assert (completed.status, completed.verdict_reason, completed.stop) == ("completed", "forced_complete", complete)


@pytest.mark.parametrize("situation", ["aborted", "completed", "capped"])
@pytest.mark.parametrize("late", [ev.MissionPaused(), ev.MissionResumed(), ev.AbortOrdered(), ev.CompletionOrdered()])
def test_words_after_the_end_change_nothing(situation: str, late: Event) -> None:
    before = plain(folded(SITUATIONS[situation]))
    after = plain(folded([*SITUATIONS[situation], late]))
    assert after == {**before, "seq": before["seq"] + 1}


def test_the_verdict_of_an_iteration_that_was_stopped_is_the_operators() -> None:
    simulation = Simulation()
    simulation.begin(call(events=[{"event_name": "done"}]))
    simulation.fold(ev.AbortOrdered(reason="enough"))
    ended = simulation.close()
    assert (ended.reason, ended.rationale) == ("user_abort", "enough")
    assert (simulation.state.status, simulation.state.closed) == ("terminated", True)


def test_pause_and_resume() -> None:
    assert folded([ev.MissionPaused(), ev.MissionResumed()]).status == "pending"
    assert folded([*OPEN, ev.MissionPaused(), ev.MissionResumed()]).status == "running"
    assert folded([*OPEN, ev.MissionPaused(), CLAIMED]).status == "paused"
    failed = folded([*OPEN, ev.MissionFailed(error="e", trace="t"), ev.MissionResumed()])
    assert (failed.status, failed.failure) == ("running", None)
    assert folded([*OPEN, ev.WaitBegan(waiting_for="pace"), ev.MissionResumed()]).status == "waiting"


def test_wall_clock_adds_up_over_runs() -> None:
    settled = ev.CallSettled(call_id="c0", iteration=0, outcome="ok", elapsed=2.0)
    state = folded([*OPEN, settled, CLAIMED, ev.WaitBegan(waiting_for="pace", elapsed=3.0), CLAIMED])
    assert state.wall_clock == 5.0


@pytest.mark.guarantee("bounded-state")
def test_a_long_mission_stays_small() -> None:
    criteria = [threshold(target=-1.0), threshold(criterion_id="other", target=-1.0, source="lab.*")]
    simulation = Simulation(
        criteria=criteria,
        budget={"max_iterations": 10_000},
        stagnation_threshold="off",
        observe=[],
        proposer={"kind": "client"},
        pace={"seconds": 1},
    )
    for index in range(5_000):
        made = call(
            args={"x": index},
            digest=f"d{index}",
            metrics={"mass": float(index), "list": [1, 2]},
            events=[{"event_name": "e"}],
        )
        bad = call("lab.other", outcome="failed", error=f"broke {index}", digest=f"b{index}", metrics={"mass": 1})
        simulation.iterate(made, bad)
    state = simulation.state
    assert state.iteration_count == 5_000
    assert set(state.series.names()) == {"mass", "list.0", "list.1"}
    assert all(len(state.series.points(name)) == 1_000 for name in state.series.names())
    assert all(len(points) <= 1_000 for by_tool in state.series._series.values() for points in by_tool.values())
    assert len(state.recent) == 20
    assert len(state.sequences) <= 3
    for memory in (state.outputs_seen, state.errors_seen, state.results_seen):
        assert len(memory._keys) <= REMEMBERED
    assert len(state.results) == len(criteria)
    assert len(state.least) == len(criteria)
    assert set(state.metrics) == {"mass", "list"}
    assert state.events.counts() == {"e": 5_000}
    assert f"d{4_999}" in state.results_seen
    assert "d0" not in state.results_seen
