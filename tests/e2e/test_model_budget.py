"""Tokens and money of missions whose proposer is a language model, through stand-ins of three providers' APIs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, stage
from model_endpoint import Reply, calls
from model_stage import ALL, ANTHROPIC, DONE, OPENAI, Scripted, pursued, step

from pursuit import Budget, Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.events import ModelAsked

pytestmark = pytest.mark.usefixtures("quick_python")


def longest_answer(request: dict[str, Any]) -> int:
    """How long an answer a request allows."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return next(request["body"][name] for name in names if name in request["body"])


@ALL
@pytest.mark.guarantee("tokens-are-counted")
def test_tokens_that_end_the_budget_exactly_end_the_mission(model: str, tmp_path: Path, scripted: Scripted) -> None:
    def last(request: dict[str, Any]) -> Reply:
        """A question as long as it was thought to be, and an answer as long as it may be."""
        wrote = longest_answer(request)
        return calls(("world__step", {"key": "b", "amount": 0}), tokens=(7_000 - wrote, wrote))

    first = calls(("world__step", {"key": "a", "amount": 0}), tokens=(2_000, 1_000))
    with scripted(first, last) as endpoint:
        proposer = {"kind": "model", "model": model, "max_tokens": 4_900}
        wanted = mission(criteria=DONE, proposer=proposer, budget=Budget(max_iterations=9, max_tokens=10_000))
        state, found, rows, made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, state.tokens, len(endpoint.seen)) == ("max_tokens", 10_000, 2)
    assert len(made) == 2, "what was paid for is done"
    assert [row["verdict_reason"] for row in rows] == ["max_tokens"]
    asked, longest = found[ModelAsked], [longest_answer(request) for request in endpoint.seen]
    assert longest[0] == 4_900, "the proposer's own, for as long as there is enough"
    assert asked[1].estimate + longest[1] == 7_000, "the question and the longest answer are all that is left"
    assert 2_000 < asked[1].estimate < 4_000, "it is learnt how many tokens a byte has"


@ALL
@pytest.mark.guarantee("tokens-never-over-the-cap")
def test_a_question_that_does_not_fit_is_not_asked(model: str, tmp_path: Path, scripted: Scripted) -> None:
    with scripted(calls(("world__step", {}))) as endpoint:
        wanted = mission(criteria=DONE, proposer=model, budget=Budget(max_iterations=9, max_tokens=1_000))
        state, found, rows, _made = pursued(tmp_path, wanted)
    assert (state.status, state.verdict_reason, state.tokens) == ("terminated", "max_tokens", 0)
    assert (rows, found[ModelAsked], endpoint.seen) == ([], [], [])


