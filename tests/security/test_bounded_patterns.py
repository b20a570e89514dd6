"""Patterns meet text that others wrote: fixed ones take linear time, those of users are given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pursuit.tasks.command import Command
from pursuit.tasks.progress_patterns import MAX_LINE, OutputProgress, Units
from pursuit.upstream import fixed_patterns

FIXED = {name: one for name, one in vars(fixed_patterns).items() if isinstance(one, fixed_patterns.Pattern)}
UNITS = (
    "a",
    "A",
    " ",
    "_",
    "_x0",
    "0",
    ".",
    "-",
    "@",
    "<<a",
    "[",
    ":",
    "bearer ",
    "pursuit_",
    "\\u",
    "\x1b[",
    "\x1b]",
    "=",
)


@pytest.mark.parametrize("name", sorted(FIXED))
def test_a_fixed_pattern_takes_linear_time(name: str) -> None:
    pattern = FIXED[name]
    for unit in UNITS:
        text = unit * (65_536 // len(unit)) + "\0"
        given = text.encode() if isinstance(pattern.pattern, bytes) else text
        pattern.fullmatch(given)  # quadratic time for one of these would be minutes
        assert sum(1 for _ in pattern.finditer(given)) <= len(given)


def test_a_users_pattern_sees_64_kib_of_a_line_and_the_lines_after_it(tmp_path: Path) -> None:
    found = OutputProgress(Command(argv=["x"], unit_pattern=r"unit (\d+)"), Units(tmp_path / "units"))
    found.take(b"x" * MAX_LINE + b" unit 1\nunit 2\n" + b"unit 3 " + b"x" * MAX_LINE + b"\n")
    assert found.units.count == 2
