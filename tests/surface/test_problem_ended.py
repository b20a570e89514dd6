"""How an attempt that is over looks to whoever compares: which budget ended it, and whether one did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from asker_stage import agent_at, asker
from cli_stage import Place
from hands import LONG, Hands
from mcp import Client
from problem_stage import ERAS, EXAM, LEGACY, SCHEMA, attempts, client, problem, text

from pursuit.server.problems.server import ProblemOptions, problem_server


def compared(folder: Path) -> dict[str, Any]:
    """The only attempt, as `problem compare` tells it."""
    (found,) = Place(folder).json("problem", "compare", folder, "--state", folder / "ledger.db")["problems"]
    (row,) = found["attempts"]
    return row


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("budget", ["calls", "evaluations"])
def test_an_attempt_that_a_refused_submission_has_closed_has_ended(tmp_path: Path, era: str, budget: str) -> None:
    limits = {"calls": 1} if budget == "calls" else {"evaluations": 1, "evaluation_tools": ["submit_final"]}
    one = asker(tmp_path, "legacy" if era == LEGACY else "modern", "silent", budget=limits)

    async def main() -> None:
        async with client(one, tmp_path, era) as agent:
            for _ in range(2):
                assert (await agent.call_tool("submit_final", {"x": -1})).is_error
            over = await agent.call_tool("submit_final", {"x": 3})
            assert f"the budget {budget} (1) is spent; the attempt is over" in text(over)
        (state,) = await attempts(tmp_path)
        assert list(state.spent) == [budget]

    anyio.run(main)
    row = compared(tmp_path)
    assert (row["status"], row["spent_budgets"]) == ("ended", [budget])


@pytest.mark.parametrize("era", ERAS)
def test_a_submission_in_time_is_not_told_to_have_spent_it_by_a_call_that_was_cut_off_later(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = asker(tmp_path, "legacy", "silent", "sleepy", budget={"wall_seconds": LONG})

    async def main() -> None:
        said: list[str] = []

        async def sleep() -> None:
            said.append(text(await agent.call_tool("askme", {"x": 7})))

        async with agent_at(one, era) as agent, anyio.create_task_group() as tasks:
            tasks.start_soon(sleep)
            with anyio.fail_after(20):
                while not (tmp_path / "log").exists():
                    await anyio.sleep(0.02)
            assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
            hands.forward()
        assert f"the budget wall_seconds ({LONG:g}) is spent" in said[0]
        (state,) = await attempts(tmp_path)
        assert (state.calls, state.failed_calls, state.spent) == (1, 1, {})

    anyio.run(main)
    row = compared(tmp_path)
    assert (row["status"], row["spent_budgets"]) == ("scored", [])


@pytest.mark.parametrize("era", ERAS)
async def test_after_the_time_a_second_submission_gets_the_receipt_also_if_the_server_does_not_list(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    rude = {"command": "__python_executable__", "args": [str(EXAM.with_name("rude.py"))]}
    one = problem(tmp_path, kind="mcp", server=rude, submission=SCHEMA, budget={"wall_seconds": LONG})
    options = ProblemOptions(state=tmp_path / "ledger.db", look_seconds=0.1)
    async with Client(problem_server(one.manifest, options), mode=era, cache=None) as agent:
        await agent.list_tools()  # or the client would ask for the list when it reads an answer
        await agent.call_tool("probe", {"do": "hang"})
        assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
        hands.forward()
        second = await agent.call_tool("submit_final", {"x": 3})
        assert "already_submitted" in text(second) and "receipt" in text(second)
