"""The one submission: of which nobody knows what became, in which form it comes, what it may hold. In both eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from problem_stage import ERA, ERAS, EXAM, METRIC, SCHEMA, attempts, client, problem, text
from quick_start import fresh, pursuit
from raw_client import NEW, OLD, talking

from pursuit import Problem

DIES, WAITS, KILLS = 666, 777, 999
BY_RESULT = {
    "kind": "predicates",
    "predicates": [
        {"metric": "distance", "expression": "abs(arguments['x'] - result['structuredContent']['accepted'])"}
    ],
    "metrics": [METRIC],
}
BY_ARGUMENTS = {
    "kind": "predicates",
    "predicates": [{"metric": "distance", "expression": "abs(arguments['x'] - 3)"}],
    "metrics": [METRIC],
}

LENGTH = {"metric": "distance", "expression": "len(submission['x'])"}


def serving(one: Problem, folder: Path) -> list[str]:
    return ["problem", "serve", str(one.manifest.path), "--state", str(folder / "ledger.db")]


@pytest.mark.guarantee("an-unknown-submission-is-the-one")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("scorer", [BY_RESULT, BY_ARGUMENTS])
async def test_a_server_that_dies_in_its_own_submit_final_may_have_taken_it(
    tmp_path: Path, era: str, scorer: dict[str, Any]
) -> None:
    one = problem(tmp_path, "submit_final", scorer=scorer)
    async with client(one, tmp_path, era) as agent:
        lost = await agent.call_tool("submit_final", {"x": DIES})
        assert lost.is_error and "it is not known whether it accepted the submission" in text(lost)
        assert '"fate": "unknown"' in text(lost) and "exam.py" not in text(lost)
        again = await agent.call_tool("submit_final", {"x": 3})
        assert again.is_error and "already_submitted" in text(again) and '"fate": "unknown"' in text(again)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": DIES} and state.taken.unknown
    assert state.scored is not None and bool(state.scored.error) is (scorer is BY_RESULT)
    assert [row.value for row in state.scored.rows] == ([] if scorer is BY_RESULT else [DIES - 3])


@pytest.mark.guarantee("an-attempts-form-never-changes")
@ERA
async def test_while_the_server_is_down_no_other_form_is_taken(tmp_path: Path, era: str) -> None:
    there = tmp_path / "there"
    one = problem(tmp_path, "probe", "submit_final", str(there), scorer=BY_RESULT)
    async with client(one, tmp_path, era, attempt_id="attempt-1") as agent:
        down = await agent.call_tool("submit_final", {"answer": "free text"})
        assert down.is_error and "cannot be reached" in text(down) and "nothing was recorded" in text(down)
    assert await attempts(tmp_path) == []
    there.touch()
    async with client(one, tmp_path, era, attempt_id="attempt-1") as agent:
        await agent.call_tool("probe", {"x": 1})
    there.unlink()
    async with client(one, tmp_path, era, attempt_id="attempt-1") as agent:
        assert (await agent.call_tool("submit_final", {"answer": "free text"})).is_error
    (state,) = await attempts(tmp_path)
    assert state.form == "submit_final" and state.taken is None and state.claimed is None


@pytest.mark.parametrize("era", [OLD, NEW])
@pytest.mark.parametrize("own", [True, False])
async def test_what_cannot_be_kept_is_refused_and_does_not_count(tmp_path: Path, era: str, own: bool) -> None:
    tools = () if own else ("submit_final",)
    schema = {"type": "object", "properties": {"x": {}}}
    one = problem(tmp_path, *tools, **({"submission": schema} if own else {"scorer": BY_RESULT}))
    wrong: list[tuple[Any, str]] = [
        (float("nan"), "x: nan is not a JSON number"),
        ([1, float("-inf")], "x[1]: -inf is not a JSON number"),
    ]
    with talking([*pursuit(), *serving(one, tmp_path)], era=era, folder=tmp_path) as agent:
        agent.hello()
        for value, why in wrong:
            result = agent.ask("tools/call", {"name": "submit_final", "arguments": {"x": value}}).answer["result"]
            said = result["content"][0]["text"]
            assert result["isError"] and why in said and "does not count" in said
        for value in ({"y": "a\ud800"}, [{"\udc00": 1}]):  # half of a surrogate pair: no client's message has one
            assert "error" in agent.ask("tools/call", {"name": "submit_final", "arguments": {"x": value}}).answer
        taken = agent.ask("tools/call", {"name": "submit_final", "arguments": {"x": 3}}).answer["result"]
        assert not taken.get("isError")
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": 3}


async def test_an_attempt_at_another_problem_is_refused(tmp_path: Path) -> None:
    mine = problem(tmp_path / "mine", submission=SCHEMA)
    other = problem(tmp_path / "other", submission=SCHEMA, problem_id="other")
    changed = problem(tmp_path / "changed", submission=SCHEMA, title="Changed")
    async with client(mine, tmp_path, "legacy", attempt_id="attempt-1") as agent:
        await agent.call_tool("submit_final", {"x": "no"})
    for wrong, words in ((other, "is an attempt at 'exam', not at 'other'"), (changed, "another version")):
        async with client(wrong, tmp_path, "legacy", attempt_id="attempt-1") as agent:
            refused = await agent.call_tool("submit_final", {"x": 3})
            assert refused.is_error and words in text(refused)
    (state,) = await attempts(tmp_path)
    assert state.taken is None


@pytest.mark.parametrize("score", [True, False])
@ERA
async def test_what_the_servers_own_submit_final_says_passes_untouched(tmp_path: Path, era: str, score: bool) -> None:
    """What it tells of a score is the problem's own affair; ours is never added to it."""
    one = problem(tmp_path, "submit_final", scorer=BY_RESULT, visibility={"score": score})
    async with client(one, tmp_path, era) as agent:
        taken = await agent.call_tool("submit_final", {"x": 3})
        assert taken.structured_content == {"accepted": 3, "tries": 0}
        assert "receipt" not in text(taken) and "distance" not in text(taken)


