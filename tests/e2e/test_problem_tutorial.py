"""The tutorial of docs/problems.md, done as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from cli_stage import Place

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"
BLOCK = re.compile(r"^<!-- tutorial -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_leads_to_a_problem_that_is_solved(tmp_path: Path) -> None:
    blocks = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert set(blocks) == {"python", "toml", "sh"}
    place = Place(tmp_path).configured()
    place.write("plant.py", blocks["python"])
    place.write("problem.toml", blocks["toml"])
    commands = [shlex.split(line)[1:] for line in blocks["sh"].splitlines()]
    assert [words[1] for words in commands] == ["validate", "show", "attempt", "compare"]
    told = [place.ask(*words)[0] for words in commands]
    assert "1 problem, no fault: tuning" in told[0]
    assert told[1].startswith("# Tune the controller\n") and "`simulate`: Runs one step" in told[1]
    assert "judge" not in told[1]
    assert "completed" in told[2] and re.search(r"solved\W+yes", told[2])
    head, row = told[3].splitlines()
    assert head.startswith("problem\tattempt\twho\t") and row.startswith("tuning\t")
