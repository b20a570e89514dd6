"""Attacks on approvals: a yes that was given to one client is used by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from callers_stage import serving
from test_callers import WIPES

from pursuit.core.approvals import Approval, tool_scope
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
async def test_a_yes_to_one_client_covers_no_other_in_a_shared_mission(tmp_path: Path, answer: Any) -> None:
    async with serving(tmp_path, ASK) as served:
        approvals = Approvals(served.runtime.runner)
        mission = await served.start("other", {**WIPES, "share": ["guest"]})
        asked = {"session_id": mission}
        await served.call("other", "mission_iterate", asked)
        (question,) = await approvals.open()
        await approvals.answer(question.approval_id, answer)
        await served.call("other", "mission_iterate", asked)
        assert served.world.reached == ["tools/call"]
        waits = await served.call("guest", "mission_iterate", asked)
        assert waits["structuredContent"]["status"] == "waiting"
        assert served.world.reached == ["tools/call"]


@pytest.mark.guarantee("a-yes-is-for-one-client")
def test_no_name_of_a_tool_or_a_client_reads_as_the_yes_of_another() -> None:
    ends = ["", " from 2 people", " as d", " by oauth:i#x", " as d by oauth:i#x", '"', "\\u0020by oauth:i#x"]
    tools = [f"w.wipe{end}" for end in ends]
    asked = [(tool, f"oauth:i#x{end}", people) for tool in tools for end in ends for people in (1, 2, 3)]
    assert len({granted(*one) for one in asked}) == len(asked)
    assert tool_scope("w.wipe", digest=None, client="token:a") == "tool w.wipe by token:a", "as in ledgers of before"


def granted(tool: str, who: str, people: int) -> str:
    """What a yes for the whole tool covers."""
    times: dict[str, Any] = {"asked_at": 0, "until": 1, "scope": "", "description": "", "reason": ""}
    asked = Approval(approval_id="approval-1", tool=tool, args={}, client=who, require=people, digest="d", **times)
    return replace(asked, answer="mission").granted_scope()


@pytest.mark.guarantee("a-yes-is-for-one-client")
async def test_a_yes_at_the_gateway_covers_no_later_token_of_the_same_name(tmp_path: Path) -> None:
    async with serving(tmp_path, ASK, gateway=True) as served:
        approvals = Approvals(served.runtime.runner)
        assert (await served.call("guest", "wipe"))["isError"]
        (question,) = await approvals.open()
        await approvals.answer(question.approval_id, "mission")
        assert not (await served.call("guest", "wipe")).get("isError")
        assert (await served.call("other", "wipe"))["isError"]
        served.tokens.revoke("guest")
        served.shown["guest"] = served.tokens.make("guest")
        assert (await served.call("guest", "wipe"))["isError"]
        assert served.world.reached == ["tools/call"]
