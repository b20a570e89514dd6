"""Crashes before and after every ledger write of an attempt, goes on with it, and looks at what really happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from crashing import Crash, CrashingLedger
from mcp import Client
from problem_stage import ERAS, METRIC, SCHEMA, attempts, problem

from pursuit import Problem
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.manifest import UPSTREAM
from pursuit.runtime import Runtime
from pursuit.server.problems import server as problem_serving
from pursuit.server.problems.server import ProblemOptions, problem_server

MAX_CALLS = 2
When = Literal["before", "after"]


@dataclass
class Exam:
    """What really happened at the problem's server, which outlives every crash of ours."""

    owns: bool
    probed: list[float] = field(default_factory=list[float])
    taken: list[float] = field(default_factory=list[float])

    def tools(self) -> list[Any]:
        async def probe(x: float) -> dict[str, Any]:
            self.probed.append(x)
            return {"metrics": {"distance": abs(x - 3)}}

        async def grade(x: float) -> dict[str, Any]:
            return {"metrics": {"distance": abs(x - 3)}}

        async def submit_final(x: float) -> dict[str, Any]:
            self.taken.append(x)
            return {"accepted": x}

        return [probe, grade, *([submit_final] if self.owns else [])]


def crashing(exam: Exam, at: int | None, when: When, ledgers: list[CrashingLedger]) -> type[Runtime]:
    """A runtime with these tools as the problem's server, and a ledger that dies at a chosen write."""

    class Crashing(Runtime):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, "servers": {UPSTREAM: exam.tools()}})

        def _open_ledger(self, path: Path) -> Any:
            ledgers.append(CrashingLedger(SqliteLedger.open(path), at, when))
            return ledgers[-1]

    return Crashing


def is_crash(error: BaseException) -> bool:
    """Whether the crash is in it; what else is in it came of the crash."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_crash(inner) for inner in error.exceptions)
    return isinstance(error, Crash)


async def worked(one: Problem, folder: Path, era: str) -> None:
    """An agent that works at its attempt and hands in, whatever it is told."""
    options = ProblemOptions(state=folder / "ledger.db", attempt_id="attempt-1")
    async with Client(problem_server(one.manifest, options), mode=era, cache=None) as agent:
        for x in range(3):
            await agent.call_tool("probe", {"x": x})
        for x in (4, 5):
            await agent.call_tool("submit_final", {"x": x})


async def round_of(folder: Path, era: str, *, owns: bool, at: int | None, when: When, patch: pytest.MonkeyPatch) -> int:
    """One crash, and going on after it; returns how many writes there were."""
    scorer = {"kind": "tool", "tool": "grade", "metrics": [METRIC]}
    named = {} if owns else {"submission": SCHEMA}
    server = {"command": "__python_executable__"}
    one = problem(folder, scorer=scorer, kind="mcp", server=server, budget={"calls": MAX_CALLS}, **named)
    exam, ledgers = Exam(owns=owns), list[CrashingLedger]()
    patch.setattr(problem_serving, "Runtime", crashing(exam, at, when, ledgers))
    try:
        await worked(one, folder, era)
    except BaseException as error:
        if not is_crash(error):
            raise
    patch.setattr(problem_serving, "Runtime", crashing(exam, None, when, ledgers))
    await worked(one, folder, era)
    (state,) = await attempts(folder)
    where = f"{at} {when} {era} {owns}"
    assert len(exam.probed) <= state.calls <= MAX_CALLS, where
    assert len(exam.taken) <= 1, f"two submissions reached the server: {where}"
    assert state.taken is not None and state.scored is not None and state.scored.error is None, where
    if exam.taken:
        assert state.taken.submission == {"x": exam.taken[0]}, where
    else:
        assert not owns or state.taken.unknown, f"what no server took counts as taken: {where}"
    return ledgers[0].writes


@pytest.mark.guarantee("an-attempt-crashes-at-every-write")
@pytest.mark.parametrize(
    ("when", "owns", "era"),
    [
        ("before", True, ERAS[1]),
        ("after", True, ERAS[0]),
        ("after", False, ERAS[1]),
        pytest.param("before", True, ERAS[0], marks=pytest.mark.soak),
        pytest.param("before", False, ERAS[1], marks=pytest.mark.soak),
        pytest.param("after", True, ERAS[1], marks=pytest.mark.soak),
    ],
)
async def test_no_call_over_budget_and_no_second_submission(
    tmp_path: Path, when: When, owns: bool, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = await round_of(tmp_path / "whole", era, owns=owns, at=None, when=when, patch=monkeypatch)
    for at in range(1, writes + 1):
        await round_of(tmp_path / str(at), era, owns=owns, at=at, when=when, patch=monkeypatch)
    assert writes > 10, "the attempt is too short to be a test"
