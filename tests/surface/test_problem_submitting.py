"""The one submission: of which nobody knows what became, in which form it comes, what it may hold. In both eras."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from hands import LONG, Hands
from mcp import Client
from problem_stage import ERAS, EXAM, METRIC, SCHEMA, attempts, client, cut_off, problem, text
from quick_start import fresh, pursuit
from raw_client import NEW, OLD, talking

from pursuit import Problem
from pursuit.errors import ValidationFailed
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt
from pursuit.server.problems.listing import OWN, ProblemOffer
from pursuit.server.problems.server import ProblemOptions, problem_server

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
        assert lost.is_error and "it is not known whether it took the submission" in text(lost)
        assert '"fate": "unknown"' in text(lost) and "exam.py" not in text(lost)
        again = await agent.call_tool("submit_final", {"x": 3})
        assert again.is_error and "already_submitted" in text(again) and '"fate": "unknown"' in text(again)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": DIES} and state.taken.unknown
    assert state.scored is not None and bool(state.scored.error) is (scorer is BY_RESULT)
    assert [row.value for row in state.scored.rows] == ([] if scorer is BY_RESULT else [DIES - 3])


@pytest.mark.parametrize("era", ERAS)
async def test_a_submission_that_its_client_cuts_off_may_have_been_taken(tmp_path: Path, era: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    one = problem(tmp_path, "submit_final", str(pipe), scorer=BY_RESULT)
    async with client(one, tmp_path, era) as agent:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.call_tool, "submit_final", {"x": WAITS})
            await anyio.to_thread.run_sync(pipe.read_text)
            tasks.cancel_scope.cancel()
        assert (await agent.call_tool("submit_final", {"x": 3})).is_error
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and "cut it off" in state.taken.unknown
    assert state.receipt is not None and state.receipt["fate"] == "unknown"


@pytest.mark.parametrize("era", ERAS)
async def test_the_end_of_the_time_cuts_off_the_servers_own_submit_final(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = problem(tmp_path, "submit_final", scorer=BY_RESULT, budget={"wall_seconds": LONG})
    async with client(one, tmp_path, era) as agent:
        await agent.list_tools()
        cut = await cut_off(tmp_path, hands, agent.call_tool("submit_final", {"x": WAITS}))
        assert cut.is_error and f"the budget wall_seconds ({LONG:g}) is spent" in text(cut)
        assert '"fate": "unknown"' in text(cut)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and "the time was over" in state.taken.unknown
    assert list(state.spent) == ["wall_seconds"]


@pytest.mark.guarantee("an-attempts-form-never-changes")
@pytest.mark.parametrize("era", ERAS)
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
        (float("nan"), "x: nan is no number"),
        ([1, float("-inf")], "x[1]: -inf is no number"),
        ({"y": "a\ud800"}, "x.y: has half of a surrogate pair"),
        ([{"\udc00": 1}], "x[0]: has a name with half of a surrogate pair"),
    ]
    with talking([*pursuit(), *serving(one, tmp_path)], era=era, folder=tmp_path) as agent:
        agent.hello()
        for value, why in wrong:
            result = agent.ask("tools/call", {"name": "submit_final", "arguments": {"x": value}}).answer["result"]
            said = result["content"][0]["text"]
            assert result["isError"] and why in said and "does not count" in said
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


async def test_an_attempts_name_can_be_kept_or_is_refused_at_once(tmp_path: Path) -> None:
    for wrong in ("attempt-A", "attempt-a.b", "mine", "attempt-"):
        with pytest.raises(ValidationFailed, match="1 fault") as refused:
            problem(tmp_path).to_mcp_server(attempt_id=wrong)
        assert (
            refused.value.faults[0].field == "attempt_id" and "such as attempt-mine-1" in refused.value.faults[0].reason
        )
    names = []
    for name in ("a.b", "a-b"):
        one = problem(tmp_path / name, submission=SCHEMA, problem_id=name, visibility={"shared_attempt": True})

        async def main(one: Problem = one) -> None:
            async with client(one, tmp_path, "legacy") as agent:
                assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
            names.append((await attempts(tmp_path, one.problem_id))[0].attempt_id)

        await main()
    assert len(set(names)) == 2


@pytest.mark.parametrize("score", [True, False])
@pytest.mark.parametrize("era", ERAS)
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


async def test_a_claim_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    one = problem(tmp_path, "submit_final", scorer=BY_RESULT)
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    other = Attempt(ledger, lambda: 1.0, one.manifest, "attempt-1")
    await other.fix_form("submit_final")
    async with other.alone() as alone:
        assert alone
        digest = await other.claim({"x": 1})
        options = ProblemOptions(state=tmp_path / "ledger.db", attempt_id="attempt-1", submit_wait_seconds=0.2)
        async with Client(problem_server(one.manifest, options), mode="legacy", cache=None) as agent:
            refused = await agent.call_tool("submit_final", {"x": 3})
            assert refused.is_error and digest[:12] in text(refused) and "under way" in text(refused)
        await other.drop(digest, "no")
    await ledger.close()
    (state,) = await attempts(tmp_path)
    assert state.taken is None


async def test_a_judge_that_prints_or_is_interrupted_reaches_nobody(tmp_path: Path, capfd: Any) -> None:
    body = "import os\nprint('loud')\nos.system('echo louder')\n"
    body += "def score(submission):\n    print('loudest')\n    raise KeyboardInterrupt\n"
    (tmp_path / "score.py").write_text(body, encoding="utf-8")
    scorer = {"kind": "function", "function": "score.py:score", "metrics": [METRIC]}
    one = problem(tmp_path, submission=SCHEMA, scorer=scorer)
    async with client(one, tmp_path, "legacy") as agent:
        result = await agent.call_tool("submit_final", {"x": 3})
        assert not result.is_error and "loud" not in json.dumps(result.structured_content)
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and "KeyboardInterrupt" in (state.scored.error or "")
    assert "loud" not in capfd.readouterr().out


SLOW = """
import time
from pathlib import Path

