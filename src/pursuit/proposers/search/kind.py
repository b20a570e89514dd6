"""The kind `search`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pursuit.core.mission import Mission
from pursuit.errors import ExtraMissing
from pursuit.proposers.contract import DrivingPlace, MissionAdmission, Proposer, ProposerContext, SimpleKind
from pursuit.proposers.search.settings import SearchProposer


class SearchKind(SimpleKind[SearchProposer]):
    """The kind `search`."""

    settings = SearchProposer

    def require(self) -> None:
        """Optuna is installed."""
        if missing := [name for name in ("optuna", "cmaes") if find_spec(name) is None]:
            names = " and ".join(missing)
            raise ExtraMissing(f"the proposer search needs {names}: pip install 'pursuit[search]'", extra="search")

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
