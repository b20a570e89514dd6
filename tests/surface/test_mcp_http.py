"""The HTTP front door lets in whom it should, in both protocol eras, and closes in time."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from hands import LONG, Hands
from http_stage import ERAS, HEADERS, INITIALIZE, LARGE, Stage, client, http, whoami

from pursuit.errors import InvalidArgument, PursuitError
from pursuit.server import bind
from pursuit.server.bind import HttpBinding, check_bind
from pursuit.server.http import serve_http
from pursuit.server.tokens import Tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


async def post(stage: Stage, token: str | None = None, **headers: str) -> httpx2.Response:
    async with http(token) as wire:
        return await wire.post(stage.url, json=INITIALIZE, headers={**HEADERS, **headers})


@pytest.mark.parametrize("era", ERAS)
async def test_without_tokens_anybody_on_this_machine_is_served(era: str) -> None:
    stage = Stage()
    async with stage.serving(), client(stage.url, era) as session:
        assert await whoami(session) == "nobody"
    assert stage.left


@pytest.mark.parametrize("era", ERAS)
async def test_a_handler_sees_the_name_of_the_token(era: str, tokens: Tokens) -> None:
    stage = Stage()
    first, second = tokens.make("laptop"), tokens.make("ci")
    async with stage.serving(tokens), client(stage.url, era, first) as session:
        assert await whoami(session) == "laptop"
        async with client(stage.url, era, second) as other:
            assert await whoami(other) == "ci"
        assert await whoami(session) == "laptop"


GOOD_HOSTS = ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}"]
BAD_HOSTS = [
    "127.0.0.1.evil.com:{port}",
    "evil.com:{port}",
    "evil.com",
    "127.0.0.1",
    "127.0.0.1:1{port}",
    "127.0.0.1:80",
    "localhost:{port}.evil.com",
    "127.0.0.1:{port}@evil.com",
    "0.0.0.0:{port}",
    "localhost:*",
]
BAD_ORIGINS = [
    "http://evil.com",
    "http://127.0.0.1.evil.com:{port}",
    "http://127.0.0.1:80",
    "http://127.0.0.1",
    "https://127.0.0.1:{port}",
    "http://localhost:{port}.evil.com",
    "null",
]


async def test_only_exact_hosts_and_origins_are_let_through() -> None:
    stage = Stage()
    async with stage.serving():

        async def status(**headers: str) -> int:
            shaped = {name: value.format(port=stage.port) for name, value in headers.items()}
            return (await post(stage, **shaped)).status_code

        assert [await status(Host=host) for host in GOOD_HOSTS] == [200] * 3
        assert [await status(Origin=f"http://{host}") for host in GOOD_HOSTS] == [200] * 3
        assert [(host, await status(Host=host)) for host in BAD_HOSTS] == [(host, 421) for host in BAD_HOSTS]
        assert [(origin, await status(Origin=origin)) for origin in BAD_ORIGINS] == [
            (origin, 403) for origin in BAD_ORIGINS
        ]
        modern = {"MCP-Protocol-Version": "2026-07-28"}
        assert (await post(stage, Host="evil.com", **modern)).status_code == 421
        assert (await post(stage, Origin="http://evil.com", **modern)).status_code == 403


def test_named_hosts_are_let_through_and_nothing_near_them() -> None:
    address = bind.resolve("127.0.0.1")
    settings = bind.guard(address, 8000, ["pursuit.example.com", "other:9"])
    assert set(settings.allowed_hosts) == {
        "127.0.0.1:8000",
        "localhost:8000",
        "[::1]:8000",
        "pursuit.example.com",
        "pursuit.example.com:8000",
        "other:9",
    }
    assert "https://pursuit.example.com" in settings.allowed_origins
    assert not any("*" in value for value in settings.allowed_hosts + settings.allowed_origins)
    for wrong in ("*", "x:*", "http://x", "x/y", "", "x y", "x:123456", "[::1"):
        with pytest.raises(InvalidArgument, match="is not a valid host"):
            bind.guard(address, 8000, [wrong])


def test_an_address_beyond_this_machine_is_let_through_by_its_names() -> None:
    own = socket.gethostname()
    everywhere = bind.guard(bind.resolve("0.0.0.0"), 8000, [])
    assert f"{own}:8000" in everywhere.allowed_hosts
    assert "0.0.0.0:8000" not in everywhere.allowed_hosts
    one = bind.guard(bind.resolve("192.0.2.7"), 8000, [])
    assert {"192.0.2.7:8000", f"{own}:8000"} <= set(one.allowed_hosts)
    six = bind.guard(bind.resolve("2001:db8::7"), 80, [])
    assert {"[2001:db8::7]:80", "[2001:db8::7]"} <= set(six.allowed_hosts)
    assert bind.resolve("::").url(8000) == "http://[::1]:8000/mcp"
    assert bind.resolve("0.0.0.0").url(8000) == "http://127.0.0.1:8000/mcp"


async def test_a_request_without_a_good_token_is_401(tokens: Tokens) -> None:
    stage = Stage()
    good = tokens.make("laptop")
    async with stage.serving(tokens):
        assert (await post(stage, good)).status_code == 200
        wrong = ["", "Bearer", "Bearer x", f"Basic {good}", good, f"Bearer {good}x", f"Bearer {good[:-1]}"]
        for value in wrong:
            answer = await post(stage, Authorization=value)
            assert answer.status_code == 401, value
            assert answer.headers["www-authenticate"].startswith("Bearer")
        async with http() as wire:
            for path in ("/mcp", "/elsewhere"):
                assert (await wire.get(f"http://{stage.netloc}{path}")).status_code == 401
            modern = {**HEADERS, "MCP-Protocol-Version": "2026-07-28"}
            assert (await wire.post(stage.url, json={}, headers=modern)).status_code == 401


async def test_a_revoked_token_stops_working_at_once(tokens: Tokens) -> None:
    stage = Stage()
    token = tokens.make("laptop")
    async with stage.serving(Tokens(tokens.path)):
        assert (await post(stage, token)).status_code == 200
        tokens.revoke("laptop")
        assert (await post(stage, token)).status_code == 401
        again = tokens.make("laptop")
        assert (await post(stage, token)).status_code == 401
        assert (await post(stage, again)).status_code == 200


async def test_damage_to_the_tokens_lets_nobody_in(tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    token = tokens.make("laptop")
    async with stage.serving(tokens):
        sound = tokens.path.read_bytes()
        for damage in (b"", b"{}", sound[:-5]):
            tokens.path.write_bytes(damage)
            assert (await post(stage, token)).status_code == 401
        tokens.path.unlink()
        assert (await post(stage, token)).status_code == 401
        tokens.path.write_bytes(sound)
        assert (await post(stage, token)).status_code == 200
    assert "every request is refused" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_session_can_be_used_only_with_the_token_that_made_it(tokens: Tokens) -> None:
    stage = Stage()
    first, second = tokens.make("first"), tokens.make("second")
    async with stage.serving(tokens):
        session = (await post(stage, first)).headers["mcp-session-id"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        said = {**HEADERS, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}

        async def status(token: str) -> int:
            async with http(token) as wire:
                return (await wire.post(stage.url, json=ping, headers=said)).status_code

        assert await status(first) == 200
        assert await status(second) == 404
        tokens.revoke("first")
        assert await status(tokens.make("first")) == 404


async def test_a_body_that_is_too_large_is_refused() -> None:
    stage = Stage()
    async with stage.serving(), http() as wire:
        answer = await wire.post(stage.url, content=b"x" * (4 * 1024 * 1024 + 1), headers=HEADERS)
        assert answer.status_code == 413


async def test_the_front_page_says_where_the_endpoint_is(tokens: Tokens) -> None:
    stage = Stage()
    tokens.make("laptop")
    async with stage.serving(tokens), http() as wire:
        answer = await wire.get(f"http://{stage.netloc}/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert f"Its endpoint is {stage.url}." in answer.text
        assert (await wire.post(f"http://{stage.netloc}/")).status_code == 405
        assert (await wire.get(f"http://{stage.netloc}/", headers={"Host": "evil.example"})).status_code == 421


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_client_that_closes_in_mid_stream_leaves_no_traceback(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pursuit")
    stage = Stage()
    async with stage.serving():
        with socket.create_connection(("127.0.0.1", stage.port)) as wire:
            head = f"POST /mcp HTTP/1.1\r\nHost: {stage.netloc}\r\nMcp-Protocol-Version: {version}\r\n"
            kinds = "".join(f"{key}: {value}\r\n" for key, value in HEADERS.items())
            wire.sendall(f"{head}{kinds}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
            said = await anyio.to_thread.run_sync(wire.recv, 100)  # the answer of a server that reads the request
            assert said.startswith(b"HTTP/1.1 100")
            wire.sendall(b'{"jsonrpc"')
        with anyio.fail_after(LONG):
            while "before its request was complete" not in caplog.text:
                await anyio.sleep(0.01)
        await _closed_during_a_call(stage, ERAS[version == "2026-07-28"])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "Traceback" not in caplog.text


async def _closed_during_a_call(stage: Stage, era: str) -> None:
    """Returns when the call of a client that closed has ended; in the 2025 era closing does not cancel a call."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_call_wait, stage, era)
        await stage.waiting.wait()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(LONG):
        while era != "legacy" and not stage.recorded:
            await anyio.sleep(0.01)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "2001:db8::7", "0"])