def score(submission):
    Path(__file__).with_name("pipe").write_text("begun")
    time.sleep(300)
"""


async def test_a_slow_judge_holds_up_nobodys_end_and_judges_at_the_next_opening(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "score.py").write_text(SLOW, encoding="utf-8")
    scorer = {"kind": "function", "function": "score.py:score", "metrics": [METRIC], "timeout": 200}
    one = problem(tmp_path, submission=SCHEMA, scorer=scorer)
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:

        async def hand_in() -> None:
            async with client(one, tmp_path, "legacy", attempt_id="attempt-1") as agent:
                await agent.call_tool("submit_final", {"x": 2.5})

        tasks.start_soon(hand_in)
        await anyio.to_thread.run_sync((tmp_path / "pipe").read_text)
        tasks.cancel_scope.cancel()
    assert anyio.current_time() - began < 100
    (state,) = await attempts(tmp_path)
    assert state.status == "submitted"
    (tmp_path / "score.py").write_text("def score(submission):\n    return 0.5\n", encoding="utf-8")
    async with client(one, tmp_path, "legacy", attempt_id="attempt-1") as agent:
        await agent.list_tools()
        with anyio.fail_after(60):  # the judge is asked beside what the agent does, and only while it is served
            while (await attempts(tmp_path))[0].scored is None:
                await anyio.sleep(0.05)
    (state,) = await attempts(tmp_path)
    assert state.status == "scored" and state.scored is not None
    assert state.scored.judge != state.opened.judge, "another version of the judge judged it"


def test_a_form_that_is_decided_stays_whatever_the_server_lists_later(tmp_path: Path) -> None:
    one = problem(tmp_path, submission=SCHEMA).manifest
    listed = {"name": "submit_final"}
    later = ProblemOffer(problem=one, tools=frozenset({"submit_final"}), definitions=(listed,), fixed=OWN)
    assert later.form == OWN and later.shown(listed) is None
    assert [tool["inputSchema"] for tool in later.more_tools() if tool["name"] == "submit_final"] == [SCHEMA]
    gone = ProblemOffer(problem=one, fixed="submit_final")
    assert gone.form == "submit_final" and "submit_final" not in [tool["name"] for tool in gone.more_tools()]
    assert ProblemOffer(problem=one, missing="down").form is None


@pytest.mark.parametrize("era", ERAS)
async def test_a_pattern_of_the_schema_cannot_hold_the_server(tmp_path: Path, era: str) -> None:
    hard = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a|aa)+$"}}, "required": ["x"]}
    one = problem(tmp_path, submission=hard, scorer={**BY_ARGUMENTS, "predicates": [LENGTH]})
    async with client(one, tmp_path, era) as agent:
        held = await agent.call_tool("submit_final", {"x": "a" * 60 + "!"})
        assert held.is_error and "it cannot be checked" in text(held) and "took more than" in text(held)
        assert not (await agent.call_tool("submit_final", {"x": "aaa"})).is_error
