"""What a command leaves on disk, and that it goes on without us."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from process_ends import wait_gone
from process_stage import gone, on_stage, python, until

from pursuit.tasks.command import Command
from pursuit.tasks.supervisor import write_whole


async def test_nothing_of_it_is_readable_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with on_stage(tmp_path) as stage:
            os.umask(0)
            state = await stage.run(python("import os; print(oct(os.umask(0)))", cwd=str(tmp_path)))
            assert await stage.processes.tail(state.task_id) == ["0o0"]
            for path in [tmp_path / "tasks", *(tmp_path / "tasks").rglob("*")]:
                with suppress(FileNotFoundError):  # what an ended one needs no more goes meanwhile
                    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    finally:
        os.umask(before)


async def test_files_go_with_an_ended_task_and_stay_with_a_running_one(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python("import time; print('x', flush=True); time.sleep(60)", grace=0))
        await stage.store.wait(task_id, lambda now: now.message == "x")
        await stage.processes.remove(task_id)
        assert await stage.processes.tail(task_id) == ["x"]
        await stage.host.cancel(task_id)
        await stage.store.wait(task_id)
        await gone(stage.place(task_id) / "command")
        await stage.processes.remove(task_id)
        assert not stage.place(task_id).exists()
        assert await stage.processes.tail(task_id) == []
        assert [line async for line in stage.processes.follow(task_id)] == []


@pytest.mark.parametrize(("name", "left"), [("meta", b'{"pid": "x"}'), ("command", b""), ("exit", b""), ("claim", b"")])
async def test_a_file_that_a_loss_of_power_left_half_is_no_obstacle(tmp_path: Path, name: str, left: bytes) -> None:
    """The end of the command that was read from such a file is not known, and its files can be removed."""
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python("import time; print('x', flush=True); time.sleep(60)", grace=0))
        await stage.store.wait(task_id, lambda now: now.message == "x")
    folder = tmp_path / "tasks" / task_id
    leader = json.loads((folder / "meta").read_bytes())["pid"]
    os.killpg(leader, signal.SIGKILL)
    await until((folder / "exit").exists)
    if name == "claim":
        (folder / "meta").unlink()
    (folder / name).write_bytes(left)
    async with on_stage(tmp_path) as stage:
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("failed", None)
        await gone(folder / "command")
        await stage.processes.remove(task_id)
        assert not folder.exists()


def test_what_is_written_whole_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        assert not (tmp_path / "meta").exists()
        synced.append((tmp_path / "meta.new").read_bytes())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_whole(str(tmp_path / "meta"), {"a": 1})
    assert synced == [b'{"a": 1}']


async def test_a_log_is_followed_to_its_end_line_by_line(tmp_path: Path) -> None:
    source = "import sys\nfor n in range(20_000): print(n)\nfor n in range(10): print('e', n, file=sys.stderr)"
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python(source))
        await until(lambda: (stage.place(task_id) / "meta").exists())
        lines = [line async for line in stage.processes.follow(task_id, 1_000_000)]
        assert [line for line in lines if line.isdigit()] == [str(number) for number in range(20_000)]
        errors = [line async for line in stage.processes.follow(task_id, 3, errors=True)]
        assert errors == ["e 7", "e 8", "e 9"]


async def test_commands_go_on_when_we_leave_and_are_found_again(tmp_path: Path) -> None:
    go = tmp_path / "go"
    source = """
import os, sys, time
print("before", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
print("after", flush=True); sys.exit(5)
"""
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(Command(argv=[sys.executable, "-c", source, str(go)]))
        await stage.store.wait(task_id, lambda now: now.message == "before")
    assert task_id
    async with on_stage(tmp_path) as stage:
        go.touch()
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("failed", 5)
        assert await stage.processes.tail(task_id) == ["before", "after"]


@pytest.mark.slow
@pytest.mark.guarantee("too-much-unread-is-a-gap")
async def test_more_unread_output_than_may_wait_is_a_recorded_gap(tmp_path: Path) -> None:
    go, flooded = tmp_path / "go", tmp_path / "flooded"
    source = """
import os, sys, time
print("first", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
for n in range(100_000): print("flood %08d" % n)
sys.stdout.flush(); open(sys.argv[2], "w").close()
while os.path.exists(sys.argv[1]): time.sleep(0.01)
time.sleep(0.3); print("last", flush=True)
"""
    limits = {"unread": 200_000, "segment": 50_000}
    async with on_stage(tmp_path, **limits) as stage:
        task_id = await stage.begin(Command(argv=[sys.executable, "-c", source, str(go), str(flooded)]))
        await stage.store.wait(task_id, lambda now: now.message == "first")
    go.touch()
    ends = time.monotonic() + 60
    while not flooded.exists():  # with nobody to read, it is not slowed down
        assert time.monotonic() < ends
        time.sleep(0.01)
    spool = sum(path.stat().st_size for path in (tmp_path / "tasks" / task_id).glob("out.*"))
    assert 200_000 <= spool <= 300_000
    async with on_stage(tmp_path, **limits) as stage:
        await stage.store.wait(task_id, lambda now: now.mark.get("lines", 0) > 1_000)
        go.unlink()
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("completed", 0)
        lines = await stage.processes.tail(task_id, 1_000_000)
        (gap,) = [line for line in lines if line.startswith("[")]
        whole = [line for line in lines if line.startswith("flood ") and len(line) == 14]
        assert whole == sorted(set(whole))
        dropped = int(gap[1:].split()[0])
        written = len("first\n") + 100_000 * len("flood 00000000\n") + len("last\n")
        # A gap in the middle of a line ends its first part.
        assert sum(len(line) + 1 for line in lines if line != gap) + dropped - written in (0, 1)
        assert lines[-1] == "last"


async def test_no_supervisor_is_left_when_the_last_command_has_ended(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        state = await stage.run(python("print(1)"))
        found = supervisor_of(stage.place(state.task_id))
    wait_gone(found)
    assert (tmp_path / "tasks" / "supervisor.err").read_text() == ""


def supervisor_of(folder: Path) -> int:
    return int(json.loads((folder / "meta").read_text())["supervisor"]["pid"])


async def test_signals_of_a_terminal_do_not_end_the_supervisor(tmp_path: Path) -> None:
    source = "import signal, time\nprint([signal.getsignal(n) == signal.SIG_IGN for n in (1, 15)], flush=True)\n"
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python(source + "time.sleep(60)", grace=0))
        state = await stage.store.wait(task_id, lambda now: now.message is not None)
        assert state.message == "[False, False]"  # and the command does not inherit that
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(supervisor_of(stage.place(task_id)), number)
        again = await stage.run(python("print('kept')"))
        assert await stage.processes.tail(again.task_id) == ["kept"]
        supervisors = {(stage.place(one) / "claim").read_text() for one in (task_id, again.task_id)}
        assert len(supervisors) == 1
        await stage.host.cancel(task_id)
        assert (await stage.store.wait(task_id)).status == "cancelled"


async def test_arguments_and_variables_that_are_no_text_reach_the_command_as_they_are(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        odd = b"caf\xe9".decode("utf-8", "surrogateescape")
        source = "import os, sys; print(os.fsencode(sys.argv[1]), os.environb[b'ODD'])"
        command = Command(argv=[sys.executable, "-c", source, odd], env={"ODD": odd})
        state = await stage.run(command)
        assert await stage.processes.tail(state.task_id) == ["b'caf\\xe9' b'caf\\xe9'"]
