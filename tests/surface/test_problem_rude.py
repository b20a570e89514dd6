"""Problems whose server, judge or ledger is not what it should be: nothing hangs, nothing breaks, nothing is lost."""

from __future__ import annotations

import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place
from mcp.shared.exceptions import MCPError
from problem_stage import ERA, EXAM, METRIC, MODERN, SCHEMA, attempts, client, problem, text
from raw_client import NEW, OLD, RawClient, talking

from pursuit import Problem

pytestmark = pytest.mark.usefixtures("quick_python")
RUDE = EXAM.with_name("rude.py")
ACCEPTED = {
    "kind": "predicates",
    "predicates": [{"metric": "distance", "expression": "0 if result['structuredContent'] else 1"}],
    "metrics": [METRIC],
}


def rude(folder: Path, *words: str, **fields: Any) -> Problem:
    server = {"command": "__python_executable__", "args": [str(RUDE), *words]}
    return problem(folder, kind="mcp", server=server, **fields)


def served(one: Problem) -> list[str]:
    words = ["-m", "pursuit", "problem", "serve", str(one.manifest.path)]
    return [sys.executable, *words, "--state", str(one.manifest.folder / "ledger.db")]


def call(agent: RawClient, tool: str, **arguments: Any) -> Any:
    return agent.ask("tools/call", {"name": tool, "arguments": arguments}).answer.get("result")


@pytest.mark.parametrize("era", [OLD, NEW])
async def test_answers_of_any_shape_pass_and_are_kept(tmp_path: Path, era: str) -> None:
    one = rude(tmp_path, "own", scorer=ACCEPTED)
    with talking(served(one), era=era, folder=tmp_path) as agent:
        agent.hello()
        assert call(agent, "probe", do="no list")["content"] == "nope"
        assert "metrics" in call(agent, "probe", do="deep")["structuredContent"]
        assert "metrics" in call(agent, "submit_final", do="deep")["structuredContent"]
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.failed_calls, state.series) == (2, 0, [])
    assert state.taken is not None and not state.taken.unknown
    assert state.scored is not None and state.scored.solved


@pytest.mark.parametrize("era", [OLD, NEW])
async def test_a_server_that_stops_listing_holds_up_no_submission(tmp_path: Path, era: str) -> None:
    one = rude(tmp_path, submission=SCHEMA, budget={"wall_seconds": 8})
    with talking(served(one), era=era, folder=tmp_path) as agent:
        agent.hello()
        assert call(agent, "probe", do="hang")["structuredContent"]
        if era == OLD:
            assert not call(agent, "submit_final", x=3)["isError"]
        else:
            assert "the budget wall_seconds (8) is spent" in str(call(agent, "probe")["content"])
    (state,) = await attempts(tmp_path)
    assert (state.scored is not None) is (era == OLD) and bool(state.spent) is (era == NEW)


@ERA
async def test_a_list_that_the_server_refuses_is_empty(tmp_path: Path, era: str) -> None:
    one = rude(tmp_path, "refuses", submission=SCHEMA)
    async with client(one, tmp_path, era) as agent:
        assert {tool.name for tool in (await agent.list_tools()).tools} == {"probe", "submit_final", "design_brief"}
        assert "`probe`" in text(await agent.call_tool("design_brief", {}))
        assert not (await agent.call_tool("submit_final", {"x": 3})).is_error


@ERA
async def test_what_a_server_says_to_refused_submissions_is_paid_for(tmp_path: Path, era: str) -> None:
    one = rude(tmp_path, "own", scorer=ACCEPTED, budget={"calls": 2})
    async with client(one, tmp_path, era) as agent:
        answers = [text(await agent.call_tool("submit_final", {"do": "refuse"})) for _ in range(4)]
        assert answers[:3] == ["cold"] * 3, "the last of them after the calls were spent"
        assert "the budget calls (2) is spent; the attempt is over" in answers[3]
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.failed_calls, state.taken) == (3, 3, None)


