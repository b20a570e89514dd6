"""HTTP upstreams that break: one call pays, nobody else does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit.config.servers import ClientSettings, MessageLimits, ServerConfig
from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.errors import UpstreamUnavailable
from pursuit.policy.rules import NetworkRules
from pursuit.upstream.pool import Pool

sys.path.insert(0, str(Path(__file__).parent.parent / "servers"))

from fixture import build
from http_fixture import served, sse_app
from raw_http import RawServer, kept_port

ERAS = ("2025", "2026")
SECRET = "hunter2-very-secret"


@asynccontextmanager
async def standing(era: str, network: NetworkRules | None = None, path: str = "/mcp", **more: Any) -> Any:
    server = RawServer(modern=era == "2026")
    async with server.serving() as url:
        config = ServerConfig(name="raw", transport="http", url=url.removesuffix("/mcp") + path, **more)
        async with Pool({"raw": config}, network=network) as pool:
            yield pool.upstream("raw"), server


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cut", "ended prematurely"),
        ("cut_json", "HTTP connection broke"),
        ("nothing", "HTTP connection broke"),
        ("page", "neither JSON nor a stream"),
        ("no_json", "not valid JSON"),
        ("busy", "HTTP 503"),
        ("wrong_id", "did not return a JSON-RPC response"),
    ],
)
async def test_a_broken_answer_costs_one_call(era: str, fault: str, words: str) -> None:
    async with standing(era) as (upstream, server):
        begun = anyio.Event()

        async def on_notify(_method: str, _params: Mapping[str, Any]) -> None:
            begun.set()

        async with anyio.create_task_group() as others:
            # One that is under way all the time, on the same connection.
            hang = partial(upstream.request, "tools/call", {"name": "hang"}, on_notify=on_notify)
            others.start_soon(hang)
            await begun.wait()
            with pytest.raises(CallFailed, match=words) as caught:
                await upstream.call(fault, {}, call_id="c")
            assert caught.value.sent
            assert not server.hung_up.is_set(), "the other call was broken too"
            await upstream.call("ok", {}, call_id="c")
            others.cancel_scope.cancel()
        methods = [one.method for one in server.requests]
        assert methods.count("initialize") + methods.count("server/discover") == (2 if era == "2025" else 1)


async def test_an_answer_whose_stream_broke_is_fetched_where_the_server_can_go_on() -> None:
    async with standing("2025") as (upstream, server):
        result = await upstream.request("tools/call", {"name": "resume"})
        assert result == {"content": [], "resumed": True}
        assert sum(one.method == "tools/call" for one in server.requests) == 1


async def test_a_long_answer_passes_in_a_body_and_in_an_event() -> None:
    async with standing("2025") as (upstream, _server):
        long = "x" * 5_000_000
        for tool in ("ok", "tell"):
            result = await upstream.request("tools/call", {"name": tool, "arguments": {"messages": [], "long": long}})
            assert result["arguments"]["long"] == long


async def test_an_answer_that_is_too_long_costs_one_call() -> None:
    async with standing("2025", client=ClientSettings(limits=MessageLimits(result=1_000_000))) as (upstream, _server):
        long = "x" * 5_000_000
        for tool, words in (("ok", "more than 1000000 bytes"), ("tell", "more than 1000000 bytes")):
            with pytest.raises(CallFailed, match=words):
                await upstream.call(tool, {"messages": [], "long": long}, call_id="c")
        await upstream.call("ok", {}, call_id="c")


async def test_an_old_sse_server_that_comes_back_is_used_again() -> None:
    with kept_port() as port:
        config = ServerConfig(name="old", transport="sse", url=f"http://127.0.0.1:{port}/sse")
        async with Pool({"old": config}) as pool:
            upstream: Any = pool.upstream("old")
            for number in range(2):
                with pytest.raises(CallFailed, match=r"not sent: .*the connection failed"):
                    await upstream.call("echo", {}, call_id="c")
                async with served(sse_app(build()), port=port):
                    result = await upstream.call("echo", {"n": number}, call_id="c")
                    assert result.structured["arguments"] == {"n": number}


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_comes_back_is_used_again(era: str) -> None:
    server = RawServer(modern=era == "2026")
    with kept_port() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        config = ServerConfig(name="raw", transport="http", url=url, client=ClientSettings(first_pause=0.01))
        async with Pool({"raw": config}) as pool:
            upstream = pool.upstream("raw")
            for _ in range(3):
                with pytest.raises(CallFailed, match=r"not sent: .*the connection failed") as caught:
                    await upstream.call("ok", {}, call_id="c")
                assert not caught.value.sent
            async with server.serving(port):
                await upstream.call("ok", {}, call_id="c")
            with pytest.raises(CallFailed, match=r"the connection failed|connection broke") as caught:
                await upstream.call("ok", {}, call_id="c")
            assert caught.value.sent == ("connection broke" in str(caught.value))
            async with server.serving(port):
                server.session = "forgotten"
                await upstream.call("ok", {}, call_id="c")


async def test_a_server_that_was_away_is_greeted_anew() -> None:
    server = RawServer(modern=False)
    with kept_port() as port:
        config = ServerConfig(name="raw", transport="http", url=f"http://127.0.0.1:{port}/mcp")
        async with Pool({"raw": config}) as pool:
            upstream = pool.upstream("raw")
            async with server.serving(port):
                await upstream.call("ok", {}, call_id="c")
            for _ in range(2):
                with pytest.raises(CallFailed, match=r"the connection failed|connection broke"):
                    await upstream.call("ok", {}, call_id="c")
            server.session, server.who = "forgotten", (500, None)
            async with server.serving(port):
                await upstream.call("ok", {}, call_id="c")
                assert server.sessions == 2


@pytest.mark.parametrize("body", [{"id": None, "error": {"code": -32000, "message": "Bad Request"}}, "session?"])
async def test_a_400_that_answers_no_request_means_an_unknown_session(body: Any) -> None:
    async with standing("2025") as (upstream, server):
        await upstream.call("ok", {}, call_id="c")
        server.session, server.who = "forgotten", (400, body)
        await upstream.call("ok", {}, call_id="c")
        assert server.sessions == 2


async def test_a_refusal_of_the_call_itself_is_not_about_the_session() -> None:
    async with standing("2025") as (upstream, server):
        with pytest.raises(UpstreamError, match="no such session of yours"):
            await upstream.request("tools/call", {"name": "bad_request"})
        assert server.sessions == 1


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_text_that_is_no_unicode_is_replaced_in_answers(transport: Any) -> None:
    server = RawServer(modern=False)
    async with server.serving() as url:
        config = ServerConfig(name="raw", transport=transport, url=url.removesuffix("/mcp") + f"/{transport}")
        async with Pool({"raw": config}) as pool:
            given = {"\ud800": ["a\udfff"]}
            upstream: Any = pool.upstream("raw")
            answer = await upstream.request("tools/call", {"name": "ok", "arguments": given})
            assert answer.get("structuredContent", answer.get("arguments")) == {"?": ["a?"]}
            with pytest.raises(CallFailed, match="not sent: the arguments are not valid JSON"):
                await upstream.request("tools/call", {"name": "ok", "arguments": {"\ud800": object()}})


async def test_redirects_stay_within_the_origin() -> None:
    async with standing("2026", path="/elsewhere") as (upstream, _server):
        with pytest.raises(UpstreamUnavailable, match="redirects to another address"):
            await upstream.tools()
    for era in ERAS:
        async with standing(era, path="/moved") as (upstream, _server):
            assert [tool.name for tool in await upstream.tools()] == ["place", "ok"]


async def test_no_address_and_no_header_is_ever_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PURSUIT_TEST_TOKEN", SECRET)
    caplog.set_level(logging.INFO)
    headers = {"Authorization": "Bearer ${PURSUIT_TEST_TOKEN}", "X-Tenant": "tenant-0815"}

    async def main(upstream: Any, server: RawServer) -> list[str]:
        said: list[str] = [repr(upstream.config)]
        error = {"code": -1, "message": f"bad token {SECRET} of tenant-0815 at {upstream.config.url}"}
        for arguments in ({"error": error},):
            with pytest.raises(CallFailed) as caught:
                await upstream.call("raw", arguments, call_id="c")
            said.append(str(caught.value))
        with pytest.raises(CallFailed) as caught:
            await upstream.call("cut", {}, call_id="c")
        said.append(str(caught.value))
        with pytest.raises(UpstreamError, match=r"bad token \*\*\*"):
            await upstream.request("tools/call", {"name": "raw", "arguments": {"error": error}})
        assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {SECRET}"}
        assert all(one.path == "/mcp?key=query-secret" for one in server.requests)
        return said

    async with standing("2026", headers=headers, path="/mcp?key=query-secret") as (upstream, server):
        found = await main(upstream, server)
    said = "\n".join(found)
    for secret in (SECRET, "tenant-0815", "query-secret", "127.0.0.1"):
        assert secret not in said
    assert "127.0.0.1" not in caplog.text
    assert "bad token ***" in said


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (NetworkRules(deny=["127.0.0.1"]), "the network rules deny 127.0.0.1"),
        (NetworkRules(ask=["*"]), None),  # policy asks before a call
        (NetworkRules(ask=["*"], allow=["127.0.0.1"]), None),
    ],
)
async def test_network_rules_hold_at_connect(rules: NetworkRules, words: str | None) -> None:
    async with standing("2026", network=rules) as (upstream, server):
        if words is None:
            await upstream.tools()
            return
        with pytest.raises(UpstreamUnavailable, match=words):
            await upstream.tools()
        assert server.requests == []
