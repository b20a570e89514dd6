"""Trials as runs of MLflow: a mission is an experiment, each trial a run with its parameters and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

LONGEST = 500
"""Characters of a parameter that every store of MLflow takes."""


class MlflowTracker:
    """Sends trials to the store at a tracking URI."""

    def __init__(self, uri: str) -> None:
        self._client: Any = import_module("mlflow").MlflowClient(tracking_uri=uri)
        self._experiments: dict[str, str] = {}
        self._run: tuple[str, tuple[int, int], str] | None = None

    def parameters(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any]) -> None:
        """Begins the run of a trial, and ends the one before it."""
        self.close()
        iteration, place = trial
        run = self._client.create_run(
            self._experiment(mission), run_name=f"{iteration}.{place}", tags={"pursuit.mission": mission}
        )
        self._run = (mission, trial, run.info.run_id)
        for name, value in args.items():
            self._client.log_param(run.info.run_id, name, str(value)[:LONGEST])

    def metric(self, mission: str, trial: tuple[int, int], name: str, value: float) -> None:
        """One number of the trial that began last; its step is the iteration."""
        if self._run is not None and self._run[:2] == (mission, trial):
            self._client.log_metric(self._run[2], name.replace(":", "_"), value, step=trial[0])

    def close(self) -> None:
        """Ends the run that is open."""
        if self._run is not None:
            self._client.set_terminated(self._run[2])
            self._run = None

    def _experiment(self, mission: str) -> str:
        if mission not in self._experiments:
            known = self._client.get_experiment_by_name(mission)
            self._experiments[mission] = (
                self._client.create_experiment(mission) if known is None else known.experiment_id
            )
        return self._experiments[mission]
