"""The panel of a running mission: each mark beside what it stands on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine_stage import mission, stage
from rich.console import Console

from pursuit import Budget, metric
from pursuit.cli.progress import Snapshot, iteration_line, panel
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase


async def test_a_mark_never_contradicts_the_numbers_beside_it(tmp_path: Path) -> None:
    """A threshold is about the latest value, not about the best one; a call that is wanted was not made yet."""
    told = iter([-0.419, 0.75, 2.70090000001])
    frames: list[str] = []

    def measure(x: float = 1) -> dict[str, Any]:
        return {"metrics": {"g4": next(told)}}

    def submit() -> str:
        return "taken"

    wanted = mission(
        criteria=[
            (metric("g4") <= 0).named("at most"),
            (metric("g4") <= 2.7009).named("close"),
            {"criterion_id": "submitted", "kind": "tool_call_succeeded", "tool_name": "world.submit"},
            {"criterion_id": "judged", "kind": "check", "command": ["/a/long/way/to/python", "-c", "pass " * 40]},
        ],
        budget=Budget(max_iterations=3),
        proposer={"kind": "repeat", "tool_name": "measure", "args": {"x": 0.123456789012}},
    )

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        if phase in ("decided", "ended"):
            console = Console(width=80, color_system=None)
            with console.capture() as taken:
                console.print(panel(Snapshot(mission_id, phase, state), 1.0, 80))
            frames.append(f"{taken.get()}\n{iteration_line(state)}")

    async with stage(tmp_path, measure, submit) as runtime:
        started = await runtime.runner.start(wanted)
        await runtime.runner.run(started.session_id, observer=see)
    first, second, third = frames[:3]
    assert re.search(r"✓ at most +g4 <= 0 +-0.419 +world.measure", first)
    assert re.search(r"✗ at most +g4 <= 0 +0.75 ", second) and "best g4 -0.419 (<= 0)" in second
    assert re.search(r"✗ close +g4 <= 2.7009 +2.70090000001 ", third), "what is missed never looks met"
    assert re.search(r"✗ submitted +world.submit.* +seen 0 times", first)
    assert "? judged" in first and "…" in first
    assert 'best         g4 -0.419 with {"x": 0.1234568} (iteration 1)' in third
    assert max(len(words) for frame in frames for words in frame.splitlines()[:-1]) <= 80
