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
"""The outcomes of calls of which nobody knows whether they did something."""


@dataclass(slots=True)
class Trial:
    """One evaluation; no outcome means that it is still under way."""

    number: int
    args: Mapping[str, Any]
    outcome: Outcome | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class Beside:
    """The calls of any other tool, which comes after the search.

    With `again` one of which nobody knows what became is none: it may be made once more, so many times.
    """

    MOST = 3

    def __init__(self, *, again: bool) -> None:
        self.made = 0
        """How many there were, but for those that were never made."""
        self.why: str | None = None
        """What the last of them failed with."""
        self._again = again
        self._lost = 0
        self._open: set[str] = set()

    def begin(self, calls: Sequence[str]) -> None:
        """Takes in the calls of a new iteration."""
        self._open = set(calls)
        self.made += len(calls)

    def hear(self, event: CallSettled | CallRefused) -> None:
        """Takes in what became of a call."""
        if event.call_id not in self._open:
            return
        said = event.error if isinstance(event, CallSettled) else event.reason
        self.why = None if event.outcome == "ok" else f"{event.outcome}: {said}"
        lost = event.outcome in LOST and self._again and self._lost + 1 < self.MOST
        self._lost += lost
        if lost or event.outcome == "skipped":
            self.made -= 1


class Trials:
    """Follows the events of one mission and gives each iteration's trials once it has ended."""

    def __init__(self, tool: str, *, again: bool = False) -> None:
        self.made = 0
        self.answered = 0
        """How many of them had a result."""
        self.beside = Beside(again=again)
        self.spent: str | None = None
        """What the tool said when it had no budget left, as a problem's has."""
        self._tool = tool
        self._open: dict[str, Trial] = {}

    def hear(self, event: AnyEvent) -> Sequence[Trial]:
        """Takes in one event; the trials of an iteration come when it ends."""
        match event:
            case IterationProposed():
                self._open = {}
                self.beside.begin([call.call_id for call in event.calls if call.tool != self._tool])
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
            case CallSettled() | CallRefused():
                self.beside.hear(event)
            case IterationEnded():
                ended, self._open = list(self._open.values()), {}
                return ended
            case _:
                pass
        return ()
