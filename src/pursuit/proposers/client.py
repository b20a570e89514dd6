"""The proposer `client`: the client that drives the mission sends each proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pursuit.core.mission import Proposal
from pursuit.core.proposing import ProposerFacts, ProposerSettings
from pursuit.core.state import MissionState
from pursuit.proposers.contract import Proposed, Proposer, ProposerContext, SimpleKind, Waiting


class ClientProposer(ProposerSettings):
    """The client that drives the mission sends each proposal."""

    CHILDREN: ClassVar[str | None] = "clients do not drive children, so they cannot propose for them (client)"

    kind: Literal["client"] = "client"

    def facts(self) -> ProposerFacts:
        return ProposerFacts(guarded=True, proposed_by_client=True)


class ClientProposals(Proposer):
    """One proposal of the client that drives the mission; then the mission waits for the next."""

    def __init__(self, proposal: Proposal | None = None) -> None:
        self._proposal = proposal

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        proposal, self._proposal = self._proposal, None
        return Waiting("proposal") if proposal is None else proposal


class ClientKind(SimpleKind[ClientProposer]):
    settings = ClientProposer

    def make(self, settings: ClientProposer, context: ProposerContext) -> Proposer:
        return ClientProposals(context.proposal)
