"""The kind `search`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.core.mission import Mission
from pursuit.proposers.contract import DrivingPlace, MissionAdmission, Proposer, ProposerContext, SimpleKind
from pursuit.proposers.search.settings import SearchProposer


class SearchKind(SimpleKind[SearchProposer]):
    """The kind `search`."""

    settings = SearchProposer

    def require(self) -> None:
        """Optuna is installed."""
        from pursuit.proposers.search.proposer import require_search  # noqa: PLC0415 - only for a search

        require_search()

    async def admit(self, settings: SearchProposer, admission: MissionAdmission) -> None:
        """The tool exists, and each argument has bounds."""
        from pursuit.proposers.search.admission import admit_search  # noqa: PLC0415 - only for a search

        admit_search(settings, admission)

    async def ready(
        self, settings: SearchProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        """Optuna is installed."""
        self.require()
        return {}

    def make(self, settings: SearchProposer, context: ProposerContext) -> Proposer:
        """Searches."""
        from pursuit.proposers.search.proposer import Search  # noqa: PLC0415 - only for a search

        return Search(context.mission, settings, context.past, context.tools())

    def report(self, mission: Mission, settings: SearchProposer, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """How much each parameter matters."""
        from pursuit.proposers.search.importance import importance_of  # noqa: PLC0415 - only for a search

        shares = importance_of(mission, settings, report.get("trials", ()))
        return {"importance": shares} if shares else {}
