"""The trials of a search as the ledger tells them.

Owns: what the events of a mission say about each trial. Reads no storage itself.
Invariant: trials are numbered in the order in which they were proposed, whichever came back first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pursuit.errors import BudgetExhausted
from pursuit.model.events import AnyEvent, CallRefused, CallSettled, IterationEnded, IterationProposed, Outcome
from pursuit.model.observe import leaves

_SPENT = f"{BudgetExhausted.code}: "
"""How an error begins that says that no arguments whatever will be answered any more."""

UNMADE = frozenset({"skipped", "cancelled"})
"""The outcomes of calls that were never made, or not to their end: they say nothing about their arguments."""


@dataclass(slots=True)
class Trial:
    """One evaluation; no outcome means that it is still under way."""

    number: int
    args: Mapping[str, Any]
    outcome: Outcome | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class Trials:
    """Follows the events of one mission and gives each iteration's trials once it has ended."""

    def __init__(self, tool: str) -> None:
        self.made = 0
        self.others = 0
        """Calls of any other tool, but for those that were never made."""
        self.spent: str | None = None
        """What the tool said when it had no budget left, as a problem's has."""
        self._tool = tool
        self._beside: set[str] = set()
        self._open: dict[str, Trial] = {}

    def hear(self, event: AnyEvent) -> Sequence[Trial]:
        """Takes in one event; the trials of an iteration come when it ends."""
        match event:
            case IterationProposed():
                self._open, self._beside = {}, set()
                for call in event.calls:
                    if call.tool != self._tool:
                        self.others += 1
                        self._beside.add(call.call_id)
                        continue
                    self._open[call.call_id] = Trial(self.made, call.args)
                    self.made += 1
            case CallSettled() if event.call_id in self._open:
                trial = self._open[event.call_id]
                trial.outcome, trial.metrics = event.outcome, dict(leaves(event.metrics))
                if event.outcome == "failed" and (event.error or "").startswith(_SPENT):
                    self.spent = event.error
            case CallRefused() if event.call_id in self._open:
                self._open[event.call_id].outcome = event.outcome
            case CallSettled() | CallRefused() if event.call_id in self._beside and event.outcome == "skipped":
                self.others -= 1
            case IterationEnded():
                ended, self._open = list(self._open.values()), {}
                return ended
            case _:
                pass
        return ()
