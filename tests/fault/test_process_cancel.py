"""Cancel: the whole tree, whatever it ignores and wherever it went."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest
from process_ends import lives
from process_stage import Stage, on_stage, python, until
from promptly import promptly

from pursuit.tasks.command import Command

# Three generations that ignore SIGTERM; the last two left the group, and the last has no environment either.
TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
depth, folder, leave = int(sys.argv[1]), sys.argv[2], sys.argv[3]
open(f"{folder}/pid{depth}", "w").write(str(os.getpid()))
if depth < 3:
    words = [sys.executable, "-S", "-c", open(f"{folder}/tree.py").read(), str(depth + 1), folder, leave]
    if os.fork() == 0:
        if leave == "leave":
            os.setsid()
        os.execve(sys.executable, words, {} if leave == "leave" and depth == 2 else dict(os.environ))
print("up", depth, flush=True)
while True:
    time.sleep(0.05)
"""


def pids(folder: Path) -> list[int]:
    return [int((folder / f"pid{depth}").read_text()) for depth in (1, 2, 3)]


def tree(folder: Path, leave: str, **given: float) -> Command:
    (folder / "tree.py").write_text(TREE)
    argv = [sys.executable, "-S", "-c", TREE, "1", str(folder), leave]
    return Command(argv=argv, unit_pattern=r"up (\d)", disclaimer="Half of it is there.", **given)


@pytest.mark.guarantee("cancel-ends-the-tree")
@pytest.mark.parametrize("leave", ["stay", "leave"])
async def test_a_tree_that_ignores_everything_is_gone_within_grace_and_a_second(tmp_path: Path, leave: str) -> None:
    grace = 1.0

    async def cancelled(stage: Stage, folder: Path) -> float:
        folder.mkdir()
        task_id = await stage.begin(tree(folder, leave, grace=grace))
        await stage.store.wait(task_id, lambda now: now.done == 3)
        assert all(lives(pid) for pid in pids(folder))
        begin = time.monotonic()
        await stage.host.cancel(task_id, reason="enough")
        state = await stage.store.wait(task_id)
        took = time.monotonic() - begin
        assert not any(lives(pid) for pid in pids(folder))
        assert (state.status, state.exit_code) == ("cancelled", 137)
        structured = await stage.structured(state)
        assert (structured["status"], structured["disclaimer"]) == ("cancelled", "Half of it is there.")
        assert len(await stage.processes.tail(task_id)) == 3
        return took

    async with on_stage(tmp_path, seconds=120) as stage:
        for number, watch in enumerate(promptly(grace + 1)):
            watch.took = await cancelled(stage, tmp_path / f"try-{number}")
            assert watch.took >= grace


# A child in a session of its own, without an environment, that ignores SIGTERM: `lonely` has lost its parent before the
# cancel but writes where the command does; `silent` writes nowhere and loses its parent to the cancel's SIGTERM;
# `daemon` has lost its parent and writes nowhere.
ESCAPE = """
import os, signal, sys, time
folder, how = sys.argv[1:]
if "ESCAPED" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{folder}/new", "w").write(str(os.getpid()))
    os.rename(f"{folder}/new", f"{folder}/child")
    while True:
        time.sleep(0.05)
if os.fork() == 0:
    if how in ("lonely", "daemon") and os.fork():
        os._exit(0)
    os.setsid()
    if how in ("silent", "daemon"):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
    os.execve(sys.executable, [sys.executable, "-S", f"{folder}/escape.py", folder, how], {"ESCAPED": "1"})
if how in ("lonely", "daemon"):
    os.wait()
while not os.path.exists(f"{folder}/child"):
    time.sleep(0.01)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no subreapers")
@pytest.mark.parametrize("how", ["lonely", "silent", "daemon"])
async def test_a_child_that_lost_everything_does_not_get_away(tmp_path: Path, how: str) -> None:
    (tmp_path / "escape.py").write_text(ESCAPE)
    words = [sys.executable, "-S", str(tmp_path / "escape.py"), str(tmp_path), how]
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(Command(argv=words, grace=0.5))
        await stage.store.wait(task_id, lambda now: now.message == "up")
        child = int((tmp_path / "child").read_text())
        assert lives(child)
        await stage.host.cancel(task_id)
        assert (await stage.store.wait(task_id)).status == "cancelled"
        got_away = lives(child)
        if got_away:
            os.kill(child, 9)
        assert not got_away


# Two orphans in sessions of their own, without an environment: one ends at once, the other is left behind.
LEAVES = """
import os, sys, time
folder = sys.argv[1]
for name, words in (("quick", ["true"]), ("daemon", ["sleep", "600"])):
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        os.setsid()
        open(f"{folder}/{name}", "w").write(str(os.getpid()))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        os.execve(f"/bin/{words[0]}", words, {})
    os.wait()
