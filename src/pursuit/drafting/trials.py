"""Tries a drafted expression out on observations that were never made.

Owns: which observations tell an expression that decides something from one that does not. Runs it in the sandbox.
Invariant: an expression that is true before anything has happened, by waiting alone, or whatever the values are, is
told; so is one that no value of its only metric can meet.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pursuit.sandbox import Sandbox
from pursuit.sandbox.predicates import PredicateValue

_BLANK: Mapping[str, Any] = {
    "metrics": {},
    "metric_history": {},
    "events": {},
    "tool_results": [],
    "errors": [],
    "iteration": 0,
}
_LATE = 1_000_000
_ALWAYS_TRIED = (-1e9, -1.0, -0.5, 0.0, 0.5, 1.0, 1e9)
_MOST_VALUES = 32
_MIXED = 16
_HOPELESS = ("NameError", "AttributeError", "SyntaxError", "NotImplementedError")


async def trial(sandbox: Sandbox, expression: str) -> str | None:
    """Why an expression over `obs` decides nothing, or None."""
    tree = ast.parse(expression.strip(), mode="eval")
    if not _reads(tree, "obs"):
        (value,) = await sandbox.evaluate([expression], {"obs": _BLANK})
        shown = value.error or f"always {value.value!r}"
        return f"the expression does not look at `obs`, so it is {shown}"
    if await _true(sandbox, expression, _BLANK):
        return "the expression is true before anything has happened"
    if await _true(sandbox, expression, {**_BLANK, "iteration": _LATE}):
        return "the expression comes true by waiting alone"
    names, numbers = _constants(tree)
    values = [await _value(sandbox, expression, view) for view in _views(names, numbers)]
    return _verdict(values, names)


def constant(expression: str, name: str) -> str | None:
    """Why an expression over another name decides nothing, or None: it must at least look at it."""
    tree = ast.parse(expression.strip(), mode="eval")
    return None if _reads(tree, name) else f"the expression does not look at `{name}`, so it always says the same"


def _verdict(values: Sequence[PredicateValue], names: Sequence[str]) -> str | None:
    decided = [value.value for value in values if value.error is None]
    if not decided:
        errors = [value.error or "" for value in values]
        hopeless = all(any(kind in error for kind in _HOPELESS) for error in errors)
        return f"the expression can never be decided: {errors[0]}" if hopeless else None
    if len(decided) == len(values) and all(value is True for value in decided):
        return "the expression is true whatever the values are"
    if len(decided) == len(values) and len(names) == 1 and not any(value is True for value in decided):
        return f"no value of {names[0]!r} makes the expression true"
    return None


async def _true(sandbox: Sandbox, expression: str, view: Mapping[str, Any]) -> bool:
    value = await _value(sandbox, expression, view)
    return value.error is None and value.value is True


async def _value(sandbox: Sandbox, expression: str, view: Mapping[str, Any]) -> PredicateValue:
    (value,) = await sandbox.evaluate([expression], {"obs": view})
    return value


def _reads(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _constants(tree: ast.AST) -> tuple[list[str], list[float]]:
    """The names and the numbers in an expression."""
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    names = dict.fromkeys(value for value in constants if isinstance(value, str) and value not in _BLANK)
    numbers = {float(v) for v in constants if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}
    return list(names), sorted(numbers)


def _views(names: Sequence[str], numbers: Sequence[float]) -> Iterator[Mapping[str, Any]]:
    """Observations in which every name has the same value, then some in which each has its own."""
    near = {number + step for number in numbers for step in (-1.0, -0.25, 0.0, 0.25, 1.0)}
    values = [*_ALWAYS_TRIED, *sorted(near - set(_ALWAYS_TRIED))][:_MOST_VALUES]
    for value in values:
        yield _view(dict.fromkeys(names, value))
    if len(names) > 1:
        chance = random.Random(0)  # noqa: S311 - the same trials every time
        yield from islice((_view({name: chance.choice(values) for name in names}) for _ in iter(int, 1)), _MIXED)


def _view(values: Mapping[str, float]) -> Mapping[str, Any]:
    history = {name: [value, value, value] for name, value in values.items()}
    counts = {name: max(0, int(min(value, 1e6))) for name, value in values.items()}
    return {**_BLANK, "metrics": dict(values), "metric_history": history, "events": counts, "iteration": 3}
