"""What a judge is told of the way to a submission: how many calls and evaluations there were before it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_problem_scoring import problem

from pursuit.core.attempts import decode_attempt, encode_attempt, fold_attempt
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt, load_attempt
from pursuit.problems.manifest import Limits
from pursuit.problems.scorer import Metric, Scorer, ScoringRule
from pursuit.problems.scoring import Submitted, judge
from pursuit.sandbox.sandbox import Sandbox

COUNTED = Limits(evaluation_tools=("probe",))
METRICS = (Metric(name="calls"), Metric(name="evaluations"))
TABLE = "{'calls': calls, 'evaluations': evaluations}"
SOURCE = (
    f"def both(submission, calls, *, evaluations):\n    return {TABLE}\n"
    "def one(submission, evaluations):\n    return {'calls': 0, 'evaluations': evaluations}\n"
    "def none(submission):\n    return {'calls': 0, 'evaluations': 0}\n"
    "async def all_of_it(**told):\n    return {key: told[key] for key in ('calls', 'evaluations')}\n"
)


async def values(folder: Path, scorer: Scorer) -> list[float]:
    async with Sandbox() as sandbox:
        submitted = Submitted(submission={"x": 1}, calls=3, evaluations=2)
        found = await judge(problem(folder, scorer, budget=COUNTED), submitted, expressions=sandbox)
        return [row.value for row in found.rows]


@pytest.mark.parametrize(
    ("function", "told"), [("both", [3, 2]), ("one", [0, 2]), ("none", [0, 0]), ("all_of_it", [3, 2])]
)
async def test_a_function_is_given_the_counts_that_it_has_parameters_for(
    tmp_path: Path, function: str, told: list[float]
) -> None:
    (tmp_path / "s.py").write_text(SOURCE, encoding="utf-8")
    assert await values(tmp_path, Scorer(kind="function", function=f"s.py:{function}", metrics=METRICS)) == told


async def test_predicates_and_commands_are_told_the_counts(tmp_path: Path) -> None:
    rules = tuple(ScoringRule(metric=name, expression=name) for name in ("calls", "evaluations"))
    assert await values(tmp_path, Scorer(kind="predicates", predicates=rules, metrics=METRICS)) == [3, 2]
    code = "import json,sys; told=json.load(sys.stdin); del told['submission']; print(json.dumps(told))"
    assert await values(tmp_path, Scorer(kind="command", command=(sys.executable, "-c", code), metrics=METRICS)) == [
        3,
        2,
    ]


async def test_the_counts_are_those_of_the_log_also_where_it_is_older_than_they_are(tmp_path: Path) -> None:
    one = problem(tmp_path, Scorer(kind="predicates", predicates=(), metrics=METRICS), budget=COUNTED)
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    for tool in ("probe", "look", "probe"):
        # Each at a process of its own, as it were.
        await Attempt(ledger, lambda: 1.0, one, "attempt-1").called(tool, {})
    await Attempt(ledger, lambda: 1.0, one, "attempt-1").submit({"x": 1})
    bodies = [stored.body for stored in await ledger.read("attempt-1")]
    state = await load_attempt(ledger, "attempt-1")
    await ledger.close()
    assert state.taken is not None and b'"evaluations":2' in bodies[-1]
    told = Submitted.of(state.taken)
    assert (told.calls, told.evaluations) == (3, 2)
    old = [decode_attempt(body.replace(b',"evaluations":2', b"")) for body in bodies]
    assert b"evaluations" not in encode_attempt(old[-1])[1]
    folded = fold_attempt("attempt-1", old)
    assert folded is not None and folded.taken is not None and Submitted.of(folded.taken) == told
