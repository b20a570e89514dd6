"""`pursuit.Problem`: from plain code and inside a running loop, with every way to be served."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from problem_stage import EXAM, SCHEMA, attempts, client, problem, text
from quick_start import pursuit, quick

from pursuit import Problem
from pursuit.errors import AttemptNotFound, InvalidArgument, ValidationFailed


def from_manifest(folder: Path) -> Problem:
    problem(folder, submission=SCHEMA)
    return Problem.from_manifest(folder)


def from_stdio(folder: Path) -> Problem:
    return Problem.from_stdio(sys.executable, [quick(str(EXAM)), "probe"], cwd=str(folder), submission=SCHEMA)


def shipped(_: Path) -> Problem:
    return Problem.shipped("pangram")


SOURCES: list[Callable[[Path], Problem]] = [from_manifest, from_stdio, shipped]


async def submitted(server: Any, given: dict[str, Any], era: str = "auto") -> str:
    async with Client(server, mode=era) as agent:
        assert not (await agent.call_tool("submit_final", given)).is_error
        return agent.server_info.name


@pytest.mark.parametrize("source", SOURCES)
async def test_a_problem_is_made_and_served_from_plain_code_and_inside_a_loop(
    tmp_path: Path, source: Callable[[Path], Problem]
) -> None:
    given: dict[str, Any] = {"answer": "x"} if source is shipped else {"x": 3}
    options: dict[str, Any] = {"state": tmp_path / "ledger.db", "server_name": "mine", "label": "me"}
    made = source(tmp_path)
    server = made.to_mcp_server(**options)
    assert server.name == "mine"
    inside = source(tmp_path)
    assert inside.manifest.problem_id == made.problem_id
    served = [("auto", server), ("legacy", inside.to_mcp_server(**options))]
    assert [await submitted(each, given, era) for era, each in served] == ["mine", "mine"]


def test_a_wrong_field_is_told_with_all_others() -> None:
    with pytest.raises(ValidationFailed) as failed:
        Problem.from_stdio("x", ["a\0"], title="", assets=["\0"], submission={"type": "object", "required": 3})
    assert {fault.field for fault in failed.value.faults} == {
        "title",
        "assets[0]",
        "submission.required",
        "server.args[0]",
    }


async def test_the_command_serves_with_a_name_and_without_sources(tmp_path: Path) -> None:
    more = ["--server-name", "words", "--no-citation", "--state", str(tmp_path / "a.db")]
    command, *words = [*pursuit(), "problem", "serve", "pangram", *more]
    async with Client(stdio_client(StdioServerParameters(command=command, args=words))) as agent:
        assert agent.server_info is not None and agent.server_info.name == "words"
        brief = text(await agent.call_tool("design_brief", {}))
        assert brief.startswith("# Pangram\n") and "Sources" not in brief and "Eckler" not in brief


async def test_an_attempt_at_a_server_is_judged_again_by_the_table_that_it_was_made_of(tmp_path: Path) -> None:
    def made(target: float) -> Problem:
        rule = {"metric": "distance", "expression": "abs(submission['x'] - 3)"}
        measured = {"metric": "distance", "direction": "minimize", "target": target}
        scorer = {"kind": "predicates", "predicates": [rule], "metrics": [measured]}
        words = [quick(str(EXAM)), "probe"]
        return Problem.from_stdio(sys.executable, words, cwd=str(tmp_path), submission=SCHEMA, scorer=scorer)

    one, state = made(0.4321), tmp_path / "ledger.db"
    with pytest.raises(AttemptNotFound):
        await one.replay("attempt-1", state=state)
    await submitted(one.to_mcp_server(state=state, attempt_id="attempt-1"), {"x": 3.25})
    again = await made(0.4321).replay("attempt-1", state=state)
    assert again.same and again.solved and again.rows[0].value == 0.25 and again.notes == ()
    other = await made(0.1234).replay("attempt-1", state=state)
    assert not other.same and "has changed since the attempt" in other.notes[0]
    with pytest.raises(InvalidArgument, match="is an attempt at 'problem', not 'pangram'"):
        await Problem.shipped("pangram").replay("attempt-1", state=state)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_problem_taken_in_tells_further_limits_and_its_brief_costs_no_call(tmp_path: Path, era: str) -> None:
    words = [quick("-m", "pursuit"), "problem", "serve", "pangram", "--state", str(tmp_path / "inner.db")]
    outer = Problem.from_stdio(sys.executable, words, budget={"calls": 1, "wall_seconds": 2_592_000})
    further = "\n## Further limits\n\n- tool calls: 1\n- seconds from the first call: 2592000\n"

    async def main() -> None:
        async with client(outer, tmp_path, era) as agent:
            briefs = [text(await agent.call_tool("design_brief", {})) for _ in range(3)]
            (content,) = (await agent.read_resource("problem://design-brief")).contents
            (message,) = (await agent.get_prompt("design-brief")).messages
            briefs += [getattr(content, "text", ""), getattr(message.content, "text", "")]
            assert set(briefs) == {Problem.shipped("pangram").brief() + further}
            words = Problem.shipped("pangram").manifest.folder / "words.txt"
            for _ in range(2):  # a file is the inner problem's, as it is, and costs as little
                told = text(await agent.call_tool("design_brief", {"asset": "words.txt"}))
                assert told == words.read_text(encoding="utf-8")
            assert "known: words.txt" in text(await agent.call_tool("design_brief", {"asset": "no.txt"}))
        assert await attempts(tmp_path, "problem") == []

    await main()
