"""How a search ends: what it found counts, whatever limit it has reached, and no small space is tried twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, mission, play, stage

from pursuit import Budget, ValidationFailed, check, event, metric
from pursuit.core.events import (
    AnyEvent,
    CallSettled,
    Facts,
    IterationEnded,
    IterationProposed,
    MissionCreated,
    Outcome,
    PlannedCall,
)
from pursuit.core.fold import fold
from pursuit.core.mission import EveryN, Mission, OnEvent, Proposal
from pursuit.core.state import MissionState
from pursuit.proposers.search.proposer import Search
from pursuit.proposers.search.settings import SearchProposer

WHOLE = {"x": {"low": 0, "high": 7, "kind": "int"}}
SAMPLERS = ["surrogate", "tpe", "cmaes", "random"]


def peak(x: int) -> dict[str, Any]:
    """One number of eight is right."""
    return {"metrics": {"m": 1.0 if x == 3 else 0.0}}


def certify(x: int) -> dict[str, Any]:
    """Puts a seal on a number."""
    return {"events": [{"event_name": "certified"}]}


FOUND = metric("m", source="world.peak") >= 1
CERTIFIED = event("certified", source="world.certify")


def searching(**given: Any) -> dict[str, Any]:
    return {"kind": "search", "tool": "world.peak", "parameters": WHOLE, "seed": 2, **given}


def ended(folder: Path, *tools: Any, **given: Any) -> tuple[Any, list[list[tuple[str, Any]]], list[str]]:
    """The report, the calls of each iteration, and what the proposer failed with."""

    async def scene() -> Any:
        async with stage(folder, *(tools or (peak, certify))) as runtime:
            report = await runtime.pursue(mission(**{"budget": Budget(max_iterations=25), **given}))
            proposed = await events_of(runtime, report.session_id, IterationProposed)
            calls = [[(call.tool[6:], call.args["x"]) for call in one.calls] for one in proposed]
            return report, calls, [reason for one in proposed for reason in one.failed or ()]

    return play(scene)


def test_a_winner_within_the_last_batch_counts_though_no_trial_is_left(tmp_path: Path) -> None:
    report, calls, failed = ended(tmp_path, criteria=[FOUND], proposer=searching(batch=8, trials=8))
    assert calls[0][-1] != ("peak", 3), "the last value of the batch is another's"
    assert (report.verdict_reason, calls[1:], failed) == ("criteria_met", [[("peak", 3)]], [])


def test_a_winner_off_a_checkpoint_counts_though_no_trial_is_left(tmp_path: Path) -> None:
    given: dict[str, Any] = {"criteria": [FOUND], "checkpoint_cadence": EveryN(n=10)}
    _, free, _ = ended(tmp_path / "free", **given, proposer=searching())
    most = free.index([("peak", 3)]) + 1
    assert most < 8, "the limit is reached before the checkpoint"
    report, calls, failed = ended(tmp_path / "limited", **given, proposer=searching(trials=most))
    assert (report.verdict_reason, len(calls), failed) == ("criteria_met", 10, [])


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_the_best_trial_stands_last_before_the_other_tool_is_called(tmp_path: Path, batch: int) -> None:
    proposer = searching(then="world.certify", batch=batch, trials=8)
    report, calls, failed = ended(tmp_path, criteria=[FOUND, CERTIFIED], proposer=proposer)
    assert (report.verdict_reason, failed) == ("criteria_met", [])
    assert [iteration[-1] for iteration in calls[-2:]] == [("peak", 3), ("certify", 3)]


def test_after_the_other_tool_it_waits_for_the_checkpoint_and_fails_only_then(tmp_path: Path) -> None:
    given: dict[str, Any] = {"proposer": searching(then="world.certify"), "checkpoint_cadence": EveryN(n=20)}
    report, calls, failed = ended(tmp_path / "met", criteria=[FOUND, CERTIFIED], **given)
    assert (report.verdict_reason, len(calls), failed) == ("criteria_met", 20, [])
    assert calls.count([("certify", 3)]) == 1 and calls[-1] == []
    report, calls, failed = ended(tmp_path / "unmet", criteria=[FOUND, event("never")], **given)
    assert (report.verdict_reason, len(calls)) == ("proposer_failed", 23)
    assert set(failed) == {"world.certify was called, but the mission has not ended"}


def test_a_checkpoint_that_nothing_can_bring_is_not_waited_for(tmp_path: Path) -> None:
    given: dict[str, Any] = {"proposer": searching(then="world.certify"), "criteria": [FOUND, CERTIFIED]}
    cadence = OnEvent(event_name="dawn")
    unlimited = Budget(max_wall_clock_seconds=60)
    report, _, failed = ended(tmp_path / "a", **given, checkpoint_cadence=cadence, budget=unlimited)
    assert report.verdict_reason == "proposer_failed" and "no event dawn made a checkpoint" in failed[0]
    report, _, failed = ended(tmp_path / "b", **given, checkpoint_cadence=cadence)
    assert (report.verdict_reason, failed) == ("criteria_met", []), "the last iteration is a checkpoint"


def told(iteration: int, outcome: Outcome, *calls: tuple[str, int]) -> list[AnyEvent]:
    """The events of one iteration whose calls all came out alike."""
    planned = [
        PlannedCall(call_id=f"{iteration}:{order}", tool=tool, args={"x": x}) for order, (tool, x) in enumerate(calls)
    ]
    settled = [
        CallSettled(at=0, call_id=one.call_id, iteration=iteration, outcome=outcome, metrics=_metrics(one, outcome))
        for one in planned
    ]
    return [
        IterationProposed(at=0, iteration=iteration, proposer="search", calls=planned),
        *settled,
        IterationEnded(at=0, iteration=iteration, verdict="continue", reason="in_progress", facts=Facts()),
    ]


def _metrics(one: PlannedCall, outcome: Outcome) -> dict[str, Any]:
    return peak(**one.args)["metrics"] if one.tool == "world.peak" and outcome == "ok" else {}


async def test_a_call_that_the_budget_cut_off_is_still_to_be_made() -> None:
    """Time may run out between the start of an iteration and its only call; later there is more of it."""
    search = SearchProposer(**searching(then="world.certify", batch=3))
    wanted = mission(criteria=[FOUND, CERTIFIED], proposer=search)
    winner, seal = ("world.peak", 3), ("world.certify", 3)
    parts: list[tuple[list[AnyEvent], tuple[str, int]]] = [
        (told(0, "ok", ("world.peak", 1), winner, ("world.peak", 2)), winner),
        (told(1, "skipped", winner), winner),
        (told(2, "ok", winner), seal),
        (told(3, "skipped", seal), seal),
    ]
    events: list[AnyEvent] = []

    async def past(after: int) -> list[tuple[int, AnyEvent]]:
        return [(seq, one) for seq, one in enumerate(events, 1) if seq > after]

    state = MissionState(mission=wanted, facts=search.facts(), tools=("world.peak", "world.certify"))
    lively = Search(wanted, search, past)
    for news, next_call in parts:
        events.extend(news)
        for proposer in (lively, Search(wanted, search, past)):
            proposal = await proposer.propose(state, [])
            assert isinstance(proposal, Proposal) and proposal.tool_calls is not None
            assert [(one.tool_name, one.args["x"]) for one in proposal.tool_calls] == [next_call]


def test_without_a_threshold_the_best_of_all_trials_is_handed_on(tmp_path: Path) -> None:
    def near(x: int) -> dict[str, Any]:
        """How near a number is."""
        return {"metrics": {"far": abs(x - 5)}}

    proposer = searching(tool="world.near", then="world.certify", objective="far", direction="minimize")
    report, calls, _ = ended(tmp_path, near, certify, criteria=[CERTIFIED], proposer={**proposer, "trials": 8})
    assert (report.verdict_reason, len(calls), calls[-1]) == ("criteria_met", 9, [("certify", 5)])
    assert set(refused(tmp_path, near, certify, criteria=[CERTIFIED], proposer=proposer)) == {"proposer.trials"}


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
@pytest.mark.parametrize(
    ("cap", "calls"),
    [(Budget(max_iterations=4), 4), (Budget(max_tool_calls=4, unbounded=True), 4), (Budget(max_iterations=1), 1)],
)
def test_what_was_found_is_handed_on_before_a_cap_of_the_mission_is_reached(
    tmp_path: Path, cap: Budget, calls: int
) -> None:
    criteria = [metric("m", source="world.peak") >= 9, CERTIFIED]
    _, made, _ = ended(tmp_path, criteria=criteria, proposer=searching(then="world.certify"), budget=cap)
    assert len(made) == calls
    assert [one[0][0] for one in made] == [*["peak"] * (calls - 1), "certify" if calls > 1 else "peak"]


@pytest.mark.parametrize(
    ("took", "used", "late"), [(0.1, 94.9, False), (0.1, 95, True), (4.0, 87, False), (4.0, 88, True), (90, 49, False)]
)
async def test_a_search_keeps_enough_time_to_hand_on(took: float, used: float, late: bool) -> None:
    search = SearchProposer(**searching(then="world.certify"))
    wanted = mission(criteria=[FOUND, CERTIFIED], proposer=search)
    state = MissionState(
        mission=wanted, facts=search.facts(), tools=(), budget={"max_wall_clock_seconds": 100}, elapsed=used
    )
    end = IterationEnded(at=0, iteration=0, verdict="continue", reason="in_progress", facts=Facts(), elapsed=took)
    events = [*told(0, "ok", ("world.peak", 1))[:-1], end]
    (call,) = await next_calls(wanted, search, state, events)
    assert call[0] == ("world.certify" if late else "world.peak")


@pytest.mark.parametrize("lost", ["unknown", "timed_out", "cancelled"])
async def test_a_lost_call_is_made_again_where_a_check_looks_for_its_effect(lost: Outcome) -> None:
    search = SearchProposer(**searching(then="world.certify", noise=False))
    events, seal = told(0, "ok", ("world.peak", 3)), ("world.certify", 3)
    for after, most in (("world.certify", 3), (None, 1)):
        wanted = mission(criteria=[FOUND, check(["true"], after=after)], proposer=search)
        state = MissionState(mission=wanted, facts=search.facts(), tools=(), budget={"max_iterations": 9})
        made = [told(iteration, lost, seal) for iteration in range(1, 4)]
        proposed = [
            await next_calls(wanted, search, state, [*events, *(one for part in made[:count] for one in part)])
            for count in range(4)
        ]
        assert proposed == [[seal]] * most + [[]] * (4 - most)


async def next_calls(wanted: Mission, search: SearchProposer, state: MissionState, events: list[AnyEvent]) -> list[Any]:
    """What a process that begins with these events proposes."""

    async def past(after: int) -> list[tuple[int, AnyEvent]]:
        return [(seq, one) for seq, one in enumerate(events, 1) if seq > after]

    proposal = await Search(wanted, search, past).propose(state, [])
    calls = proposal.tool_calls if isinstance(proposal, Proposal) else None
    return [(one.tool_name, one.args["x"]) for one in calls or ()]


def test_the_limit_that_gives_way_is_missed_rather_than_another(tmp_path: Path) -> None:
    def weigh(x: int) -> dict[str, Any]:
        """The lighter, the weaker."""
        return {"metrics": {"kilos": x, "weakness": 2 - x / 4}}

    criteria = [metric("kilos") <= 1, metric("weakness") <= 0, CERTIFIED]
    first = criteria[0].criterion_id
    numbers = {"x": {"low": 0, "high": 12, "kind": "int"}}
    given = {"tool": "world.weigh", "then": "world.certify", "trials": 13, "parameters": numbers}
    _, calls, _ = ended(tmp_path / "a", weigh, certify, criteria=criteria, proposer=searching(**given))
    assert calls[-4][0] == ("certify", 1), "the least sum of what is exceeded"
    _, calls, _ = ended(tmp_path / "b", weigh, certify, criteria=criteria, proposer=searching(**given, gives_way=first))
    assert calls[-4][0] == ("certify", 8), "the lightest that is strong enough"
    wrong = refused(tmp_path / "c", weigh, certify, criteria=criteria, proposer=searching(**given, gives_way="x"))
    assert first in wrong["proposer.gives_way"]


def test_keys_that_are_gone_are_refused_but_read_from_an_old_ledger() -> None:
    with pytest.raises(ValidationFailed) as caught:
        SearchProposer(**searching(then="world.certify", then_again=True, gives_way=[FOUND.criterion_id]))
    reasons = {fault.field: fault.reason for fault in caught.value.faults}
    assert reasons.pop("then_again").startswith("is not a known key; known: args, ")
    assert reasons == {"gives_way": "must be the id of one limit, not a list"}
    wanted = mission(criteria=[FOUND], proposer=searching(then="world.certify")).model_dump(mode="json")
    wanted["proposer"] |= {"then_again": True, "gives_way": [FOUND.criterion_id]}
    state = fold([MissionCreated(at=0, mission=wanted, tools=["world.peak", "world.certify"])])
    assert state is not None and isinstance(state.mission.proposer, SearchProposer)
    assert state.mission.proposer.gives_way == FOUND.criterion_id


def refused(folder: Path, *tools: Any, **given: Any) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        ended(folder, *tools, **given)
    return {fault.field: fault.reason for fault in caught.value.faults}


@pytest.mark.parametrize("name", ["world.peak", "peak"])
def test_the_searched_tool_is_not_the_one_that_comes_after(tmp_path: Path, name: str) -> None:
    found = refused(tmp_path, criteria=[FOUND], proposer=searching(then=name))
    assert list(found) == ["proposer.then"] and "name another" in found["proposer.then"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_choice_may_be_larger_than_any_floating_point_number(tmp_path: Path, sampler: str) -> None:
    def digits(x: Any) -> dict[str, Any]:
        """How long a number is."""
        return {"metrics": {"m": len(str(x))}}

    proposer = searching(tool="world.digits", parameters={"x": {"choices": [10**400, 1, "a"]}}, sampler=sampler)
    report, calls, _ = ended(tmp_path, digits, criteria=[metric("m") > 400], proposer=proposer)
    assert report.completed and calls[-1] == [("digits", 10**400)]


GRID = {
    "x": {"low": 0, "high": 1, "step": 0.5},
    "n": {"low": 1, "high": 2, "kind": "int", "log": True},
    "flag": {"choices": [None, True, "true", 0]},
    "one": {"choices": ["only"]},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.guarantee("search-goes-on-where-it-was")
async def test_a_small_space_is_tried_without_repeats_also_when_interrupted(tmp_path: Path, sampler: str) -> None:
    def grid(x: float, n: int, flag: Any, one: str) -> dict[str, Any]:
        """Fails at one point in six."""
        if n == 2 and x > 0.5:
            raise ValueError("no")
        return {"metrics": {"m": x * n + len(str(flag))}}

    given: dict[str, Any] = {
        "criteria": [metric("m") >= 99],
        "budget": Budget(max_iterations=99),
        "proposer": searching(tool="world.grid", parameters=GRID, sampler=sampler, batch=7),
    }

    async def part(folder: Path, mission_id: str | None, iterations: int) -> tuple[str, list[str], Any]:
        async with stage(folder, grid) as runtime:
            mission_id = mission_id or (await runtime.runner.start(mission(**given))).session_id
            await runtime.runner.iterate(mission_id, iterations=iterations)
            proposed = await events_of(runtime, mission_id, IterationProposed)
            return mission_id, [repr(call.args) for one in proposed for call in one.calls], proposed[-1].failed

    (tmp_path / "whole").mkdir()
    _, whole, failed = await part(tmp_path / "whole", None, 99)
    assert (len(whole), len(set(whole)), failed) == (24, 24, ["all 24 combinations were tried"])
    mission_id, _, _ = await part(tmp_path, None, 6)
    assert (await part(tmp_path, mission_id, 99))[1] == whole
