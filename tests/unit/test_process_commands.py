"""Commands as tasks, with real processes: what is told of them, how they end, and what is left."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path

import anyio
import pytest
from process_stage import Stage, gone, on_stage, python, until

from pursuit.errors import TaskNotFound, ValidationFailed
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.command import OUTPUT_BYTES, Command, in_words
from pursuit.tasks.host import TaskHost
from pursuit.tasks.runner import PATIENCE, Processes
from pursuit.tasks.store import TaskRecords

pytestmark = pytest.mark.slow


async def test_a_command_that_succeeds(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        command = python(
            "import sys\nfor n in range(3): print('step', n)\nprint('step 1 again')\nprint('oops', file=sys.stderr)",
            unit_pattern=r"^step (\d+)",
            item_pattern=r"^step \d+",
            total=3,
        )
        state = await stage.run(command)
        assert (state.status, state.exit_code, state.done, state.total, state.item) == ("completed", 0, 3, 3, "step 1")
        structured = await stage.structured(state)
        assert structured.pop("duration_seconds") >= 0
        assert sorted(structured.pop("output_tail")) == ["oops", "step 0", "step 1", "step 1 again", "step 2"]
        assert structured == {
            "status": "completed",
            "task_id": state.task_id,
            "units_done": 3,
            "units_total": 3,
            "last_item": "step 1",
        }
        assert sorted(await stage.processes.tail(state.task_id)) == [
            "oops",
            "step 0",
            "step 1",
            "step 1 again",
            "step 2",
        ]
        assert await stage.processes.tail(state.task_id, errors=True) == ["oops"]


@pytest.mark.guarantee("a-failed-command-tells-all")
async def test_a_command_that_fails_tells_all_that_is_needed(tmp_path: Path) -> None:
    source = """
