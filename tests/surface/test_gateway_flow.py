"""Progress, logs, cancellation and changes go through, whichever era either side speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import (
    ENVELOPE,
    ERAS,
    LEGACY,
    MODERN,
    Client,
    Message,
    asked_of,
    each_way,
    hostile,
    house,
    pairs,
    told,
    words,
)
from hands import LONG, Hands

from pursuit.config.servers import Timeouts
from pursuit.core.tools import ToolOverride

ABLE: dict[str, Any] = {"elicitation": {}}


def upstream(server: str, *args: str, **more: Any) -> Any:
    return hostile(*args, *([MODERN] if server == MODERN else []), **more)


@pytest.mark.parametrize("capabilities", [{}, ABLE], ids=["plain", "able"])
@pairs
async def test_progress_comes_under_the_clients_token_before_the_result(
    client_era: str, server_era: str, capabilities: dict[str, Any], tmp_path: Path
) -> None:
    async with house(tmp_path, upstream(server_era)) as stage:
        client = await stage.client(client_era, capabilities)
        result = await client.call("steps", _meta={"progressToken": "mine"})
        steps = told(client, "notifications/progress")
        assert steps == [
            {"progressToken": "mine", "progress": n, "total": 3, "message": f"s{n}", "x": None} for n in (1, 2, 3)
        ]
        assert words(result) == "with token"
        assert words(await client.call("steps")) == "without"
        assert len(told(client, "notifications/progress")) == 3


@each_way
async def test_logs_come_at_the_level_that_the_client_wants(
    client_era: str, server_era: str, alone: bool, tmp_path: Path
) -> None:
    async with house(tmp_path, upstream(server_era), alone=alone) as stage:
        client, other = await stage.client(client_era), await stage.client(client_era)
        more: dict[str, Any] = {}
        if client_era == LEGACY:
            assert await client.result("logging/setLevel", {"level": "error"}) == {}
        else:
            more = {"_meta": {f"{ENVELOPE}logLevel": "error"}}
        assert words(await client.call("logs", **more)) == "error"
        wanted = {"level": "error", "data": {"n": None}, "x": 1}
        await client.until(lambda: told(client, "notifications/message") == [wanted])
        if client_era == MODERN:
            # The only client has one process of a legacy server, which keeps the level.
            kept = "error" if alone and server_era == LEGACY else "None"
            assert words(await other.call("logs")) == kept
        if not alone or client_era == MODERN:
            assert not told(other, "notifications/message")


@pairs
async def test_logs_of_calls_at_the_same_time_reach_no_other_client(
    client_era: str, server_era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(server_era, f"log={log}"), alone=False) as stage:
        names = ("ann", "bob", "cleo")
        clients = {name: await stage.client(client_era) for name in names}
        more: dict[str, Any] = {"_meta": {f"{ENVELOPE}logLevel": "error"}} if client_era == MODERN else {}
        begun: dict[str, int] = {}
        for number, (name, client) in enumerate(clients.items(), start=1):
            if client_era == LEGACY:
                await client.result("logging/setLevel", {"level": "error"})
            arguments = {"gate": str(tmp_path / name)}
            begun[name] = await client.begin("tools/call", {"name": "logs", "arguments": arguments, **more})
            await until_asked(log, "tools/call", number)
        for name in names:
            (tmp_path / name).touch()
        for name, client in clients.items():
            assert words((await client.ended(begun[name]))["result"]) == "error"
            if server_era == LEGACY:  # a modern server over stdio does not say which call a message belongs to
                await client.until(lambda client=client: told(client, "notifications/message"))
            assert all(one["data"] == {"n": name} for one in told(client, "notifications/message"))


@pytest.mark.parametrize("capabilities", [{}, ABLE], ids=["plain", "able"])
@pairs
async def test_a_cancelled_call_is_cancelled_at_the_server(
    client_era: str, server_era: str, capabilities: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(server_era, f"log={log}")) as stage:
        client = await stage.client(client_era, capabilities)
        ident = await client.begin("tools/call", {"name": "slow", "arguments": {}})
        await until_asked(log, "tools/call")
        await client.send({"method": "notifications/cancelled", "params": {"requestId": ident}})
        await until_asked(log, "notifications/cancelled")
        assert words(await client.call("steps")) == "without"


async def until_asked(log: Path, method: str, times: int = 1) -> None:
    """Waits until the server was asked that, so often."""
    with anyio.fail_after(60):
        while not log.exists() or len(asked_of(log, method)) < times:
            await anyio.sleep(0.01)


async def cut_short(client: Client, log: Path, hands: Hands) -> Message:
    """The result of a call whose time is over while its server is at it."""
    ident = await client.begin("tools/call", {"name": "slow", "arguments": {}})
    await until_asked(log, "tools/call")
    hands.forward()
    return (await client.ended(ident))["result"]


async def listening(client: Client, wanted: dict[str, Any]) -> int:
    """Opens a listen stream; its acknowledgement is the first word on it."""
    ident = await client.begin("subscriptions/listen", {"notifications": wanted})
    acknowledged = "notifications/subscriptions/acknowledged"
    await client.until(lambda: told(client, acknowledged))
    meta = {f"{ENVELOPE}subscriptionId": ident}
    assert client.told[0] == {
        "method": acknowledged,
        "jsonrpc": "2.0",
        "params": {"notifications": wanted, "_meta": meta},
    }
    return ident


@pairs
async def test_a_changed_list_is_told_and_then_served(client_era: str, server_era: str, tmp_path: Path) -> None:
    async with house(tmp_path, upstream(server_era)) as stage:
        client = await stage.client(client_era, ABLE)
        ident = 0
        if client_era == MODERN:
            ident = await listening(client, {"toolsListChanged": True})
        before = await client.entries("tools/list", "tools")
        # The connection that all share is the one that changes are heard on.
        grower = client if client_era == LEGACY else await stage.client(client_era)
        await grower.call("grow")
        changed = "notifications/tools/list_changed"
        await client.until(lambda: told(client, changed))
        expected = {"_meta": {f"{ENVELOPE}subscriptionId": ident}} if client_era == MODERN else {}
        assert told(client, changed) == [expected]
        after = await grower.entries("tools/list", "tools")
        assert after == [*before, {"name": "grown1", "inputSchema": {"type": "object"}}]
        assert (await grower.call("grown1"))["structuredContent"]["arguments"] == {}


@each_way
async def test_a_resource_that_changes_is_told_to_who_subscribed(
    client_era: str, server_era: str, alone: bool, tmp_path: Path
) -> None:
    async with house(tmp_path, upstream(server_era), alone=alone) as stage:
        client, other = await stage.client(client_era), await stage.client(client_era)
        updated = "notifications/resources/updated"
        if client_era == MODERN:
            ident = await listening(client, {"resourceSubscriptions": ["x://hostile"]})
            await client.until(lambda: told(client, updated))
            meta = {f"{ENVELOPE}subscriptionId": ident}
            assert told(client, updated) == [{"uri": "x://hostile", "x": None, "_meta": meta}]
            await client.send({"method": "notifications/cancelled", "params": {"requestId": ident}})
        else:
            assert await client.result("resources/subscribe", {"uri": "x://hostile"}) == {}
            await client.until(lambda: told(client, updated))
            assert told(client, updated) == [{"uri": "x://hostile", "x": None}]
            assert await client.result("resources/unsubscribe", {"uri": "x://hostile"}) == {}
        if not alone:
            assert not told(other, updated)
        assert words(await client.call("steps")) == "without"


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_dies_costs_one_call_with_its_last_words(era: str, tmp_path: Path) -> None:
    async with house(tmp_path, upstream(era)) as stage:
        client = await stage.client(era)
        result = await client.call("die")
        assert result["isError"] is True
        assert "out of cheese" in words(result)
        assert words(await client.call("steps")) == "without"


async def test_what_a_client_notifies_reaches_its_own_connection(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(LEGACY, f"log={log}")) as stage:
        client = await stage.client(LEGACY, {"roots": {"listChanged": True}})
        await client.call("steps")
        await client.send({"method": "notifications/roots/list_changed"})
        await client.call("steps")
    assert [one["method"] for one in map(json.loads, log.read_text().splitlines()) if "id" not in one] == [
        "notifications/initialized",
        "notifications/roots/list_changed",
    ]


@pytest.mark.parametrize(
    ("tools", "settings"), [({"slow": ToolOverride(timeout=LONG)}, {}), ({}, {"call_timeout": LONG})]
)
@pairs
async def test_a_limit_cuts_the_call_at_the_server(
    client_era: str, server_era: str, tools: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, hands = tmp_path / "log", Hands(monkeypatch)
    async with house(tmp_path, upstream(server_era, f"log={log}", tools=tools), settings=settings) as stage:
        client = await stage.client(client_era, ABLE if tools else {})
        result = await cut_short(client, log, hands)
        assert result["isError"] is True
        assert words(result) == f"no answer within {LONG:g} s; the call was cancelled"
        await until_asked(log, "notifications/cancelled")


@pytest.mark.parametrize("capabilities", [{}, ABLE], ids=["plain", "able"])
@pytest.mark.parametrize("era", ERAS)
async def test_the_time_that_a_call_waits_for_its_turn_is_not_its_servers(
    era: str, capabilities: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, hands = tmp_path / "log", Hands(monkeypatch)
    # A call with questions has a connection of its own, which starts while the others pass their time.
    server = upstream(LEGACY, f"log={log}", concurrency=1, timeouts=Timeouts(call=LONG, connect=30 * LONG))
    async with house(tmp_path, server) as stage:
        client = await stage.client(era, capabilities)
        calls: dict[str, int] = {}
        for gate in (str(tmp_path / f"gate{number}") for number in range(4)):
            calls[gate] = await client.begin("tools/call", {"name": "logs", "arguments": {"gate": gate}})
        for number in range(1, len(calls) + 1):
            await until_asked(log, "tools/call", number)
            asked = asked_of(log, "tools/call")
            assert len(asked) == number
            hands.forward(0.55 * LONG)
            gate = asked[-1]["params"]["arguments"]["gate"]
            Path(gate).touch()
            assert words((await client.ended(calls[gate]))["result"]) == "None"
