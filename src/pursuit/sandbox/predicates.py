"""Expressions over an observation: checked when a mission is made, evaluated in a worker at every verdict.

Owns: one expression's way from text to a JSON-safe value or an error text. Knows no criteria.
Invariant: nothing that an expression does reaches the caller as an exception, the next expression or the process.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.sandbox.pool import SandboxLimits, SessionLostError, Workers, monty
from pursuit.sandbox.values import NotJsonError, as_json, bounded, canonical, rendered

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, OSPolicy, ResourceLimits

MAX_VALUE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateValue:
    """What an expression came to. A value that is no JSON, or too long, is a text, and `is_json` is false."""

    value: Any = None
    error: str | None = None
    is_json: bool = True


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: PredicateValue
    leaves_traces: bool = False


async def evaluate(
    workers: Workers, limits: SandboxLimits, expressions: Sequence[str], variables: Mapping[str, Any]
) -> list[PredicateValue]:
    """The value of each expression, in order. One session for all, until one of them may have spoilt it."""
    values: list[PredicateValue] = []
    lost_at: int | None = None
    while len(values) < len(expressions):
        try:
            async with workers.session(_resources(limits), _policy()) as session:
                for expression in expressions[len(values) :]:
                    outcome = await _evaluated(session, expression, variables)
                    values.append(outcome.value)
                    if outcome.leaves_traces:
                        break
        except SessionLostError as error:
            # Lost twice at the same place: it is the expression, or there are no workers to be had.
            if lost_at == len(values):
                values.append(PredicateValue(error=bounded(str(error))))
            else:
                lost_at = len(values)
    return values


async def _evaluated(session: AsyncMontySession, expression: str, variables: Mapping[str, Any]) -> _Outcome:
    library = monty()
    try:
        text = checked_expression(expression)
    except SyntaxProblem as problem:
        return _Outcome(PredicateValue(error=f"the expression {problem}"))
    try:
        raw = await session.feed_run(text, inputs=dict(variables), print_callback=_unheard)
    except library.MontyCrashedError as error:
        raise SessionLostError(f"the sandbox worker died: {error}") from error
    except library.MontyError as error:
        if isinstance(error.exception(), TimeoutError):
            # Monty's clock is the wall's: on a busy machine a harmless expression deserves a second try.
            raise SessionLostError(str(error)) from error
        spoilt = isinstance(error.exception(), MemoryError | RecursionError)
        return _Outcome(PredicateValue(error=bounded(str(error))), spoilt or _leaves_traces(text))
    return _Outcome(_crossed(raw), _leaves_traces(text))


def _crossed(raw: object) -> PredicateValue:
    try:
        value = as_json(raw)
    except (NotJsonError, RecursionError):
        return PredicateValue(value=rendered(raw), is_json=False)
    if len(canonical(value)) > MAX_VALUE:
        return PredicateValue(value=rendered(raw), is_json=False)
    return PredicateValue(value=value)


def _leaves_traces(text: str) -> bool:
    """Whether it can bind a name that the next expression in the same session would see."""
    return any(
        isinstance(node, ast.NamedExpr) or (isinstance(node, ast.Name) and node.id in {"exec", "eval"})
        for node in ast.walk(ast.parse(text, mode="eval"))
    )


def _unheard(_stream: str, _text: str) -> None:
    """An expression has nobody to print to."""


def _resources(limits: SandboxLimits) -> ResourceLimits:
    return {
        "max_feed_duration_secs": limits.predicate_seconds,
        "max_memory": limits.predicate_memory,
        "max_recursion_depth": limits.predicate_recursion,
    }


def _policy() -> OSPolicy:
    # A verdict is a function of the observation alone, so there is neither a clock nor chance.
    return {
        "datetime": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "sleep": "zero",
        "random_start": {"seed": 0},
    }
