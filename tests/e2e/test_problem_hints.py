"""What `problem replay` prints as the way on runs as it is printed, from anywhere, with a ledger of one's own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import anyio
from cli_stage import Place
from problem_stage import METRIC, SCHEMA, attempts, problem

from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt


def test_the_hint_of_a_replay_runs_as_it_is_printed(tmp_path: Path) -> None:
    home = tmp_path / "other place"
    home.mkdir()
    ledger, place = tmp_path / "ledger.db", Place(home).configured()
    judged = {"kind": "tool", "tool": "grade", "metrics": [METRIC]}
    one = problem(tmp_path / "my exam", "probe", "grade", submission=SCHEMA, scorer=judged)

    async def unjudged() -> None:
        opened = SqliteLedger.open(ledger)
        await Attempt(opened, lambda: 1000.0, one.manifest, "attempt-un").submit({"x": 3})
        await opened.close()

    anyio.run(unjudged)
    words = ("problem", "replay", "attempt-un", "--dir", one.manifest.folder, "--state", ledger)
    manifest = one.manifest.folder / "problem.toml"
    text = manifest.read_text(encoding="utf-8")
    # While its server is another than the one that was tried, nobody can be asked.
    manifest.write_text(text.replace('"probe"', '"unheard-of", "probe"'), encoding="utf-8")
    solved = place.ask(*words, "--solved", code=2)[1]
    said = place.ask(*shlex.split(solved.split("`")[1])[1:], code=2)[1]
    manifest.write_text(text, encoding="utf-8")
    assert "has not said anything yet" in said
    program, *hint = shlex.split(said.split("`")[1])
    assert program == "pursuit"
    # Nobody comes: it judges what was left when it opens, and ends with its input.
    command = [sys.executable, "-m", "pursuit", *hint]
    subprocess.run(command, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=180)
    (state,) = anyio.run(attempts, tmp_path)
    assert state.scored is not None and state.scored.rows[0].value == 0
    place.ask(*words)
