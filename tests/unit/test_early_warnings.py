"""A mission that cannot succeed says so early: a metric that never appears, a script or command that keeps failing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, mission, repeat, script, stage

from pursuit import Budget, Runtime, metric
from pursuit.core.events import MissionWarned


def train(x: float = 1) -> dict[str, Any]:
    """Trains."""
    return {"metrics": {"loss": x, "acc": 0.5, "val": {"losses": [1, 2]}}}


def other() -> dict[str, Any]:
    """Gives another metric."""
    return {"metrics": {"certified": 1}}


async def warnings_of(runtime: Runtime, wanted: Any, iterations: int = 5) -> tuple[list[str], dict[str, Any]]:
    mission_id = (await runtime.runner.start(wanted)).session_id
    before = await runtime.runner.iterate(mission_id, iterations=2)
    assert "warnings" not in before
    after = await runtime.runner.iterate(mission_id, iterations=iterations - 2)
    told = [event.message for event in await events_of(runtime, mission_id, MissionWarned)]
    assert after.get("warnings", []) == told
    again = await runtime.runner.iterate(mission_id, iterations=3, after=2)
    assert again.get("warnings", []) == told, "an answer that was lost says the same"
    status = (await runtime.runner.status(mission_id)).as_json()
    assert status["warnings"][len(status["warnings"]) - len(told) :] == told
    assert (await runtime.runner.report(mission_id)).warnings == status["warnings"]
    return told, status


@pytest.mark.guarantee("a-metric-that-never-appears-is-told")
@pytest.mark.parametrize(
    ("criterion", "told"),
    [
        (
            metric("los") <= 0,
            "no value for `los` after 3 iterations; seen: `acc`, `loss`, `val.losses.0`, `val.losses.1`; "
            "did you mean 'loss'?",
        ),
        (
            metric("loss", source="world.other") <= 0,
            "no value for `loss` from world.other after 3 iterations; it comes from world.train, which does not "
            "match the criterion's source",
        ),
        (metric("loss") <= 0, None),
    ],
)
async def test_a_metric_without_a_value_is_told_after_three_iterations(
    criterion: Any, told: str | None, tmp_path: Path
) -> None:
    calls = ["world.train", "world.other"] if criterion.source else ["world.train"]
    row = {"tool_calls": [{"tool_name": name, "args": {}} for name in calls]}
    async with stage(tmp_path, train, other) as runtime:
        wanted = mission(
            criteria=[criterion],
            budget=Budget(max_iterations=9),
            proposer={"kind": "replay", "proposals": [row] * 9},
            tool_allowlist=["world.*"],
        )
        found, _status = await warnings_of(runtime, wanted)
        assert found == ([] if told is None else [told])


async def test_a_warning_goes_when_the_metric_has_a_value(tmp_path: Path) -> None:
    late = "mission.observe('late', 1) if state.iteration == 3 else world.train()"
    async with stage(tmp_path, train) as runtime:
        wanted = mission(
            criteria=[metric("late") <= 0, metric("never") <= 0],
            budget=Budget(max_iterations=9),
            proposer=script(late),
            tool_allowlist=["world.*"],
        )
        mission_id = (await runtime.runner.start(wanted)).session_id
        told = (await runtime.runner.iterate(mission_id, iterations=3))["warnings"]
        assert [text.split(" after")[0] for text in told] == ["no value for `late`", "no value for `never`"]
        assert (await runtime.runner.status(mission_id)).warnings == told
        assert "warnings" not in await runtime.runner.iterate(mission_id)
        for shown in (await runtime.runner.status(mission_id), await runtime.runner.report(mission_id)):
            assert shown.warnings == told[1:]


async def test_a_tool_that_was_not_called_is_not_blamed_and_the_last_one_of_a_search_is_waited_for(
    tmp_path: Path,
) -> None:
    def quiet() -> str:
        """Says nothing."""
        return "done"

    last = {"kind": "search", "tool_name": "world.train", "then": "world.other"}
    nothing = "no value for `loss` after 3 iterations; no metric has been reported yet"
    async with stage(tmp_path, quiet, train, other) as runtime:
        for name, proposer, told in (
            ("world.quiet", repeat("world.quiet"), [nothing]),
            ("world.train", {**last, "parameters": {"x": {"low": 1, "high": 2}}}, []),
        ):
            wanted = mission(
                criteria=[metric("loss", source=name) <= 0, metric("certified", source="world.other") == 1],
                budget=Budget(max_iterations=9),
                proposer=proposer,
            )
            found, _status = await warnings_of(runtime, wanted)
            assert [one.replace(f" from {name}", "") for one in found] == told


CONFIG = f"""
[commands.train]
argv = ["{sys.executable}", "-S", "-c", "import sys; print('loss=1'); {{work}}", "{{x}}"]
[commands.train.parameters]
x = {{ type = "number", minimum = 0, maximum = 1 }}
work = {{ default = "pass" }}
[commands.train.metrics]
val_loss = 'val_loss=([0-9.]+)'
[policy]
mode = "auto"
"""
BREAKS = "import no_such_package"
FOURTH = "import os; open('run%d' % os.getpid(), 'w'); sys.exit(sum('run' in one for one in os.listdir()) < 4)"
SEARCH = {"kind": "search", "tool_name": "commands.train", "parameters": {"x": {}}}


async def ended(folder: Path, proposer: Mapping[str, Any], **more: Any) -> tuple[str | None, int, str | None]:
    (folder / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    async with Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml") as runtime:
        wanted = mission(criteria=[metric("val_loss") <= 0], budget=Budget(max_iterations=5), proposer=proposer, **more)
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id)
        report = (await runtime.runner.report(mission_id)).as_json()
        return state.verdict_reason, state.iteration_count, report["reason_text"]


SAME = "commands.train ended with exit code 1: ModuleNotFoundError: No module named 'no_such_package'"


@pytest.mark.slow
@pytest.mark.guarantee("the-same-failure-three-times-is-the-end")
@pytest.mark.parametrize(
    ("proposer", "more", "reason", "count", "text"),
    [
        ({**SEARCH, "args": {"work": BREAKS}}, {}, "proposer_failed", 4, f"{SAME}; none of the 4 trials succeeded"),
        ({**SEARCH, "args": {"work": FOURTH}}, {}, "max_iterations", 5, None),
        (repeat("commands.train", x=1, work=BREAKS), {}, "proposer_failed", 3, SAME),
        (repeat("commands.train", x=1, work=BREAKS), {"pace": 0.001}, "max_iterations", 5, None),
        (script(f"commands.train(x=1, work='{BREAKS}')"), {}, "proposer_failed", 3, f"script: {SAME}"),
        (
            script("state.iteration / 0"),
            {},
            "proposer_failed",
            3,
            "script: line 1: ZeroDivisionError: division by zero",
        ),
        (script("raise ValueError(str(state.iteration))"), {}, "max_iterations", 5, None),
    ],
    ids=["search", "search that works later", "repeat", "poll", "call of a script", "script", "other errors"],
)
async def test_the_same_failure_three_times_ends_the_mission(
    proposer: dict[str, Any], more: dict[str, Any], reason: str, count: int, text: str | None, tmp_path: Path
) -> None:
    found = await ended(tmp_path, proposer, **more)
    assert found[:2] == (reason, count)
    assert text is None or found[2] == text


@pytest.mark.slow
async def test_a_command_that_worked_once_may_fail_and_one_without_its_metric_says_why(tmp_path: Path) -> None:
    fails_later = "import os, sys; os.path.exists('ran') and sys.exit(1); open('ran', 'w')"
    assert (await ended(tmp_path, {**SEARCH, "args": {"work": fails_later}}))[0] == "max_iterations"
    async with Runtime(state=tmp_path / "ledger.db", config=tmp_path / "pursuit.toml") as runtime:
        wanted = mission(criteria=[metric("val_loss") <= 0], budget=Budget(max_iterations=3), proposer=SEARCH)
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        assert (await runtime.runner.status(mission_id)).warnings == [
            "no value for `val_loss` after 3 iterations; commands.train: pattern 'val_loss=([0-9.]+)' finds "
            "nothing in the output; no metric has been reported yet"
        ]
