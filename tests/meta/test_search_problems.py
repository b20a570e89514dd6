"""The constrained problems of the search benchmark have their published optima at the published points."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "constrained.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("constrained", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["constrained"] = module
    spec.loader.exec_module(module)
    return module


PROBLEMS = load().PROBLEMS


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.name)
def test_the_published_point_is_feasible_and_has_the_published_value(problem: Any) -> None:
    value, limits = problem.evaluate(*problem.x)
    assert value == pytest.approx(problem.best, rel=1e-6)
    size = max(1.0, *(abs(one) for one in problem.x))
    assert max(limits) <= 1e-6 * size
    assert all(low <= x <= high for low, x, high in zip(problem.low, problem.x, problem.high, strict=True))


def test_there_are_twelve_of_them() -> None:
    assert len({problem.name for problem in PROBLEMS}) == 12
