"""What this tree costs by another commit: instructions of the engine, and interleaved medians of engine and servers.

Instructions are counted by valgrind's cachegrind in a run of few and a run of many iterations; their difference is what
iterations cost, whatever else the machine does. Each form of `engine.py` is counted: other arguments and another result
in every step, and always the same. Times are of the two sources in turns, by the same client. Both sources run in this
environment, so a commit that needs other packages cannot be compared.

Run: python benchmarks/against.py COMMIT [--smoke]
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from echo_server import READS
from figures import Figure, finish, ratio_of_rounds, sized
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client

ROOT = Path(__file__).resolve().parents[1]
OURS = "from pursuit.cli.main import main; main()"
MISSIONS = sized(50, 2)
FEW, MANY = sized(2, 1), sized(12, 2)
ROUNDS, STEPS, CALLS = sized(9, 1), sized(100, 2), sized(40, 2)

WORK = """
import sys, time
from pathlib import Path
import anyio
import pursuit.ledger.watch
from pursuit import Budget, Mission, Proposal, RepeatProposer, ReplayProposer, Runtime, ToolCall, metric
from pursuit.config.configuration import Configuration

pursuit.ledger.watch.LOOK_SECONDS = 3_600  # a look at other processes costs by time and not by iteration

def step(x: int) -> dict:
    return {"metrics": {"loss": 1.0 + x * 7_919 % 10_007 / 10_007}}

def mission(form):
    same = RepeatProposer(tool_name="bench.step", args={"x": 1})
    calls = [ToolCall(tool_name="bench.step", args={"x": number}) for number in range(100)]
    varied = ReplayProposer(proposals=[Proposal(tool_calls=[call]) for call in calls])
    return Mission(
        directive="Bring the loss to zero", criteria=[metric("loss") <= 0], tool_allowlist=["bench.step"],
        budget=Budget(max_iterations=1_000_000), stagnation_threshold="off",
        proposer=varied if form == "varied" else same,
    )

def drive(runtime, name, iterations):
    try:
        from pursuit.engine.driver import RunOrder
    except ImportError:  # before runs had orders
        return runtime.service.driver.drive(name, iterations=iterations)
    return runtime.runner.driver.drive(RunOrder(name, iterations=iterations))

async def main(folder, form, missions, iterations):
    async with Runtime(state=Path(folder) / "a.db", config=Configuration(), servers={"bench": [step]}) as runtime:
        started = [await (getattr(runtime, "runner", None) or runtime.service).start(mission(form))
                   for _ in range(missions)]
        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for one in started:
                tasks.start_soon(drive, runtime, one.session_id, iterations)
        print(time.perf_counter() - begin)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""


class Source:
    """A source tree that processes import `pursuit` from."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.name, self.scratch = name, scratch
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PURSUIT_TRUST": "1", "PYTHONHASHSEED": "0"}

    def work(self, form: str, missions: int, iterations: int, *before: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            words = [*before, sys.executable, "-c", WORK, folder, form, str(missions), str(iterations)]
            return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=True)

    def seconds(self, form: str, missions: int, iterations: int) -> float:
        return float(self.work(form, missions, iterations).stdout)

    def instructions(self, form: str, missions: int) -> float:
        """What one iteration of one mission costs, beside so many."""
        valgrind = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
        counted: list[int] = []
        for iterations in (FEW, MANY):
            told = re.search(r"I\s+refs:\s+([\d,]+)", self.work(form, missions, iterations, *valgrind).stderr)
            assert told is not None
            counted.append(int(told[1].replace(",", "")))
        return (counted[1] - counted[0]) / (missions * (MANY - FEW))

    async def served(self, stack: AsyncExitStack, *words: str) -> Client:
        """A client of `pursuit serve`, with a ledger of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        server = [json.dumps(one) for one in (sys.executable, str(ROOT / "benchmarks" / "echo_server.py"))]
        text = f'[policy]\nmode = "auto"\n[servers.up]\ncommand = {server[0]}\nargs = [{server[1]}]\n'
        (folder / "pursuit.toml").write_text(f"{text}[servers.up.tools.{READS}]\nread_only = true\n")
        files = ["--state", str(folder / "ledger.db"), "--config", str(folder / "pursuit.toml")]
        args = ["-c", OURS, "serve", *words, "--log-level", "error", *files]
        kept = {key: self.environment[key] for key in ("PYTHONPATH", "PURSUIT_TRUST")}
        at = StdioServerParameters(command=sys.executable, args=args, env=get_default_environment() | kept)
        return await stack.enter_async_context(Client(stdio_client(at), cache=None))


