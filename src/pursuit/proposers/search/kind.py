"""The kind `search`; its report has the importance of each parameter for the objective, by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from pursuit.core.mission import Mission
from pursuit.errors import ExtraMissing
from pursuit.proposers.contract import DrivingPlace, MissionAdmission, Proposer, ProposerContext, SimpleKind
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import SearchProposer
from pursuit.reports.report import Report, Trial

LEAST_TRIALS = 10
"""Minimum number of trials: the method compares the best tenth with all of them."""
MAX_TRIALS = 2_000


class SearchKind(SimpleKind[SearchProposer]):
    settings = SearchProposer

    def require(self) -> None:
        if missing := [name for name in ("optuna", "cmaes") if find_spec(name) is None]:
            names = " and ".join(missing)
            raise ExtraMissing(f"the proposer search needs {names}: pip install 'pursuit[search]'", extra="search")

    async def admit(self, settings: SearchProposer, admission: MissionAdmission) -> None:
        from pursuit.proposers.search.admission import admit_search  # noqa: PLC0415 - only for a search

        admit_search(settings, admission)

    async def ready(
        self, settings: SearchProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        self.require()
        return {}

    def make(self, settings: SearchProposer, context: ProposerContext) -> Proposer:
        from pursuit.proposers.search.proposer import Search  # noqa: PLC0415 - only for a search

        return Search(context.mission, settings, context.past, context.tools())

    def report(self, mission: Mission, settings: SearchProposer, report: Report) -> Mapping[str, Any]:
        shares = importance_of(mission, settings, report.trial_rows)
        return {"importance": shares} if shares else {}


def importance_of(mission: Mission, search: SearchProposer, trials: Sequence[Trial]) -> dict[str, float]:
    """The share of each parameter, together 1; empty without an objective, Optuna, or enough trials."""
    if len(search.parameters) < 2 or find_spec("optuna") is None:
        return {}
    objective = aim_of(mission, search, search.tool_name)[0].objective
    known = [
        (row.args, objective.of(row.metrics[objective.metric]))
        for row in trials[-MAX_TRIALS:]
        if objective is not None and row.tool == search.tool_name and objective.metric in row.metrics
    ]
    if len(known) < LEAST_TRIALS or len({value for _args, value in known}) < 2:
        return {}
    import optuna  # noqa: PLC0415 - an extra, and slow to load

    from pursuit.proposers.search.samplers import Tpe  # noqa: PLC0415 - it loads numpy and Optuna
    from pursuit.proposers.search.space import Space  # noqa: PLC0415

    space = Space(search.parameters)
    tpe = Tpe(space, search.seed)
    for args, value in known:
        with suppress(KeyError, ValueError):  # a trial of another range: a redacted argument, or one of another schema
            tpe.tell(space.encode(args), value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(tpe.study, evaluator=evaluator, normalize=True)
        except (ValueError, RuntimeError):
            return {}
    return {name: round(float(share), 4) for name, share in found.items()}
