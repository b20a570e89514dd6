"""The search of the documentation through the command line: a mission file, a server, a result."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from quick_start import pursuit

PAGE = Path(__file__).parents[2] / "docs" / "search.md"


def test_the_mission_of_the_page_about_search_finds_a_beam_that_holds(tmp_path: Path) -> None:
    found = re.search(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "mission.toml").write_text(found[1], encoding="utf-8")
    words = [*pursuit(), "run", "mission.toml", "--mode", "auto", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["status"] == "completed"
    shown = subprocess.run(
        [*pursuit(), "list", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=180
    )
    assert json.loads(shown.stdout)["sessions"][0]["iteration_count"] < 200