async def gateway_call(client: Client) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        answer = await client.call_tool(READS, {"token": "a"})
        assert not answer.is_error, answer

    return call


async def iterate(client: Client) -> Callable[[], Awaitable[None]]:
    """One `mission_iterate` with a call that the client hands in."""
    started = await client.call_tool(
        "mission_start",
        {
            "directive": "Say it",
            "criteria": [{"kind": "event", "criterion_id": "never", "event_name": "never", "required": True}],
            "budget": {"max_iterations": 1_000_000},
            "tool_allowlist": [f"up.{READS}"],
            "stagnation_threshold": "off",
        },
    )
    assert not started.is_error, started
    assert started.structured_content is not None
    mission_id, count = started.structured_content["session_id"], 0

    async def call() -> None:
        nonlocal count
        count += 1
        asked = {"tool_calls": [{"tool_name": f"up.{READS}", "args": {"token": str(count)}}]}
        answer = await client.call_tool("mission_iterate", {"session_id": mission_id, "proposal": asked})
        assert not answer.is_error, answer

    return call


async def medians(
    sources: tuple[Source, Source], words: list[str], made: Callable[[Client], Awaitable[Callable[[], Awaitable[None]]]]
) -> tuple[list[float], list[float]]:
    """The median seconds of a call in each round, for both sources."""
    found: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        calls = [await made(await one.served(stack, *words)) for one in sources]
        for number in range(ROUNDS + 1):
            for kept, call in zip(found, calls, strict=True):
                times: list[float] = []
                for _ in range(CALLS):
                    begin = time.perf_counter()
                    await call()
                    times.append(time.perf_counter() - begin)
                if number > 0:  # the first round warms everything up
                    kept.append(statistics.median(times))
    return found


def measure(now: Source, then: Source) -> list[Figure]:
    figures: list[Figure] = []
    for form, missions in (("varied", MISSIONS), ("varied", 1), ("same", MISSIONS))[: sized(3, 1)]:
        costs = [one.instructions(form, missions) for one in (now, then)]
        what = f"instructions of an iteration, {form}, {missions} missions"
        most = 450 if (form, missions) == ("varied", MISSIONS) else None
        figures += [Figure(what=what, value=costs[0] / 1e3, unit="k", limit=most)]
        figures += [Figure(what=f"  by {then.name}", value=costs[0] / costs[1], unit="x", limit=1.02)]
        times = [(now.seconds(form, missions, STEPS), then.seconds(form, missions, STEPS)) for _ in range(ROUNDS)]
        ours, theirs = zip(*times, strict=True)
        figures += [Figure(what="  seconds", value=ratio_of_rounds(ours, theirs), unit="x")]
    for what, words, made in (("gateway call", ["--gateway"], gateway_call), ("mission_iterate", [], iterate)):
        ours, theirs = anyio.run(medians, (now, then), words, made)
        figures += [Figure(what=what, value=statistics.median(ours) * 1e3, unit="ms")]
        figures += [Figure(what=f"  by {then.name}", value=ratio_of_rounds(ours, theirs), unit="x", limit=1.05)]
    return figures


def main() -> None:
    commits = [word for word in sys.argv[1:] if not word.startswith("-")]
    if len(commits) != 1:
        sys.exit("give the commit to compare with: python benchmarks/against.py COMMIT")
    if shutil.which("valgrind") is None:
        sys.exit("valgrind counts the instructions; install it (Debian's package valgrind)")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        packed = subprocess.run(["git", "archive", commits[0], "src"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(scratch, filter="data")
        figures = measure(Source("this tree", ROOT / "src", scratch), Source(commits[0], scratch / "src", scratch))
    finish(f"This tree by {commits[0]}", figures)


if __name__ == "__main__":
    main()
