"""What commands as tasks cost: lines a second by a bare asyncio reader, memory, and many commands side by side.

The command writes two million lines of 100 bytes, as `yes` does. The bare reader takes them from its pipe with asyncio,
line by line, and does nothing with them. Our runner is all of it: supervisor, spool, reader, log, marks in the
ledger and the settled task. Both are measured in this process, in interleaved rounds. Then 500 commands that sleep run
side by side: the memory is this process's alone, a cancel is answered when its order is durable.

Run: python benchmarks/tasks.py [--check | --smoke]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
from figures import Figure, finish, ratio_of_rounds, sized
from waiting import MEGABYTE, peak, resident

from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.command import Command
from pursuit.tasks.host import TaskHost
from pursuit.tasks.runner import Processes
from pursuit.tasks.store import TaskRecords

LINES = sized(2_000_000, 2_000)
WARM = sized(200_000, 200)
ROUNDS = sized(3, 1)
SLEEPS = sized(500, 2)
NUMBERED = "seq -f 'unit %09.0f" + " x" * 42 + "' "


def chatter(lines: int) -> list[str]:
    return ["sh", "-c", f"yes {'x' * 99} | head -n {lines}"]


class Stage:
    """A host for commands on a ledger of its own, which counts what is appended."""

    def __init__(self, folder: Path, ledger: SqliteLedger, host: TaskHost, processes: Processes) -> None:
        self.folder, self.host, self.processes = folder, host, processes
        self.appends = 0
        append = ledger.append

        async def counted(*given: Any, **named: Any) -> Any:
            self.appends += 1
            return await append(*given, **named)

        ledger.append = counted

    async def begin(self, command: Command) -> str:
        work = self.processes.work(command)
        return (await self.host.begin(work, kind="process", title=command.shown, requestor="local")).task_id


@asynccontextmanager
async def stage() -> Any:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = SqliteLedger.open(folder / "ledger.db")
        try:
            async with (
                Processes(folder / "tasks") as processes,
                TaskHost(TaskRecords(ledger), resume={"process": processes.resume}) as host,
            ):
                host.maintain()
                yield Stage(folder, ledger, host, processes)
        finally:
            await ledger.close()


async def bare(lines: int) -> float:
    """Lines a second that asyncio alone reads."""
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*chatter(lines), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    count = 0
    async for _ in process.stdout:
        count += 1
    await process.wait()
    assert count == lines
    return lines / (time.perf_counter() - begin)


async def ours(here: Stage, lines: int, argv: list[str] | None = None, **given: Any) -> float:
    """Lines a second from the creation of the task to its settlement."""
    begin = time.perf_counter()
    task_id = await here.begin(Command(argv=argv or chatter(lines), **given))
    state = await here.host.store.wait(task_id)
    seconds = time.perf_counter() - begin
    assert (state.exit_code, state.mark["lines"]) == (0, lines)
    return lines / seconds


async def throughput(here: Stage) -> list[Figure]:
    await bare(WARM)
    await ours(here, WARM)
    before, rates = peak(), ([], [])
    for _ in range(ROUNDS):
        rates[0].append(await bare(LINES))
        rates[1].append(await ours(here, LINES))
    grown = peak() - before
    numbered = ["sh", "-c", f"{NUMBERED} {WARM}"]
    counted = await ours(here, WARM, numbered, unit_pattern=r"^unit (\d+)")
    return [
        Figure(
            what="lines read, by a bare asyncio reader",
            value=ratio_of_rounds(rates[1], rates[0]),
            unit="x",
            rule=">=",
            limit=0.5,
        ),
        Figure(what="memory grown over all of them", value=grown, unit="MB", rule="<", limit=16),
        Figure(what="lines a second, bare", value=statistics.median(rates[0]), unit="lines/s"),
        Figure(what="lines a second, ours", value=statistics.median(rates[1]), unit="lines/s"),
        Figure(what="the same with a unit in each line", value=counted, unit="lines/s"),
    ]


async def started(here: Stage, task_id: str) -> int:
    """The supervisor's pid, once the command runs."""
    meta = here.folder / "tasks" / task_id / "meta"
    while not meta.exists():
        await anyio.sleep(0.005)
    return int(json.loads(meta.read_text())["supervisor"]["pid"])


async def side_by_side(here: Stage) -> list[Figure]:
    before = here.appends
    first = await here.begin(Command(argv=["sleep", "600"]))
    supervisor = await started(here, first)
    commits = here.appends - before
    begin = time.perf_counter()
    ids = [await here.begin(Command(argv=["sleep", "600"])) for _ in range(SLEEPS)]
    for task_id in ids:
        await started(here, task_id)
    starting = (time.perf_counter() - begin) / SLEEPS
    memory, kept = resident(), psutil.Process(supervisor).memory_info().rss / MEGABYTE
    answers: list[float] = []
    for task_id in ids:
        begin = time.perf_counter()
        await here.host.cancel(task_id)
        answers.append(time.perf_counter() - begin)
    await here.host.cancel(first)
    begin = time.perf_counter()
    states = [await here.host.store.wait(task_id) for task_id in [first, *ids]]
    ending = time.perf_counter() - begin
    assert {state.status for state in states} == {"cancelled"}
    return [
        Figure(what="awaited commits to create a task and start it", value=commits, unit="", limit=2),
        Figure(what=f"memory with {SLEEPS} commands side by side", value=memory, unit="MB", rule="<", limit=200),
        Figure(what="the supervisor's own", value=kept, unit="MB"),
        Figure(what="a command started, one by one", value=starting * 1000, unit="ms"),
        Figure(what="a cancel answered, p50", value=statistics.median(answers) * 1000, unit="ms", rule="<", limit=50),
        Figure(what="all of them gone after the last cancel", value=ending, unit="s"),
    ]


async def main() -> list[Figure]:
    async with stage() as here:
        figures = await throughput(here)
    async with stage() as here:
        return [*figures, *await side_by_side(here)]


if __name__ == "__main__":
    finish("Commands as tasks", anyio.run(main))
