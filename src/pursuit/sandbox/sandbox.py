"""The interface of the sandbox: evaluates expressions and runs scripts.

An expression cannot raise into the caller, or affect the next expression or the process. Creating and entering a
sandbox starts nothing.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pursuit.core.base_model import NotJsonError, as_json
from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.core.truncate import cut_text
from pursuit.sandbox.pool import PATIENCE, SandboxLimits, SessionLostError, Workers, monty
from pursuit.sandbox.scripts import Script
from pursuit.sandbox.values import MAX_TEXT, ScriptSpec, canonical, rendered

if TYPE_CHECKING:
    from pydantic_monty import OSPolicy, ResourceLimits

MAX_VALUE = 64 * 1024
# A verdict depends only on the observation, so there is neither a clock nor randomness.
_POLICY: OSPolicy = {
    "datetime": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    "sleep": "zero",
    "random_start": {"seed": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateValue:
    """The result of an expression. A value that is not JSON, or is too long, becomes text with `is_json` false."""

    value: Any = None
    error: str | None = None
    is_json: bool = True


class Sandbox:
    """Runs user code. Belongs to one event loop; any task in it may use and close it.

    Scripts use separate processes: a script may wait for hours, and no verdict must queue behind it.
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
        """The value of each expression over the variables, in order, each in a separate session."""
        return [await self._evaluated(expression, variables) for expression in expressions]

    async def _evaluated(self, expression: str, variables: Mapping[str, Any]) -> PredicateValue:
        try:
            text = checked_expression(expression)
        except SyntaxProblem as problem:
            return PredicateValue(error=f"the expression {problem}")
        try:
            return await self._run(text, variables)
        except SessionLostError:  # once more, with another process
            try:
                return await self._run(text, variables)
            except SessionLostError as error:
                return PredicateValue(error=cut_text(str(error), MAX_TEXT))

    async def _run(self, text: str, variables: Mapping[str, Any]) -> PredicateValue:
        library, limits = monty(), self.limits
        resources: ResourceLimits = {
            "max_feed_duration_secs": limits.predicate_seconds,
            "max_memory": limits.predicate_memory,
            "max_recursion_depth": limits.predicate_recursion,
        }
        async with self._predicates.session(resources, _POLICY) as session:
            try:
                raw = await session.feed_run(text, inputs=dict(variables), print_callback=lambda _stream, _text: None)
            except library.MontyCrashedError as error:
                raise SessionLostError(f"the sandbox process died: {error}") from error
            except library.MontyError as error:
                if isinstance(error.exception(), TimeoutError):
                    # Monty counts wall-clock time, so a harmless expression may time out on a busy machine: try again.
                    raise SessionLostError(str(error)) from error
                return PredicateValue(error=cut_text(str(error), MAX_TEXT))
        with contextlib.suppress(NotJsonError, RecursionError):
            if len(canonical(value := as_json(raw))) <= MAX_VALUE:
                return PredicateValue(value=value)
        return PredicateValue(value=rendered(raw), is_json=False)

    def script(self, spec: ScriptSpec) -> Script:
        """One run of a script, entered with `async with`; it holds a process until it is `Finished`."""
        return Script(self._scripts, self.limits, spec)

    async def aclose(self) -> None:
        """Ends all sandbox processes. Later evaluations and starts of scripts return an error text."""
        await self._predicates.aclose()
        await self._scripts.aclose()
