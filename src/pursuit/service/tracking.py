"""Sends the arguments and metrics of each trial to MLflow or TensorBoard while a mission runs.

Invariant: a tracker never stops or slows a mission. It runs in its own thread; a failure is logged once and ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

from pursuit.core.audit import redacted
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase
from pursuit.errors import ExtraMissing, InvalidArgument

log = logging.getLogger(__name__)


class Tracker(Protocol):
    def send(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        """Sends the arguments and metrics of a `trial`: the iteration and the position of the call in it."""
        ...

    def close(self) -> None:
        """Writes the remaining trials."""
        ...


LONGEST = 500
"""Maximum characters of a parameter that every store of MLflow accepts."""


class MlflowTracker:
    """Trials as runs of MLflow: a mission is an experiment, each trial a run with its parameters and metrics."""

    def __init__(self, uri: str) -> None:
        self._client: Any = import_module("mlflow").MlflowClient(tracking_uri=uri)
        self._experiments: dict[str, str] = {}

    def send(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        if mission not in self._experiments:
            known = self._client.get_experiment_by_name(mission)
            made = self._client.create_experiment(mission) if known is None else known.experiment_id
            self._experiments[mission] = made
        name, tags = f"{trial[0]}.{trial[1]}", {"pursuit.mission": mission}
        run: str = self._client.create_run(self._experiments[mission], run_name=name, tags=tags).info.run_id
        for key, argument in args.items():
            self._client.log_param(run, key, str(argument)[:LONGEST])
        for metric, value in numbers.items():
            self._client.log_metric(run, metric.replace(":", "_"), value, step=trial[0])
        self._client.set_terminated(run)

    def close(self) -> None:
        """Does nothing: every trial is already written."""


class TensorboardTracker:
    """Trials as scalars below a folder of TensorBoard: a mission is a run, the step is the iteration.

    Metrics have their own names; numeric arguments are `parameters/NAME`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def send(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        if mission not in self._writers:
            self._writers[mission] = import_module("tensorboard.summary").Writer(str(self._folder / mission))
        given = {f"parameters/{name}": value for name, value in args.items() if not isinstance(value, bool)}
        for name, value in {**given, **numbers}.items():
            if isinstance(value, int | float):
                self._writers[mission].add_scalar(name, float(value), trial[0])

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class Tracking:
    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")
        self._seen: dict[str, int] = {}

    def see(self, mission_id: str, phase: Phase, state: MissionState) -> None:
        last = state.last
        if phase not in ("decided", "ended") or last is None or self._seen.get(mission_id) == last.index:
            return
        self._seen[mission_id] = last.index
        points = [
            (name, point)
            for name in state.series.names()
            for point in state.series.points(name)
            if point.iteration == last.index
        ]
        for call in last.calls.values():
            numbers = {name: point.value for name, point in points if point.call_id == call.call_id}
            if numbers:
                trial = (last.index, call.order)
                self._thread.submit(self._send, mission_id, trial, redacted(call.args), numbers)

    def _send(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any], numbers: dict[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.send(mission, trial, args, numbers)
            except Exception as error:  # noqa: BLE001 - the boundary: another library's failure must not end a mission
                del self._trackers[name]
                reason = f"{type(error).__name__}: {error}"
                log.warning("tracking stopped", extra={"pursuit_fields": {"tracker": name, "reason": reason}})

    async def aclose(self) -> None:
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        for tracker in self._trackers.values():
            tracker.close()


def open_tracking(wanted: Mapping[str, str]) -> Tracking | None:
    if not wanted:
        return None
    trackers: dict[str, Tracker] = {}
    for name, place in wanted.items():
        if find_spec(name) is None:
            raise ExtraMissing(f"[tracking] {name} needs a package: pip install 'pursuit[{name}]'", extra=name)
        try:
            trackers[name] = MlflowTracker(place) if name == "mlflow" else TensorboardTracker(place)
        except Exception as error:  # noqa: BLE001 - the boundary: each library has its own errors for a wrong place
            raise InvalidArgument(f"[tracking] {name} = {place!r} cannot be used: {error}", tracker=name) from None
    return Tracking(trackers)