print("up", flush=True)
while not os.path.exists(f"{folder}/end"):
    time.sleep(0.01)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no subreapers")
async def test_orphans_are_reaped_and_what_a_command_leaves_behind_lives_on(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(Command(argv=[sys.executable, "-S", "-c", LEAVES, str(tmp_path)]))
        await stage.store.wait(task_id, lambda now: now.message == "up")
        await until(lambda: (tmp_path / "daemon").exists() and (tmp_path / "daemon").read_text() != "")
        daemon = int((tmp_path / "daemon").read_text())
        try:
            meta = json.loads((stage.place(task_id) / "meta").read_text())
            above = psutil.Process(meta["subreaper"]["pid"])
            await until(lambda: {child.pid for child in above.children()} == {meta["pid"], daemon})
            (tmp_path / "end").touch()
            assert (await stage.store.wait(task_id)).status == "completed"
            assert lives(daemon)
        finally:
            os.kill(daemon, 9)


async def test_who_leaves_when_asked_is_not_waited_for(tmp_path: Path) -> None:
    source = """
import os, signal, time
def leave(*_): os.write(1, b"tidied up\\n"); os._exit(0)  # not print: the signal may come inside the other one
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True); time.sleep(60)
"""
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python(source, grace=30))
        await stage.store.wait(task_id, lambda now: now.message == "ready")
        begin = time.monotonic()
        await stage.host.cancel(task_id)
        state = await stage.store.wait(task_id)
        assert time.monotonic() - begin < 10
        assert (state.status, state.exit_code) == ("cancelled", 0)
        assert await stage.processes.tail(task_id) == ["ready", "tidied up"]


async def test_a_cancel_in_the_moment_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        for _ in range(5):
            task_id = await stage.begin(python("import time; time.sleep(60)", grace=5))
            await stage.host.cancel(task_id)
            state = await stage.store.wait(task_id)
            assert state.status == "cancelled"
        marked = [one for one in psutil.process_iter() if task_id in environment(one)]
        assert marked == []


def environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("PURSUIT_TASK_ID", "") if process.status() != psutil.STATUS_ZOMBIE else ""
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


async def test_a_command_that_another_process_started_can_be_cancelled(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(tree(tmp_path, "leave", grace=0.3))
        await stage.store.wait(task_id, lambda now: now.done == 3)
    assert all(lives(pid) for pid in pids(tmp_path))
    async with on_stage(tmp_path) as stage:
        await stage.host.cancel(task_id)
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("cancelled", 137)
        assert not any(lives(pid) for pid in pids(tmp_path))


@pytest.mark.slow
async def test_many_commands_side_by_side_are_all_cancelled(tmp_path: Path) -> None:
    count = 200 if "PURSUIT_SOAK" in os.environ else 40
    async with on_stage(tmp_path, seconds=120) as stage:
        ids = [await stage.begin(Command(argv=["sleep", "600"])) for _ in range(count)]
        for task_id in ids:
            while not (stage.place(task_id) / "meta").exists():
                await anyio.sleep(0.01)
        for task_id in ids:
            await stage.host.cancel(task_id)
        states = [await stage.store.wait(task_id) for task_id in ids]
        assert {(state.status, state.exit_code) for state in states} == {("cancelled", 143)}
