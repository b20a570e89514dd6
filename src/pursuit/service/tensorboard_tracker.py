"""Trials as scalars of TensorBoard: a mission is a run, the step is the iteration.

Metrics have their own names; numeric arguments are `parameters/NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


class TensorboardTracker:
    """Writes trials below a folder, which `tensorboard --logdir` reads."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def parameters(self, mission: str, trial: tuple[int, int], args: Mapping[str, Any]) -> None:
        """The numeric arguments of a trial."""
        for name, value in args.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer(mission).add_scalar(f"parameters/{name}", float(value), trial[0])

    def metric(self, mission: str, trial: tuple[int, int], name: str, value: float) -> None:
        """One number of the trial."""
        self._writer(mission).add_scalar(name, float(value), trial[0])

    def close(self) -> None:
        """Writes everything."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, mission: str) -> Any:
        if mission not in self._writers:
            self._writers[mission] = import_module("tensorboard.summary").Writer(str(self._folder / mission))
        return self._writers[mission]