import sys
print("done a"); print("at b"); print("FAILED b: broken", flush=True)
for n in range(100): print("line", n, file=sys.stderr)
sys.exit(3)
"""
    async with on_stage(tmp_path) as stage:
        command = python(
            source,
            unit_pattern="^done (.*)",
            item_pattern="^at (.*)",
            failure_pattern="^FAILED",
            total=2,
            disclaimer="Partial results are in /out.",
        )
        state = await stage.run(command)
        assert (state.status, state.exit_code) == ("failed", 3)
        structured = await stage.structured(state)
        assert structured.pop("duration_seconds") >= 0
        assert structured == {
            "status": "failed",
            "task_id": state.task_id,
            "exit_code": 3,
            "units_done": 1,
            "units_total": 2,
            "last_item": "b",
            "failure_lines": ["FAILED b: broken"],
            "stderr_tail": [f"line {number}" for number in range(20, 100)],
            "output_tail": ["done a", "at b", "FAILED b: broken", *(f"line {number}" for number in range(100))],
            "disclaimer": "Partial results are in /out.",
        }
        result = await stage.store.result(state)
        assert result is not None
        assert result["isError"] is True
        for word in (state.task_id, "exit code 3", "1 of 2", "FAILED b", "line 99", "Partial results"):
            assert word in result["content"][0]["text"]


async def test_a_result_has_the_end_of_the_output(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        short = await stage.run(Command(argv=["sh", "-c", "echo read; echo me >&2"]))
        assert sorted((await stage.structured(short))["output_tail"]) == ["me", "read"]
        result = await stage.store.result(short)
        assert result is not None
        assert "read" in result["content"][0]["text"]
        silent = await stage.run(Command(argv=["true"]))
        assert "output_tail" not in await stage.structured(silent)
        failed = await stage.run(Command(argv=["sh", "-c", "echo why >&2; exit 1"]))
        structured = await stage.structured(failed)
        assert structured["stderr_tail"] == ["why"]
        assert "output_tail" not in structured
        long = await stage.run(python("for n in range(100_000): print(n)"))
        first, *lines = (await stage.structured(long))["output_tail"]
        assert "bytes are left out" in first
        assert lines[-2:] == ["99998", "99999"]
        assert sum(len(line) + 1 for line in lines) == OUTPUT_BYTES


async def test_a_signal_is_recorded_as_shells_do(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        state = await stage.run(Command(argv=["sh", "-c", "kill -9 $$"]))
        structured = await stage.structured(state)
        assert (state.exit_code, structured["exit_code"], structured["signal"]) == (137, 137, "SIGKILL")
        assert state.message is not None
        assert state.message.startswith("ended by SIGKILL")


async def test_what_cannot_be_started_fails_with_the_reason_and_starts_nothing(tmp_path: Path) -> None:
    plain, script = tmp_path / "plain", tmp_path / "script"
    plain.write_text("no program")
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    async with on_stage(tmp_path) as stage:
        wrong = [
            (Command(argv=["no-such-program"]), "'no-such-program' was not found in PATH"),
            (Command(argv=[str(plain)]), "is not executable"),
            (Command(argv=["./gone"]), "is no file"),
            (Command(argv=["true"], cwd=str(tmp_path / "gone")), "is no folder"),
            (Command(argv=[]), "is empty"),
            (Command(argv=["echo", "a\0b"]), "null character"),
            (Command(argv=["true"], unit_pattern="("), "is not a regular expression"),
        ]
        for command, why in wrong:
            with pytest.raises(ValidationFailed) as refused:
                command.check()
            assert why in str(refused.value.faults[0])
            state = await stage.run(command)
            assert (state.status, state.exit_code) == ("failed", None)
            assert state.message is not None
            assert why in state.message
            assert not stage.place(state.task_id).exists()
        # What only the system itself can refuse.
        state = await stage.run(Command(argv=[str(script)]))
        assert state.status == "failed"
        assert state.message is not None
        assert "was not started" in state.message
        with pytest.raises(TaskNotFound):
            await stage.processes.tail("../../etc")


async def test_a_command_that_the_system_refused_leaves_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    async with on_stage(tmp_path) as stage:
        state = await stage.run(Command(argv=[str(script), "--token=open-sesame"], secrets=["open-sesame"]))
        assert state.status == "failed"
        folder = stage.place(state.task_id)
        await gone(folder / "command")
        assert not any(b"open-sesame" in path.read_bytes() for path in folder.iterdir())
        assert [line async for line in stage.processes.follow(state.task_id)] == []
        await stage.processes.remove(state.task_id)
        assert not folder.exists()


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ValidationFailed) as refused:
        Command(argv=["no-such-program"], cwd="/no/such", item_pattern="[", grace=-1).check()
    assert {fault.field for fault in refused.value.faults} == {"argv", "cwd", "item_pattern", "grace"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("total", value) for value in (-1.0, math.nan, math.inf, 1e300, 10**400)),
        *(("heartbeat", value) for value in (0.0, 1e-9, 0.5, math.nan, math.inf)),
        *(("grace", value) for value in (-1.0, math.nan, math.inf, 1e9)),
    ],
)
def test_numbers_that_no_command_could_be_run_with_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Command(argv=["true"], **{name: value}).check()
    assert [fault.field for fault in refused.value.faults] == [name]
    Command(argv=["true"], total=0, heartbeat=1, grace=0).check()


async def test_stdin_is_closed_and_the_environment_is_the_one_that_was_given(tmp_path: Path) -> None:
    source = "import os, sys; print(repr(sys.stdin.read())); print(sorted(os.environ)); print(os.getcwd())"
    async with on_stage(tmp_path) as stage:
        (tmp_path / "here").mkdir()
        state = await stage.run(python(source, env={"A": "1", "PURSUIT_TASK_ID": "x"}, cwd=str(tmp_path / "here")))
        said = await stage.processes.tail(state.task_id)
        assert said[0] == "''"
        assert {"A", "PURSUIT_TASK_ID"} <= set(eval(said[1])) <= {"A", "PURSUIT_TASK_ID", "LC_CTYPE"}
        assert said[2] == str(tmp_path / "here")


async def test_a_command_has_the_limits_that_we_had(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        state = await stage.run(python("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"))
        ours = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert await stage.processes.tail(state.task_id) == [str(ours)]


@pytest.mark.guarantee("no-secret-in-output")
async def test_secrets_are_blanked_in_output_arguments_and_results(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        source = "import sys; print('FAIL key is', sys.argv[1]); print(sys.argv[1], file=sys.stderr); sys.exit(1)"
        command = Command(
            argv=[sys.executable, "-c", source, "s3cr3t-value"],
            secrets=("s3cr3t-value",),
            failure_pattern="FAIL",
            item_pattern="key is (.*)",
        )
        assert "s3cr3t-value" not in command.shown
        state = await stage.run(command)
        told = repr(state) + repr(await stage.store.result(state)) + repr(await stage.processes.tail(state.task_id))
        assert "s3cr3t-value" not in told
        assert "key is ***" in told
        await gone(stage.place(state.task_id) / "command")
        kept = b"".join(path.read_bytes() for path in stage.place(state.task_id).iterdir())
        assert b"s3cr3t-value" not in kept


async def test_bytes_that_are_no_text_long_lines_and_bars_do_no_harm(tmp_path: Path) -> None:
    source = """
