"""What the gateway costs: a call through `pursuit serve --gateway`, by the smallest proxy of the SDK and by FastMCP's.

The server behind them (`echo_server.py`) says back what it is told. All proxies are processes of their own, asked by
the same client of the SDK, in both eras of the protocol and in interleaved rounds, for each way through: stdio to
stdio, HTTP to stdio, HTTP to HTTP. The time of a call is what the client waits; its CPU is that of the proxy's process
alone. The calls only read, by the operator's word; what a write costs, with its durable intent, is only shown. After
the rounds 64 callers at once send 20 calls each, every one with a token of its own, which must come back to it.

Run: python benchmarks/gateway.py [--check | --smoke]    (--smoke: HTTP to HTTP alone)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil
from echo_server import READS, SLEEPS, WRITES
from fastmcp_peer import fastmcp_python
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized
from front_door import ERAS, OURS
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client

HERE = Path(__file__).resolve().parent
SERVER = str(HERE / "echo_server.py")
ROUNDS = sized(9, 1)
CALLS = sized(40, 2)
CALLS_OF_PEER = sized(10, 2)
CALLERS, CALLS_EACH = sized(64, 3), sized(20, 2)
NAP = 5.0
# Short, so that all compile their modules, and with the path to the same Pursuit as ours.
ENVIRONMENT = (
    get_default_environment()
    | {"PURSUIT_TRUST": "1"}
    | {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
)
WAYS = {"stdio to stdio": (False, False), "HTTP to stdio": (True, False), "HTTP to HTTP": (True, True)}


@dataclass(slots=True, kw_only=True)
class Proxy:
    """One proxy with a client, and what each round found: seconds and CPU seconds for a call."""

    client: Client
    process: psutil.Process
    url: str | None = None
    seconds: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    async def measure(self, tool: str, calls: int, *, keep: bool = True) -> float:
        """The p50 of so many calls, one after the other."""
        before, times = cpu_seconds(self.process), list[float]()
        for number in range(calls):
            begin = time.perf_counter()
            assert await echoed(self.client, tool, f"token {number}")
            times.append(time.perf_counter() - begin)
        if keep:
            self.seconds.append(statistics.median(times))
            self.cpu.append((cpu_seconds(self.process) - before) / calls)
        return statistics.median(times)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time so far; from the scheduler where it tells, whose clock is finer than psutil's hundredths."""
    tasks = Path(f"/proc/{process.pid}/task")
    if not Path("/proc/self/schedstat").exists():
        return sum(process.cpu_times()[:2])
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


async def echoed(client: Client, tool: str, token: str) -> bool:
    """Whether a call came back, and with its own token."""
    answer = await client.call_tool(tool, {"token": token})
    return not answer.is_error and [getattr(block, "text", None) for block in answer.content] == [token]


@asynccontextmanager
async def proxy_over_stdio(words: list[str], era: str) -> AsyncGenerator[Proxy]:
    before = set(psutil.Process().children())
    transport = stdio_client(StdioServerParameters(command=sys.executable, args=words, env=ENVIRONMENT))
    async with Client(transport, mode=era, cache=None) as client:
        (process,) = set(psutil.Process().children()) - before
        yield Proxy(client=client, process=process)


@contextmanager
def process_over_http(words: list[str], lines: int = 1) -> Any:
    """A process that says its URL on the last of its first lines; its pid and these lines."""
    told, unheard = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, env=ENVIRONMENT, text=True, stdout=told, stderr=unheard) as child:
        assert child.stdout is not None
        try:
            yield child.pid, [child.stdout.readline().strip() for _ in range(lines)]
        finally:
            child.terminate()


@asynccontextmanager
async def proxy_over_http(words: list[str], era: str) -> AsyncGenerator[Proxy]:
    with process_over_http([sys.executable, *words]) as (pid, (line,)):
        url = json.loads(line)["url"] if line.startswith("{") else line
        async with Client(url, mode=era, cache=None) as client:
            yield Proxy(client=client, process=psutil.Process(pid), url=url)


@asynccontextmanager
async def peer(behind: str, era: str) -> AsyncGenerator[tuple[Proxy, str]]:
    """FastMCP's proxy, and its version."""
    words = [fastmcp_python(), str(HERE / "fastmcp_peer.py"), behind]
    with process_over_http(words, lines=2) as (pid, (version, url)):
        async with Client(url, mode=era, cache=None) as client:
            yield Proxy(client=client, process=psutil.Process(pid), url=url), version


def configured(folder: Path, names: Sequence[str], url: str | None = None) -> list[str]:
    """The words that serve a gateway in front of such servers, whose first tool only reads."""
    place = f"url = {json.dumps(url)}" if url else f'command = "__python_executable__"\nargs = [{json.dumps(SERVER)}]'
    servers = [f"[servers.{name}]\n{place}\n[servers.{name}.tools.{READS}]\nread_only = true\n" for name in names]
    folder.mkdir()
    (folder / "pursuit.toml").write_text('[policy]\nmode = "auto"\n' + "".join(servers))
    files = ["--state", str(folder / "ledger.db"), "--config", str(folder / "pursuit.toml")]
    return ["-c", OURS, "serve", "--gateway", "--log-level", "error", *files]


