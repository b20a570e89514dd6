"""What the tests of problems share: problems around a small server, and clients of both eras."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from cli_stage import Place
from hands import Hands
from mcp import Client
from quick_start import quick

from pursuit import Problem
from pursuit.config.files import as_toml
from pursuit.core.attempts import AttemptState
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt, attempts_at
from pursuit.service.gateway_journal import gateway_lines

T = TypeVar("T")

EXAM = Path(__file__).parent.parent / "servers" / "exam.py"
LEGACY, MODERN = "legacy", "2026-07-28"
ERAS = [LEGACY, MODERN]
ERA = pytest.mark.parametrize("era", [MODERN, pytest.param(LEGACY, marks=pytest.mark.soak)])
"""For what is the same in both eras; `make soak` runs the older one, too."""
METRIC = {"metric": "distance", "direction": "minimize", "target": 0.4321}
PREDICATE = {"metric": "distance", "expression": "abs(submission['x'] - 3)"}
BY_PREDICATE = {"kind": "predicates", "predicates": [PREDICATE], "metrics": [METRIC]}
SCHEMA = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


def problem(folder: Path, *tools: str, exam: str = "", **fields: Any) -> Problem:
    """A problem in a file of its own, around the exam with these tools; `exam` is how else to start it."""
    given: dict[str, Any] = {
        "problem_id": "exam",
        "title": "The exam",
        "summary": "Find the number.",
        "kind": "mcp" if tools else "text",
        "statement": "Find a number.\n\n## Hint\n\nIt is small.",
        "scorer": BY_PREDICATE,
        **fields,
    }
    if tools:
        given["server"] = {"command": "__python_executable__", "args": [exam or quick(str(EXAM)), *tools]}
    folder.mkdir(exist_ok=True)
    (folder / "problem.toml").write_text(as_toml(given), encoding="utf-8")
    return Problem.from_manifest(folder)


def client(one: Problem, folder: Path, era: str, **more: Any) -> Client:
    return Client(one.to_mcp_server(state=folder / "ledger.db", **more), mode=era, cache=None)


def text(result: Any) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


def plain(model: Any) -> Any:
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


async def attempts(folder: Path, problem_id: str = "exam") -> list[AttemptState]:
    ledger = SqliteLedger.open(folder / "ledger.db")
    try:
        return await attempts_at(ledger, {problem_id})
    finally:
        await ledger.close()


async def under_way(folder: Path) -> None:
    """Waits until a call of the problem's server is under way."""
    ledger = SqliteLedger.open(folder / "ledger.db")
    try:
        with anyio.fail_after(60):
            while "unknown" not in [line.get("outcome") for line in await gateway_lines(ledger)]:
                await anyio.sleep(0.01)
    finally:
        await ledger.close()


async def cut_off(folder: Path, hands: Hands, answer: Awaitable[T]) -> T:
    """What a call is answered whose time is over while it is under way."""
    found: list[T] = []

    async def call() -> None:
        found.append(await answer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await under_way(folder)
        hands.forward()
    return found[0]


async def submitted(place: Place, one: Problem, attempt_id: str) -> None:
    """An attempt that nobody lived to judge."""
    place.ledger.parent.mkdir(exist_ok=True)
    ledger = SqliteLedger.open(place.ledger)
    await Attempt(ledger, lambda: 1000.0, one.manifest, attempt_id).submit({"x": 3})
    await ledger.close()
