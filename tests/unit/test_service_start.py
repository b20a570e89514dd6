"""What a mission must pass to be started: its tools exist, its names resolve, and every fault is told at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, proposal, repeat, replay, stage

from pursuit import Budget, Runtime, ValidationFailed, check, event, metric, predicate, succeeded
from pursuit.core.tools import Tool
from pursuit.errors import UpstreamUnavailable


def step(key: str = "a") -> dict[str, Any]:
    return {"metrics": {"mass": 3}, "events": [{"event_name": "weighed"}]}


async def _started(runtime: Runtime, **given: Any) -> str:
    return (await runtime.runner.start(mission(**given))).session_id


async def test_a_start_warns_of_criteria_that_believe_any_tool(tmp_path: Path) -> None:
    def other() -> None: ...

    criteria = [metric("mass") <= 2, event("weighed"), metric("size").trend("increasing").optional()]
    sourced = [metric("mass", source="step") <= 2, event("weighed", source="world.s*"), succeeded("step")]
    async with stage(tmp_path, step, other) as runtime:
        started = await runtime.runner.start(mission(criteria=criteria))
        assert ["mass <= 2" in started.warnings[0], "event weighed" in started.warnings[1]] == [True, True]
        assert len(started.warnings) == 2
        assert (await runtime.runner.status(started.session_id)).warnings == list(started.warnings)
        assert (await runtime.runner.start(mission(criteria=sourced))).warnings == ()
        alone = mission(criteria=criteria, tool_allowlist=["step"])
        assert (await runtime.runner.start(alone)).warnings == ()
        vague = [predicate("obs['events'].get('done', 0) > 0")]
        assert "any of the 2 tools" in (await runtime.runner.start(mission(criteria=vague))).warnings[0]
        said = [predicate("any(one['tool'] == 'world.step' for one in obs['tool_results'])")]
        assert (await runtime.runner.start(mission(criteria=said))).warnings == ()


async def test_a_start_warns_of_limits_that_different_designs_can_meet_together(tmp_path: Path) -> None:
    def weigh(x: int) -> None: ...
    def load(x: int) -> None: ...
    def plain() -> None: ...

    async with stage(tmp_path, weigh, load, plain) as runtime:

        async def warned(*sources: str, **more: Any) -> bool:
            limits = [metric(f"m{at}", source=name, **more) <= 1 for at, name in enumerate(sources)]
            started = await runtime.runner.start(mission(criteria=limits))
            return any("calls with different arguments" in one for one in started.warnings)

        assert await warned("weigh", "load")
        assert not await warned("weigh", "load", same_call=True)
        assert not await warned("weigh", "weigh")
        assert await warned("weigh", "weigh", hold=True)
        assert not await warned("weigh", "plain"), "without arguments there is one design"
        assert not await warned("weigh")


def mission_status() -> None:
    """A tool with the name of a control tool."""


async def test_the_allowlist_takes_names_and_globs_and_never_a_control_tool(tmp_path: Path) -> None:
    def stop() -> None: ...

    async with stage(tmp_path, step, stop, mission_status, servers={"other": {"stop": stop}}) as runtime:
        service = runtime.runner

        async def tools(**given: Any) -> list[str]:
            return (await service.status(await _started(runtime, **given))).tool_allowlist

        assert await tools(allow_all_tools=True) == ["world.step", "world.stop", "other.stop"]
        assert await tools(tool_allowlist=["step", "other.stop"]) == ["world.step", "other.stop"]
        assert sorted(await tools(tool_allowlist=["*.st*"])) == ["other.stop", "world.step", "world.stop"]
        for wrong in (["mission_status"], ["world.mission_status"], ["stop"], ["world.nothing"], ["nothing.*"]):
            with pytest.raises(ValidationFailed) as caught:
                await tools(tool_allowlist=wrong)
            assert caught.value.faults[0].field == "tool_allowlist[0]"


class Down:
    """A server that cannot be reached."""

    name = "lathe"

    async def tools(self) -> Sequence[Tool]:
        raise UpstreamUnavailable("server 'lathe' did not start", server="lathe")

    async def call(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing may be called on it")

    async def aclose(self) -> None: ...


async def test_a_server_that_is_down_at_the_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with stage(tmp_path, step, servers={"lathe": Down()}) as runtime:
        for given in ({"allow_all_tools": True}, {"tool_allowlist": ["lathe.turn"]}):
            with pytest.raises(ValidationFailed) as caught:
                await _started(runtime, **given)
            assert "lathe" in str(caught.value.faults[0])
        await _started(runtime, tool_allowlist=["world.step"])


async def test_every_fault_of_a_mission_is_told_at_once_and_nothing_is_stored(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        wrong = mission(
            criteria=[metric("x", source="nobody.*") > 1, succeeded("nothing")],
            tool_allowlist=["step"],
            observe=[{"tool": "stop", "metric": "m", "jmespath": "a"}],
            proposer=replay(proposal(("stop", {}))),
        )
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.start(wrong)
        assert [fault.field for fault in caught.value.faults] == [
            "criteria[0].source",
            "criteria[1].tool_name",
            "observe[0].tool",
            "proposer.proposals[0].tool_calls[0].tool_name",
        ]
        assert (await runtime.runner.list()).as_json()["sessions"] == []


async def test_criteria_that_can_end_no_mission_are_refused_together_with_other_faults(tmp_path: Path) -> None:
    async def refused(runtime: Runtime, *criteria: Any, **given: Any) -> str:
        with pytest.raises(ValidationFailed) as failed:
            await runtime.runner.start(mission(criteria=list(criteria), **given))
        return "; ".join(map(str, failed.value.faults))

    async with stage(tmp_path, step) as runtime:
        optional = await refused(runtime, event("weighed").optional(), tool_allowlist=["world.nothing"])
        assert "criteria: none is required" in optional and "world.nothing" in optional
        mass = metric("mass")
        for one, other in (
            (mass < 1, mass > 1),
            (mass <= 1, mass > 1),
            (mass == 1, mass == 2),
            (mass == 1, mass != 1),
            (mass < 1, metric("mass", source="world.step") > 1),
            (metric("mass", source="step") < 1, metric("mass", source="world.*") > 1),
        ):
            assert "criteria[1]: mass" in await refused(runtime, one, other)
        assert "can never both be met" in await refused(runtime, mass <= 1, event("weighed"), mass >= 2)
        assert "can never all be met" in await refused(runtime, mass <= 1, mass >= 1, mass != 1)
        for impossible, given in (
            (succeeded("step", at_least=3), {"budget": Budget(max_iterations=9, max_tool_calls=2)}),
            (succeeded("step", at_least=3), {"proposer": repeat("step"), "budget": Budget(max_iterations=2)}),
            (check("step", count={"pattern": "x", "op": "<", "target": 0}), {}),
        ):
            assert "criteria[0]: " in await refused(runtime, impossible, **given)
        for one, other in (
            (mass <= 1, mass >= 1),
            (mass > 1, mass < 1.5),
            (mass != 1, mass >= 1),
            (mass < 1, mass < 2),
        ):
            await runtime.runner.start(mission(criteria=[one, other]))
        await runtime.runner.start(mission(criteria=[mass <= 1, (mass >= 2).optional()]))
        apart = metric("mass", source="script")
        await runtime.runner.start(mission(criteria=[mass <= 1, apart >= 2]))
