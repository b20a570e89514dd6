"""A worker in a process of its own, killed in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.host import TaskHost
from pursuit.tasks.store import TaskRecords

WORKER = """
import sys, anyio
from pathlib import Path
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.execution import task_execution
from pursuit.tasks.store import TaskRecords

async def main():
    ledger = SqliteLedger.open(Path(sys.argv[1]))
    try:
        async with task_execution(sys.argv[2], TaskRecords(ledger)) as ctx:
            await ctx.update_status("at work", done=1)
            print("at work", flush=True)
            if sys.argv[3] == "raise":
                raise ValueError("no luck")
            if sys.argv[3] == "hang":
                await anyio.sleep_forever()
            await ctx.complete("done elsewhere")
    finally:
        await ledger.close()

anyio.run(main)
"""


async def played(tmp_path: Path, how: str) -> tuple[str, str | None]:
    """The status and message that a task has after a worker in another process did this."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    store = TaskRecords(ledger)
    with anyio.fail_after(180):
        async with TaskHost(store) as host:
            host.maintain()
            task_id = (await store.create(kind="work", title="t", requestor="local")).task_id
            argv = [sys.executable, "-c", WORKER, str(tmp_path / "ledger.db"), task_id, how]
            worker = await anyio.open_process(argv, stderr=subprocess.DEVNULL)
            assert b"at work" in await worker.stdout.receive()
            if how == "hang":
                assert (await store.get(task_id)).message == "at work"
                os.kill(worker.pid, signal.SIGKILL)
            state = await store.wait(task_id)
            await worker.wait()
            await worker.aclose()
    await ledger.close()
    return state.status, state.message


@pytest.mark.guarantee("work-from-any-process")
async def test_a_worker_that_is_killed_leaves_a_failed_task_with_the_reason(tmp_path: Path) -> None:
    status, message = await played(tmp_path, "hang")
    assert status == "failed"
    assert "the process that ran it ended" in (message or "")


@pytest.mark.guarantee("work-from-any-process")
async def test_a_worker_in_another_process_completes_a_task(tmp_path: Path) -> None:
    assert (await played(tmp_path, "complete"))[0] == "completed"
