"""The trials of a search as the ledger tells them.

Owns: what the events of a mission say about each trial, and about the calls beside them. Reads no storage itself.
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

LOST = frozenset({"cancelled", "timed_out", "unknown"})
"""The outcomes of calls that may or may not have had an effect."""

MOST_LOST = 2
"""How many calls of the tool that comes after a search are made again at most."""


@dataclass(slots=True)
class Trial:
    """One evaluation; no outcome means that it is still under way."""

    number: int
    args: Mapping[str, Any]
    outcome: Outcome | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class Trials:
    """Follows the events of one mission and gives each iteration's trials once it has ended.

    `checked`: a check of the mission finds out whether a call of the other tool had an effect.
    """

    def __init__(self, tool: str, *, checked: bool = False) -> None:
        self.made = 0
        self.answered = 0
        """How many of them had a result."""
        self.others = 0
        """How many calls of the other tool count: those that were never made, and lost ones to make again, do not."""
        self.why: str | None = None
        """What the last of these failed with."""
        self.spent: str | None = None
        """What the tool said when it had no budget left, as a problem's has."""
        self._tool = tool
        self._checked = checked
        self._lost = 0
        self._beside: set[str] = set()
        self._open: dict[str, Trial] = {}

    def hear(self, event: AnyEvent) -> Sequence[Trial]:
        """Takes in one event; the trials of an iteration come when it ends."""
        match event:
            case IterationProposed():
                self._open = {}
                self._beside = {call.call_id for call in event.calls if call.tool != self._tool}
                self.others += len(self._beside)
                for call in event.calls:
                    if call.tool == self._tool:
                        self._open[call.call_id] = Trial(self.made, call.args)
                        self.made += 1
            case CallSettled() if event.call_id in self._open:
                trial = self._open[event.call_id]
                trial.outcome, trial.metrics = event.outcome, dict(leaves(event.metrics))
                self.answered += event.outcome == "ok"
                if event.outcome == "failed" and (event.error or "").startswith(_SPENT):
                    self.spent = event.error
            case CallRefused() if event.call_id in self._open:
                self._open[event.call_id].outcome = event.outcome
            case CallSettled() | CallRefused() if event.call_id in self._beside:
                self._other(event)
            case IterationEnded():
                ended, self._open = list(self._open.values()), {}
                return ended
            case _:
                pass
        return ()

    def _other(self, event: CallSettled | CallRefused) -> None:
        """What became of a call of the other tool."""
        said = event.error if isinstance(event, CallSettled) else event.reason
        self.why = None if event.outcome == "ok" else f"{event.outcome}: {said}"
        again = self._checked and event.outcome in LOST and self._lost < MOST_LOST
        self._lost += again
        if again or event.outcome == "skipped":
            self.others -= 1
