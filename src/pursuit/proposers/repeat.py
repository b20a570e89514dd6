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
    """The same call in each iteration."""

    REPEATS: ClassVar[bool] = True

    kind: Literal["repeat"] = "repeat"
    tool_name: Name
    args: Args = Field(default_factory=dict)

    def facts(self) -> ProposerFacts:
        """A `repeat` polls, so unchanged results are not stagnation, and with a pace its call may fail."""
        return ProposerFacts(authored=True, stagnates=False, failures="calls_without_pace")

    def calls(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        yield self.tool_name, self.args


class RepeatKind(SimpleKind[RepeatProposer]):
    settings = RepeatProposer

    async def admit(self, settings: RepeatProposer, admission: MissionAdmission) -> None:
        admission.row["tool_name"] = name = admission.tool("proposer.tool_name", settings.tool_name)
        admission.arguments("proposer.args", name, settings.args)

    def make(self, settings: RepeatProposer, context: ProposerContext) -> Proposer:
        return SameProposal(Proposal(tool_calls=[ToolCall(tool_name=settings.tool_name, args=settings.args)]))
