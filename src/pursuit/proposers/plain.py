"""The proposers that need no model: script, repeat, replay, client.

Owns: how each turns a mission's own words into the next proposal. Pure but for the role's `async`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pursuit.model.mission import Proposal
from pursuit.model.state import MissionState
from pursuit.proposers.contract import Failed, Waiting


@dataclass(frozen=True, slots=True)
class ScriptAgain:
    """The operator's script, once for each iteration."""

    script: str
    operators_own: bool = True

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The same script; what it does depends on the state that it is given."""
        return Proposal(script=self.script)


@dataclass(frozen=True, slots=True)
class RepeatCall:
    """The same call, for missions that wait for something."""

    proposal: Proposal
    operators_own: bool = True

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The call again; if it is refused, that is a failure."""
        return Failed("; ".join(reasons)) if reasons else self.proposal


@dataclass(frozen=True, slots=True)
class Recorded:
    """Proposals of an earlier mission, in order: somebody else's word, as it was then."""

    proposals: Sequence[Proposal]
    operators_own: bool = False

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The proposal for this iteration; a failure once they are used up."""
        if state.iteration_count >= len(self.proposals):
            return Failed(f"the {len(self.proposals)} recorded proposals are used up")
        return Failed("; ".join(reasons)) if reasons else self.proposals[state.iteration_count]


class HandedIn:
    """One proposal from whoever drives, then the mission waits for the next."""

    operators_own = False

    def __init__(self, proposal: Proposal | None = None) -> None:
        self._proposal = proposal

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The proposal that was handed in, once."""
        proposal, self._proposal = self._proposal, None
        return Waiting("proposal") if proposal is None else proposal
