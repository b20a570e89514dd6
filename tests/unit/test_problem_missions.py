"""What a mission on a problem makes of the words of its manifest: a script's name of the server, the way to files."""

from __future__ import annotations

import pytest

from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.missions import Plan, addressed_script, mission_for

SERVER = "problem-1f0c2a9b"
NAME = "problem_1f0c2a9b"


@pytest.mark.parametrize(
    ("source", "addressed"),
    [
        ("problem.submit_final(x=1)", f"{NAME}.submit_final(x=1)"),
        ("y = await problem.probe(problem=2) + problem.z", f"y = await {NAME}.probe(problem=2) + {NAME}.z"),
        ('call("problem.x"); call(f"problem.{y}")', f'call("{SERVER}.x"); call(f"{SERVER}.{{y}}")'),
        ("a.problem.y('a problem.'); my_problem.x()", "a.problem.y('a problem.'); my_problem.x()"),
    ],
)
def test_a_script_names_the_server_of_its_attempt(source: str, addressed: str) -> None:
    assert addressed_script(source, SERVER) == addressed


def test_a_mission_tells_the_one_way_to_a_file_that_it_has() -> None:
    knapsack = ProblemCatalogue.load().get("knapsack")
    assert "`problem://assets/items.csv`" in write_brief(knapsack)
    plan = Plan(attempt_id="attempt-1", proposer={"kind": "client"}, serve=["-m", "x"], judge=["judge"])
    directive = str(mission_for(knapsack, plan)["directive"])
    assert "resource" not in directive and "problem://" not in directive
    assert (
        "Read a file with the tool `design_brief` and its name as `asset`" in directive and "- `items.csv`" in directive
    )
