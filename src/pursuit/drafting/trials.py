"""Tries a drafted expression out on observations that were never made.

Owns: which observations tell an expression that decides something from one that does not. Runs it in the sandbox.
Invariant: an expression that is true before anything has happened, by waiting or calling alone, or whatever the values
are, is told; so is one that no value of its only metric can meet, and one that never comes to true or false.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pursuit.drafting.measures import can_be_negative, possible
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
_WAITED = (*range(1, 13), 19, 20, 24, 29, 30, 49, 50, 59, 60, 99, 100, 999, 1_000, 1_000_000)
_EARLY = 3
_CALLED = (1, 3, 20)
_ALWAYS_TRIED = (-1e9, -1.0, -0.5, 0.0, 0.5, 1.0, 1e9)
_MOST_VALUES = 32
_MIXED = 16
_HOPELESS = ("NameError", "AttributeError", "SyntaxError", "NotImplementedError")
_NO_BOOL = (
    ast.List,
    ast.ListComp,
    ast.Tuple,
    ast.Dict,
    ast.DictComp,
    ast.Set,
    ast.SetComp,
    ast.GeneratorExp,
    ast.JoinedStr,
)
NO_BOOL = "the expression never gives True or False; wrap it in bool(...), any(...) or a comparison"


async def trial(sandbox: Sandbox, expression: str) -> str | None:
    """Why an expression over `obs` decides nothing, or None."""
    tree = ast.parse(expression.strip(), mode="eval")
    if not _reads(tree, "obs"):
        (value,) = await sandbox.evaluate([expression], {"obs": _BLANK})
        shown = value.error or f"always {value.value!r}"
        return f"the expression does not look at `obs`, so it is {shown}"
    if isinstance(tree.body, _NO_BOOL):
        return NO_BOOL
    if await _true(sandbox, expression, _BLANK):
        return "the expression is true before anything has happened"
    names, numbers = _constants(tree)
    if _reads_only_iteration(tree) or await _true_by_waiting(sandbox, expression, numbers):
        return "the expression comes true by waiting alone"
    if ("tool_results" in expression or "errors" in expression) and await _true_by_calling(sandbox, expression):
        return "the expression comes true by calling tools alone, whatever they return"
    late = [_EARLY, *([_WAITED[-1]] if "iteration" in expression else [])]
    views = [{**view, "iteration": iteration} for view in _views(names, numbers) for iteration in late]
    values = [await _value(sandbox, expression, view) for view in views]
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
    if len(decided) == len(values) and not any(isinstance(value, bool) for value in decided):
        return NO_BOOL
    if len(decided) == len(values) and all(value is True for value in decided):
        return "the expression is true whatever the values are"
    if len(decided) == len(values) and len(names) == 1 and not any(value is True for value in decided):
        return f"no value of {names[0]!r} makes the expression true"
    return None


async def _true_by_waiting(sandbox: Sandbox, expression: str, numbers: Sequence[float]) -> bool:
    """Whether it is true in an iteration in which nothing was called yet."""
    near = {int(number) + step for number in numbers if 1 <= number < 1e9 for step in (-1, 0, 1)}
    waited = {*_WAITED, *islice(sorted(near), _MOST_VALUES)} if "iteration" in expression else {_WAITED[-1]}
    for iteration in sorted(waited):
        if await _true(sandbox, expression, {**_BLANK, "iteration": iteration}):
            return True
    return False


async def _true_by_calling(sandbox: Sandbox, expression: str) -> bool:
    """Whether some number of calls makes it true, whatever comes of them."""
    for count in _CALLED:
        answers = [await _true(sandbox, expression, view) for view in _calls(count)]
        if all(answers):
            return True
    return False


def _calls(count: int) -> Iterator[Mapping[str, Any]]:
    """The same calls with nothing, with something, and with an error for a result."""
    for outcome, result, error in (("ok", None, None), ("ok", {"x": 1}, None), ("failed", None, "it failed")):
        row = {"tool": "server.tool", "args": {}, "outcome": outcome, "result": result, "error": error}
        rows = [{**row, "iteration": index} for index in range(count)]
        yield {**_BLANK, "tool_results": rows, "errors": [error] * count if error else [], "iteration": count - 1}


async def _true(sandbox: Sandbox, expression: str, view: Mapping[str, Any]) -> bool:
    value = await _value(sandbox, expression, view)
    return value.error is None and value.value is True


async def _value(sandbox: Sandbox, expression: str, view: Mapping[str, Any]) -> PredicateValue:
    (value,) = await sandbox.evaluate([expression], {"obs": view})
    return value


def _reads(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _reads_only_iteration(tree: ast.AST) -> bool:
    """Whether every look at `obs` is one at the number of the iteration."""
    looks = sum(isinstance(node, ast.Name) and node.id == "obs" for node in ast.walk(tree))
    return looks == sum(_is_iteration(node) for node in ast.walk(tree))


def _is_iteration(node: ast.AST) -> bool:
    """`obs["iteration"]` or `obs.get("iteration", …)`."""
    match node:
        case ast.Subscript(value=ast.Name(id="obs"), slice=ast.Constant(value="iteration")):
            return True
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="obs"), attr="get"), args=[ast.Constant(value="iteration"), *_]
        ):
            return True
        case _:
            return False


def _constants(tree: ast.AST) -> tuple[list[str], list[float]]:
    """The names and the numbers in an expression."""
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    names = dict.fromkeys(value for value in constants if isinstance(value, str) and value not in _BLANK)
    numbers = {float(v) for v in constants if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}
    if any(isinstance(node, ast.USub) for node in ast.walk(tree)):
        numbers |= {-number for number in numbers}
    return list(names), sorted(numbers)


def _views(names: Sequence[str], numbers: Sequence[float]) -> Iterator[Mapping[str, Any]]:
    """Observations in which every name has the same value, then some in which each has its own."""
    near = {number + step for number in numbers for step in (-1.0, -0.25, 0.0, 0.25, 1.0)}
    values = [*_ALWAYS_TRIED, *sorted(near - set(_ALWAYS_TRIED))][:_MOST_VALUES]
    signed = any(number < 0 for number in numbers)
    for value in values:
        yield _view({name: _possible(name, value, signed) for name in names})
    if len(names) > 1:
        chance = random.Random(0)  # noqa: S311 - the same trials every time
        mixed = ({name: _possible(name, chance.choice(values), signed) for name in names} for _ in iter(int, 1))
        yield from islice((_view(one) for one in mixed), _MIXED)


def _possible(name: str, value: float, signed: bool) -> float:
    """The value, or the nearest that something of this name can have."""
    low, high = possible(name)
    if not signed and not can_be_negative(name):
        low = 0  # of most things that are measured there is no less than nothing
    return min(max(value, low), high)


def _view(values: Mapping[str, float]) -> Mapping[str, Any]:
    history = {name: [value, value, value] for name, value in values.items()}
    counts = {name: max(0, int(min(value, 1e6))) for name, value in values.items()}
    return {**_BLANK, "metrics": dict(values), "metric_history": history, "events": counts}
