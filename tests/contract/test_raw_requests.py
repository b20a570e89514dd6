"""What the gateway is built on: upstream's own JSON, its notifications and its questions, over stdio and HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server.mcpserver import Context, MCPServer

from pursuit.config.servers import ClientSettings, ServerConfig
from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.upstream.factory import mcp_upstream
from pursuit.upstream.pool import Pool
from pursuit.upstream.transport import ClientFeatures

SERVERS = Path(__file__).parent.parent / "servers"
sys.path.insert(0, str(SERVERS))

from raw_http import RawServer  # noqa: E402 - found through the path above

WAYS = ("stdio", "http-2025", "http-2026")
LEGACY = ("stdio", "http-2025")
HTTP = ("http-2025", "http-2026")
ODD = {
    "content": [{"type": "text", "text": "ü", "_meta": {"a": None}, "x": 1}, {"type": "hologram", "data": None}],
    "structuredContent": {"null": None, "big": 2**70, "float": 1.0, "list": [None, []]},
    "isError": False,
    "_meta": {"com.example/x": [None, {"deep": None}]},
    "x-unknown": {"kept": None},
    "resultType": "complete",
}
SETTINGS = ClientSettings()


@asynccontextmanager
async def talking(way: str, settings: ClientSettings = SETTINGS) -> Any:
    server = RawServer(modern=way == "http-2026")
    async with anyio.create_task_group() as tasks, server.serving() as url:
        args = ("-S", str(SERVERS / "faulty.py"))
        config = ServerConfig(name="raw", transport="http", url=url, client=settings)
        if way == "stdio":
            config = ServerConfig(name="raw", command=sys.executable, args=args, client=settings)
        upstream = mcp_upstream("raw", config, tasks)
        yield upstream, server
        await upstream.aclose()


async def call(talk: Any, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return await talk.request("tools/call", {"name": tool, "arguments": dict(arguments or {})}, **more)


@pytest.mark.parametrize("way", WAYS)
async def test_results_errors_lists_and_what_the_server_says_of_itself_are_its_own_json(way: str) -> None:
    own = {"code": -31999, "message": "no ü", "data": {"null": None, "list": [1]}}
    async with talking(way) as (upstream, _server):
        result = await call(upstream, "raw", {"result": ODD})
        with pytest.raises(UpstreamError) as caught:
            await call(upstream, "raw", {"error": own})
        about = await upstream.about()
        pages = await upstream.entries("resources" if way == "stdio" else "tools")
        assert await upstream.entries("resourceTemplates") == await upstream.entries("prompts") == []
    assert result == ODD and list(result) == list(ODD)
    assert isinstance(result["structuredContent"]["float"], float)
    assert (caught.value.code, caught.value.message, caught.value.data) == tuple(own.values())
    assert about.capabilities["x-own"] == {"deep": [None]}
    assert about.protocol_version == ("2026-07-28" if way == "http-2026" else "2025-11-25")
    assert way == "http-2026" or about.server_info["x-odd"] is None
    assert about.instructions == ("Be careful." if way == "stdio" else None)
    if way == "stdio":
        assert pages == [{"uri": f"x://{number}", "name": "n", "x-kept": None} for number in (1, 2)]
    else:
        assert pages[1] == {"name": "ok", "inputSchema": {}, "x-odd": None}


@pytest.mark.parametrize("way", WAYS)
async def test_progress_comes_raw_in_order_and_before_the_result_and_a_listener_that_fails_costs_no_call(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [
        {"method": "notifications/progress", "params": {"progress": n, "x-kept": None, "_meta": {"n": n}}}
        for n in range(50)
    ]
    async with talking(way) as (upstream, _server):
        seen: list[Any] = []

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append((method, params["progress"], params["x-kept"], params["_meta"]))
            if params["progress"] == 7:
                raise ValueError("a bug")

        assert "content" in await call(upstream, "tell", {"messages": steps}, on_notify=on_notify)
        found = list(seen)
    assert "a notification handler failed" in caplog.text
    assert found == [("notifications/progress", n, None, {"n": n}) for n in range(50)]


@pytest.mark.parametrize("way", WAYS)
async def test_logs_and_updates_reach_whoever_listens(way: str) -> None:
    told = [
        {"method": "notifications/message", "params": {"level": "info", "data": {"x": None}}},
        {"method": "notifications/resources/updated", "params": {"uri": "x://1"}},
    ]
    async with talking(way) as (upstream, _server):
        outside: list[Any] = []
        inside: list[Any] = []
        stop = upstream.listen(lambda method, params: outside.append({"method": method, "params": params}))

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            inside.append({"method": method, "params": params})

        await call(upstream, "tell", {"messages": told}, on_notify=on_notify)
        stop()
        await call(upstream, "tell", {"messages": told})
    # Over HTTP a log entry comes on the stream of the call that it belongs to; on stdio nothing says so.
    assert inside == ([] if way == "stdio" else told[:1])
    assert outside == (told if way == "stdio" else told[1:])


@pytest.mark.parametrize("way", LEGACY)
async def test_every_question_of_the_server_gets_an_answer_or_a_proper_error(way: str) -> None:
    async with talking(way) as (upstream, _server):

        async def asked(talk: Any, method: str) -> Any:
            answer = await call(talk, "ask", {"method": method, "params": {"x": None}})
            return answer.get("replied") or answer["structuredContent"]

        assert (await asked(upstream, "ping"))["result"] == {}
        assert (await asked(upstream, "roots/list"))["result"] == {"roots": []}
        for method in ("sampling/createMessage", "elicitation/create", "x/unknown"):
            assert (await asked(upstream, method))["error"]["code"] == -32601


async def test_a_lease_whose_call_was_given_up_is_not_lent_again(tmp_path: Path) -> None:
    async with talking("stdio") as (upstream, _server):
        side = ClientFeatures(capabilities={"sampling": {}})
        pids: list[str] = []
        mark = tmp_path / "mark"
        for tool in ("hang", "ok", "ok"):
            async with upstream.lease(side) as talk, anyio.create_task_group() as calls:
                pids.append((await call(talk, "ok"))["content"][0]["text"])
                calls.start_soon(call, talk, tool, {"mark": str(mark)})
                while tool == "hang" and not mark.exists():
                    await anyio.sleep(0.005)
                if tool == "hang":
                    calls.cancel_scope.cancel()
        assert pids[0] != pids[1] == pids[2]


async def test_a_change_is_heard_of_a_server_of_the_sdk() -> None:
    server = MCPServer("growing")

    async def grow(name: str, ctx: Context[Any, Any]) -> str:
        server.add_tool(lambda: "x", name=name)
        await ctx.notify_tools_changed()
        return "grown"

    server.add_tool(grow)
    async with Pool({}, {"here": server}) as pool:
        upstream: Any = pool.upstream("here")
        heard = anyio.Event()
        upstream.listen(lambda _method, _params: heard.set())
        assert [tool.name for tool in await upstream.tools()] == ["grow"]
        with anyio.fail_after(120):
            await upstream.call("grow", {"name": "more"}, call_id="c")
            await heard.wait()
        assert [tool.name for tool in await upstream.tools()] == ["grow", "more"]


async def test_what_a_client_said_about_itself_is_not_handed_on() -> None:
    async with talking("http-2026") as (upstream, server):
        meta = {"progressToken": 7, "io.modelcontextprotocol/clientInfo": {"name": "evil"}, "com.example/x": None}
        await upstream.request("tools/call", {"name": "ok", "_meta": meta})
        params = server.requests[-1].body["params"]
    assert "progressToken" not in params["_meta"]
    assert params["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] == "pursuit"
    assert params["_meta"]["com.example/x"] is None
    assert "arguments" not in params


@pytest.mark.parametrize("way", WAYS)
async def test_the_tools_are_listed_once_until_the_server_says_that_they_changed(way: str) -> None:
    async with talking(way) as (upstream, server):
        await upstream.about()
        if way == "stdio":
            before = [tool.name for tool in await upstream.tools()]
            await call(upstream, "change", {"name": "fresh"})
            assert [tool.name for tool in await upstream.tools()] == [*before, "fresh"]
            return
        await server.stood.wait()
        while not upstream.current.announces("tools"):  # pyright: ignore
            await anyio.sleep(0.01)
        for _ in range(3):
            await upstream.tools()
        assert sum(one.method == "tools/list" for one in server.requests) == 1
        heard = anyio.Event()
        upstream.listen(lambda _method, _params: heard.set())
        standing = server.standing[-1]
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": (standing.body or {}).get("id")}}
        await standing.event({"method": "notifications/tools/list_changed", "params": meta})
        await heard.wait()
        await upstream.tools()
        assert sum(one.method == "tools/list" for one in server.requests) == 2


@pytest.mark.parametrize("way", HTTP)
async def test_a_broken_standing_stream_is_opened_again(way: str) -> None:
    async with talking(way, ClientSettings(reopen_pauses=(0.01, 0.01))) as (upstream, server):
        await upstream.about()
        for _ in range(2):
            await server.stood.wait()
            server.stood = anyio.Event()
            await server.standing[-1].wire.aclose()
        await server.stood.wait()
        await call(upstream, "ok")


async def test_the_new_era_repeats_in_headers_what_it_asks() -> None:
    async with talking("http-2026") as (upstream, server):
        await upstream.tools()
        await call(upstream, "place", {"place": "Zürich"})
        headers = server.requests[-1].headers
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert headers["mcp-method"] == "tools/call"
    assert headers["mcp-name"] == "place"
    assert headers["mcp-param-place"].startswith("=?base64?")


async def test_closing_says_goodbye_to_the_session_and_fails_what_is_under_way() -> None:
    async with talking("http-2025") as (upstream, server):
        begun = anyio.Event()
        failed: list[str] = []

        async def on_notify(_method: str, _params: Mapping[str, Any]) -> None:
            begun.set()

        async def hang() -> None:
            with pytest.raises(CallFailed) as caught:
                await call(upstream, "hang", on_notify=on_notify)
            failed.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await begun.wait()
            await upstream.aclose()
        assert "the connection broke: it is closed" in failed[0]
        goodbye = [one for one in server.requests if one.verb == "DELETE"]
        assert [one.headers["mcp-session-id"] for one in goodbye] == ["session-1"]


async def test_a_subscription_that_cannot_be_read_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with talking("http-2026", ClientSettings(reopen_pauses=(0.01, 0.02))) as (upstream, server):
        server.listens_in = "text/html"
        await upstream.tools()
        while sum(request.method == "subscriptions/listen" for request in server.requests) < 3:
            await anyio.sleep(0.01)
    told = [record.getMessage() for record in caplog.records if "subscriptions/listen" in record.getMessage()]
    assert told == [
        "server 'raw': changes of its lists are not noticed, since subscriptions/listen failed: its answer is neither "
        "JSON nor a stream of events (HTTP 200)"
    ]
