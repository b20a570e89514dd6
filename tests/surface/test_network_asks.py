"""Where the network rules ask about a host, a person is asked before anything is called there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_stage import ERAS, house, words

from pursuit import Budget, Mission, Runtime
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ServerConfig
from pursuit.core.mission import parse_mission
from pursuit.core.tools import ToolOverride
from pursuit.errors import ValidationFailed
from pursuit.policy.rules import Mode, NetworkRules, OperatorPolicy, Rule
from pursuit.service.approvals import Approvals

sys.path.insert(0, str(Path(__file__).parent.parent / "servers"))

from raw_http import RawServer

REASON = "the network rules ask before 127.0.0.1 is reached"
ASKS = NetworkRules(ask=["127.0.0.1"])


def far(url: str, **more: Any) -> ServerConfig:
    """A server on the network whose tool only reads: without the network rules nobody would be asked."""
    return ServerConfig(name="far", transport="http", url=url, tools={"ok": ToolOverride(read_only=True)}, **more)


def policy(mode: Mode = "ask", network: NetworkRules = ASKS) -> OperatorPolicy:
    allow = Rule(decision="allow", server="far", reason="which does not overrule the network rules")
    return OperatorPolicy(mode=mode, rules=(allow,), network=network)


def called(server: RawServer) -> int:
    return sum(request.method == "tools/call" for request in server.requests)


@pytest.mark.guarantee("network-asks")
@pytest.mark.parametrize("era", ERAS)
async def test_the_gateway_asks_before_a_host_is_called_that_the_network_rules_ask_about(
    era: str, tmp_path: Path
) -> None:
    server = RawServer(modern=True)
    async with server.serving() as url, house(tmp_path, far(url), policy=policy()) as stage:
        client = await stage.client(era)
        assert [tool["name"] for tool in await client.entries("tools/list", "tools")] == ["place", "ok"]
        refused = await client.call("ok")
        assert refused["isError"] is True and REASON in words(refused)
        desk = Approvals(stage.runtime.runner)
        (row,) = await desk.open()
        assert (row.tool, called(server)) == ("far.ok", 0)
        await desk.answer(row.approval_id, "once")
        assert "isError" not in await client.call("ok") and called(server) == 1
        read = await client.request("resources/read", {"uri": "x://a"})
        assert REASON in read["error"]["message"]
        assert not any(request.method == "resources/read" for request in server.requests)


@pytest.mark.parametrize(
    ("mode", "network", "calls"),
    [
        ("auto", ASKS, True),
        ("never", ASKS, False),
        ("ask", NetworkRules(ask=["*"], allow=["127.0.0.1"]), True),
        ("ask", NetworkRules(ask=["example.com"]), True),
    ],
)
async def test_the_mode_says_what_becomes_of_the_question(
    mode: Mode, network: NetworkRules, calls: bool, tmp_path: Path
) -> None:
    server = RawServer(modern=True)
    async with server.serving() as url, house(tmp_path, far(url), policy=policy(mode, network)) as stage:
        client = await stage.client("legacy")
        result = await client.call("ok")
        assert called(server) == calls and ("isError" in result) is not calls
        assert calls or f"denied by policy: mode never, nobody is asked: {REASON}" in words(result)
        read = await client.request("resources/read", {"uri": "x://a"})
        assert (REASON in read["error"]["message"]) is not calls


def steps() -> Mission:
    return parse_mission(
        {
            "directive": "Reach it",
            "tool_allowlist": ["far.ok"],
            "criteria": [{"criterion_id": "done", "kind": "tool_call_succeeded", "tool_name": "ok"}],
            "budget": Budget(max_iterations=2).model_dump(exclude_none=True),
            "proposer": {"kind": "repeat", "tool_name": "ok"},
        }
    )


@pytest.mark.guarantee("network-asks")
async def test_a_mission_waits_for_a_yes_before_such_a_host_is_called(tmp_path: Path) -> None:
    server = RawServer(modern=False)
    async with server.serving() as url:
        configuration = Configuration(servers={"far": far(url)}, policy=policy())
        async with Runtime(state=tmp_path / "ledger.db", config=configuration) as runtime:
            name = (await runtime.runner.start(steps())).session_id
            assert (await runtime.runner.run(name)).waiting_for == "approval"
            (row,) = await Approvals(runtime.runner).open(name)
            assert REASON in row.description and called(server) == 0
            await Approvals(runtime.runner).answer(row.approval_id, "once")
            assert (await runtime.runner.run(name)).status == "completed"
            assert called(server) == 1


async def test_what_a_mission_file_brings_is_not_even_connected_to(tmp_path: Path) -> None:
    server = RawServer(modern=True)
    async with server.serving() as url:
        configuration = Configuration(servers={"far": far(url, operators=False)}, policy=policy())
        async with Runtime(state=tmp_path / "ledger.db", config=configuration) as runtime:
            with pytest.raises(ValidationFailed) as refused:
                await runtime.runner.start(steps())
            assert "name it in policy.network.allow" in refused.value.faults[0].reason
    assert server.requests == []
