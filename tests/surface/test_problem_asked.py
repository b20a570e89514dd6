"""Submissions about which the problem's own server, or the operator's policy, asks something first: in both eras."""

from __future__ import annotations

from pathlib import Path

import pytest
from asker_stage import agent_at, asker, leg, log
from problem_stage import ERAS, MODERN, attempts, text


@pytest.mark.guarantee("a-submission-and-its-question-are-one")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (("legacy",), "auto"),
        (("legacy",), "ask"),
        (("modern",), "ask"),
        (("modern", "nostate"), "auto"),
        (("modern", "silent"), "ask"),
    ],
)
async def test_a_submission_and_what_is_asked_about_it_are_one_also_after_the_last_call(
    tmp_path: Path, era: str, words: tuple[str, ...], mode: str
) -> None:
    one = asker(tmp_path, *words, budget={"calls": 1})
    async with agent_at(one, era, mode=mode) as agent:
        await agent.call_tool("probe", {"x": 1})
        taken = await agent.call_tool("submit_final", {"x": 3})
        assert not taken.is_error and taken.structured_content == {"accepted": 3}, text(taken)
        assert "already_submitted" in text(await agent.call_tool("submit_final", {"x": 2}))
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.failed_calls) == (1, 0) and log(one).count("submit_final 3") == 1
    assert state.taken is not None and not state.taken.unknown and state.taken.calls == 1
    assert state.scored is not None and state.scored.solved


@pytest.mark.parametrize("words", [("legacy",), ("modern",)])
@pytest.mark.parametrize("era", ERAS)
async def test_a_submission_that_is_refused_after_its_question_costs_one_call(
    tmp_path: Path, era: str, words: tuple[str, ...]
) -> None:
    one = asker(tmp_path, *words, budget={"calls": 1})
    async with agent_at(one, era) as agent:
        assert (await agent.call_tool("submit_final", {"x": -1})).is_error
        (state,) = await attempts(tmp_path)
        assert (state.calls, state.failed_calls, state.taken, state.claimed) == (1, 1, None, None)
        assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.status) == (1, "scored")


async def test_a_question_that_is_left_without_an_answer_has_cost_a_call(tmp_path: Path) -> None:
    one = asker(tmp_path, "modern", budget={"calls": 1})
    async with agent_at(one, attempt_id="attempt-1") as agent:
        first = await leg(agent, "submit_final", 1)
        second = await leg(agent, "submit_final", 2)
        assert first.result_type == second.result_type == "input_required"
        (state,) = await attempts(tmp_path)
        assert (state.calls, state.failed_calls, state.claimed) == (1, 1, None)
    async with agent_at(one, attempt_id="attempt-1") as agent:  # the answer may also come after a new beginning
        taken = await leg(agent, "submit_final", 2, second)
        assert not taken.is_error, text(taken)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": 2} and state.calls == 1
    async with agent_at(one, attempt_id="attempt-2") as agent:
        for x in (1, 2):
            await leg(agent, "submit_final", x)
        await leg(agent, "submit_final", 3)
        over = await leg(agent, "submit_final", 3)
        assert over.is_error and "the budget calls (1) is spent; the attempt is over" in text(over)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("words", [("modern",), ("modern", "nostate")])
async def test_a_call_and_the_answer_to_its_question_are_one_call_also_without_a_state(
    tmp_path: Path, era: str, words: tuple[str, ...]
) -> None:
    one = asker(tmp_path, *words, budget={"calls": 2})
    async with agent_at(one, era) as agent:
        assert not (await agent.call_tool("askme", {"x": 1})).is_error
        (state,) = await attempts(tmp_path)
        assert (state.calls, state.failed_calls) == (1, 0)
        if era == MODERN:
            asked = await leg(agent, "askme", 2)
            spent = [await leg(agent, "askme", 1, asked), await leg(agent, "askme", 2)]
            assert all("the budget calls (2) is spent" in text(one) for one in spent), "each is another call"
            assert not (await leg(agent, "askme", 2, asked)).is_error
            assert "is spent" in text(await leg(agent, "askme", 2, asked)), "a question is answered once"
    assert (await attempts(tmp_path))[0].calls == (2 if era == MODERN else 1)
