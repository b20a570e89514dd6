"""A server or a client sends too much: it ends with an error that names the limit, and the next call works.

`benchmarks/floods.py` runs all floods at once beside a well-behaved client, and measures memory and time.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from callers_stage import Served, serving
from gateway_stage import MODERN, asked_of, hostile, house, words
from http_stage import HEADERS, INITIALIZE, Stage, client, http, whoami

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.config.servers import LIMITS, MessageLimits
from pursuit.server.gateway.resources import fits
from pursuit.server.operator_api import approval_routes
from pursuit.server.tokens import Tokens
from pursuit.upstream.transport import NotificationQueue, TooDeep, read_json, read_message

FLOODS = Path(__file__).parents[2] / "benchmarks" / "flood_server.py"
SMALL = MessageLimits(queued=100_000, unread=300_000, request_seconds=0.3)
PAGES, NOTES = 60, 40
"""Of 1 MB each, where a list has 32 MiB; of 2 MB each, where a session has 8 MiB."""


@asynccontextmanager
async def flooded(folder: Path, flood: str) -> AsyncIterator[Served]:
    """A gateway over HTTP in front of `world` and of a server of the benchmark; both are served after the flood."""
    args = json.dumps(["-S", str(FLOODS), flood, str(NOTES), str(PAGES)])
    config = f'[policy]\nmode = "auto"\n[servers.flood]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n'
    async with serving(folder, config, gateway=True) as served:
        yield served
        assert not (await served.call("other", "world.wipe")).get("isError")
        listed = (await served.ask("other", "tools/list", {}))["result"]["tools"]
        assert {tool["name"] for tool in listed} == {"world.wipe", "flood.notify", "flood.deep"}


@pytest.mark.guarantee("floods-end-at-a-limit")
@pytest.mark.parametrize(
    ("flood", "method", "params", "expected"),
    [
        ("pages", "resources/list", {}, "limit `list`"),
        ("deep", "tools/call", {"name": "flood.deep", "arguments": {}}, "limit `depth`"),
        ("trap", "resources/read", {"uri": "trap://" + "a" * 1_500}, "contents"),
    ],
    ids=["pages", "deep", "trap"],
)
async def test_a_flood_through_the_gateway_ends_with_the_name_of_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flood: str, method: str, params: dict[str, Any], expected: str
) -> None:
    async with flooded(tmp_path, flood) as served:
        told = await served.ask("guest", method, params)
        assert expected in str(told) + caplog.text


@pytest.mark.guarantee("floods-end-at-a-limit")
@pytest.mark.parametrize("named", [True, False])
async def test_a_result_beyond_the_limit_fails_the_call_that_it_answers(tmp_path: Path, named: bool) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    waits = {"name": "logs", "arguments": {"gate": str(gate)}}
    async with house(tmp_path, hostile(f"log={log}"), alone=False) as stage:
        other, greedy = await stage.client(MODERN), await stage.client(MODERN)
        waiting = await other.begin("tools/call", waits)
        failed = await greedy.call("large", {"last": not named})
        assert failed["isError"] is True and "16 MiB (limit `result`)" in words(failed)
        assert failed["_meta"]["pursuit/outcome"] == "unknown"
        gate.touch()
        ended = (await other.ended(waiting))["result"]
        # Without the id in the first KiB the server's connection ends, and with it the calls of others.
        assert (ended.get("isError"), "limit `result`" in words(ended)) == ((None, False) if named else (True, True))
        assert words(await greedy.call("steps")) == "without"
    assert len(asked_of(log, "initialize")) == (1 if named else 2)


@pytest.mark.guarantee("floods-end-at-a-limit")
async def test_a_client_of_the_gateway_does_not_read_its_notifications(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with flooded(tmp_path, "notes") as served, http(served.shown["guest"]) as wire:
        host = served.url.removeprefix("http://").partition("/")[0]
        begun = await wire.post(served.url, json=INITIALIZE, headers=HEADERS)
        wire.headers.update({**HEADERS, "mcp-session-id": begun.headers["mcp-session-id"]})
        await wire.post(served.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        call = {"name": "flood.notify", "arguments": {}}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        with socket.create_connection((host.split(":")[0], int(host.split(":")[1]))) as mute:
            head = "".join(f"{name}: {value}\r\n" for name, value in wire.headers.items())
            mute.sendall(f"GET /mcp HTTP/1.1\r\nhost: {host}\r\n{head}\r\n".encode())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(wire.post, served.url, json=asked))
                with anyio.fail_after(30):
                    while "limit `queued`" not in caplog.text:
                        await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()


@pytest.mark.guarantee("floods-end-at-a-limit")
async def test_notifications_wait_up_to_a_number_of_bytes() -> None:
    queue = NotificationQueue(SMALL.queued)
    for number in range(300):
        queue.put("notifications/message", {"data": "x" * 20_000, "number": number})
    assert queue.dropped == 295
    queue.close()
    assert [params["number"] async for _, params in queue] == [0, 1, 2, 3, 4]
    assert LIMITS.queued == 8 << 20


def test_deep_json_is_refused_and_lone_surrogates_are_replaced() -> None:
    for read in (read_json, read_message):
        with pytest.raises(TooDeep, match="limit `depth`"):
            read("[" * 100_000 + "]" * 100_000)
    assert read_json('["\\ud800", "\\ud83d\\ude00"]') == ["?", "\U0001f600"]


TEMPLATES = [
    ("trap://" + "{v}" * 40 + "!", "trap://" + "a" * 1_500, False),
    ("trap://" + "{+v}" * 40 + "!", "trap://" + "a" * 1_500 + "!", False),  # a name stands twice: no template
    ("trap://{+v}!", "trap://" + "a" * 1_500 + "!", True),
    ("trap://" + "{v}/" * 200, "trap://" + "a/" * 199 + "a", False),
    ("file:///{name}", "file:///a", True),
    ("file:///{name}", "file:///a/b", False),
    ("file:///{+path}", "file:///a/b", True),
    ("{a}x{b}x{c}", "xx", True),
    ("{a}x{b}x{c}", "x", False),
    ("x://{", "x://{", True),
    ("x://{", "x://a", False),
    ("{v}" * 2_000, "a", False),
]


@pytest.mark.guarantee("floods-end-at-a-limit")
@pytest.mark.parametrize(("template", "uri", "expected"), TEMPLATES)
def test_a_template_is_compared_at_a_cost_of_its_length(template: str, uri: str, expected: bool) -> None:
    assert fits(template, uri) is expected  # a regular expression of the first would run for years


@pytest.mark.guarantee("floods-end-at-a-limit")
async def test_half_requests_end_and_others_are_served() -> None:
    stage = Stage()
    with anyio.fail_after(60):
        async with stage.serving(limits=SMALL), client(stage.url, "2026-07-28") as good:
            await whoami(good)
            answers = await anyio.to_thread.run_sync(half_requests, stage.port)
            assert b"" in answers, "half of a head: the connection is closed"
            assert any(b"limit `request_seconds`" in answer for answer in answers)
            assert any(b"limit `unread`" in answer for answer in answers)
            await whoami(good)


@pytest.mark.guarantee("floods-end-at-a-limit")
@pytest.mark.parametrize(("who", "status"), [("operator", b"408"), ("client", b"403"), (None, b"401")])
async def test_half_an_answer_to_an_approval_ends(tmp_path: Path, who: str | None, status: bytes) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    shown = "" if who is None else f"authorization: Bearer {tokens.make('x', operator=who == 'operator')}\r\n"
    stage = Stage()
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration()) as runtime:
        routes = approval_routes(runtime.runner, tokens, limits=SMALL)
        async with stage.serving(tokens, routes=routes):
            answer = await anyio.to_thread.run_sync(half_answer, stage.port, shown)
    assert answer.split()[1] == status, answer
    assert (b"connection: close" in answer) is (status == b"408")


def half_answer(port: int, token: str) -> bytes:
    head = f"POST /approvals/approval-{'0' * 16} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{token}content-length: 100"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(f'{head}\r\n\r\n{{"answer": '.encode())
        return wire.recv(65536)


def half_requests(port: int) -> set[bytes]:
    """What the server says to requests that stop in the middle."""
    head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    parts = [head, *[f"{head}content-length: 200000\r\n\r\n" + " " * 90_000] * 4]
    held = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in parts]
    try:
        for connection, part in zip(held, parts, strict=True):
            connection.sendall(part.encode())
        return {_rest(connection) for connection in held}
    finally:
        for connection in held:
            connection.close()


def _rest(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found
