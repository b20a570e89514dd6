"""Shipped problems through their servers, where what they are judged by is not a formula."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from problem_stage import attempts, client

from pursuit import Problem


@pytest.mark.usefixtures("quick_python")
def test_guesses_are_counted_by_the_log_whatever_was_restarted(tmp_path: Path) -> None:
    one = Problem.shipped("mastermind")

    async def main() -> None:
        async with client(one, tmp_path, "legacy", attempt_id="attempt-again") as agent:
            for code in ("AABC", "BADD", "BDEA"):
                assert not (await agent.call_tool("guess", {"code": code})).is_error
        async with client(one, tmp_path, "legacy", attempt_id="attempt-again") as agent:
            assert not (await agent.call_tool("submit_final", {"code": "DBFA"})).is_error
        async with client(one, tmp_path, "legacy", attempt_id="attempt-wrong") as agent:
            assert not (await agent.call_tool("submit_final", {"code": "AAAA"})).is_error
        found = {state.attempt_id: state.scored for state in await attempts(tmp_path, "mastermind")}
        again, wrong = found["attempt-again"], found["attempt-wrong"]
        assert again is not None and again.error is None and again.rows[0].value == 4
        assert wrong is not None and (wrong.rows[0].value, wrong.solved) == (1000, False)
        replayed = await one.replay("attempt-again", state=tmp_path / "ledger.db")
        assert replayed.same is True and replayed.rows == again.rows

    anyio.run(main)