import sys
out = sys.stdout.buffer
out.write(b"caf\\xe9\\n"); out.write(b"x" * 1_000_000 + b"\\n"); out.write(b"10%\\r20%\\r30%\\n"); out.write(b"no end")
"""
    async with on_stage(tmp_path) as stage:
        state = await stage.run(python(source))
        cafe, long, *rest = await stage.processes.tail(state.task_id)
        assert cafe == "caf\ufffd"
        assert long.startswith("x" * 65_536 + " … [the rest of this line")
        assert rest == ["10%", "20%", "30%", "no end"]


async def test_a_flood_on_stderr_stops_nobody(tmp_path: Path) -> None:
    source = "import sys\nfor n in range(200_000): print('e' * 50, n, file=sys.stderr)\nprint('out')\nsys.exit(2)"
    async with on_stage(tmp_path) as stage:
        state = await stage.run(python(source))
        structured = await stage.structured(state)
        assert structured["stderr_tail"] == ["e" * 50 + f" {number}" for number in range(199_920, 200_000)]
        assert state.mark["lines"] == 200_001


async def test_a_grandchild_that_holds_stdout_open_does_not_hold_the_task_and_lives_on(tmp_path: Path) -> None:
    source = """
import os, sys, time
told, telling = os.pipe()
if os.fork():
    os.read(told, 1); os._exit(0)
os.setsid()
os.write(1, b"pid %d\\n" % os.getpid()); open(sys.argv[1], "a").close(); os.write(telling, b".")
while True:
    time.sleep(0.05); os.write(1, b"still here\\n"); open(sys.argv[1], "a").write(".")
