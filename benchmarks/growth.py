"""Whether a mission grows slower with age: iterations 9,900 to 10,000 against iterations 100 to 200.

One mission is driven to iteration 9,900. Then its last hundred iterations are run in slices, and before each slice a
young mission in a ledger of its own runs its iterations 100 to 200, so that both meet the same weather. The figure from
the old mission alone is printed too; there the load of the machine may have changed between the two windows.

Run: python benchmarks/growth.py [--check | --smoke]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import anyio
from engine import PLAIN, mission, open_runtime
from figures import Figure, finish, ratio_of_rounds, sized

from pursuit import Runtime
from pursuit.core.state import MissionState
from pursuit.engine.driver import RunOrder
from pursuit.engine.journal import States

AGE = sized(10_000, 12)
EARLY = (sized(100, 2), sized(200, 4))
LATE = sized(9_900, 10)
ROUNDS = sized(10, 2)
SLICE = (AGE - LATE) // ROUNDS
LOADS = sized(7, 1)


class Stopwatch:
    """Times every iteration of a run, from one decision to the next."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self._began = 0.0

    def observe(self, _mission: str, phase: str, state: MissionState) -> None:
        now = time.perf_counter()
        if phase == "propose":
            self._began = now
        elif phase in ("decided", "ended"):
            self.seconds[state.iteration_count - 1] = now - self._began

    def median(self, first: int, end: int) -> float:
        return statistics.median(self.seconds[number] for number in range(first, end))


async def drive(runtime: Runtime, mission_id: str, iterations: int, watch: Stopwatch) -> None:
    await runtime.runner.driver.drive(RunOrder(mission_id, iterations=iterations, observer=watch.observe))


async def young_median(runtime: Runtime) -> float:
    watch = Stopwatch()
    started = await runtime.runner.start(mission(PLAIN))
    await drive(runtime, started.session_id, EARLY[1], watch)
    return watch.median(*EARLY)


async def load_seconds(runtime: Runtime, mission_id: str) -> float:
    begin = time.perf_counter()
    state, _head = await States(runtime.runner.ledger).look(mission_id)  # knows nothing yet, so that it reads all
    assert state.iteration_count == AGE
    return time.perf_counter() - begin


async def measure(folder: Path) -> list[Figure]:
    old, young = folder / "old", folder / "young"
    watch = Stopwatch()
    fresh: list[float] = []
    aged: list[float] = []
    async with open_runtime(old) as ageing, open_runtime(young) as youth:
        started = await ageing.runner.start(mission(PLAIN))
        await drive(ageing, started.session_id, LATE, watch)
        for first in range(LATE, AGE, SLICE):
            fresh.append(await young_median(youth))
            await drive(ageing, started.session_id, SLICE, watch)
            aged.append(watch.median(first, first + SLICE))
        loads = [await load_seconds(ageing, started.session_id) for _ in range(LOADS)]
    alone = watch.median(LATE, AGE) / watch.median(*EARLY)
    return [
        Figure(what=f"iterations {EARLY[0]:,} to {EARLY[1]:,}", value=statistics.median(fresh) * 1e6, unit="us"),
        Figure(what=f"iterations {LATE:,} to {AGE:,}", value=statistics.median(aged) * 1e6, unit="us"),
        Figure(what="old by young, interleaved", value=ratio_of_rounds(aged, fresh), unit="x", limit=1.2),
        Figure(what="the same mission by itself, earlier", value=alone, unit="x"),
        Figure(what=f"loading {AGE:,} iterations", value=statistics.median(loads), unit="s", rule="<", limit=1),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        figures = anyio.run(measure, Path(name))
    finish(f"A mission of {AGE:,} iterations (medians of {ROUNDS} interleaved rounds)", figures)


if __name__ == "__main__":
    main()
