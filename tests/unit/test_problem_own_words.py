"""How the script of a baseline names the problem's server."""

from __future__ import annotations

import pytest

from pursuit.problems.own_words import addressed_script

SERVER = "problem-1f0c2a9b"
NAME = "problem_1f0c2a9b"


@pytest.mark.parametrize(
    ("source", "addressed"),
    [
        ("problem.submit_final(x=1)", f"{NAME}.submit_final(x=1)"),
        ("y = await problem.probe(problem=2) + problem.z", f"y = await {NAME}.probe(problem=2) + {NAME}.z"),
        ("f(server=problem)", f"f(server={NAME})"),
        ("é = 'ü'; problem.x()", f"é = 'ü'; {NAME}.x()"),
        ('call("problem.x"); call(f"problem.{y}")', f'call("{SERVER}.x"); call(f"{SERVER}.{{y}}")'),
        ("# problem.x\na.problem.y('no problem.z')", "# problem.x\na.problem.y('no problem.z')"),
        ("problem = find()\nproblem.size()", "problem = find()\nproblem.size()"),
        ("def f(problem): return problem.size", "def f(problem): return problem.size"),
        ("\ufeffif 1:\r\n  problem.x()\r\n", f"if 1:\n  {NAME}.x()\n"),
        ("problem.x(", "problem.x("),
    ],
)
def test_a_script_names_the_server_of_its_attempt(source: str, addressed: str) -> None:
    assert addressed_script(source, SERVER) == addressed
