"""The brief is one and the same: served, shown, in Python and in a mission; and where a server starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client, ClientSession
from mcp.shared.memory import create_client_server_memory_streams
from mcp_stage import MODERN
from problem_stage import EXAM, SCHEMA, client, problem, text
from quick_start import quick

from pursuit import Problem, ValidationFailed
from pursuit.problems.manifest import CitationMode
from pursuit.problems.missions import Plan, mission_for

CASES = {
    "no server, free text": ((), {}),
    "no server, typed": ((), {"submission": SCHEMA}),
    "tools alone": (("probe", "look"), {}),
    "tools, typed": (("probe",), {"submission": SCHEMA}),
    "its own submit_final": (("probe", "submit_final"), {}),
    "its own final_answer": (("probe", "final_answer"), {}),
    "a hidden judge": (
        ("probe", "grade"),
        {"submission": SCHEMA, "scorer": {"kind": "tool", "tool": "grade", "metrics": [{"metric": "distance"}]}},
    ),
}


def section(brief: str, heading: str) -> str:
    return brief.split(f"## {heading}\n\n")[1].split("\n\n## ")[0]


@pytest.mark.guarantee("the-brief-is-the-same-everywhere")
@pytest.mark.parametrize("name", CASES)
def test_the_brief_that_is_shown_is_the_brief_that_is_served(tmp_path: Path, name: str) -> None:
    tools, fields = CASES[name]
    one = problem(tmp_path, *tools, **fields)

    async def served() -> tuple[str, dict[str, Any]]:
        async with client(one, tmp_path, "2026-07-28") as agent:
            brief = text(await agent.call_tool("design_brief", {}))
            offered = {tool.name: tool.input_schema for tool in (await agent.list_tools()).tools}
            return brief, offered

    brief, offered = anyio.run(served)
    assert Place(tmp_path).json("problem", "show", tmp_path / "problem.toml")["brief"] == brief
    listed = {line.partition("`")[2].partition("`")[0] for line in section(brief, "Tools").splitlines()}
    assert listed == set(offered) - {"design_brief"}
    unasked = [one.brief(), mission_for(one.manifest, plan())["directive"]]
    if not tools:
        assert unasked == [brief, brief]
        return
    for other in unasked:
        # What depends on the server is left to the server; all the rest is word for word the same.
        assert "the tools that the problem's server lists" in section(other, "Tools")
        assert "the arguments of its schema if the server has its own" in section(other, "Submission")
        assert other.split("## Tools")[0] == brief.split("## Tools")[0]
        assert section(other, "Limits") == section(brief, "Limits")


def around_the_exam() -> str:
    return json.dumps([quick(str(EXAM)), "probe"])


def plan() -> Plan:
    return Plan(attempt_id="attempt-1", proposer={"kind": "client"}, serve=["x"], judge=["x"])


def test_a_server_that_is_a_problem_itself_is_shown_with_its_own_brief(tmp_path: Path) -> None:
    words = [quick("-m", "pursuit"), "problem", "serve", "pangram", "--state", str(tmp_path / "inner.db")]
    one = problem(tmp_path, "probe")
    table = one.manifest.path.read_text(encoding="utf-8").replace(around_the_exam(), json.dumps(words))
    (tmp_path / "problem.toml").write_text(table, encoding="utf-8")
    shown = Place(tmp_path).ask("problem", "show", "problem.toml")[0]
    assert shown.startswith("# Pangram\n") and "words.txt" in shown


def test_a_server_that_cannot_be_asked_is_said_so(tmp_path: Path) -> None:
    problem(tmp_path, "probe")
    table = (tmp_path / "problem.toml").read_text(encoding="utf-8").replace("__python_executable__", "./no-program")
    (tmp_path / "problem.toml").write_text(table.replace(around_the_exam(), "[]"), encoding="utf-8")
    program = tmp_path / "no-program"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o700)
    one = Problem.from_manifest(tmp_path)
    shown, notes = Place(tmp_path).ask("problem", "show", "problem.toml")
    assert shown.rstrip() == one.brief().rstrip() and "without its tools" in notes


def test_a_tool_that_tells_the_target_is_noted(tmp_path: Path) -> None:
    metric = {"metric": "distance", "direction": "minimize", "best_known": 3}
    rule = {"metric": "distance", "expression": "1"}
    problem(tmp_path, "probe", scorer={"kind": "predicates", "predicates": [rule], "metrics": [metric]})
    server = tmp_path / "telling.py"
    server.write_text(EXAM.read_text(encoding="utf-8").replace("Says how far it is.", "The best known is 3."), "utf-8")
    table = (tmp_path / "problem.toml").read_text(encoding="utf-8").replace(quick(str(EXAM)), quick(str(server)))
    (tmp_path / "problem.toml").write_text(table, encoding="utf-8")
    notes = Place(tmp_path).ask("problem", "show", "problem.toml")[1]
    assert "contains 3, the value of scorer.metrics[0].best_known" in notes


def test_a_servers_relative_arguments_are_files_of_the_manifests_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    elsewhere.mkdir()
    problem(folder, "probe", submission=SCHEMA)
    (folder / "plant.py").write_bytes(Path(quick(str(EXAM))).read_bytes())
    table = (folder / "problem.toml").read_text(encoding="utf-8").replace(quick(str(EXAM)), "plant.py")
    (folder / "problem.toml").write_text(table, encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    assert "`probe`: Says how far it is." in Place(elsewhere).ask("problem", "show", folder / "problem.toml")[0]

    async def main() -> None:
        async with client(Problem.from_manifest(folder), tmp_path, "legacy") as agent:
            assert not (await agent.call_tool("probe", {"x": 1})).is_error

    anyio.run(main)
    monkeypatch.chdir(folder)
    taken_in = Problem.from_stdio(sys.executable, ["plant.py", "probe"])
    monkeypatch.chdir(elsewhere)  # where it was said counts, not where it is run

    async def from_stdio() -> None:
        async with client(taken_in, tmp_path, "legacy") as agent:
            assert not (await agent.call_tool("probe", {"x": 1})).is_error

    anyio.run(from_stdio)


async def test_the_sources_are_shown_as_the_caller_asks(tmp_path: Path) -> None:
    problem(tmp_path, citations=[{"summary": "A short form.", "raw": "The long form."}, {"summary": "Only short."}])
    one = Problem.from_manifest(tmp_path)
    state = tmp_path / "ledger.db"
    cases: list[tuple[CitationMode, bool]] = [("summary", False), ("summary+raw", True)]
    for mode, shown in cases:
        async with Client(one.to_mcp_server(state=state, citation_mode=mode), mode=MODERN) as agent:
            brief = text(await agent.call_tool("design_brief", {}))
            assert "A short form." in brief and ("The long form." in brief) is shown
    with pytest.raises(ValidationFailed, match=r"citations\[1\].raw"):
        one.to_mcp_server(state=state, citation_mode="raw")


@pytest.mark.parametrize("many", [False, True])
async def test_aclose_ends_the_runs_of_a_server(tmp_path: Path, many: bool) -> None:
    server = problem(tmp_path).to_mcp_server(state=tmp_path / "ledger.db", many=many)
    await server.aclose()
    ended = anyio.Event()

    async def run(read: Any, write: Any) -> None:
        await server.run(read, write, server.create_initialization_options())
        ended.set()

    async with create_client_server_memory_streams() as ((read, write), theirs), anyio.create_task_group() as tasks:
        tasks.start_soon(run, *theirs)
        async with ClientSession(read, write) as session:
            await session.initialize()
            await server.aclose()
            await ended.wait()
