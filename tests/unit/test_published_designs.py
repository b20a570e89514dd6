"""The best designs of the literature, put into our formulas, give the best values of the literature."""

from __future__ import annotations

import itertools

import pytest
from problem_answers import PUBLISHED

from pursuit.demo.designs import evaluate
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.scoring import score_of

TIGHT = {
    "welded-beam": "t",
    "three-bar-truss": "a1",
    "speed-reducer": "d2",
    "pressure-vessel": "length",
    "spring": "wire",
}
"""What cannot be smaller in the best designs, as a constraint bounds it."""


@pytest.mark.parametrize("problem_id", PUBLISHED)
def test_a_published_design_has_its_published_value(problem_id: str) -> None:
    design, value = PUBLISHED[problem_id]
    problem = ProblemCatalogue.load().get(problem_id)
    score = score_of(problem.scorer, evaluate(problem_id, design))
    assert score.rows[0].value == pytest.approx(value, rel=1e-5)
    assert score.rows[0].feasible and score.solved
    assert problem.primary.best_known == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("problem_id", TIGHT)
def test_a_printed_design_is_feasible_and_nobody_gains_by_the_tolerance(problem_id: str) -> None:
    """With seven digits after the point a design is allowed; what is over by a hundred-thousandth is not."""
    design, value = PUBLISHED[problem_id]
    scorer = ProblemCatalogue.load().get(problem_id).scorer
    printed = {key: round(number, 7) for key, number in design.items()}
    row = score_of(scorer, evaluate(problem_id, printed)).rows[0]
    assert row.feasible and row.value >= value * (1 - 2e-6)
    key = TIGHT[problem_id]
    assert not score_of(scorer, evaluate(problem_id, {**design, key: design[key] * (1 - 1e-5)})).rows[0].feasible


def test_no_gear_train_and_no_knapsack_is_better() -> None:
    products = sorted({one * other for one in range(12, 61) for other in range(12, 61)})
    ratios = ((1 / 6.931 - above / below) ** 2 for above, below in itertools.product(products, repeat=2))
    assert min(ratios) == pytest.approx(PUBLISHED["gear-train"][1], rel=1e-9)
    path = ProblemCatalogue.load().get("knapsack").folder / "items.csv"
    rows = [tuple(map(int, line.split(","))) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    best = {0: 0}
    for _, weight, worth in rows:
        best |= {
            total: max(best.get(total, 0), best[total - weight] + worth)
            for total in range(750, weight - 1, -1)
            if total - weight in best
        }
    assert max(best.values()) == ProblemCatalogue.load().get("knapsack").primary.best_known
