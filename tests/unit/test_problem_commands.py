"""The command of a judge: what is not there is told before the one submission is spent on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pursuit.problems.scorer import command_fault

OURS = "__python_executable__"


def told(folder: Path, *command: str, judges: bool = True) -> dict[str, str]:
    (folder / "judge").mkdir(parents=True, exist_ok=True)
    for name in ("judge.py", "plain", "judge/__main__.py", "judge/deep.py"):
        (folder / name).write_text("print(1)\n", encoding="utf-8")
    (folder / "run").write_text("#!/bin/sh\necho 1\n", encoding="utf-8")
    (folder / "run").chmod(0o755)
    wrong = command_fault(command, folder, judges=judges)
    return {} if wrong is None else {f"command[{wrong[0]}]": wrong[1]}


@pytest.mark.parametrize(
    ("command", "place", "reason"),
    [
        (["python3", "-u", "nope.py"], 2, "file 'nope.py' does not exist"),
        (["sh", "nope.sh"], 1, "does not exist"),
        ([OURS, "-B", "-uI", "nope.py"], 3, "does not exist"),
        (["pythn3", "judge.py"], 0, "program 'pythn3' was not found"),
        (["/nowhere/python3", "judge.py"], 0, "program '/nowhere/python3' was not found"),
        (["python3", "/nowhere/judge.py"], 1, "file '/nowhere/judge.py' does not exist"),
        (["/" + "x" * 5000], 0, "was not found"),
        (["./plain"], 0, "program './plain' was not found"),
    ],
)
def test_what_cannot_be_started_is_told(tmp_path: Path, command: list[str], place: int, reason: str) -> None:
    faults = told(tmp_path, *command)
    assert list(faults) == [f"command[{place}]"] and reason in faults[f"command[{place}]"]


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "judge"],
        ["python3", "-u", "judge.py", "nope.csv"],
        ["python3", "-m", "some_module_of_another_python"],
        [OURS, "-m", "judge"],
        [OURS, "-c", "nope.py"],
        [OURS, "-"],
        [OURS],
        ["env", "-S", "python3 -u nope.py"],
        [OURS, "-W", "ignore", "nope.py"],
        ["sh", "-c", "nope.sh"],
        ["./run"],
        ["true", "nope.py"],
    ],
)
def test_what_may_be_started_passes(tmp_path: Path, command: list[str]) -> None:
    assert told(tmp_path, *command) == {}


def test_a_server_may_be_a_program_that_is_not_here(tmp_path: Path) -> None:
    assert told(tmp_path, "pythn3", "judge.py", judges=False) == {}
    assert list(told(tmp_path, "./gone", judges=False)) == ["command[0]"]
