"""`make demo-cluster` shows missions that continue at another worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "demo" / "cluster.py"


@pytest.mark.soak
def test_a_cluster_goes_on_without_the_worker_that_is_killed(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PURSUIT", "XDG"))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        cwd=tmp_path,
        env={**kept, "HOME": str(tmp_path), "NO_COLOR": "1", "PURSUIT_DEMO_DELAY_MS": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "*** kill -9 worker-" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("mission-")]
    assert len(rows) == 6 and all(" completed " in row for row in rows), done.stdout
    assert any(", then worker-" in row for row in rows), done.stdout
    assert "intact: yes" in done.stdout
