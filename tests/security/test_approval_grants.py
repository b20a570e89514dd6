"""Attacks on approvals: a yes that was given to one client is used by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callers_stage import serving
from gateway_stage import run
from test_callers import WIPES

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
