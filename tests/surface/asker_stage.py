"""What the tests of problems share whose server asks something before it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from problem_stage import EXAM, METRIC, MODERN, problem

from pursuit import Problem
from pursuit.server.problems.server import ProblemOptions, problem_server

ASKER = EXAM.with_name("asker.py")
BY_ARGUMENTS = {
    "kind": "predicates",
    "predicates": [{"metric": "distance", "expression": "abs(arguments['x'] - 3)"}],
    "metrics": [METRIC],
}
YES = types.ElicitResult(action="accept", content={"good": True, "answer": "once"})


def asker(folder: Path, *words: str, **fields: Any) -> Problem:
    """A problem around a server that asks; it starts while the file `there` is there, and writes to `log`."""
    (folder / "there").touch()
    server = {"command": "__python_executable__", "args": [str(ASKER), *words, str(folder / "there")]}
    return problem(folder, **{"kind": "mcp", "server": server, "scorer": BY_ARGUMENTS, **fields})


def agent_at(one: Problem, era: str = MODERN, **more: Any) -> Client:
    """A client whose person says yes to everything."""

    async def yes(_ctx: Any, _params: Any) -> types.ElicitResult:
        return YES

    options = ProblemOptions(state=one.manifest.folder / "ledger.db", **more)
    return Client(problem_server(one.manifest, options), mode=era, cache=None, elicitation_callback=yes)


async def leg(agent: Client, tool: str, x: float, last: Any = None) -> Any:
    """One leg of a call, with a yes to what the last one asked."""
    answers: dict[str, Any] = {}
    if last is not None:
        said = dict.fromkeys(last.input_requests, YES)
        answers = {"request_state": last.request_state, "input_responses": said}
    return await agent.session.call_tool(tool, {"x": x}, allow_input_required=True, **answers)


def log(one: Problem) -> list[str]:
    """What happened at the server, a line each."""
    return (one.manifest.folder / "log").read_text(encoding="utf-8").splitlines()
