"""Attacks on approvals: a yes that was given to one client is used by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callers_stage import serving
from gateway_stage import run
from test_callers import WIPES

from pursuit.core.approvals import Approval, granted_scope
from pursuit.core.gateway_events import bound_tool, wide_scope
from pursuit.service.approvals import Approvals

ASK = """
[policy]
mode = "ask"
[[policy.rules]]
decision = "ask"
server = "world"
"""


@pytest.mark.guarantee("a-yes-is-for-one-client")
@pytest.mark.parametrize("answer", ["mission", "arguments"])
def test_a_yes_to_one_client_covers_no_other_in_a_shared_mission(tmp_path: Path, answer: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path, ASK) as served:
            approvals = Approvals(served.runtime.service)
            mission = await served.start("other", {**WIPES, "share": ["guest"]})
            asked = {"session_id": mission}
            await served.call("other", "mission_iterate", asked)
            (question,) = await approvals.open()
            await approvals.answer(question["approval_id"], answer)
            await served.call("other", "mission_iterate", asked)
            assert served.world.reached == ["tools/call"]
            waits = await served.call("guest", "mission_iterate", asked)
            assert waits["structuredContent"]["status"] == "waiting"
            assert served.world.reached == ["tools/call"]

    run(main)


@pytest.mark.guarantee("a-yes-is-for-one-client")
def test_no_name_of_a_tool_or_a_client_reads_as_the_yes_of_another() -> None:
    ends = ["", " from 2 people", " as d", " by oauth:i#x", " as d by oauth:i#x", '"', "\\u0020by oauth:i#x"]
    tools = [f"w.wipe{end}" for end in ends]
    asked = [(tool, f"oauth:i#x{end}", people) for tool in tools for end in ends for people in (1, 2, 3)]
    gateway = {granted_scope(wide_scope(who, bound_tool(tool, "d")), people) for tool, who, people in asked}
    missions = {question(tool, who, people).scope("mission") for tool, who, people in asked}
    assert len(gateway) == len(missions) == len(asked)
    assert wide_scope("token:a", "w.wipe") == "tool w.wipe by token:a", "as it is in ledgers of before"


def question(tool: str, who: str, people: int) -> Approval:
    return Approval(
        approval_id="approval-1",
        call_id="call-1",
        tool=tool,
        args={},
        description="",
        reason="",
        asked_at=0,
        until=1,
        subject=who,
        require=people,
        digest="d",
    )


@pytest.mark.guarantee("a-yes-is-for-one-client")
def test_a_yes_at_the_gateway_covers_no_later_token_of_the_same_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, ASK, gateway=True) as served:
            approvals = Approvals(served.runtime.service)
            assert (await served.call("guest", "wipe"))["isError"]
            (question,) = await approvals.open()
            await approvals.answer(question["approval_id"], "mission")
            assert not (await served.call("guest", "wipe")).get("isError")
            assert (await served.call("other", "wipe"))["isError"]
            served.tokens.revoke("guest")
            served.shown["guest"] = served.tokens.make("guest")
            assert (await served.call("guest", "wipe"))["isError"]
            assert served.world.reached == ["tools/call"]

    run(main)
