"""A problem as an MCP server: the brief, the upstream's tools as they are, one submission, budgets. In both eras."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hands import LONG, Hands
from mcp import Client
from mcp.shared.exceptions import MCPError
from problem_stage import ERA, ERAS, EXAM, METRIC, SCHEMA, attempts, client, cut_off, plain, problem, text
from quick_start import quick

from pursuit import Problem
from pursuit.problems.manifest import Limits

ADDRESS = "problem://design-brief"


@pytest.mark.parametrize("era", ERAS)
async def test_the_brief_is_a_resource_a_prompt_and_a_tool(tmp_path: Path, era: str) -> None:
    cited = [{"summary": "Somebody (1999).", "raw": "S. Omebody, 1999."}]
    one = problem(tmp_path, "probe", citations=cited, budget={"calls": 7})
    async with client(one, tmp_path, era) as agent:
        (content,) = (await agent.read_resource(ADDRESS)).contents
        brief: str = getattr(content, "text", "")
        (message,) = (await agent.get_prompt("design-brief")).messages
        assert getattr(message.content, "text", "") == brief
        assert text(await agent.call_tool("design_brief", {})) == brief
        assert ADDRESS in [str(row.uri) for row in (await agent.list_resources()).resources]
        assert [row.name for row in (await agent.list_prompts()).prompts] == ["design-brief"]
    lines = brief.splitlines()
    assert [line for line in lines if line.startswith("# ")] == ["# The exam"]
    for words in ("Find a number.", "Somebody (1999).", "`probe`: Says how far it is.", "tool calls: 7"):
        assert words in brief
    assert "S. Omebody" not in brief


@ERA
async def test_citations_are_shown_as_the_manifest_says_or_not_at_all(tmp_path: Path, era: str) -> None:
    cited = [{"summary": "In short.", "raw": "In full."}]

    async def told(problem: Problem) -> str:
        async with client(problem, tmp_path, era) as agent:
            return text(await agent.call_tool("design_brief", {}))

    for mode, shown in (("summary", {"In short."}), ("raw", {"In full."}), ("summary+raw", {"In short.", "In full."})):
        one = problem(tmp_path, visibility={"citation_mode": mode}, citations=cited)
        brief = one.brief()
        assert {words for words in ("In short.", "In full.") if words in brief} == shown, mode
        assert await told(one) == brief
        assert "## Sources" not in one.brief(include_citation=False)
    async with client(one, tmp_path, era, include_citation=False) as agent:
        assert "In full." not in text(await agent.call_tool("design_brief", {}))


@pytest.mark.guarantee("a-problems-tools-are-the-upstreams-own")
@pytest.mark.parametrize("era", ERAS)
async def test_the_upstreams_tools_pass_exactly(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, "probe", "look", submission=SCHEMA)
    import sys

    from mcp import StdioServerParameters, stdio_client

    direct = Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=[quick(str(EXAM)), "probe", "look"]))
    )
    async with direct as plainly, client(one, tmp_path, era) as agent:
        theirs = {tool.name: plain(tool) for tool in (await plainly.list_tools()).tools}
        ours = {tool.name: plain(tool) for tool in (await agent.list_tools()).tools}
        assert {name: ours[name] for name in theirs} == theirs
        assert set(ours) == {*theirs, "submit_final", "design_brief"}
        assert ours["submit_final"]["inputSchema"] == SCHEMA
        same = [plain(await each.call_tool("look", {"x": 2})) for each in (plainly, agent)]
        assert same[0]["content"] == same[1]["content"]


@pytest.mark.guarantee("one-attempt-one-submission")
@pytest.mark.parametrize("era", ERAS)
async def test_a_typed_submission_is_taken_once_and_scored(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA)
    async with client(one, tmp_path, era) as agent:
        await agent.call_tool("probe", {"x": 1})
        wrong = await agent.call_tool("submit_final", {"x": "three"})
        assert wrong.is_error and "does not count" in text(wrong)
        first = await agent.call_tool("submit_final", {"x": 2.5})
        assert not first.is_error and first.structured_content is not None
        receipt = first.structured_content["receipt"]
        assert set(first.structured_content) == {"receipt"}
        second = await agent.call_tool("submit_final", {"x": 3})
        assert second.is_error and receipt["sha256"] in text(second) and receipt["submitted_at"] in text(second)
        after = await agent.call_tool("probe", {"x": 3})
        assert after.is_error and "already_submitted" in text(after)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": 2.5}
    assert state.scored is not None and not state.scored.solved
    assert [(row.metric, row.value, row.direction, row.feasible) for row in state.scored.rows] == [
        ("distance", 0.5, "minimize", True)
    ]
    assert state.calls == 1 and state.taken.digest == receipt["sha256"]


@ERA
async def test_a_score_is_told_only_if_the_manifest_allows(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, submission=SCHEMA, visibility={"score": True})
    async with client(one, tmp_path, era) as agent:
        told = (await agent.call_tool("submit_final", {"x": 3})).structured_content
        assert told is not None and told["solved"] is True
        assert told["score"] == [
            {"metric": "distance", "value": 0.0, "unit": "", "direction": "minimize", "feasible": True}
        ]


@ERA
async def test_free_text_must_not_be_blank(tmp_path: Path, era: str) -> None:
    rule = {"metric": "length", "expression": "len(submission['answer'])"}
    one = problem(tmp_path, scorer={"kind": "predicates", "predicates": [rule], "metrics": [{"metric": "length"}]})
    async with client(one, tmp_path, era) as agent:
        for wrong in ({"answer": "  \n"}, {}, {"answer": "x", "more": 1}, {"answer": "x", "justification": 3}):
            refused = await agent.call_tool("submit_final", wrong)
            assert refused.is_error and "does not count" in text(refused), wrong
        taken = await agent.call_tool("submit_final", {"answer": "yes", "justification": "because"})
        assert not taken.is_error
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.rows[0].value == 3


UPSTREAM_RULE = {"metric": "distance", "expression": "abs(arguments['x'] - result['structuredContent']['accepted'])"}
BY_RESULT = {"kind": "predicates", "predicates": [UPSTREAM_RULE], "metrics": [METRIC]}


@ERA
@pytest.mark.parametrize("own", ["submit_final", "final_answer"])
async def test_the_upstreams_own_last_word_is_the_submission(tmp_path: Path, era: str, own: str) -> None:
    one = problem(tmp_path, "probe", own, scorer=BY_RESULT)
    async with client(one, tmp_path, era) as agent:
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert set(tools) == {"probe", "submit_final", "design_brief"}
        assert "last word" in (tools["submit_final"].description or "")
        if own == "submit_final":
            refused = await agent.call_tool("submit_final", {"x": -1})
            assert refused.is_error and "not below zero" in text(refused)
        taken = await agent.call_tool("submit_final", {"x": 4})
        assert taken.structured_content is not None and taken.structured_content["accepted"] == 4
        again = await agent.call_tool("submit_final", {"x": 5})
        assert again.is_error and "receipt" in text(again)
        if own == "final_answer":
            with pytest.raises(MCPError, match="Unknown tool: final_answer"):
                await agent.call_tool("final_answer", {"x": 5})
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.result is not None
    assert state.scored is not None and state.scored.rows[0].value == 0


@ERA
async def test_a_tool_that_judges_is_hidden_and_asked_as_the_same_client(tmp_path: Path, era: str) -> None:
    metrics = [METRIC, {"metric": "tries"}]
    one = problem(
        tmp_path, "probe", "grade", submission=SCHEMA, scorer={"kind": "tool", "tool": "grade", "metrics": metrics}
    )
    async with client(one, tmp_path, era) as agent:
        assert "grade" not in {tool.name for tool in (await agent.list_tools()).tools}
        with pytest.raises(MCPError, match="Unknown tool: grade"):
            await agent.call_tool("grade", {"x": 1})
        await agent.call_tool("probe", {"x": 1})
        await agent.call_tool("submit_final", {"x": 3})
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.solved
    assert [row.value for row in state.scored.rows] == [0, 1]
    assert state.scored.evidence is not None


@pytest.mark.guarantee("a-spent-budget-is-named")
@ERA
@pytest.mark.parametrize(
    ("budget", "name"),
    [
        ({"calls": 2}, "calls"),
        ({"evaluations": 2, "evaluation_tools": ["probe"]}, "evaluations"),
        ({"wall_seconds": 1e-9}, "wall_seconds"),
    ],
)
async def test_a_spent_budget_is_named_in_the_error(
    tmp_path: Path, era: str, budget: dict[str, Any], name: str
) -> None:
    plain = problem(tmp_path, "probe", "look", submission=SCHEMA, budget={"evaluation_tools": ["probe"]}).manifest
    one = Problem(
        replace(plain, budget=Limits(**{**budget, "evaluation_tools": ("probe",)}))
    )  # no file has such a time
    async with client(one, tmp_path, era) as agent:
        answers = [await agent.call_tool("probe", {"x": place}) for place in range(3)]
        assert answers[2].is_error and f"budget_exhausted: the budget {name} (" in text(answers[2])
        other = await agent.call_tool("look", {})
        assert bool(other.is_error) is (name != "evaluations")
        last = await agent.call_tool("submit_final", {"x": 3})
        assert bool(last.is_error) is (name == "wall_seconds")
        await agent.call_tool("design_brief", {})
    (state,) = await attempts(tmp_path)
    assert list(state.spent) == [name]
    assert state.calls == {"calls": 2, "evaluations": 3, "wall_seconds": 0}[name]


@ERA
async def test_a_call_is_cut_off_when_the_time_is_over(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = problem(tmp_path, "nap", submission=SCHEMA, budget={"wall_seconds": LONG})
    async with client(one, tmp_path, era) as agent:
        await agent.list_tools()
        cut = await cut_off(tmp_path, hands, agent.call_tool("nap", {}))
        assert cut.is_error and f"the budget wall_seconds ({LONG:g}) is spent" in text(cut)
        last = await agent.call_tool("submit_final", {"x": 3})
        assert last.is_error and "wall_seconds" in text(last)
    (state,) = await attempts(tmp_path)
    assert state.taken is None and state.failed_calls == 1


@pytest.mark.parametrize("era", ERAS)
async def test_assets_are_resources_and_the_briefs_tool_gives_them(tmp_path: Path, era: str) -> None:
    (tmp_path / "data.csv").write_text("a,b\n", encoding="utf-8")
    (tmp_path / "raw.bin").write_bytes(b"\xff\x00")
    for name in ("my data.csv", "dot.csv", "100%.csv"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    names = ["data.csv", "raw.bin", "my data.csv", "./dot.csv", "100%.csv"]
    one = problem(tmp_path, assets=names, submission=SCHEMA)

    async def main() -> None:
        async with client(one, tmp_path, era) as agent:
            (content,) = (await agent.read_resource("problem://assets/data.csv")).contents
            assert getattr(content, "text", "") == "a,b\n"
            (content,) = (await agent.read_resource("problem://assets/raw.bin")).contents
            assert getattr(content, "blob", "") == "/wA="
            listed = {str(each.uri): each.name for each in (await agent.list_resources()).resources}
            assert all(f"`{uri}`" in one.brief() for uri in listed if uri != "problem://design-brief")
            for uri in ("my%20data.csv", "dot.csv", "100%25.csv"):
                (content,) = (await agent.read_resource(f"problem://assets/{uri}")).contents
                assert getattr(content, "text", "") == listed[f"problem://assets/{uri}"] == unquote(uri)
            tool = next(each for each in (await agent.list_tools()).tools if each.name == "design_brief")
            called = [unquote(uri.removeprefix("problem://assets/")) for uri in listed if "assets" in uri]
            assert tool.input_schema["properties"]["asset"]["enum"] == called
            for name in ("data.csv", "my data.csv", "./dot.csv", "dot.csv", "problem://assets/100%25.csv"):
                told = await agent.call_tool("design_brief", {"asset": name})
                path = tmp_path / unquote(name.removeprefix("problem://assets/"))
                assert not told.is_error and text(told) == path.read_text(encoding="utf-8")
            (block,) = plain(await agent.call_tool("design_brief", {"asset": "raw.bin"}))["content"]
            kind = "application/octet-stream"
            uri = "problem://assets/raw.bin"
            assert block == {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "blob": "/wA="}}
            for wrong in ("problem.toml", "../x", "", 3):
                refused = await agent.call_tool("design_brief", {"asset": wrong})
                assert refused.is_error and f"known: {', '.join(called)}" in text(refused)
            assert text(await agent.call_tool("design_brief", {"asset": None})) == one.brief()
            (tmp_path / "data.csv").unlink()
            gone_too = await agent.call_tool("design_brief", {"asset": "data.csv"})
            assert gone_too.is_error and "cannot be read now" in text(gone_too) and str(tmp_path) not in text(gone_too)
            with pytest.raises(MCPError, match=r"the file 'data\.csv' of this problem cannot be read now") as gone:
                await agent.read_resource("problem://assets/data.csv")
            assert gone.value.code == (-32002 if era == "legacy" else -32602) and str(tmp_path) not in str(gone.value)
            for other in ("problem.toml", "../x", "score.py"):
                with pytest.raises(MCPError):
                    await agent.read_resource(f"problem://assets/{other}")
        assert await attempts(tmp_path) == [], "reading is free"

    await main()


@ERA
async def test_a_judge_that_fails_is_told_to_the_operator_alone(
    tmp_path: Path, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "score.py").write_text("def score(submission):\n    raise KeyError('secret-word')\n", encoding="utf-8")
    one = problem(
        tmp_path, submission=SCHEMA, scorer={"kind": "function", "function": "score.py:score", "metrics": [METRIC]}
    )
    async with client(one, tmp_path, era) as agent:
        result = await agent.call_tool("submit_final", {"x": 3})
        assert not result.is_error and "secret-word" not in json.dumps(plain(result))
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and "secret-word" in (state.scored.error or "")
    # Whoever started this process may show its log to agents of its own.
    logged = "".join(str(vars(record)) for record in caplog.records)
    assert "not scored" in logged and "secret-word" not in logged
