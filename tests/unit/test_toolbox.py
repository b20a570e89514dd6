"""Policy holds for missions as it does for calls by hand: the operator's, the runtime's mode, the mission's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, mission, proposal, replay
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.events import CallRefused, CallSettled
from pursuit.errors import ApprovalNeeded, PolicyDenied, UpstreamUnavailable, ValidationFailed
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.upstream.functions import tool

DENY_ETC = Rule(decision="deny", tool="write", arguments={"path": "/etc/*"}, reason="never there")


def write(path: str) -> dict[str, Any]:
    return {"wrote": path}


def under(folder: Path, policy: OperatorPolicy, *, mode: Any = None, **servers: Any) -> Runtime:
    configuration = Configuration(policy=policy)
    return Runtime(state=folder / "ledger.db", config=configuration, servers=servers or {"world": [write]}, mode=mode)


async def test_a_rule_on_arguments_denies_the_call_and_the_mission_goes_on(tmp_path: Path) -> None:
    calls = proposal(("world.write", {"path": "/etc/passwd"}), ("world.write", {"path": "/tmp/x"}))
    async with under(tmp_path, OperatorPolicy(rules=(DENY_ETC,))) as runtime:
        started = await runtime.runner.start(mission(proposer=replay(calls)))
        await runtime.runner.run(started.session_id)
        (refused,) = await events_of(runtime, started.session_id, CallRefused)
        assert (refused.outcome, refused.reason) == ("denied", "never there")
        assert [one.outcome for one in await events_of(runtime, started.session_id, CallSettled)] == ["ok"]


async def test_the_mode_of_a_runtime_overrules_the_configurations(tmp_path: Path) -> None:
    async with under(tmp_path, OperatorPolicy(rules=(Rule(decision="ask"),)), mode="never") as runtime:
        with pytest.raises(PolicyDenied, match="mode never"):
            await runtime.toolbox.call("world.write", {"path": "x"})
    async with under(tmp_path, OperatorPolicy(mode="never", rules=(Rule(decision="ask"),)), mode="auto") as runtime:
        assert (await runtime.toolbox.call("write", {"path": "x"})).structured == {"wrote": "x"}
    with pytest.raises(ValidationFailed):
        under(tmp_path, OperatorPolicy(), mode="atuo")


async def test_what_lives_in_this_process_is_the_programs_own(tmp_path: Path) -> None:
    server = MCPServer("tank", log_level="WARNING")

    @server.tool()
    def drain(litres: int) -> int:
        return litres

    async with under(tmp_path, OperatorPolicy(), tank=server, world=[write]) as runtime:
        rows = {row["name"]: row for row in (await runtime.toolbox.listing())["tools"]}
        assert {name: row["reason"] for name, row in rows.items()} == {
            "tank.drain": "passed in by the program itself",
            "world.write": "passed in by the program itself",
        }
        assert {name: row["is_mcp_tool"] for name, row in rows.items()} == {
            "tank.drain": True,
            "world.write": False,
        }


async def test_a_tool_is_judged_by_its_name_and_an_unknown_one_is_not_trusted(tmp_path: Path) -> None:
    server = MCPServer("tank", log_level="WARNING")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def level() -> int:
        return 3

    rule = Rule(decision="ask", server="world", reason="it writes")
    async with under(tmp_path, OperatorPolicy(rules=(rule,)), tank=server, world=[write]) as runtime:
        tools = runtime.tools
        assert await tools.is_mcp_tool("tank.level") and not await tools.is_mcp_tool("world.write")
        assert await tools.is_read_only("tank.level") and await tools.is_parallel_safe("tank.level")
        assert await tools.is_idempotent("tank.level") and not await tools.is_destructive("tank.level")
        assert await tools.approval_description("tank.level") is None
        question = await tools.approval_description("world.write", {"path": "x"})
        assert question is not None and "write of server world" in question and "asked because it writes" in question
        for unknown in ("tank.drain", "nowhere.level", "level"):
            told = (tools.is_mcp_tool, tools.is_read_only, tools.is_idempotent, tools.is_parallel_safe)
            assert not any([await one(unknown) for one in told]) and await tools.is_destructive(unknown)
            assert "unknown" in (await tools.approval_description(unknown) or "")


async def test_a_question_is_put_to_whoever_can_answer(tmp_path: Path) -> None:
    questions: list[str] = []

    async def no(question: str) -> bool:
        questions.append(question)
        return False

    async def yes(_question: str) -> bool:
        return True

    async with under(tmp_path, OperatorPolicy(rules=(Rule(decision="ask", reason="I want to know"),))) as runtime:
        call = runtime.toolbox.call
        with pytest.raises(ApprovalNeeded):
            await call("world.write", {"path": "x"})
        with pytest.raises(PolicyDenied, match="was denied by the user"):
            await call("world.write", {"path": "x"}, approve=no)
        assert (await call("world.write", {"path": "x"}, approve=yes)).structured == {"wrote": "x"}
    assert questions[0].splitlines()[-1] == "asked because I want to know"


async def test_a_call_by_hand_ends_with_its_timeout(tmp_path: Path) -> None:
    @tool(timeout=0.05)
    async def hang() -> None:
        import anyio

        await anyio.sleep_forever()

    async with under(tmp_path, OperatorPolicy(), world=[hang]) as runtime:
        with pytest.raises(UpstreamUnavailable, match="no answer within"):
            await runtime.toolbox.call("world.hang", {})
