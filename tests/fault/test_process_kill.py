"""Commands whose server, supervisor or machine goes away."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import process_serving
import psutil
import pytest
from front_door import wait_until
from process_ends import lives
from process_stage import Stage, on_stage, python, until

from pursuit.core.tasks import TaskState
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.reader import LOG, read_log
from pursuit.tasks.store import TaskRecords

SOAK = "PURSUIT_SOAK" in os.environ

# Writes so many numbered lines, a part each time that it is let, and leaves a mark of its own for every start.
WRITER = """
import os, sys, time
folder, count, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
open(folder + "/starts", "a").write("x")
for part in range(parts):
    for number in range(count * part // parts, count * (part + 1) // parts):
        sys.stdout.write("line %d\\n" % number)
    sys.stdout.flush()
    while part < parts - 1 and not os.path.exists(folder + "/go%d" % part): time.sleep(0.005)
sys.exit(7)
"""


def serving(folder: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, process_serving.__file__, str(folder), *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


async def stored(folder: Path, task_id: str, units: int | None = None) -> TaskState:
    """The task once so many units are marked, or once it has ended."""
    ledger = SqliteLedger.open(folder / "ledger.db")
    try:
        with anyio.fail_after(120):
            return await TaskRecords(ledger).wait(
                task_id, lambda now: now.terminal or (units is not None and now.done >= units)
            )
    finally:
        await ledger.close()


def logged(folder: Path, task_id: str) -> Iterator[bytes]:
    place, held = 0, b""
    while True:
        data, place = read_log(folder / "tasks" / task_id, LOG, place, 1 << 20)
        *lines, held = (held + data).split(b"\n")
        yield from lines
        if not data:
            assert held == b""
            return


def assert_every_line_once(folder: Path, task_id: str, count: int) -> None:
    for number, line in enumerate(logged(folder, task_id)):
        assert line == b"line %d" % number
    assert number == count - 1


@pytest.mark.slow
@pytest.mark.guarantee("commands-survive-us")
async def test_every_line_counts_once_across_three_kills(tmp_path: Path) -> None:
    count, parts = (1_000_000 if SOAK else 40_000), 4
    server = serving(tmp_path, WRITER, str(tmp_path), str(count), str(parts))
    task_id = server.stdout.readline().strip()
    for part in range(parts - 1):
        # Killed after a mark in the middle of what it reads, while the command writes.
        await stored(tmp_path, task_id, units=count * part // parts + 1)
        kill(server)
        (tmp_path / f"go{part}").touch()
        server = serving(tmp_path)
    state = await stored(tmp_path, task_id)
    server.communicate(timeout=120)
    assert (state.status, state.exit_code, state.done) == ("failed", 7, count)
    assert_every_line_once(tmp_path, task_id, count)
    assert (tmp_path / "starts").read_text() == "x"
    assert not list((tmp_path / "tasks" / task_id).glob("out.*"))


@pytest.mark.slow
@pytest.mark.guarantee("commands-survive-us")
async def test_killed_at_random_moments_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    """Also before the command was started: then it never is, and the task says so."""
    chance = random.Random(4)
    for run in range(60 if SOAK else 4):
        folder = tmp_path / str(run)
        folder.mkdir()
        count = 60_000 if SOAK else 20_000
        for part in range(3):
            (folder / f"go{part}").touch()
        server = serving(folder, WRITER, str(folder), str(count), "4")
        task_id = server.stdout.readline().strip()
        starts = folder / "starts"
        if run == 0:  # how many of the others get so far is the machine's affair
            wait_until(starts.exists, "the start of the command", seconds=120)
        for _ in range(3):
            time.sleep(chance.choice([0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5)]))
            kill(server)
            server = serving(folder)
        state = await stored(folder, task_id)
        server.communicate(timeout=120)
        if starts.exists():
            assert (state.status, state.exit_code, state.done, starts.read_text()) == ("failed", 7, count, "x")
            assert_every_line_once(folder, task_id, count)
        else:
            assert "was not started" in state.message


def killed_supervisor(folder: Path, task_id: str) -> int:
    meta = json.loads((folder / "meta").read_text())
    os.kill(meta["supervisor"]["pid"], signal.SIGKILL)
    return meta["pid"]


@pytest.mark.parametrize("silent", [True, False])
async def test_a_supervisor_that_is_killed_fails_its_tasks_with_the_reason_and_leaves_nothing(
    tmp_path: Path, silent: bool
) -> None:
    source = "import time; print('line 1', flush=True)\nwhile True: time.sleep(0.05)" + ("" if silent else "; print(1)")
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python(source, grace=0.2))
        await stage.store.wait(task_id, lambda now: now.message is not None)
        pid = killed_supervisor(stage.place(task_id), task_id)
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("failed", None)
        assert "exit code is not known" in state.message
        assert not lives(pid)
        assert (await stage.processes.tail(task_id))[0] == "line 1"
        # The next command gets a supervisor of its own.
        again = await stage.run(python("print(2)"))
        assert (again.status, await stage.processes.tail(again.task_id)) == ("completed", ["2"])


async def test_a_pid_that_another_process_has_got_is_not_ours(tmp_path: Path) -> None:
    """As after a restart of the machine: no supervisor, and a stranger behind the number."""
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python("import time; print('line 1', flush=True); time.sleep(60)", grace=0.2))
        await stage.store.wait(task_id, lambda now: now.message is not None)
    folder = tmp_path / "tasks" / task_id
    os.kill(killed_supervisor(folder, task_id), signal.SIGKILL)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        meta = json.loads((folder / "meta").read_text())
        (folder / "meta").write_text(json.dumps({**meta, "pid": stranger.pid}))

        async def back(stage: Stage) -> None:
            state = await stage.store.wait(task_id)
            assert (state.status, state.exit_code) == ("failed", None)

        async with on_stage(tmp_path) as it:
            await back(it)
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


async def test_a_command_that_nobody_started_is_never_started(tmp_path: Path) -> None:
    """Its server died between the record and the start; a supervisor that gets to it later is too late."""
    async with on_stage(tmp_path) as stage:
        for laid_out in (False, True):
            state = await stage.store.create(kind="process", title="t", requestor="local", owner="owner-of-before")
            if laid_out:
                folder = stage.place(state.task_id)
                folder.mkdir()
                (folder / "command").write_text(json.dumps(python("print(1)").stored()))
            state = await stage.store.wait(state.task_id)
            assert state.status == "failed"
            assert "was not started" in state.message
        assert json.loads((folder / "claim").read_text()) == {"void": True}


async def test_a_supervisor_that_is_killed_while_it_starts_commands_leaves_no_process_and_no_open_task(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        first = await stage.begin(python("import time; time.sleep(3600)", grace=0.2))
        await until(lambda: (stage.place(first) / "meta").exists())
        ids = [first, *[await stage.begin(python("import time; time.sleep(3600)", grace=0.2)) for _ in range(20)]]
        killed_supervisor(stage.place(first), first)
        assert (await stage.store.wait(first)).status == "failed"
        for task_id in ids[1:]:  # those that the next supervisor got run, the others failed
            await stage.host.cancel(task_id)
            assert (await stage.store.wait(task_id)).status in {"failed", "cancelled"}
        assert not [pid for pid in psutil.pids() if tag_of(pid) in ids]


def tag_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get("PURSUIT_TASK_ID")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None
