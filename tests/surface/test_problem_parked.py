"""Calls that are at a server of the old era while their client of 2026-07-28 is asked: one submission, and no longer
than the time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from asker_stage import agent_at, asker, leg, log
from hands import LONG, Hands
from problem_stage import attempts, text
from quick_start import pursuit
from raw_client import NEW, talking

from pursuit import Problem
from pursuit.server.gateway.upstreams import GatewayLimits


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.02)


async def settled(one: Problem) -> None:
    with anyio.fail_after(20):
        while (await attempts(one.manifest.folder))[0].scored is None:
            await anyio.sleep(0.02)


@pytest.mark.guarantee("an-unknown-submission-is-the-one")
async def test_while_a_submission_waits_for_an_answer_nobody_else_submits(tmp_path: Path) -> None:
    one = asker(tmp_path, "legacy")
    async with agent_at(one, submit_wait_seconds=0.1) as agent:
        first = await leg(agent, "submit_final", 1)
        assert first.result_type == "input_required"
        (state,) = await attempts(tmp_path)
        assert (state.status, state.calls) == ("claimed", 0)
        for x, last in ((2, None), (1, None), (2, first)):
            refused = await leg(agent, "submit_final", x, last)
            assert refused.is_error and "another submission of this attempt" in text(refused)
        assert not (await leg(agent, "submit_final", 1, first)).is_error
        again = await leg(agent, "submit_final", 1, first)
        assert again.is_error and "already_submitted" in text(again) and '"fate"' not in text(again)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": 1} and state.taken.result is not None
    assert log(one) == ["called 1", "submit_final 1"]


@pytest.mark.guarantee("no-call-outlives-the-time")
async def test_at_the_end_of_the_time_nothing_waits_for_an_answer_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = asker(tmp_path, "legacy", budget={"wall_seconds": LONG})
    async with agent_at(one) as agent:
        assert (await leg(agent, "askme", 7)).result_type == "input_required"
        assert (await leg(agent, "submit_final", 1)).result_type == "input_required"
        hands.forward()
        await settled(one)
        await until(lambda: log(one).count("cancelled None") == 2)
        over = await agent.call_tool("submit_final", {"x": 2})
        assert "already_submitted" in text(over) and '"fate": "unknown"' in text(over)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and "the time ended" in state.taken.unknown
    assert (state.calls, state.failed_calls, list(state.spent)) == (1, 1, ["wall_seconds"])
    assert sorted(log(one)) == ["called 1", "called 7", "cancelled None", "cancelled None"]


async def test_a_submission_that_the_server_takes_without_an_answer_is_settled_though_nobody_came_back(
    tmp_path: Path,
) -> None:
    one = asker(tmp_path, "legacy")
    async with agent_at(one, limits=GatewayLimits(ask_seconds=0.05)) as agent:
        assert (await leg(agent, "submit_final", -1)).result_type == "input_required"
        with anyio.fail_after(20):
            while (await attempts(tmp_path))[0].calls == 0:
                await anyio.sleep(0.02)
        assert (await leg(agent, "submit_final", 3)).result_type == "input_required", "the first one was refused"
        await settled(one)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": 3} and not state.taken.unknown
    assert (state.calls, state.failed_calls) == (1, 1)


@pytest.mark.parametrize("dies", [True, False])
async def test_a_submission_whose_server_or_client_leaves_before_the_answer_may_have_been_taken(
    tmp_path: Path, dies: bool
) -> None:
    one = asker(tmp_path, "legacy")
    async with agent_at(one, attempt_id="attempt-1") as agent:
        first = await leg(agent, "submit_final", 666)
        if dies:
            lost = await leg(agent, "submit_final", 666, first)
            assert lost.is_error and "it is not known whether it accepted" in text(lost) and '"fate"' in text(lost)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None
    assert ("server ended" if dies else "client cancelled") in state.taken.unknown


def test_a_client_that_says_later_that_it_cannot_be_asked_goes_on_with_the_same_submission(tmp_path: Path) -> None:
    one = asker(tmp_path, "legacy")
    served = ["problem", "serve", str(one.manifest.path), "--state", str(tmp_path / "ledger.db")]
    able = {"elicitation": {}}
    with talking([*pursuit(), *served], era=NEW, folder=tmp_path, able=able) as agent:
        agent.hello()
        asked = {"name": "submit_final", "arguments": {"x": 3}}
        first = agent.ask("tools/call", asked).answer["result"]
        able.clear()
        said = {key: {"action": "accept", "content": {"good": True}} for key in first["inputRequests"]}
        more = {"requestState": first["requestState"], "inputResponses": said}
        assert agent.ask("tools/call", {**asked, **more}).answer["result"]["structuredContent"] == {"accepted": 3}
    assert log(one) == ["called 3", "submit_final 3"]