def test_other_machines_are_not_let_in_without_a_token(host: str, tokens: Tokens) -> None:
    for given, words in ((None, "clients do not need a token"), (tokens, "there is no token yet")):
        with pytest.raises(InvalidArgument, match=f"{words}; create one with `pursuit token`"):
            check_bind(host, given)
    tokens.make("laptop")
    check_bind(host, tokens)
    tokens.path.write_text("{", encoding="utf-8")
    with pytest.raises(PursuitError, match="damaged"):
        check_bind(host, tokens)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_this_machine_alone_needs_no_token(host: str) -> None:
    check_bind(host, None)


async def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidArgument, match=f"port {port} of 127.0.0.1: Address already in use.*0 for any free one"
        ):
            await _serve_refused("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("no-such-host.invalid", 0, "or a known name"),
        ("a" * 300, 0, "or a known name"),
        ("a\x00b", 0, "or a known name"),
        ("127.0.0.1", 65_536, "is not a port"),
        ("127.0.0.1", -1, "is not a port"),
    ],
)
async def test_a_place_that_cannot_be_listened_at_is_told(host: str, port: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await _serve_refused(host, port)


async def _serve_refused(host: str, port: int) -> None:
    await serve_http(Stage().server, HttpBinding(host=host, port=port), listening=pytest.fail)


async def test_a_lifespan_that_fails_is_an_error_and_not_an_exit() -> None:
    with pytest.RaisesGroup(InvalidArgument, flatten_subgroups=True, allow_unwrapped=True):
        stage = Stage()

        def broken(_server: object) -> Any:
            raise InvalidArgument("no ledger")

        stage.server.lifespan = broken
        async with stage.serving():
            pytest.fail("it listens")


@pytest.mark.parametrize("era", ERAS)
async def test_shutting_down_cancels_calls_and_lets_them_record(era: str, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(grace_seconds=2 * LONG, record_seconds=0.3)
    seconds = await _shut_down_during(stage, lambda: _call_wait(stage, era))
    assert len(stage.recorded) == 1
    assert stage.left
    assert seconds < LONG
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_open_stream_does_not_delay_shutting_down(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(grace_seconds=2 * LONG)
    seconds = await _shut_down_during(stage, lambda: _open_stream(stage))
    assert stage.left
    assert seconds < LONG
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_sends_half_a_request_does_not_delay_shutting_down() -> None:
    stage = Stage(grace_seconds=2 * LONG)
    seconds = await _shut_down_during(stage, lambda: _half_a_request(stage))
    assert seconds < LONG


async def test_a_client_that_does_not_read_is_dropped_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(monkeypatch)
    stage = Stage(grace_seconds=LONG)
    # The plain socket: anyio's would read ahead.
    with socket.socket() as wire:
        async with anyio.create_task_group() as tasks, stage.serving() as scope:
            await anyio.to_thread.run_sync(_ask_for_much, stage, wire)
            begun = time.monotonic()
            scope.cancel()
            tasks.start_soon(_forwarded, stage, hands)
        assert LONG <= time.monotonic() - begun < 2 * LONG
        assert await anyio.to_thread.run_sync(_rest, wire) < LARGE / 2


async def _forwarded(stage: Stage, hands: Hands) -> None:
    """The grace has begun once the server refuses connections; then its time passes."""
    with anyio.fail_after(60), suppress(OSError):
        while True:
            await (await anyio.connect_tcp("127.0.0.1", stage.port)).aclose()
    hands.forward()


async def _shut_down_during(stage: Stage, visit: Callable[[], Any]) -> float:
    """How long shutting down takes while a client is there."""
    taken = 0.0
    async with anyio.create_task_group() as clients:
        async with stage.serving() as scope:
            clients.start_soon(visit)
            with anyio.fail_after(60):
                await stage.waiting.wait()
            taken -= time.monotonic()
            scope.cancel()
        taken += time.monotonic()
        with pytest.raises(OSError):
            await anyio.connect_tcp("127.0.0.1", stage.port)
        clients.cancel_scope.cancel()
    return taken


async def _call_wait(stage: Stage, era: str) -> None:
    with suppress(Exception):  # however the SDK's client takes it; what counts is the server
        async with client(stage.url, era) as session:
            await session.call_tool("wait", {})


async def _open_stream(stage: Stage) -> None:
    session = (await post(stage)).headers["mcp-session-id"]
    said = {"Accept": "text/event-stream", "Mcp-Session-Id": session}
    async with http() as wire, wire.stream("GET", stage.url, headers=said) as stream:
        assert stream.status_code == 200
        stage.waiting.set()
        async for _ in stream.aiter_bytes():
            pass


async def _half_a_request(stage: Stage) -> None:
    async with await anyio.connect_tcp("127.0.0.1", stage.port) as wire:
        await wire.send(f"POST /mcp HTTP/1.1\r\nHost: {stage.netloc}\r\nContent-Length: 100\r\n\r\n{{".encode())
        idle = await anyio.connect_tcp("127.0.0.1", stage.port)
        async with idle:
            await post(stage)
            stage.waiting.set()
            await anyio.sleep_forever()


def _ask_for_much(stage: Stage, wire: socket.socket) -> None:
    """Asks for a large answer and reads no more than its status."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "large", "_meta": meta}}
    body = json.dumps(call)
    said = {
        **HEADERS,
        "Host": stage.netloc,
        "Content-Length": str(len(body)),
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "large",
    }
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", body]
    wire.settimeout(60)
    wire.connect(("127.0.0.1", stage.port))
    wire.sendall("\r\n".join(lines).encode())
    assert wire.recv(12) == b"HTTP/1.1 200"


def _rest(wire: socket.socket) -> int:
    """How many bytes still come before the connection ends."""
    count = 0
    with suppress(ConnectionResetError):
        while chunk := wire.recv(1_000_000):
            count += len(chunk)
    return count
