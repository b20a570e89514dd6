"""The sandbox as the rest of Pursuit sees it: evaluate expressions, run scripts, close.

Owns: the two pools. Scripts wait in theirs for hours, so that verdicts never queue behind them.
Invariant: making one, and entering it, starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.sandbox import predicates
from pursuit.sandbox.pool import PATIENCE, SandboxLimits, Workers
from pursuit.sandbox.scripts import Script
from pursuit.sandbox.values import ScriptSpec


class Sandbox:
    """Runs what users write. Belongs to one event loop; any task in it may use and close it."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self._predicates = Workers(self.limits.predicate_workers, self.limits.predicate_seconds + PATIENCE)
        self._scripts = Workers(self.limits.script_workers, self.limits.script_seconds + PATIENCE)

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def evaluate(
        self, expressions: Sequence[str], variables: Mapping[str, Any]
    ) -> list[predicates.PredicateValue]:
        """The value of each expression over the variables, in order; see `predicates.evaluate`."""
        return await predicates.evaluate(self._predicates, self.limits, expressions, variables)

    def script(self, spec: ScriptSpec) -> Script:
        """One run of a script, to be entered with `async with`; it holds a worker while it is not `Finished`."""
        return Script(self._scripts, self.limits, spec)

    async def aclose(self) -> None:
        """End all workers. Afterwards every evaluation and every start of a script ends in an error text."""
        await self._predicates.aclose()
        await self._scripts.aclose()