@ERA
@pytest.mark.parametrize(
    ("named", "field", "why"),
    [
        (
            {"scorer": {"kind": "tool", "tool": "jugde", "metrics": [METRIC]}},
            "scorer.tool",
            "its server lacks the tool",
        ),
        (
            {"budget": {"evaluations": 1, "evaluation_tools": ["prob"]}},
            "budget.evaluation_tools[0]",
            "its server lacks the tool",
        ),
        (
            {
                "scorer": {"kind": "tool", "tool": "probe", "metrics": [METRIC]},
                "budget": {"evaluations": 1, "evaluation_tools": ["probe"]},
            },
            "budget.evaluation_tools[0]",
            "agents lack the tool 'probe', so it is never counted",
        ),
    ],
)
async def test_tools_that_the_server_does_not_have_are_told_to_the_operator(
    tmp_path: Path, era: str, named: dict[str, Any], field: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = rude(tmp_path, submission=SCHEMA, **named)
    with caplog.at_level(logging.ERROR):
        async with client(one, tmp_path, era) as agent:
            with pytest.raises(MCPError, match="names tools that its server lacks"):
                await agent.list_tools()
            for tool in ("submit_final",) if "agents" in why else ("probe", "submit_final"):
                refused = await agent.call_tool(tool, {"x": 3})
                assert refused.is_error and "jugde" not in text(refused) and "cannot be used" in text(refused)
        assert await attempts(tmp_path) == []
    (told,) = [vars(record) for record in caplog.records if "cannot be used" in record.getMessage()]
    assert f"{field}: {why}" in str(told).replace("\\", "")
    if era == MODERN:
        shown = Place(tmp_path).run("problem", "show", str(one.manifest.path), code=2)
        assert field in shown.stderr and "have: " in shown.stderr.replace("has: ", "have: ")


@pytest.mark.parametrize("deep", ["print('[' * 100_000)", "print('{\"distance\": ' * 5000)"])
async def test_a_judge_that_says_something_bottomless_cannot_score(tmp_path: Path, deep: str) -> None:
    command = ["__python_executable__", "-c", deep]
    one = problem(tmp_path, submission=SCHEMA, scorer={"kind": "command", "command": command, "metrics": [METRIC]})
    for _ in range(2):  # the second opening asks the judge once more
        async with client(one, tmp_path, MODERN, attempt_id="attempt-1") as agent:
            await agent.call_tool("submit_final", {"x": 3})
            assert (await agent.call_tool("design_brief", {})).content
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.error is not None
    again = Place(tmp_path).run(
        "problem", "replay", "attempt-1", "--problem", str(one.manifest.path), "--state", "ledger.db", code=2
    )
    assert "cannot be judged again" in again.stderr and "internal" not in again.stderr


async def test_a_judge_whose_child_keeps_the_pipe_is_heard_at_once(tmp_path: Path) -> None:
    leaves = "setsid sleep 30 & echo '{\"distance\": 0.25}'"
    scorer = {"kind": "command", "command": ["sh", "-c", leaves], "metrics": [METRIC], "timeout": 20}
    one = problem(tmp_path, submission=SCHEMA, scorer=scorer)
    async with client(one, tmp_path, MODERN) as agent:
        await agent.call_tool("submit_final", {"x": 3})
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.rows[0].value == 0.25


@pytest.mark.damaged_ledger("edits the database")
async def test_a_damaged_attempt_is_named(tmp_path: Path) -> None:
    one = problem(tmp_path, submission=SCHEMA)
    async with client(one, tmp_path, MODERN, attempt_id="attempt-1") as agent:
        await agent.call_tool("submit_final", {"x": 3})
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE events SET body = x'78' WHERE stream = 1 AND seq = 2")
    ledger.close()
    named = (str(one.manifest.path), "--state", "ledger.db")
    for words in (("replay", "attempt-1", "--problem"), ("compare",), ("serve", "--attempt", "attempt-1")):
        said = Place(tmp_path).run("problem", *words, *named, code=1).stderr
        assert "attempt-1 is damaged" in said and "internal" not in said


async def test_a_shared_attempt_at_another_version_is_refused_at_the_start(tmp_path: Path) -> None:
    one = problem(tmp_path, submission=SCHEMA, visibility={"shared_attempt": True})
    async with client(one, tmp_path, MODERN) as agent:
        await agent.call_tool("submit_final", {"x": 3})
    problem(tmp_path, submission=SCHEMA, visibility={"shared_attempt": True}, tags=["changed"])
    refused = Place(tmp_path).run("problem", "serve", str(one.manifest.path), "--state", "ledger.db", code=2)
    assert "--attempt attempt-NAME" in refused.stderr
