"""Attacks of a caller with a token: past the policy that the operator wrote for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from callers_stage import serving
from gateway_stage import run

from pursuit.config.configuration import load_configuration
from pursuit.errors import ValidationFailed

POLICY = """
[policy]
mode = "auto"
[policy.callers.guest]
deny = ["world.*", "commands.*", "checks.*"]
[policy.callers.reader]
mode = "never"
"""
COMMANDS = """
[commands.mark]
argv = ["touch", "{path}"]
parameters = { path = { type = "string" } }
"""
NEVER: dict[str, Any] = {"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}
WIPES: dict[str, Any] = {
    "directive": "Wipe",
    "criteria": [NEVER],
    "budget": {"max_iterations": 3},
    "tool_allowlist": ["world.wipe"],
    "proposer": {"kind": "repeat", "tool_name": "world.wipe", "args": {}},
}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("resources/read", {"uri": "world://secret"}),
    ("prompts/get", {"name": "plan"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "plan"}, "argument": {"name": "a", "value": "s"}},
    ),
    ("world/wipe", {}),
]


@pytest.mark.guarantee("callers-only-tighten")
def test_through_the_gateway_a_callers_layer_holds_for_that_caller_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, POLICY, gateway=True) as served:
            refused = await served.call("guest", "wipe")
            assert refused["isError"]
            assert "the caller guest's own policy says deny" in refused["content"][0]["text"]
            assert served.world.reached == []
            assert not (await served.call("other", "wipe")).get("isError")
            assert served.world.reached == ["tools/call"]

    run(main)


@pytest.mark.guarantee("callers-only-tighten")
def test_a_callers_layer_holds_for_resources_prompts_and_custom_methods(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, POLICY, gateway=True) as served:
            for method, params in REQUESTS:
                refused = await served.ask("guest", method, params)
                assert "the caller guest's own policy says deny" in refused["error"]["message"], refused
            listened = {"notifications": {"resourceSubscriptions": ["world://secret"]}}
            refused = await served.ask("guest", "subscriptions/listen", listened)
            assert "the caller guest's own policy says deny" in refused["error"]["message"], refused
            assert served.world.reached == []
            for method, params in REQUESTS:
                assert "result" in await served.ask("other", method, params)
            assert served.world.reached == [method for method, _ in REQUESTS]

    run(main)


@pytest.mark.guarantee("callers-only-tighten")
def test_a_mission_keeps_the_layer_of_the_caller_who_started_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, POLICY) as served:
            mission = await served.start("guest", WIPES)
            await served.runtime.service.iterate(mission)  # the operator drives it, and it is the guest's still
            page = await served.runtime.service.history(mission, full=True)
            (call,) = page["iterations"][0]["calls"]
            assert (call["outcome"], served.world.reached) == ("denied", [])

    run(main)


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.parametrize("background", [False, True])
def test_a_callers_layer_holds_in_the_mission_of_another_caller(tmp_path: Path, background: bool) -> None:
    async def main() -> None:
        async with serving(tmp_path, POLICY) as served:
            mission = await served.start("other", WIPES)
            await served.call("guest", "mission_iterate", {"session_id": mission, "background": background})
            service = served.runtime.service
            with anyio.fail_after(30):
                while (await service.state(mission)).iteration_count < 1:
                    await anyio.sleep(0.01)
            page = await service.history(mission, full=True)
            assert [call["outcome"] for call in page["iterations"][0]["calls"]] == ["denied"]
            assert served.world.reached == []
            await served.call("other", "mission_iterate", {"session_id": mission})
            assert served.world.reached == ["tools/call"]

    run(main)


@pytest.mark.guarantee("callers-only-tighten")
def test_a_callers_layer_holds_for_commands(tmp_path: Path) -> None:
    marks = {name: tmp_path / f"{name}.mark" for name in ("guest", "reader", "other")}

    async def main() -> None:
        async with serving(tmp_path, POLICY + COMMANDS) as served:
            for name in ("guest", "reader"):
                for able in ({}, {"extensions": {"io.modelcontextprotocol/tasks": {}}}):
                    refused = await served.call(name, "mark", {"path": str(marks[name])}, able=able)
                    assert refused["isError"], refused
            await served.call("other", "mark", {"path": str(marks["other"])})

    run(main)
    assert {name: path.exists() for name, path in marks.items()} == {"guest": False, "reader": False, "other": True}


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.parametrize(("who", "runs"), [("guest", False), ("other", True)])
def test_a_callers_layer_holds_for_checks(tmp_path: Path, who: str, runs: bool) -> None:
    mark = tmp_path / "checked"
    config = f'{POLICY}[checks.mark]\ncommand = ["touch", "{mark}"]\n'
    check = {"criterion_id": "c", "kind": "check", "check": "mark", "required": True}
    mission = {**WIPES, "criteria": [check], "budget": {"max_iterations": 1}}

    async def main() -> None:
        async with serving(tmp_path, config) as served:
            started = await served.start(who, mission)
            await served.call(who, "mission_iterate", {"session_id": started})
            state = await served.runtime.service.state(started)
            assert (state.results["c"].status == "met") is runs

    run(main)
    assert mark.exists() is runs


def test_wrong_callers_are_faults_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "pursuit.toml"
    text = '[policy.callers]\nann = 1\n[policy.callers.bob]\nmode = "nver"\nallow = ["x"]\ndeny = 5\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_configuration(path)
    fields = {fault.field for fault in refused.value.faults}
    assert fields == {
        "policy.callers.ann",
        "policy.callers.bob.mode",
        "policy.callers.bob.allow",
        "policy.callers.bob.deny",
    }
