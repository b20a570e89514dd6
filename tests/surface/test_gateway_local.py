"""What a program hands in itself, functions and server objects, is served by the gateway like any other server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import ERAS, LEGACY, MODERN, TASKS, hostile, house, told, words
from mcp.server.mcpserver import MCPServer

from pursuit.core.tools import CallFailed, ProgressFn, Tool, ToolResult
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.gateway_journal import gateway_lines
from pursuit.upstream.functions import FunctionUpstream, tool


@tool(read_only=True)
def level(of: str, unit: str | None = "m") -> dict[str, Any]:
    """How high it stands."""
    return {"of": of, "unit": unit, "level": 7}


def fill(by: float) -> str:
    """Adds water."""
    return f"filled by {by}"


async def spill() -> None:
    raise ValueError("the tank is empty")


TANK = {"tank": [level, fill, spill]}


def sdk_server() -> MCPServer:
    server = MCPServer("plain")

    @server.tool()
    def twice(n: int) -> int:
        """Doubles."""
        return 2 * n

    @server.resource("x://plain")
    def plain() -> str:
        return "water"

    return server


def bare(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what the new era puts round it."""
    return {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope", "_meta")}


@pytest.mark.parametrize(("alone", "able"), [(True, {}), (False, {"elicitation": {}})], ids=["stdio", "http"])
@pytest.mark.parametrize("era", ERAS)
async def test_functions_are_served_exactly(era: str, alone: bool, able: dict[str, Any], tmp_path: Path) -> None:
    wanted = [dict(one.definition) for one in await FunctionUpstream("tank", TANK["tank"]).tools()]
    async with house(tmp_path, alone=alone, handed=TANK, policy=OperatorPolicy()) as stage:
        client = await stage.client(era, able, hello=False)
        assert (await client.hello())["capabilities"] == {"tools": {}, **TASKS[era]}
        assert await client.entries("tools/list", "tools") == wanted
        found = await client.call("level", {"of": "a", "unit": None})
        assert bare(found) == {
            "content": [{"type": "text", "text": '{"of": "a", "unit": null, "level": 7}'}],
            "structuredContent": {"of": "a", "unit": None, "level": 7},
        }
        assert ("resultType" in found) is (era == MODERN)
        assert bare(await client.call("fill", {"by": 2})) == {"content": [{"type": "text", "text": "filled by 2.0"}]}
        wrong = await client.call("spill")
        assert wrong["isError"] is True and words(wrong) == "ValueError: the tank is empty"
        wrong = await client.call("fill", {"by": "much"})
        assert wrong["isError"] is True and "by: " in words(wrong)
        # What only reads leaves no trail: what a function may do is its program's word.
        assert [line["tool"] for line in await gateway_lines(stage.runtime.runner.ledger)] == [
            "tank.fill",
            "tank.spill",
            "tank.fill",
        ]
        assert (await client.request("tools/call", {"name": "drain"}))["error"]["code"] == -32602


@pytest.mark.parametrize("era", ERAS)
async def test_functions_server_objects_and_configured_servers_stand_side_by_side(era: str, tmp_path: Path) -> None:
    policy = OperatorPolicy(mode="auto", rules=(Rule(decision="deny", server="tank", tool="fill", reason="dry"),))
    handed = {**TANK, "plain": sdk_server()}
    async with house(tmp_path, hostile(name="a"), handed=handed, policy=policy) as stage:
        client = await stage.client(era)
        listed = {entry["name"] for entry in await client.entries("tools/list", "tools")}
        assert {"a.echo", "tank.level", "tank.fill", "plain.twice"} < listed
        assert (await client.call("tank.level", {"of": "b"}))["structuredContent"]["of"] == "b"
        assert (await client.call("plain.twice", {"n": 4}))["structuredContent"] == {"result": 8}
        assert words(await client.call("tank.fill", {"by": 1})) == "tank.fill is denied by policy: dry"
        assert words(await client.call("a.steps")) == "without"
        uris = [one["uri"] for one in await client.entries("resources/list", "resources")]
        assert "x://plain" in uris
        (content,) = (await client.result("resources/read", {"uri": "x://plain"}))["contents"]
        assert content["text"] == "water"


class Slow:
    """An upstream that a program wrote itself."""

    name = "slow"

    def __init__(self) -> None:
        self.given_up = anyio.Event()

    async def tools(self) -> Sequence[Tool]:
        definitions = [{"name": name, "inputSchema": {"type": "object"}} for name in ("steps", "wait", "lost")]
        return [
            Tool(server="slow", name=one["name"], input_schema=one["inputSchema"], definition=one)
            for one in definitions
        ]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        if tool == "lost":
            raise CallFailed("the cable is cut")
        if tool == "wait":
            try:
                await anyio.sleep_forever()
            finally:
                self.given_up.set()
        await on_progress(1.0, 2.0, "half")
        return ToolResult(content=({"type": "text", "text": "done"},))

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("era", ERAS)
async def test_progress_cancelling_and_failures_of_a_programs_own_upstream_go_through(era: str, tmp_path: Path) -> None:
    slow = Slow()
    async with house(tmp_path, handed={"slow": slow}) as stage:
        client = await stage.client(era)
        assert words(await client.call("steps", _meta={"progressToken": "p"})) == "done"
        assert told(client, "notifications/progress") == [
            {"progressToken": "p", "progress": 1.0, "total": 2.0, "message": "half"}
        ]
        lost = await client.call("lost")
        assert lost["isError"] is True and "the cable is cut" in words(lost)
        ident = await client.begin("tools/call", {"name": "wait", "arguments": {}})
        await client.call("steps", _meta={"progressToken": "q"})
        await client.send({"method": "notifications/cancelled", "params": {"requestId": ident}})
        with anyio.fail_after(60):
            await slow.given_up.wait()


async def test_what_was_handed_in_stays_when_the_configuration_is_read_again(tmp_path: Path) -> None:
    config = tmp_path / "pursuit.toml"
    config.write_text('[policy]\nmode = "auto"\n')
    async with house(tmp_path, config=config, handed=TANK) as stage:
        client = await stage.client(LEGACY)
        served = stage.gateway.upstreams.only
        await stage.gateway.reload()
        assert stage.gateway.upstreams.only is served
        assert words(await client.call("fill", {"by": 3})) == "filled by 3.0"
