"""The space of a search, and that its next trial follows from the seed and the trials told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.proposers.search.objective import Score
from pursuit.proposers.search.samplers import Study
from pursuit.proposers.search.settings import Parameter
from pursuit.proposers.search.space import Space

whole = st.integers(1 - 2**53, 2**53 - 1)
bounds = st.floats(-1e6, 1e6, allow_subnormal=False)


@st.composite
def parameters(draw: st.DrawFn) -> Parameter:
    kind = draw(st.sampled_from(["float", "step", "log", "int", "intlog", "large", "far", "choices"]))
    if kind == "large":
        low, high = sorted(draw(st.tuples(whole, whole).filter(lambda pair: abs(pair[0] - pair[1]) > 4)))
        log = low > 0 and draw(st.booleans())
        step = None if log else draw(st.integers(1, high - low) if high - low <= 2**53 else st.just(1))
        return Parameter(low=low, high=high, step=step, log=log, kind="int")
    if kind == "far":
        low = draw(st.floats(1e9, 1e13))
        return Parameter(low=low, high=low + draw(st.floats(1, 9)), step=draw(st.sampled_from([None, 0.25, 0.5])))
    if kind == "choices":
        return Parameter(choices=draw(st.lists(st.text(max_size=3), min_size=1, max_size=5, unique=True)))
    if kind in ("int", "intlog"):
        low = draw(st.integers(1 if kind == "intlog" else -1_000, 1_000))
        step = draw(st.integers(1, 5)) if kind == "int" else None
        return Parameter(low=low, high=low + draw(st.integers(5, 500)), step=step, log=kind == "intlog", kind="int")
    low = draw(st.floats(1e-3, 1e3)) if kind == "log" else draw(bounds)
    high = low + draw(st.floats(1, 1e4))
    step = draw(st.floats(0.01, min(1.0, high - low))) if kind == "step" else None
    return Parameter(low=low, high=high, step=step, log=kind == "log")


spaces = st.dictionaries(st.text("abc", min_size=1, max_size=3), parameters(), min_size=1, max_size=5)


@given(spaces, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_point_lies_within_its_bounds_on_its_grid_and_is_found_again(
    given_parameters: dict[str, Parameter], seed: int
) -> None:
    space = Space(given_parameters)
    for row in space.snap(np.random.default_rng(seed).normal(0.5, 0.7, (8, space.width))):
        args = space.decode(row)
        assert list(args) == list(given_parameters)
        for name, value in args.items():
            _allowed(given_parameters[name], value)
        again = space.decode(space.encode(args))
        assert all(_same(given_parameters[name], again[name], value) for name, value in args.items())


@given(parameters().filter(lambda one: one.choices is None), st.floats(-1e17, 1e17))
@settings(max_examples=200, deadline=None)
def test_no_number_is_heard_outside_of_its_bounds(parameter: Parameter, number: float) -> None:
    space = Space({"a": parameter})
    _allowed(parameter, space.decode(np.array([number]))["a"])


def _same(parameter: Parameter, one: Any, other: Any) -> bool:
    """Whether two values are one, as far as numbers between such bounds can be told apart."""
    if parameter.low is None or parameter.high is None:
        return one == other
    span = parameter.high - parameter.low
    if isinstance(other, int) and (parameter.step or 1) > span * 1e-12 and not parameter.log:
        return one == other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=span * 1e-12)


def _allowed(parameter: Parameter, value: Any) -> None:
    if parameter.choices is not None:
        assert value in parameter.choices
        return
    assert parameter.low is not None and parameter.high is not None
    assert parameter.low <= value <= parameter.high
    assert isinstance(value, int if parameter.kind == "int" else float)
    if parameter.step is not None:
        if isinstance(value, int):
            assert (value - int(parameter.low)) % int(parameter.step) == 0
            return
        steps = (value - parameter.low) / parameter.step
        assert abs(steps - round(steps)) < 1e-6 * max(1, abs(parameter.low) / parameter.step)


def _score(args: dict[str, Any]) -> Score | None:
    """Some landscape: a limit, an objective, and a corner where there is no result."""
    numbers = [float(value) for value in args.values() if not isinstance(value, str)]
    total = sum(math.sin(number) for number in numbers) + sum(len(str(value)) for value in args.values())
    return None if total > 12 else Score(total, (math.cos(total),), met=False)


@given(spaces, st.integers(0, 2**40), st.sampled_from(["surrogate", "tpe", "random"]), st.integers(1, 20))
@settings(max_examples=15, deadline=None)
def test_a_study_that_is_told_the_same_trials_asks_for_the_same_next(
    given_parameters: dict[str, Parameter], seed: int, sampler: Any, count: int
) -> None:
    space = Space(given_parameters)
    first = Study(space, sampler=sampler, seed=seed, aimless=False)
    made: list[dict[str, Any]] = []
    for _ in range(count):
        made.append(first.ask())
        first.tell(_score(made[-1]), failed=True)
    second = Study(space, sampler=sampler, seed=seed, aimless=False)
    for args in made:
        second.take(args)
        second.tell(_score(args), failed=True)
    assert second.ask() == first.ask()
