"""The sandbox as the rest of Pursuit sees it: evaluates expressions, runs scripts, closes.

Nothing that an expression does reaches the caller as an exception, the next expression or the process. Making a
sandbox, and entering it, starts nothing.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.sandbox.pool import PATIENCE, SandboxLimits, SessionLostError, Workers, monty
from pursuit.sandbox.scripts import Script
from pursuit.sandbox.values import NotJsonError, ScriptSpec, as_json, bounded, canonical, rendered

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, OSPolicy, ResourceLimits

MAX_VALUE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateValue:
    """The result of an expression. A value that is not JSON, or too long, is a text, and `is_json` is false."""

    value: Any = None
    error: str | None = None
    is_json: bool = True


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: PredicateValue
    leaves_traces: bool = False


class Sandbox:
    """Runs what users write. Belongs to one event loop; any task in it may use and close it.

    Scripts have workers of their own: one may wait for hours, and no verdict queues behind it.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self._predicates = Workers(self.limits.predicate_workers, self.limits.predicate_seconds + PATIENCE)
        self._scripts = Workers(self.limits.script_workers, self.limits.script_seconds + PATIENCE)

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def evaluate(self, expressions: Sequence[str], variables: Mapping[str, Any]) -> list[PredicateValue]:
        """The value of each expression over the variables, in order.

        One session serves them all, until one of them may have changed what the next one sees.
        """
        values: list[PredicateValue] = []
        lost_at: int | None = None
        while len(values) < len(expressions):
            try:
                async with self._predicates.session(_resources(self.limits), _policy()) as session:
                    for expression in expressions[len(values) :]:
                        outcome = await _evaluated(session, expression, variables)
                        values.append(outcome.value)
                        if outcome.leaves_traces:
                            break
            except SessionLostError as error:
                # Lost twice at the same place: it is the expression, or no worker is available.
                if lost_at == len(values):
                    values.append(PredicateValue(error=bounded(str(error))))
                else:
                    lost_at = len(values)
        return values

    def script(self, spec: ScriptSpec) -> Script:
        """One run of a script, entered with `async with`; it holds a worker while it is not `Finished`."""
        return Script(self._scripts, self.limits, spec)

    async def aclose(self) -> None:
        """Ends all workers. Afterwards every evaluation and every start of a script ends in an error text."""
        await self._predicates.aclose()
        await self._scripts.aclose()


async def _evaluated(session: AsyncMontySession, expression: str, variables: Mapping[str, Any]) -> _Outcome:
    library = monty()
    try:
        text = checked_expression(expression)
    except SyntaxProblem as problem:
        return _Outcome(PredicateValue(error=f"the expression {problem}"))
    try:
        raw = await session.feed_run(text, inputs=dict(variables), print_callback=lambda _stream, _text: None)
    except library.MontyCrashedError as error:
        raise SessionLostError(f"the sandbox worker died: {error}") from error
    except library.MontyError as error:
        if isinstance(error.exception(), TimeoutError):
            # Monty counts wall-clock time: on a busy machine a harmless expression deserves a second try.
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


def _resources(limits: SandboxLimits) -> ResourceLimits:
    return {
        "max_feed_duration_secs": limits.predicate_seconds,
        "max_memory": limits.predicate_memory,
        "max_recursion_depth": limits.predicate_recursion,
    }


def _policy() -> OSPolicy:
    # A verdict is a function of the observation alone, so there is neither a clock nor randomness.
    return {
        "datetime": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "sleep": "zero",
        "random_start": {"seed": 0},
    }
