"""The kind `search`; its report says how much each parameter matters to the objective, by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pursuit.core.mission import Mission
from pursuit.errors import ExtraMissing
from pursuit.proposers.contract import DrivingPlace, MissionAdmission, Proposer, ProposerContext, SimpleKind
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import SearchProposer
from pursuit.reports.report import Report, Trial

LEAST_TRIALS = 10
"""Fewer say nothing: the method compares the best tenth of the trials with all of them."""
MOST_TRIALS = 2_000


class SearchKind(SimpleKind[SearchProposer]):
    """The kind `search`; its report says how much each parameter matters to the objective, by Optuna."""

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

    def report(self, mission: Mission, settings: SearchProposer, report: Report) -> Mapping[str, Any]:
        """How much each parameter matters."""
        shares = importance_of(mission, settings, report.trial_rows)
        return {"importance": shares} if shares else {}


def importance_of(mission: Mission, search: SearchProposer, trials: Sequence[Trial]) -> dict[str, float]:
    """The share of each parameter, together 1; empty without an objective, Optuna, or enough trials."""
    if len(search.parameters) < 2 or find_spec("optuna") is None:
        return {}
    objective = aim_of(mission, search, search.tool_name)[0].objective
    known = [
        (row.args, objective.of(row.metrics[objective.metric]))
        for row in trials[-MOST_TRIALS:]
        if objective is not None and row.tool == search.tool_name and objective.metric in row.metrics
    ]
    if len(known) < LEAST_TRIALS or len({value for _args, value in known}) < 2:
        return {}
    import optuna  # noqa: PLC0415 - an extra, and slow to load

    from pursuit.proposers.search.samplers import quietly  # noqa: PLC0415 - it loads numpy and Optuna
    from pursuit.proposers.search.space import Space  # noqa: PLC0415

    space = Space(search.parameters)
    with quietly():
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), study_name="report")
    for args, value in known:
        try:
            params = space.to_optuna(args)
        except (KeyError, ValueError):
            continue  # a trial of another range: a redacted argument, or one that a schema changed
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space.distributions, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=True)
        except (ValueError, RuntimeError):
            return {}
    return {name: round(float(share), 4) for name, share in found.items()}
