"""The proposer `replay`: the recorded proposals of another mission, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pursuit.core.mission import Proposal
from pursuit.core.proposing import ProposerSettings
from pursuit.core.state import MissionState
from pursuit.proposers.contract import Failed, MissionAdmission, Proposed, Proposer, ProposerContext, SimpleKind


class ReplayProposer(ProposerSettings):
    """Recorded proposals, in order."""

    kind: Literal["replay"] = "replay"
    proposals: Annotated[list[Proposal], Field(min_length=1, max_length=100_000)]

    def calls(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        for proposal in self.proposals:
            yield from ((call.tool_name, call.args) for call in proposal.tool_calls or ())


class Recorded(Proposer):
    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self._proposals = proposals

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The proposal for this iteration; a failure once they are used up."""
        if state.iteration_count >= len(self._proposals):
            return Failed(f"the {len(self._proposals)} recorded proposals are used up")
        return Failed("; ".join(reasons)) if reasons else self._proposals[state.iteration_count]


class ReplayKind(SimpleKind[ReplayProposer]):
    settings = ReplayProposer

    async def admit(self, settings: ReplayProposer, admission: MissionAdmission) -> None:
        for place, proposal in enumerate(settings.proposals):
            at = f"proposer.proposals[{place}]"
            if proposal.script is not None and not admission.mission.allow_scripted_strategies:
                admission.fault(f"{at}.script", "a replayed script needs allow_scripted_strategies = true")
            for number, call in enumerate(proposal.tool_calls or ()):
                name = admission.tool(f"{at}.tool_calls[{number}].tool_name", call.tool_name)
                admission.arguments(f"{at}.tool_calls[{number}].args", name, call.args)

    def make(self, settings: ReplayProposer, context: ProposerContext) -> Proposer:
        return Recorded(settings.proposals)
