"""`pursuit serve --gateway` as people run it: over stdio and HTTP, killed in the middle, asked about from elsewhere."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import HTTP
from mcp import Client
from mcp_types import ElicitResult, TextContent
from quick_start import fresh, pursuit

SERVER = Path(__file__).parent.parent / "servers" / "hostile_upstream.py"
ERAS = ("legacy", "2026-07-28")


class Place:
    """A folder with a configuration of one server, and the commands that are run there."""

    def __init__(self, folder: Path, *, modern: bool = False, mode: str = "auto", fresh: bool = False) -> None:
        self.folder = folder
        self.fresh = fresh
        self.log = folder / "log"
        self.modern = modern
        self.write("hostile", mode=mode)

    def write(self, *names: str, mode: str = "auto") -> None:
        words = ["-S", str(SERVER), "tidy", f"log={self.log}", *(["modern"] if self.modern else [])]
        servers = [
            f'[servers.{name}]\ncommand = "__python_executable__"\nargs = {json.dumps([*words, f"name={name}"])}\n'
            for name in names
        ]
        (self.folder / "pursuit.toml").write_text(f'[policy]\nmode = "{mode}"\n' + "".join(servers))

    def command(self, *words: str) -> list[str]:
        """How `pursuit` is run; `fresh` is for tests of the process itself: its end, its signals, its terminal."""
        return [*(fresh() if self.fresh else pursuit()), *words]

    def pursuit(self, *words: str) -> Any:
        done = subprocess.run(
            [*pursuit(), *words, "--json"], cwd=self.folder, capture_output=True, text=True, timeout=180, check=True
        )
        return json.loads(done.stdout)

    @contextmanager
    def serving(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            self.command("serve", "--gateway", *words),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    @contextmanager
    def http(self) -> Iterator[str]:
        with self.serving(*HTTP, "--json") as process:
            yield json.loads(process.stdout.readline())["url"]


class Lines:
    """A client of the old era over the pipes of a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ids = 0
        self.told: list[dict[str, Any]] = []
        info = {"name": "t", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
        self.say({"method": "notifications/initialized"})

    def say(self, message: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

    def hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        assert line, self._process.stderr and self._process.stderr.read()
        return json.loads(line)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self._ids += 1
        self.say({"id": self._ids, "method": method, "params": params or {}})
        while (message := self.hear()).get("id") != self._ids:
            self.told.append(message)
        return message["result"]

    def call(self, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments or {}})


def calls(place: Place) -> list[str]:
    lines = place.log.read_text().splitlines() if place.log.exists() else []
    return [one["params"]["name"] for one in map(json.loads, lines) if one.get("method") == "tools/call"]


def test_over_stdio_results_come_byte_for_byte_and_nothing_is_left_behind(tmp_path: Path) -> None:
    place = Place(tmp_path, fresh=True)
    with place.serving() as process:
        client = Lines(process)
        client.say({"id": "raw", "method": "tools/call", "params": {"name": "mixed", "arguments": {}}})
        through = client.hear()["result"]
        process.stdin.close()
        assert process.wait(120) == 0
    with subprocess.Popen(
        [sys.executable, "-S", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as server:
        direct = Lines(server)
        direct.say({"id": "raw", "method": "tools/call", "params": {"name": "mixed", "arguments": {}}})
        assert json.dumps(direct.hear()["result"]) == json.dumps(through)
        server.stdin.close()


@pytest.mark.parametrize("modern", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("era", ERAS)
async def test_over_http_clients_of_both_eras_are_asked_and_answered(era: str, modern: bool, tmp_path: Path) -> None:
    place = Place(tmp_path, modern=modern)

    async def answer(name: str, _context: Any, params: Any) -> ElicitResult:
        assert params.message == "Who?"
        return ElicitResult(action="accept", content={"name": name})

    async def one(url: str, name: str, answers: dict[str, str]) -> None:
        async def asked(context: Any, params: Any) -> ElicitResult:
            return await answer(name, context, params)

        async with Client(url, mode=era, elicitation_callback=asked, cache=None) as client:
            result = await client.call_tool("elicit", {})
            (block,) = result.content
            assert isinstance(block, TextContent)
            answers[name] = json.loads(block.text)["content"]["name"]

    with place.http() as url:
        answers: dict[str, str] = {}
        with anyio.fail_after(180):
            async with anyio.create_task_group() as calling:
                for name in ("ann", "bob", "cleo"):
                    calling.start_soon(one, url, name, answers)
        assert answers == {name: name for name in ("ann", "bob", "cleo")}


def test_a_gateway_that_is_killed_leaves_the_outcome_unknown_and_the_trail_whole(tmp_path: Path) -> None:
    place = Place(tmp_path, fresh=True)
    with place.serving() as process:
        client = Lines(process)
        client.call("echo", {"n": 1})
        client.say({"id": "slow", "method": "tools/call", "params": {"name": "slow", "arguments": {}}})
        while "slow" not in calls(place):
            time.sleep(0.02)
        process.kill()
        process.wait()
    outcomes = [(line["tool"], line["outcome"]) for line in place.pursuit("audit")["audit"] if "tool" in line]
    assert outcomes == [("hostile.echo", "ok"), ("hostile.slow", "unknown")]
    assert place.pursuit("verify")["faults"] == []


@pytest.mark.parametrize("words", [(), HTTP], ids=["stdio", "http"])
@pytest.mark.guarantee("required-servers-are-there")
def test_a_gateway_does_not_start_without_a_required_server(words: tuple[str, ...], tmp_path: Path) -> None:
    place = Place(tmp_path)
    config = tmp_path / "pursuit.toml"
    gone = '[servers.gone]\ncommand = "./nothing-there"\n'
    config.write_text(config.read_text() + gone + "required = true\n")
    done = subprocess.run(
        place.command("serve", "--gateway", *words),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "required servers cannot be reached: server 'gone'" in done.stderr
    assert "Traceback" not in done.stderr
    config.write_text(config.read_text().replace("required = true\n", ""))
    with place.serving() as process:
        assert "hostile.echo" in [tool["name"] for tool in Lines(process).ask("tools/list")["tools"]]
        process.terminate()
        assert process.stderr is not None and "'gone'" in process.stderr.read()


@pytest.mark.parametrize("words", [(), HTTP], ids=["stdio", "http"])
def test_a_gateway_ends_with_its_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    place = Place(tmp_path, fresh=True)
    ours, its = os.openpty()
    try:
        with subprocess.Popen(
            place.command("serve", "--gateway", *words),
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=its,
        ) as process:
            try:
                seen = b""
                while b"serving" not in seen and b"listening" not in seen:
                    seen += os.read(ours, 10_000)
                os.kill(process.pid, signal.SIGHUP)
                assert process.wait(120) == 0
                while b"stopped" not in seen:
                    assert select.select([ours], [], [], 60)[0], seen
                    seen += os.read(ours, 10_000)
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(its)


def test_a_hang_up_makes_it_read_its_configuration_again(tmp_path: Path) -> None:
    place = Place(tmp_path, fresh=True)
    with place.serving() as process:
        client = Lines(process)
        client.call("steps")
        place.write("hostile", "other")
        os.kill(process.pid, signal.SIGHUP)
        while (message := client.hear()).get("method") != "notifications/tools/list_changed":
            assert "id" not in message
        assert client.call("other.steps")["content"][0]["text"] == "without"
        assert client.call("hostile.steps")["content"][0]["text"] == "without"
