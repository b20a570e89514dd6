"""Commands as tasks on a real ledger, for tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from pursuit.core.tasks import TaskState
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.command import Command
from pursuit.tasks.host import TaskHost
from pursuit.tasks.runner import Processes
from pursuit.tasks.store import TaskRecords


@dataclass
class Stage:
    folder: Path
    store: TaskRecords
    host: TaskHost
    processes: Processes

    def place(self, task_id: str) -> Path:
        return self.folder / "tasks" / task_id

    async def begin(self, command: Command) -> str:
        work = self.processes.work(command)
        state = await self.host.begin(work, kind="process", title=command.shown, requestor="local", total=command.total)
        return state.task_id

    async def run(self, command: Command) -> TaskState:
        return await self.store.wait(await self.begin(command))

    async def structured(self, state: TaskState) -> dict[str, Any]:
        result = await self.store.result(state)
        return result["structuredContent"]


@asynccontextmanager
async def on_stage(folder: Path, *, seconds: float = 60, **given: Any) -> AsyncIterator[Stage]:
    """A host of its own; what it leaves running is found again on the next stage in the same folder."""
    ledger = SqliteLedger.open(folder / "ledger.db")
    store = TaskRecords(ledger)
    try:
        with anyio.fail_after(seconds):
            async with (
                Processes(folder / "tasks", **given) as processes,
                TaskHost(store, resume={"process": processes.resume}) as host,
            ):
                host.maintain()
                yield Stage(folder, store, host, processes)
    finally:
        await ledger.close()


def python(source: str, **given: Any) -> Command:
    return Command(argv=[sys.executable, "-S", "-c", source], **given)


async def gone(path: Path) -> None:
    """Returns once nothing is there."""
    await until(lambda: not path.exists())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.01)