@ALL
@pytest.mark.parametrize("cap", ["max_tokens", "max_cost_usd"])
@pytest.mark.guarantee("tokens-never-over-the-cap")
def test_a_model_that_writes_as_much_as_it_may_stays_within_its_cap(
    cap: str, model: str, tmp_path: Path, scripted: Scripted
) -> None:
    def counting(request: dict[str, Any]) -> Reply:
        """Counts a token for every three bytes of what it was sent, and writes on until it is stopped."""
        key, sent = str(len(endpoint.seen)), len(json.dumps(request["body"]))
        return calls(("world__step", {"key": key, "amount": 0}), tokens=(sent // 3, longest_answer(request)))

    most = 20_000 if cap == "max_tokens" else 0.03 if model == ANTHROPIC else 0.01
    with scripted(counting) as endpoint:
        wanted = mission(
            criteria=DONE,
            proposer={"kind": "model", "model": model, "max_tokens": 900},
            budget=Budget(max_iterations=99, **{cap: most}),
            stagnation_threshold="off",
        )
        state, _found, _rows, made = pursued(tmp_path, wanted)
    used = state.tokens if cap == "max_tokens" else state.cost_usd
    assert state.verdict_reason == ("max_tokens" if cap == "max_tokens" else "max_cost")
    assert most * 0.75 < used <= most, "little is left over, and nothing is overrun"
    assert len(made) == len(endpoint.seen) > 3


@pytest.mark.guarantee("tokens-are-counted")
def test_a_provider_that_counts_more_than_was_thought_is_believed_and_ends_the_mission(
    tmp_path: Path, scripted: Scripted
) -> None:
    with scripted(calls(("world__step", {"amount": 0}), tokens=(30_000, 500))) as endpoint:
        wanted = mission(criteria=DONE, proposer=OPENAI, budget=Budget(max_iterations=9, max_tokens=10_000))
        state, _found, _rows, _made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, state.tokens, len(endpoint.seen)) == ("max_tokens", 30_500, 1)


@pytest.mark.guarantee("tokens-are-counted")
def test_success_on_the_last_token_is_success(tmp_path: Path, scripted: Scripted) -> None:
    with scripted(calls(("world__step", {}), tokens=(6_000, 4_000))):
        wanted = mission(criteria=DONE, proposer=OPENAI, budget=Budget(max_iterations=9, max_tokens=10_000))
        state, _found, _rows, _made = pursued(tmp_path, wanted)
    assert (state.status, state.verdict_reason, state.tokens) == ("completed", "criteria_met", 10_000)


@pytest.mark.guarantee("tokens-are-counted")
def test_there_is_no_second_request_on_credit(tmp_path: Path, scripted: Scripted) -> None:
    with scripted(Reply(text="Hm.", tokens=(6_000, 3_999)), calls(("world__step", {}))) as endpoint:
        wanted = mission(criteria=DONE, proposer=OPENAI, budget=Budget(max_iterations=9, max_tokens=10_000))
        state, _found, rows, _made = pursued(tmp_path, wanted)
    assert (state.status, state.verdict_reason, len(rows)) == ("terminated", "max_tokens", 1)
    assert len(endpoint.seen) == 1


@pytest.mark.guarantee("tokens-are-counted")
async def test_a_mission_that_waits_for_tokens_goes_on_with_the_answer_it_has(
    tmp_path: Path, scripted: Scripted
) -> None:
    hm = Reply(text="Hm.", tokens=(6_000, 3_999))
    with scripted(hm, calls(("world__step", {}))) as endpoint:
        async with stage(tmp_path, step) as runtime:
            budget = Budget(max_iterations=9, max_tokens=10_000, on_exhausted="wait")
            wanted = mission(criteria=DONE, proposer=OPENAI, budget=budget)
            mission_id = (await runtime.runner.start(wanted)).session_id
            state = await runtime.runner.run(mission_id)
            assert (state.status, state.waiting_for, state.wait_detail) == ("waiting", "budget", "max_tokens")
            await runtime.runner.extend(mission_id, {"max_tokens": 30_000})
            state = await runtime.runner.run(mission_id)
            assert (state.verdict_reason, len(endpoint.seen)) == ("criteria_met", 2), "the first was not repeated"
            assert "text has no effect" in endpoint.prompts()[1]


async def test_cost_is_counted_by_the_operators_price(tmp_path: Path, scripted: Scripted) -> None:
    answer = calls(("world__step", {"amount": 0}), tokens=(100_000, 10_000))
    with scripted(answer) as endpoint:
        configuration = Configuration(prices={"openai:homemade": {"input": 1.0, "output": 10.0}})
        async with Runtime(state=tmp_path / "l.db", config=configuration, servers={"world": [step]}) as runtime:
            budget = Budget(max_iterations=9, max_cost_usd=0.6)
            report = await runtime.pursue(
                mission(criteria=DONE, proposer="openai:homemade", budget=budget, stagnation_threshold="off")
            )
            assert (report.verdict_reason, report.data["budget"]["used"]["cost_usd"]) == ("max_cost", 0.6)
            assert len(endpoint.seen) == 3
