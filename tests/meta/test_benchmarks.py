"""Each benchmark still works: its smoke form runs the same code at tiny sizes and prints its figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from quick_start import quick

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.name for path in FOLDER.glob("*.py") if "\n    finish(" in path.read_text(encoding="utf-8"))
LONG = {"against.py", "floods.py", "front_door.py", "gateway.py", "page.py", "scale.py"}
"""Even small, they start many processes, as the tests of both do."""
BY_HAND = {"against.py": ["HEAD"]}
"""It compares with a commit that a person names."""
FIGURE = re.compile(r"^  .+  -?[\d,.]+ .*  (<=|>=|<) [\d.]+ +not judged$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in NAMES])
def test_the_smoke_form_of_a_benchmark_prints_its_figures(name: str) -> None:
    words = [sys.executable, quick(str(FOLDER / name)), *BY_HAND.get(name, ()), "--smoke"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert FIGURE.search(done.stdout), done.stdout


def test_every_benchmark_is_one_of_those_that_are_run_together() -> None:
    listed = re.findall(r'"(\w+\.py)"', (FOLDER / "run_all.py").read_text(encoding="utf-8"))
    assert sorted([*listed, *BY_HAND]) == NAMES
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`python benchmarks/{name}" not in readme] == []
