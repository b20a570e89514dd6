"""Submissions that never reached the problem's own server, in both eras: they cost nothing and close nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from asker_stage import agent_at, asker, log
from problem_stage import ERAS, LEGACY, attempts, client, text

DIES = 666


@pytest.mark.guarantee("an-unsent-submission-costs-nothing")
@pytest.mark.parametrize("era", ERAS)
async def test_a_submission_to_a_server_that_is_down_costs_nothing(tmp_path: Path, era: str) -> None:
    one = asker(tmp_path, "legacy" if era == LEGACY else "modern", "silent", budget={"calls": 1})
    async with client(one, tmp_path, era, attempt_id="attempt-1") as agent:
        await agent.list_tools()
        (tmp_path / "there").unlink()
        assert (await agent.call_tool("probe", {"x": DIES})).is_error
        down = await agent.call_tool("submit_final", {"x": 3})
        assert down.is_error and "is spent" not in text(down)
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.failed_calls, state.claimed, state.taken) == (1, 1, None, None)
    (tmp_path / "there").touch()
    async with client(one, tmp_path, era, attempt_id="attempt-1") as agent:
        assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.status) == (1, "scored") and log(one).count("submit_final 3") == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_submission_that_needs_a_persons_yes_costs_nothing_before_it(tmp_path: Path, era: str) -> None:
    one = asker(tmp_path, "legacy" if era == LEGACY else "modern", "silent", budget={"calls": 1})
    async with client(one, tmp_path, era, mode="ask", attempt_id="attempt-1") as agent:  # one that cannot be asked
        for _ in range(3):
            held = await agent.call_tool("submit_final", {"x": 3})
            assert held.is_error and "needs a person's approval" in text(held)
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.status) == (0, "open") and not (tmp_path / "log").exists()
    async with agent_at(one, era, mode="ask", attempt_id="attempt-1") as agent:
        assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.status) == (0, "scored")
