"""Attacks of another user of the machine: loopback and a unix socket serve the operator alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx2
import pytest
from cli_stage import Place
from http_stage import ERAS, HEADERS, INITIALIZE, Stage, whoami
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from plain_http import post

from pursuit.errors import InvalidArgument
from pursuit.server.bind import HttpBinding, Listener, bind_unix

NOBODY = 65_534
KNOCK = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
wire = socket.socket(socket.AF_UNIX)
wire.settimeout(30)
wire.connect(sys.argv[1])
try:
    wire.sendall(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(wire.recv(100).decode() or "closed")
except (BrokenPipeError, ConnectionResetError):
    print("closed")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.mark.guarantee("loopback-asks-for-a-token")
def test_the_first_server_over_http_makes_a_token_and_serves_no_request_without_it(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    running = place.begin("serve", "--http", "--port", 0, fresh=False)
    url = json.loads(running.until("listening"))["url"]
    shown = dict(running.answer.get(timeout=60).rstrip().split(": ", 1) for _ in range(4))
    kept = place.ledger.with_name("http.token")
    assert (kept.read_text("utf-8"), stat.S_IMODE(kept.stat().st_mode)) == (f"{shown['token']}\n", 0o600)
    assert shown["header"] == f"Authorization: Bearer {shown['token']}"
    listed = {"name": "mission_list", "arguments": {}}
    for wrong in (None, "x", "pursuit_", shown["token"][:-1]):
        answer = post_raw(url, {} if wrong is None else {"Authorization": f"Bearer {wrong}"})
        assert (answer.status_code, answer.headers["www-authenticate"].split()[0]) == (401, "Bearer")
    assert post(url, "tools/call", listed, token=shown["token"])["status"] == 200
    code, out, notes = running.end(signal.SIGTERM)
    assert (code, out, shown["token"] in notes) == (0, "", False)
    # The second one finds the token, and shows it no more.
    again = place.begin("serve", "--http", "--port", 0, "--json", fresh=False)
    served = json.loads(again.answer.get(timeout=60))
    assert served.keys() == {"transport", "url", "page"}
    assert post(served["url"], "tools/call", listed, token=shown["token"])["status"] == 200
    again.end(signal.SIGTERM)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o600])
def test_a_token_in_a_clients_file_is_readable_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place, path = Place(tmp_path).configured(), tmp_path / "mcp.json"
    path.write_text("{}\n", encoding="utf-8")

    def install(*words: str) -> str:
        path.chmod(mode)
        return place.ask("install", "cursor", "--file", path, *words)[1]

    def modes() -> set[int]:
        return {stat.S_IMODE(one.stat().st_mode) for one in path.parent.glob("mcp.json*")}

    for port in ("8765", "9000", "9000"):  # it is added, updated, and there already
        notes = install("--http", "--port", port)
        assert ("Bearer pursuit_" in path.read_text("utf-8"), modes()) == (True, {0o600})
        assert ("now only you can" in notes) is (mode != 0o600)
    install("--remove")
    path.unlink()
    assert modes() == {0o600}, "the backups still hold the token"


def post_raw(url: str, headers: dict[str, str]) -> httpx2.Response:
    return httpx2.post(url, json=INITIALIZE, headers={**HEADERS, **headers}, trust_env=False)


async def test_without_a_token_the_log_says_what_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async with Stage().serving():
        pass
    (warned,) = [record for record in caplog.records if "no token is required" in record.getMessage()]
    assert "every user and every program of this machine" in str(vars(warned))


@pytest.mark.guarantee("a-socket-serves-its-user")
async def test_a_unix_socket_serves_the_user_that_runs_the_server_in_both_eras(folder: Path) -> None:
    path = folder / "s"
    stage = Stage()
    async with stage.serving(unix_socket=path):
        assert (stage.url, stat.S_IMODE(path.stat().st_mode)) == ("http://localhost/mcp", 0o600)
        with pytest.raises(InvalidArgument, match="is in use by another process"):
            bind_unix(path)
        wire = httpx2.AsyncHTTPTransport(uds=str(path))
        async with httpx2.AsyncClient(transport=wire, timeout=60) as web:
            for era in ERAS:
                async with Client(streamable_http_client(stage.url, http_client=web), mode=era) as session:
                    assert await whoami(session) == "nobody"
            evil = await web.post(stage.url, json=INITIALIZE, headers={**HEADERS, "Host": "evil.example"})
            assert evil.status_code == 421
    assert not path.exists()


@pytest.mark.guarantee("a-socket-serves-its-user")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_a_unix_socket_refuses_another_user_whatever_the_mode_of_its_file(folder: Path) -> None:
    path = folder / "s"
    folder.chmod(0o755)

    def knock(uid: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-S", "-c", KNOCK, str(path), str(uid)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    async with Stage().serving(unix_socket=path):
        assert "PermissionError" in (await anyio.to_thread.run_sync(knock, NOBODY)).stderr
        path.chmod(0o666)
        assert (await anyio.to_thread.run_sync(knock, NOBODY)).stdout == "closed\n"
        assert "200 OK" in (await anyio.to_thread.run_sync(knock, 0)).stdout


def test_a_client_over_a_unix_socket_is_its_user_in_the_audit(folder: Path) -> None:
    place = Place(folder).configured()
    running = place.begin("serve", "--socket", "s", "--json", fresh=False)
    assert json.loads(running.answer.get(timeout=60)) == {
        "transport": "http",
        "url": "http://localhost/mcp",
        "socket": "s",
    }

    async def main() -> None:
        wire = httpx2.AsyncHTTPTransport(uds=str(folder / "s"))
        async with (
            httpx2.AsyncClient(transport=wire, timeout=60) as web,
            Client(streamable_http_client("http://localhost/mcp", http_client=web), mode=ERAS[1]) as session,
        ):
            await session.call_tool("mission_abort", {"session_id": f"mission-{'0' * 16}"})

    anyio.run(main)
    running.end(signal.SIGTERM)
    (line,) = place.json("audit")["audit"]
    assert (line["transport"], line["who"] == "anyone on this machine") == ("socket", False)


@pytest.mark.parametrize("there", ["dead", "file", "long"])
def test_the_file_of_a_dead_server_is_replaced_and_any_other_is_not(there: str, folder: Path) -> None:
    path = folder / ("s" * (200 if there == "long" else 1))
    if there == "dead":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        HttpBinding(unix_socket=path).listen().close()
        assert not path.exists()
        return
    if there == "file":
        path.write_text("mine", encoding="utf-8")
    with pytest.raises(InvalidArgument, match="is not a socket" if there == "file" else "cannot listen on"):
        bind_unix(path)
    assert there != "file" or path.read_text("utf-8") == "mine"


def test_a_server_that_stops_leaves_the_socket_of_another(folder: Path) -> None:
    path = folder / "s"
    first = HttpBinding(unix_socket=path).listen()
    path.unlink()  # as a program that cleans up does
    second = HttpBinding(unix_socket=path).listen()
    first.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    second.close()
    assert not path.exists()


def test_of_servers_that_start_at_once_one_has_the_socket(folder: Path) -> None:
    path, starters = folder / "s", 6
    meet = threading.Barrier(starters)

    def start(_: int) -> Listener | None:
        meet.wait(60)
        try:
            return HttpBinding(unix_socket=path).listen()
        except InvalidArgument:
            return None

    with ThreadPoolExecutor(starters) as pool:
        for _ in range(40):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
            (alone,) = [one for one in pool.map(start, range(starters)) if one is not None]
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            alone.close()