KILLING = """
import os, signal
from pathlib import Path

def score(submission):
    mark = Path(__file__).with_name("judged")
    if not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
    return abs(submission["x"] - 3)
"""


def killed(one: Problem, folder: Path, x: float) -> None:
    """A submission whose server is killed in the middle of it."""
    command = [*fresh(), *serving(one, folder), "--attempt", "attempt-1"]
    with talking(command, era=NEW, folder=folder, ends=False) as agent:
        agent.hello()
        with pytest.raises(AssertionError, match="said no more"):
            agent.ask("tools/call", {"name": "submit_final", "arguments": {"x": x}})


@pytest.mark.guarantee("what-was-submitted-is-scored-after-kill-nine")
async def test_a_submission_that_was_taken_and_not_judged_is_judged_at_the_next_opening(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(KILLING, encoding="utf-8")
    scorer = {"kind": "function", "function": "score.py:score", "metrics": [METRIC]}
    one = problem(tmp_path, submission=SCHEMA, scorer=scorer)
    killed(one, tmp_path, 2.5)
    (state,) = await attempts(tmp_path)
    assert state.status == "submitted"
    async with client(one, tmp_path, "legacy", attempt_id="attempt-1") as agent:
        second = await agent.call_tool("submit_final", {"x": 3})
        assert second.is_error and "receipt" in text(second)
        with anyio.fail_after(60):  # the judge is asked beside what the agent does, and only while it is served
            while (await attempts(tmp_path))[0].scored is None:
                await anyio.sleep(0.05)
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and [row.value for row in state.scored.rows] == [0.5]


async def test_killed_in_the_middle_of_the_servers_own_submit_final_it_may_have_been_taken(tmp_path: Path) -> None:
    # The exam kills its parent, so it must be the one that was started.
    one = problem(tmp_path, "submit_final", exam=str(EXAM), scorer=BY_RESULT)
    killed(one, tmp_path, KILLS)
    (state,) = await attempts(tmp_path)
    assert state.status == "claimed"
    async with client(one, tmp_path, "legacy", attempt_id="attempt-1") as agent:
        second = await agent.call_tool("submit_final", {"x": 3})
        assert second.is_error and '"fate": "unknown"' in text(second)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": KILLS} and state.status == "scored"


@ERA
async def test_a_pattern_of_the_schema_cannot_hold_the_server(tmp_path: Path, era: str) -> None:
    hard = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a|aa)+$"}}, "required": ["x"]}
    one = problem(tmp_path, submission=hard, scorer={**BY_ARGUMENTS, "predicates": [LENGTH]})
    async with client(one, tmp_path, era) as agent:
        held = await agent.call_tool("submit_final", {"x": "a" * 60 + "!"})
        assert held.is_error and "it cannot be checked" in text(held) and "took more than" in text(held)
        assert not (await agent.call_tool("submit_final", {"x": "aaa"})).is_error