"""
    async with on_stage(tmp_path) as stage:
        beats = tmp_path / "beats"
        state = await stage.run(Command(argv=[sys.executable, "-c", source, str(beats)]))
        assert (state.status, state.exit_code) == ("completed", 0)
        lines = await stage.processes.tail(state.task_id, 1_000)
        daemon = int(next(line for line in lines if line.startswith("pid")).split()[1])
        try:
            size = beats.stat().st_size
            with anyio.fail_after(60):
                while beats.stat().st_size < size + 5:  # it writes into a pipe that is still drained
                    await anyio.sleep(0.02)
        finally:
            os.kill(daemon, 9)


async def test_a_heartbeat_after_silence_names_the_last_item_and_counts_nothing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        command = python(
            "import time; print('at one', flush=True); time.sleep(60)", item_pattern="at (.*)", heartbeat=1, grace=0
        )
        task_id = await stage.begin(command)
        told = await stage.store.wait(task_id, lambda now: now.item == "one")
        alive = await stage.store.wait(task_id, lambda now: (now.message or "").startswith("still running"))
        assert alive.message is not None
        assert alive.message.endswith("elapsed (last: one)")
        assert (alive.done, alive.updated_at) == (told.done, told.updated_at)
        assert '"at one"' in str([one.body for one in await stage.store.ledger.read(task_id)])
        await stage.host.cancel(task_id)
        assert (await stage.store.wait(task_id)).status == "cancelled"


async def test_a_pattern_that_would_take_for_ever_holds_nobody_up_and_that_is_told(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        source = f"print('done 1'); print('{'a' * 64}b'); print('done 2')"
        command = python(source, unit_pattern=r"done (\d+)", item_pattern=r"((?:a|aa)+)+c", total=2)
        with anyio.fail_after(60):
            state = await stage.run(command)
        structured = await stage.structured(state)
        (note,) = structured["notes"]
        assert (state.status, state.done, structured["units_done"]) == ("completed", 2, 2)
        assert note.startswith("item_pattern was switched off")
        lines = await stage.processes.tail(state.task_id)
        lines.remove(f"[{note}]")  # wherever the reader stood when it was switched off
        assert lines == ["done 1", "a" * 64 + "b", "done 2"]
        result = await stage.store.result(state)
        assert result is not None
        assert note in result["content"][0]["text"]


def test_durations_for_people() -> None:
    assert [in_words(seconds) for seconds in (0.04, 59.4, 252, 3_725)] == ["0.0s", "59s", "4m12s", "1h02m05s"]


async def test_progress_is_the_latest_line_and_marks_are_few(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        source = "import time\nfor n in range(300): print('done', n, flush=True); time.sleep(0.005)"
        begin = time.monotonic()
        state = await stage.run(python(source, unit_pattern=r"done (\d+)"))
        assert state.done == 300
        # Created, settled, and one word for each half of a second between.
        assert state.seq <= 4 + (time.monotonic() - begin) / 0.5


async def test_a_task_is_durable_for_one_commit(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python("import time; time.sleep(60)", grace=0))
        await until(lambda: (stage.place(task_id) / "meta").exists())
        assert (await stage.store.get(task_id)).seq == 1
        await stage.host.cancel(task_id)
        await stage.store.wait(task_id)


async def test_a_host_that_is_stopped_while_a_command_starts_ends_at_once_and_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    source = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    began = time.monotonic()
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    store = TaskRecords(ledger)
    with anyio.CancelScope() as everything:
        async with Processes(tmp_path / "tasks") as processes, TaskHost(store) as host:
            stage = Stage(tmp_path, store, host, processes)
            await stage.run(python(""))  # now its supervisor is there
            task_id = await stage.begin(python(source))
            await until((stage.place(task_id) / "command").exists)
            everything.cancel()
            await anyio.sleep_forever()
    await ledger.close()
    assert time.monotonic() - began < PATIENCE / 2, "it waited for an answer that nobody heard"
    async with on_stage(tmp_path) as stage:
        assert (await stage.store.wait(task_id)).status == "completed"
        assert (tmp_path / "ran").read_text() == "x"


async def test_a_command_that_an_earlier_build_started_is_found_again(tmp_path: Path) -> None:
    done = tmp_path / "done"
    waits = f"while not pathlib.Path({str(done)!r}).exists():\n    time.sleep(0.01)"
    source = f"import pathlib, time\n{waits}\nprint('end')"
    async with on_stage(tmp_path) as stage:
        task_id = await stage.begin(python(source))
        meta = stage.place(task_id) / "meta"
        await until(meta.exists)
        body = json.loads(meta.read_bytes())
        body["keeper"] = body.pop("supervisor")
        meta.write_text(json.dumps(body))
        task_id, owner = task_id, (await stage.store.get(task_id)).owner
    async with on_stage(tmp_path) as stage:
        await stage.store.wait(task_id, lambda state: state.owner != owner)
        done.touch()
        state = await stage.store.wait(task_id)
        assert (state.status, state.exit_code) == ("completed", 0)
        assert await stage.processes.tail(task_id) == ["end"]
