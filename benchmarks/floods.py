"""What five floods cost a gateway and the client beside them.

`pursuit serve --gateway --http` stands in front of a good server (`echo_server.py`) and of four that flood it
(`flood_server.py`). In one run: a server sends 300 notifications of 2 MB to a client that does not read; a list has
1,000 pages of 1 MB; a result is nested 100,000 deep; a URI is compared with a template of 40 expressions; and 100
connections send half of a request and then nothing. A well-behaved client calls `echo` before and meanwhile. The
memory is that of the gateway's process.

Run: python benchmarks/floods.py [--check | --smoke]
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
from figures import Figure, finish, sized
from front_door import OURS
from gateway import ENVIRONMENT, SERVER, echoed
from mcp import Client

from pursuit.config.servers import LIMITS

CALLS = sized(200, 10)
NOTIFICATIONS, PAGES = sized(300, 30), sized(1_000, 60)
HALF_REQUESTS = sized(100, 20)
SECONDS = 60.0
PATIENCE = sized(10, 5) / 10
SUM_OF_LIMITS = (LIMITS.queued + LIMITS.list + LIMITS.result + LIMITS.unread) / 2**20
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
FLOOD_SERVER = str(Path(__file__).with_name("flood_server.py"))


def configured(folder: Path) -> list[str]:
    """The words that serve the gateway."""
    (folder / "pursuit.toml").write_text(
        '[policy]\nmode = "auto"\n'
        + f'[servers.good]\ncommand = "__python_executable__"\nargs = [{json.dumps(SERVER)}]\n'
        + "[servers.good.tools.echo]\nread_only = true\n"
        + "".join(
            f'[servers.{name}]\ncommand = "__python_executable__"\n'
            f'args = [{json.dumps(FLOOD_SERVER)}, "{name}", "{NOTIFICATIONS}", "{PAGES}"]\n'
            for name in ("notes", "pages", "deep", "trap")
        )
    )
    files = ["--state", str(folder / "ledger.db"), "--config", str(folder / "pursuit.toml")]
    words = ["serve", "--gateway", "--http", "--port", "0", "--no-token", "--json", "--log-level", "warning", *files]
    return [sys.executable, "-c", OURS, *words]


async def notifications(url: str) -> str:
    """A client that has a stream for notifications and does not read it."""
    async with httpx2.AsyncClient(timeout=SECONDS, headers=HEADERS) as http:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "mute", "version": "1"}}
        hello = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        session = {"mcp-session-id": hello.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
        await http.post(url, headers=session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
        with socket.create_connection((host, int(port))) as mute:
            head = "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, **session}.items())
            mute.sendall(f"GET /mcp HTTP/1.1\r\nhost: {host}:{port}\r\n{head}\r\n".encode())
            call = {"name": "notes.notify", "arguments": {}}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            with anyio.move_on_after(10 * PATIENCE):  # a client that does not read delays its own answers
                return (await http.post(url, headers=session, json=body)).text[:200]
            return "not read"


async def called(url: str, method: Callable[[Client], Awaitable[Any]]) -> str:
    async with Client(url, mode="legacy", cache=None) as client:
        try:
            return str(await method(client))
        except Exception as error:
            return str(error)


async def half_requests(url: str) -> None:
    """Heads without an end, and bodies of which the last byte is missing."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    with ExitStack() as stack:
        for number in range(HALF_REQUESTS):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.setblocking(False)
            head = f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
            if number % 2:
                head += "content-length: 4000000\r\n\r\n" + " " * 3_600_000
            rest = head.encode()
            while rest:
                try:
                    rest = rest[connection.send(rest) :]
                except BlockingIOError:
                    await anyio.sleep(0.005)
                except OSError:
                    break
        await anyio.sleep(PATIENCE)


async def p95(client: Client, calls: int) -> float:
    times: list[float] = []
    for number in range(calls):
        begin = time.perf_counter()
        assert await echoed(client, "good.echo", f"token {number}")
        times.append(time.perf_counter() - begin)
    return statistics.quantiles(times, n=20)[-1] * 1_000


async def measure(url: str, process: psutil.Process, said: Path) -> list[Figure]:
    most, ended = 0, dict[str, str]()

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, process.memory_info().rss)
            await anyio.sleep(0.02)

    async with Client(url, mode="legacy", cache=None) as client:
        await p95(client, 10)
        before, rest = await p95(client, CALLS), process.memory_info().rss
        during: list[float] = []
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)

            async def beside() -> None:
                while len(during) < 1 or len(ended) < 5:
                    during.append(await p95(client, 20))

            async def flood(name: str, work: Awaitable[Any]) -> None:
                with anyio.move_on_after(SECONDS):
                    ended[name] = str(await work)
                ended.setdefault(name, "no end")

            async with anyio.create_task_group() as floods:
                floods.start_soon(beside)
                floods.start_soon(flood, "queued", notifications(url))
                floods.start_soon(flood, "list", called(url, lambda one: one.list_resources()))
                floods.start_soon(flood, "depth", called(url, lambda one: one.call_tool("deep.deep", {})))
                trap = "trap://" + "a" * 1_500
                floods.start_soon(flood, "template", called(url, lambda one: one.read_resource(trap)))
                floods.start_soon(flood, "unread", half_requests(url))
            watching.cancel_scope.cancel()
        assert await echoed(client, "good.echo", "still there")
    told = said.read_text() + json.dumps(ended)
    named = [limit for limit in ("queued", "list", "depth", "unread") if f"limit `{limit}`" in told]
    grown = (most - rest) / 2**20
    slower = statistics.median(during) - before
    return [
        Figure(what="memory that five floods took", value=grown, unit="MiB", limit=2 * SUM_OF_LIMITS),
        Figure(what="p95 of a call beside them, before", value=before, unit="ms"),
        Figure(what="p95 of a call beside them, added", value=slower, unit="ms", limit=max(50.0, before)),
        Figure(
            what="floods that ended", value=sum(one != "no end" for one in ended.values()), unit="", rule=">=", limit=5
        ),
        Figure(what="limits named in an error", value=len(named), unit=f"({', '.join(named)})", rule=">=", limit=4),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said = folder / "stderr"
        with (
            said.open("w") as stderr,
            subprocess.Popen(
                configured(folder), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=stderr
            ) as child,
        ):
            try:
                assert child.stdout is not None
                line = child.stdout.readline().strip()
                url = json.loads(line)["url"] if line.startswith("{") else line
                figures = anyio.run(measure, url, psutil.Process(child.pid), said)
            finally:
                child.terminate()
        if "-v" in sys.argv:
            print(said.read_text()[-4000:])
    finish("Floods", figures)


if __name__ == "__main__":
    main()