async def mixed_up(ours: Proxy, era: str) -> int:
    """How many calls of many callers at once were lost, or had somebody else's answer."""
    good: list[str] = []

    async def caller(number: int) -> None:
        async with AsyncExitStack() as stack:
            client = ours.client
            if ours.url is not None:
                client = await stack.enter_async_context(Client(ours.url, mode=era, cache=None))
            for count in range(CALLS_EACH):
                token = f"caller {number} call {count}"
                if await echoed(client, READS, token):
                    good.append(token)

    async with anyio.create_task_group() as calling:
        for number in range(CALLERS):
            calling.start_soon(caller, number)
    return CALLERS * CALLS_EACH - len(set(good))


def by_floor(what: str, ours: Sequence[float], floor: Sequence[float], limit: float | None = 1.3) -> Figure:
    return Figure(what=f"  {what}", value=ratio_of_rounds(ours, floor), unit="x the floor", limit=limit)


async def one_way(folder: Path, way: str, era: str) -> list[Figure]:
    downstream, upstream = WAYS[way]
    opened = proxy_over_http if downstream else proxy_over_stdio
    async with AsyncExitStack() as stack:
        behind, other, version = None, None, ""
        if upstream:
            _pid, (behind,) = stack.enter_context(process_over_http([sys.executable, SERVER, "--http"]))
            if SMOKE:
                print("FastMCP's proxy, the peer, is left out of the smoke form")
            else:
                other, version = await stack.enter_async_context(peer(behind, era))
        floor_words = [str(HERE / "smallest_proxy.py"), era, *([behind] if behind else [sys.executable, SERVER])]
        more = (["--http"], ["--http", "--port", "0", "--no-token", "--json"]) if downstream else ([], [])
        floor = await stack.enter_async_context(opened(floor_words + more[0], era))
        ours = await stack.enter_async_context(opened(configured(folder, ["up"], behind) + more[1], era))
        writes: list[float] = []
        for number in range(ROUNDS + 1):
            keep = number > 0  # the first round warms everything up
            await floor.measure(READS, CALLS, keep=keep)
            await ours.measure(READS, CALLS, keep=keep)
            if other is not None:
                await other.measure(READS, CALLS_OF_PEER, keep=keep)
            write = await ours.measure(WRITES, CALLS_OF_PEER, keep=False)
            writes += [write] if keep else []
        lost = await mixed_up(ours, era)
    figures = [
        Figure(what=f"{way}, {ERAS[era]}: the floor", value=statistics.median(floor.seconds) * 1e3, unit="ms"),
        Figure(what="  its CPU for a call", value=statistics.median(floor.cpu) * 1e3, unit="ms"),
        by_floor("gateway", ours.seconds, floor.seconds),
        by_floor("gateway's CPU for a call", ours.cpu, floor.cpu),
        by_floor("gateway, a write with its durable intent", writes, floor.seconds, limit=None),
        Figure(what=f"  calls lost or mixed up of {CALLERS} x {CALLS_EACH}", value=lost, unit="calls", limit=0),
    ]
    if other is not None:
        third = [
            (f"gateway by FastMCP {version}'s proxy", ratio_of_rounds(ours.seconds, other.seconds)),
            ("  its CPU by that proxy's", ratio_of_rounds(ours.cpu, other.cpu)),
        ]
        figures += [Figure(what=f"  {what}", value=value, unit="x", limit=1 / 3) for what, value in third]
    return figures


async def beside_a_slow_one(folder: Path, era: str) -> list[Figure]:
    """Calls to one server while another one takes its time, by the same calls while it does not."""
    quiet: list[float] = []
    busy: list[float] = []
    words = [*configured(folder, ["quick", "slow"]), "--http", "--port", "0", "--no-token", "--json"]
    async with proxy_over_http(words, era) as ours:
        for _ in range(ROUNDS + 1):
            quiet.append(await ours.measure(f"quick.{READS}", CALLS))
            async with anyio.create_task_group() as calling:
                calling.start_soon(ours.client.call_tool, f"slow.{SLEEPS}", {"seconds": NAP, "token": ""})
                await anyio.sleep(NAP / 20)
                begin = time.perf_counter()
                busy.append(await ours.measure(f"quick.{READS}", CALLS))
                assert time.perf_counter() - begin < NAP * 0.95, "the slow call was over before the quick ones"
    ratio = ratio_of_rounds(busy[1:], quiet[1:])
    return [Figure(what=f"calls beside a slow server, {ERAS[era]}", value=ratio, unit="x without", limit=1.15)]


async def measure(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    for place, era in enumerate(ERAS):
        for way in ("HTTP to HTTP",) if SMOKE else WAYS:
            figures += await one_way(folder / f"{place} {way}", way, era)
        if not SMOKE:
            figures += await beside_a_slow_one(folder / f"{place} slow", era)
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        figures = anyio.run(measure, Path(name))
    finish(f"The gateway ({ROUNDS} interleaved rounds of {CALLS} calls)", figures)


if __name__ == "__main__":
    main()
