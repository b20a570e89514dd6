"""The best designs of the literature, put into our formulas, give the best values of the literature."""

from __future__ import annotations

import itertools

import pytest
from problem_answers import PUBLISHED

from pursuit.demo.designs import evaluate
from pursuit.problems.catalogue import Catalogue


@pytest.mark.parametrize("problem_id", PUBLISHED)
def test_a_published_design_has_its_published_value(problem_id: str) -> None:
    design, value = PUBLISHED[problem_id]
    numbers = evaluate(problem_id, design)
    assert numbers["cost"] == pytest.approx(value, rel=1e-5)
    # What is printed with ten digits lies on its constraints within as many.
    assert all(limit <= 2e-5 for name, limit in numbers.items() if name != "cost"), numbers
    known = Catalogue.load().get(problem_id).primary
    assert known.best_known == pytest.approx(value, rel=1e-5)
    assert known.target is not None and value <= known.target


def test_no_gear_train_and_no_knapsack_is_better() -> None:
    products = sorted({one * other for one in range(12, 61) for other in range(12, 61)})
    ratios = ((1 / 6.931 - above / below) ** 2 for above, below in itertools.product(products, repeat=2))
    assert min(ratios) == pytest.approx(PUBLISHED["gear-train"][1], rel=1e-9)
    path = Catalogue.load().get("knapsack").folder / "items.csv"
    rows = [tuple(map(int, line.split(","))) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    best = {0: 0}
    for _, weight, worth in rows:
        best |= {
            total: max(best.get(total, 0), best[total - weight] + worth)
            for total in range(750, weight - 1, -1)
            if total - weight in best
        }
    assert max(best.values()) == Catalogue.load().get("knapsack").primary.best_known
