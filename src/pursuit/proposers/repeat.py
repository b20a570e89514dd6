"""The proposer `repeat`: the same call in each iteration, for missions that poll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pursuit.core.base_model import Args, Name
from pursuit.core.mission import Proposal, ToolCall
from pursuit.core.proposing import ProposerFacts, ProposerSettings
from pursuit.proposers.contract import MissionAdmission, Proposer, ProposerContext, SameProposal, SimpleKind


class RepeatProposer(ProposerSettings):
    """The same call again and again."""

    REPEATS: ClassVar[bool] = True

    kind: Literal["repeat"] = "repeat"
    tool_name: Name
    args: Args = Field(default_factory=dict)

    def facts(self) -> ProposerFacts:
        """It polls, so nothing new is no stagnation, and with a pace its call may fail."""
        return ProposerFacts(authored=True, stagnates=False, failures="calls_without_pace")

    def calls(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Its call."""
        yield self.tool_name, self.args


class RepeatKind(SimpleKind[RepeatProposer]):
    """The kind `repeat`."""

    settings = RepeatProposer

    async def admit(self, settings: RepeatProposer, admission: MissionAdmission) -> None:
        """Its tool exists, and the arguments fit."""
        admission.row["tool_name"] = name = admission.tool("proposer.tool_name", settings.tool_name)
        admission.arguments("proposer.args", name, settings.args)

    def make(self, settings: RepeatProposer, context: ProposerContext) -> Proposer:
        """Proposes the call."""
        return SameProposal(Proposal(tool_calls=[ToolCall(tool_name=settings.tool_name, args=settings.args)]))
