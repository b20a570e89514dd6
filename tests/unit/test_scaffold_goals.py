"""What comes of goals as people say them; commands, units and expressions that a draft must not get wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import pursuit
from pursuit.drafting.commands import argv_of, ending
from pursuit.drafting.draft import Draft
from pursuit.drafting.quantities import Quantity, Unclear, read_quantity
from pursuit.drafting.trials import trial
from pursuit.errors import ValidationFailed
from pursuit.model.criteria import Check, describe
from pursuit.sandbox import Sandbox

GOALS = Path(__file__).parents[1] / "data" / "goals.txt"


def goals() -> Iterator[tuple[str, list[str], list[str]]]:
    for block in GOALS.read_text(encoding="utf-8").split("\n\n"):
        rows = [row for row in block.splitlines() if row and not row.startswith("#")]
        for goal in (row[2:] for row in rows if row.startswith("> ")):
            yield goal, [row[2:] for row in rows if row.startswith("+")], [row[2:] for row in rows if row[:1] == "-"]


async def come_of(goal: str) -> tuple[list[str], list[str]]:
    try:
        draft = await pursuit.scaffold(goal)
    except ValidationFailed as refused:
        return [], [fault.reason for fault in refused.faults]
    return [describe(one) for one in draft.mission.criteria], [one.reason for one in draft.refused]


def test_goals_of_engineers_and_researchers_become_what_they_say_or_are_refused() -> None:
    async def scene() -> None:
        wrong: list[str] = []
        for goal, criteria, reasons in goals():
            drafted, why = await come_of(goal)
            same = len(why) == len(reasons) and all(part in told for part, told in zip(reasons, why, strict=True))
            if drafted != criteria or not same:
                wrong.append(f"{goal}\n  wanted {criteria} {reasons}\n  got    {drafted} {why}")
        assert not wrong, "\n".join(wrong)

    assert sum(1 for _ in goals()) > 300
    anyio.run(scene)


def drafted(goal: str) -> Draft:
    return anyio.run(pursuit.scaffold, goal)


def test_a_command_with_shell_syntax_runs_as_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (check,) = drafted("`cd sub && echo hi > a.txt; test -s a.txt | cat` passes").mission.criteria
    assert isinstance(check, Check)
    assert check.command is not None
    assert subprocess.run(check.command, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "sub" / "a.txt").read_text(encoding="utf-8") == "hi\n"
    # A part that fails fails all of it, also at the head of a pipe and before a semicolon.
    for command in ("false | cat", "false; true", "false > out.txt; echo"):
        argv = argv_of(command)
        assert isinstance(argv, list)
        assert subprocess.run(argv, cwd=tmp_path, check=False).returncode != 0


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("pytest -q 'tests/a b.py'", ["pytest", "-q", "tests/a b.py"]),
        ("grep 'a|b' f", ["grep", "a|b", "f"]),
        ("pytest 'x.py::t[1]'", ["pytest", "x.py::t[1]"]),
        ("FOO=1 pytest", ["sh", "-ec", "FOO=1 pytest"]),
        ("cd app && make", ["sh", "-ec", "cd app && make"]),
        ("a | b", ["bash", "-eo", "pipefail", "-c", "a | b"]),
        ("ls *.py", ["sh", "-ec", "ls *.py"]),
        ("make &&", "a part of it is missing"),
        ("make &", "in the background"),
        ("echo 'x", "never closed"),
        ("cat <<EOF", "here-document"),
    ],
)
def test_a_quoted_command_becomes_an_argv_or_a_reason(command: str, argv: list[str] | str) -> None:
    found = argv_of(command)
    assert (found == argv) if isinstance(argv, list) else (argv in found)


@pytest.mark.parametrize(
    ("argv", "ends"),
    [
        (["env", "true"], 0),
        (["env", "A=1", "true"], 0),
        (["timeout", "5", "true"], 0),
        (["test", "1", "=", "1"], 0),
        (["[", "2", "-lt", "1", "]"], 1),
        (["test", "-d", "."], 0),
        (["exit", "0"], 0),
        (["bash", "-lc", "exit 0"], 0),
        (["sh", "-c", "make || true"], 0),
        (["sh", "-c", "make; echo done"], 0),
        (["sh", "-c", "make | true"], 0),
        (["sh", "-ec", "make; echo done"], None),
        (["sh", "-c", "! false"], 0),
        (["python3", "-c", "pass"], 0),
        (["python3", "-c", "import app"], None),
        (["sh", "-c", "test $(wc -l < f) -gt 3"], None),
        (["test", "-s", "out.csv"], None),
        (["make"], None),
    ],
)
def test_what_a_command_comes_to_whatever_the_mission_does(argv: list[str], ends: int | None) -> None:
    assert ending(argv) == ends


@pytest.mark.parametrize(
    ("text", "around", "number", "unit"),
    [
        ("5m", "latency under", 5, "minutes"),
        ("5m", "distance under", 5, "m"),
        ("5m rows", "", 5e6, ""),
        ("$1.2M", "", 1.2e6, "usd"),
        ("300K", "temperature below", 300, "kelvin"),
        ("10k", "", 10_000, ""),
        ("0,5 %", "", 0.5, "percent"),
        ("1.234,5", "", 1234.5, ""),
        ("10\u202f000", "", 10_000, ""),
        ("3\u00d710^-4", "", 3e-4, ""),
        ("\u22125 °C", "", -5, "celsius"),
        ("12 kN/mm", "", 12, "kn_per_mm"),
        ("2 million", "", 2e6, ""),
    ],
)
def test_a_number_is_read_with_its_unit(text: str, around: str, number: float, unit: str) -> None:
    read = read_quantity(text, 0, frozenset(around.split()))
    assert isinstance(read, Quantity)
    assert (read.number, read.unit.name) == (number, unit)


@pytest.mark.parametrize(
    "text", ["5m", "5M", "7B", "2G", "3.11.2", "1:32", "3/5", "5-10", "1e400", "1 in 1000", "5foo"]
)
def test_a_number_that_can_be_read_in_two_ways_is_none(text: str) -> None:
    assert isinstance(read_quantity(text, 0, frozenset()), Unclear)


def test_a_comma_that_may_be_either_is_asked_about() -> None:
    assert isinstance(read_quantity("1,500", 0, frozenset(), commas=True), Unclear)
    with pytest.raises(ValidationFailed, match="nothing that could be drafted") as refused:
        drafted("cost under 1,500 EUR at 0,5 kg")
    assert "'1,500' can mean 1500 or 1.500" in refused.value.faults[0].reason


EXPRESSIONS = [
    ("obs['iteration'] == 3", "by waiting alone"),
    ("obs['iteration'] % 7 == 6", "by waiting alone"),
    ("obs.get('iteration', 0) * 2 == 34", "by waiting alone"),
    ("len(obs['tool_results']) >= 3", "by calling tools alone"),
    ("[x for x in obs['metrics']]", "never gives True or False"),
    ("len(obs['errors'])", "never gives True or False"),
    ("obs['metrics']['cost']", "never gives True or False"),
    ("obs['metrics']['error_count'] >= 0", "whatever the values are"),
    ("obs['metrics']['coverage_percent'] <= 100", "whatever the values are"),
    ("obs['metrics']['profit'] >= 0", None),
    ("obs['metrics']['x'] > -5 and obs['metrics']['x'] < 5", None),
    ("obs['iteration'] > 3 and obs['metrics']['loss'] < 0.1", None),
    ("any(row['outcome'] == 'failed' for row in obs['tool_results'])", None),
    ("any(row['result'] == {'x': 1} for row in obs['tool_results'])", None),
]


@pytest.mark.guarantee("vacuous-drafts-are-refused")
def test_an_expression_that_nothing_returned_decides_is_refused() -> None:
    async def scene() -> None:
        async with Sandbox() as sandbox:
            for expression, why in EXPRESSIONS:
                found = await trial(sandbox, expression)
                assert (found is None) if why is None else (why in (found or "")), (expression, found)

    anyio.run(scene)


def test_a_clause_that_never_ends_is_told_and_costs_little() -> None:
    with pytest.raises(ValidationFailed) as refused:
        drafted("keep it under 5 " * 500)
    assert "too long to say one thing" in refused.value.faults[0].reason
