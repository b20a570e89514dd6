"""Every example runs by itself, ends well, and prints its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from quick_start import quick

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULTS = {
    "fleet.py": "completed: 53 of 70 calls",
    "mcp_server_in_process.py": "completed: level 80 after 9 calls",
    "own_proposals.py": "completed (criteria_met): x = 2.094552 after 21 proposals",
    "resume_after_crash.py": "completed: 20 steps ran, 0 ran twice",
    "search_vessel.py": "completed: 61",
    "three_bar_truss.py": "completed: 263.897 after 4 iterations",
    "wait_for_job.py": "completed after 6 polls (criteria_met)",
}


def run(name: str, folder: Path) -> str:
    # One of them is about a process that is killed.
    program = EXAMPLES / name if name == "resume_after_crash.py" else quick(str(EXAMPLES / name))
    done = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_prints_its_result(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    assert RESULTS[name] in printed
    if name == "resume_after_crash.py":
        assert "exit code -9 after 6 steps had begun" in printed
        assert "calls by outcome: {'ok': 19, 'unknown': 1}" in printed
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_every_example_is_short_and_has_its_line_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"({path.name})" in listed
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name
