"""How much each searched parameter matters to the objective of a search, by Optuna. Loaded only for a report."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pursuit.core.mission import Mission
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import SearchProposer

LEAST_TRIALS = 10
"""Fewer say nothing: the method compares the best tenth of the trials with all of them."""
MOST_TRIALS = 2_000


def importance_of(mission: Mission, search: SearchProposer, trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The share of each parameter, together 1; empty without an objective, Optuna, or enough trials."""
    if len(search.parameters) < 2 or find_spec("optuna") is None:
        return {}
    objective = aim_of(mission, search, search.tool_name)[0].objective
    known = [
        (row["args"], objective.of(row["metrics"][objective.metric]))
        for row in trials[-MOST_TRIALS:]
        if objective is not None and row["tool"] == search.tool_name and objective.metric in row["metrics"]
    ]
    if len(known) < LEAST_TRIALS or len({value for _args, value in known}) < 2:
        return {}
    import optuna  # noqa: PLC0415 - an extra, and slow to load

    from pursuit.proposers.search.space import Space  # noqa: PLC0415 - it loads numpy and Optuna

    space = Space(search.parameters)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it logs each new study
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), study_name="report")
    optuna.logging.set_verbosity(verbosity)
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
