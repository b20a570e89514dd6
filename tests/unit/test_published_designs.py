"""The best designs of the literature, put into our formulas, give the best values of the literature."""

from __future__ import annotations

import pytest
from problem_answers import PUBLISHED

from pursuit.demo.designs import evaluate
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.scoring import score_of


@pytest.mark.parametrize("problem_id", PUBLISHED)
def test_a_published_design_has_its_published_value(problem_id: str) -> None:
    design, value = PUBLISHED[problem_id]
    problem = ProblemCatalogue.load().get(problem_id)
    score = score_of(problem.scorer, evaluate(problem_id, design))
    assert score.rows[0].value == pytest.approx(value, rel=1e-5)
    assert score.rows[0].feasible and score.solved
    assert problem.primary.best_known == pytest.approx(value, rel=1e-5)
