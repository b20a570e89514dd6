"""Sends the arguments and metrics of each trial to MLflow or TensorBoard while a mission runs.

Invariant: a tracker never stops or slows a mission. It works in a thread of its own; one that fails is logged once and
left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Protocol

import anyio.to_thread

from pursuit.core.audit import redacted
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase
from pursuit.errors import ExtraMissing, InvalidArgument

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Where trials are sent; called from one thread. `trial` is the iteration and the place of the call in it."""

    def parameters(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any]) -> None:
        """The arguments of a trial, before its metrics."""
        ...

    def metric(self, mission: str, trial: tuple[int, int], name: str, value: float) -> None:
        """One number that the trial gave."""
        ...

    def close(self) -> None:
        """Writes what is not written yet."""
        ...


class Tracking:
    """Watches missions and hands their trials to the trackers."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")
        self._seen: dict[str, int] = {}

    def see(self, mission_id: str, phase: Phase, state: MissionState) -> None:
        """An observer of missions: takes each iteration once, when it has ended."""
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
                tracker.parameters(mission, trial, args)
                for metric, value in numbers.items():
                    tracker.metric(mission, trial, metric, value)
            except Exception as error:  # noqa: BLE001 - the boundary: another library's failure must not end a mission
                del self._trackers[name]
                reason = f"{type(error).__name__}: {error}"
                log.warning("tracking stopped", extra={"pursuit_fields": {"tracker": name, "reason": reason}})

    async def aclose(self) -> None:
        """Waits until all is sent."""
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        for tracker in self._trackers.values():
            tracker.close()


def open_tracking(wanted: Mapping[str, str]) -> Tracking | None:
    """The trackers of a configuration; None if it names none. Raises `ExtraMissing` or `InvalidArgument`."""
    if not wanted:
        return None
    trackers: dict[str, Tracker] = {}
    for name, place in wanted.items():
        if find_spec(name) is None:
            raise ExtraMissing(f"[tracking] {name} needs a package: pip install 'pursuit[{name}]'", extra=name)
        try:
            trackers[name] = _opened(name, place)
        except Exception as error:  # noqa: BLE001 - the boundary: each library has its own errors for a wrong place
            raise InvalidArgument(f"[tracking] {name} = {place!r} cannot be used: {error}", tracker=name) from None
    return Tracking(trackers)


def _opened(name: str, place: str) -> Tracker:
    if name == "mlflow":
        from pursuit.service.mlflow_tracker import MlflowTracker  # noqa: PLC0415 - an extra

        return MlflowTracker(place)
    from pursuit.service.tensorboard_tracker import TensorboardTracker  # noqa: PLC0415 - an extra

    return TensorboardTracker(place)
