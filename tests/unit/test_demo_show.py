"""`make demo` shows the example from its start to its report, and leaves Ctrl-C to the command that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "pursuit.demo.show"]


def environment(folder: Path, delay: int) -> dict[str, str]:
    """Without trust: `make demo` asks no question."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PURSUIT", "XDG"))}
    return {**kept, "HOME": str(folder), "NO_COLOR": "1", "PURSUIT_DEMO_DELAY_MS": str(delay)}


def test_it_ends_well_and_names_the_report(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, cwd=tmp_path, env=environment(tmp_path, 0), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout + done.stderr
    (report,) = [line.removeprefix("report: ") for line in done.stdout.splitlines() if line.startswith("report: ")]
    assert (tmp_path / ".pursuit" / "demo" / report).is_file()
    # The last lines are commands that can be copied.
    (again_line, page_line) = done.stdout.splitlines()[-2:]
    assert page_line.startswith("See it on the page:  cd ") and page_line.endswith("pursuit page")
    words = again_line.removeprefix("See it again:  ")
    again = subprocess.run(
        ["sh", "-c", words], cwd=tmp_path, env=environment(tmp_path, 0), capture_output=True, text=True
    )
    assert (again.returncode, "completed" in again.stdout) == (0, True), again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ctrl_c_is_the_commands_to_answer(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env=environment(tmp_path, 200),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            # The first word of progress: the command runs, and listens to signals.
            first = process.stderr.readline()
            os.killpg(process.pid, number)
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
    assert "Traceback" not in first + out + err
    assert process.returncode == 130, (out, err)
    assert "Continue with: pursuit resume" in err


@pytest.mark.soak
def test_a_cluster_goes_on_without_the_worker_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pursuit.demo.cluster"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path, 0), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "*** kill -9 worker-" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("mission-")]
    assert len(rows) == 6 and all(" completed " in row for row in rows), done.stdout
    assert any(", then worker-" in row for row in rows), done.stdout
    assert "intact: yes" in done.stdout
