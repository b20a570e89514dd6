"""The briefs of the shipped problems, and nothing else, say what is scored and what breaks the rules."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from mcp import Client

from pursuit.demo.designs import DESIGNS, evaluate
from pursuit.demo.workbench import build_server
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.scoring import Submitted, judge
from pursuit.sandbox.sandbox import Sandbox

IDS = [one.problem_id for one in ProblemCatalogue.load()]
PANGRAM = "Waltz, bad nymph, for quick jigs vex"


@pytest.mark.parametrize("problem_id", IDS)
def test_a_brief_alone_says_what_is_scored_and_what_breaks_the_rules(problem_id: str) -> None:
    problem = ProblemCatalogue.load().get(problem_id)
    brief, scorer, first = write_brief(problem), problem.scorer, problem.primary
    (scored,) = [part for part in problem.statement.split("\n\n") if part.startswith("Scored")]
    assert f"`{first.name}`" in scored and first.unit in scored
    better = r"the more, the better" if first.direction == "maximize" else r"the (smaller|fewer), the better"
    assert re.search(better, " ".join(scored.split()), re.IGNORECASE)
    for name in scorer.constraints:
        assert f"`{name}`" in scored, name
    if scorer.constraints:
        assert f"up to {scorer.tolerance:f} above it counts as kept" in " ".join(brief.split())
    assert any(word in problem.statement for word in ("infeasible", "no submission", "counts as 1000"))


@pytest.mark.parametrize("name", DESIGNS)
async def test_a_workbench_speaks_of_the_constraints_that_there_are(name: str) -> None:
    problem = ProblemCatalogue.load().get(name)
    submission = cast("dict[str, Any]", problem.submission)
    lowest = {key: one["minimum"] for key, one in submission["properties"].items()}
    names = [key for key in evaluate(name, lowest) if key != "cost"]
    assert tuple(names) == problem.scorer.constraints
    async with Client(build_server(name)) as client:
        (tool,) = (await client.list_tools()).tools
    assert tool.input_schema == submission
    assert ("`g1`" in (tool.description or "")) == bool(names)


@pytest.mark.parametrize(
    ("answer", "feasible"),
    [
        (PANGRAM, True),
        (PANGRAM.upper() + "!", True),
        (PANGRAM.replace(", ", ",\n"), False),
        (PANGRAM.replace(" ", "\t"), False),
        (PANGRAM.replace("k", "\u212a"), False),  # the sign of kelvin, whose small letter is a plain k
        (PANGRAM + " 7", False),
        ("Waltz", False),
    ],
)
async def test_a_pangram_is_one_line_of_known_words(answer: str, feasible: bool) -> None:
    pangram = ProblemCatalogue.load().get("pangram")
    async with Sandbox() as sandbox:
        judged = await judge(pangram, Submitted(submission={"answer": answer}), expressions=sandbox)
    assert judged.rows[0].feasible is feasible
