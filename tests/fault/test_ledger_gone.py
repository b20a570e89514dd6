"""A ledger file that is deleted, moved or replaced under a running driver stops it before its next effect."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mission_files import NEVER, mission_file, recorder
from quick_start import pursuit

STEPS = 300
SCRIPT = {"kind": "script", "script": "rec.step(key=str(state.iteration), ms=4)"}
MISSION = mission_file("rec.*", NEVER, iterations=STEPS, stagnation_threshold="off", proposer=SCRIPT)


def deleted(ledger: Path) -> None:
    ledger.unlink()


def moved_with_its_folder(ledger: Path) -> None:
    ledger.parent.rename(ledger.parent.with_name("away"))


def replaced(ledger: Path) -> None:
    other = ledger.with_name("other.db")
    other.write_bytes(ledger.read_bytes())
    os.replace(other, ledger)  # noqa: PTH105 - the call that is meant


@pytest.mark.guarantee("ledger-gone-stops-the-driver")
@pytest.mark.parametrize(
    ("befalls", "told"),
    [
        (deleted, "it was deleted or moved"),
        (moved_with_its_folder, "it was deleted or moved"),
        (replaced, "another file has taken its place"),
    ],
)
def test_a_ledger_that_is_gone_stops_the_driver_before_its_next_effect(
    tmp_path: Path, befalls: Callable[[Path], None], told: str
) -> None:
    record, ledger = tmp_path / "record", tmp_path / ".pursuit" / "ledger.db"
    (tmp_path / "pursuit.toml").write_text(recorder(record))
    (tmp_path / "mission.toml").write_text(MISSION)

    def steps() -> int:
        return record.read_text().count("step ") if record.exists() else 0

    words = [*pursuit(), "run", "mission.toml", "--json"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        ends = time.monotonic() + 120
        while steps() < 3 and time.monotonic() < ends and process.poll() is None:
            time.sleep(0.005)
        befalls(ledger)
        before = steps()
        out, complaint = process.communicate(timeout=120)
    # One step may have been under way: its intent was stored while the ledger was still there.
    assert 3 <= before <= steps() <= before + 1 < STEPS
    assert process.returncode == 1, complaint
    error = json.loads(out)
    assert (error["code"], error["details"]["path"]) == ("ledger_unavailable", str(ledger))
    assert f"the ledger {ledger} is gone: {told} while it was in use" in error["message"]
    assert "Nothing more is stored or sent" in error["message"]
    assert "Traceback" not in complaint
