"""Commands as tasks, with real processes: what is told of them, how they end, and what is left."""

from __future__ import annotations

import math
import os
import resource
import sys
from pathlib import Path

import anyio
import pytest
from process_stage import gone, on_stage, python

from pursuit.errors import ValidationFailed
from pursuit.tasks.command import OUTPUT_BYTES, Command, in_words

pytestmark = pytest.mark.slow


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
        assert result["isError"] is True
        for word in (state.task_id, "exit code 3", "1 of 2", "FAILED b", "line 99", "Partial results"):
            assert word in result["content"][0]["text"]


async def test_a_result_has_the_end_of_the_output(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        short = await stage.run(Command(argv=["sh", "-c", "echo read; echo me >&2"]))
        assert sorted((await stage.structured(short))["output_tail"]) == ["me", "read"]
        result = await stage.store.result(short)
        assert "read" in result["content"][0]["text"]
        silent = await stage.run(Command(argv=["true"]))
        assert "output_tail" not in await stage.structured(silent)
        failed = await stage.run(Command(argv=["sh", "-c", "echo why >&2; exit 1"]))
        structured = await stage.structured(failed)
        assert structured["stderr_tail"] == ["why"]
        assert "output_tail" not in structured
        long = await stage.run(python("for n in range(100_000): print(n)"))
        first, *lines = (await stage.structured(long))["output_tail"]
        assert "bytes are omitted" in first
        assert lines[-2:] == ["99998", "99999"]
        assert sum(len(line) + 1 for line in lines) == OUTPUT_BYTES


async def test_a_signal_is_recorded_as_shells_do(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        state = await stage.run(Command(argv=["sh", "-c", "kill -9 $$"]))
        structured = await stage.structured(state)
        assert (state.exit_code, structured["exit_code"], structured["signal"]) == (137, 137, "SIGKILL")
        assert state.message.startswith("ended by SIGKILL")


async def test_a_command_that_the_system_refused_leaves_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    async with on_stage(tmp_path) as stage:
        state = await stage.run(Command(argv=[str(script), "--token=open-sesame"], secrets=["open-sesame"]))
        assert state.status == "failed" and "was not started" in state.message
        folder = stage.place(state.task_id)
        await gone(folder / "command")
        assert not any(b"open-sesame" in path.read_bytes() for path in folder.iterdir())
        assert [line async for line in stage.processes.follow(state.task_id)] == []
        await stage.processes.remove(state.task_id)
        assert not folder.exists()


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
        assert alive.message.endswith("elapsed (last: one)")
        assert (alive.done, alive.updated_at) == (told.done, told.updated_at)
        assert '"at one"' in str([one.body for one in await stage.store.ledger.read(task_id)])
        await stage.host.cancel(task_id)
        assert (await stage.store.wait(task_id)).status == "cancelled"


def test_durations_for_people() -> None:
    assert [in_words(seconds) for seconds in (0.04, 59.4, 252, 3_725)] == ["0.0s", "59s", "4m12s", "1h02m05s"]
