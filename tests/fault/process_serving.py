"""A process that runs commands as tasks: begins the one that it is told, and sees all that it finds to their ends.

    python process_serving.py FOLDER [SCRIPT WORDS...]

It says the id of what it began; without a script it only goes on with what others left, and leaves when all has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.command import Command
from pursuit.tasks.host import TaskHost
from pursuit.tasks.runner import Processes
from pursuit.tasks.store import TaskRecords

LOG_BYTES = 1 << 30


async def main(folder: Path, words: list[str]) -> None:
    ledger = SqliteLedger.open(folder / "ledger.db")
    store = TaskRecords(ledger)
    async with (
        Processes(folder / "tasks", log_bytes=LOG_BYTES) as processes,
        TaskHost(store, resume={"process": processes.resume}) as host,
    ):
        host.maintain()
        if words:
            command = Command(argv=[sys.executable, "-S", "-c", *words], unit_pattern=r"^line (\d+)", grace=2)
            work = processes.work(command)
            state = await host.begin(work, kind="process", title="t", requestor="local")
            print(state.task_id, flush=True)
        async for row in host.retention.running():
            await store.wait(row.name)
    await ledger.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2:])
