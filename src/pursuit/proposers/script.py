"""The proposer `script`: the operator's own script, run once for each iteration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pursuit.core.base_model import Broken
from pursuit.core.mission import Proposal, Script
from pursuit.core.proposing import ProposerFacts, ProposerSettings
from pursuit.errors import Fault
from pursuit.proposers.contract import MissionAdmission, Proposer, ProposerContext, SameProposal, SimpleKind
from pursuit.sandbox.values import missing_modules, unassigned_dunders


class ScriptProposer(ProposerSettings):
    """The operator's own script, run once for each iteration."""

    AUTHORS: ClassVar[str | None] = "only the operator writes the script of a child"

    kind: Literal["script"] = "script"
    script: Script

    def facts(self) -> ProposerFacts:
        return ProposerFacts(authored=True, reports_metrics=True, failures="script")

    @classmethod
    def describe_file(cls, definitions: dict[str, Any]) -> None:
        words = "A script beside the mission file, instead of `script`."
        definitions[cls.__name__]["properties"]["file"] = {"type": "string", "description": words}
        definitions[cls.__name__]["required"] = ["kind"]

    @classmethod
    def in_file(cls, table: dict[str, Any], folder: Path) -> Iterable[Broken]:
        if "file" not in table:
            return
        name = table.pop("file")
        if "script" in table:
            yield Broken("give either file or script", "file")
            return
        table["script"] = "pass"
        try:
            table["script"] = (folder / str(name)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield Broken(f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}", "file")


class ScriptKind(SimpleKind[ScriptProposer]):
    settings = ScriptProposer

    async def admit(self, settings: ScriptProposer, admission: MissionAdmission) -> None:
        for one in (*missing_modules(settings.script), *unassigned_dunders(settings.script)):
            admission.faults.append(Fault(field="proposer.script", reason=str(one), line=one.line, column=one.column))

    def make(self, settings: ScriptProposer, context: ProposerContext) -> Proposer:
        return SameProposal(Proposal(script=settings.script))
