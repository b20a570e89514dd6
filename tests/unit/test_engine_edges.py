"""Edges of the engine: odd values, lost servers, replays, and limits that hold from every side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from crashing import Crash, CrashingRuntime, World
from engine_stage import events_of, history, mission, outcomes, proposal, repeat, replay, script, stage

from pursuit import Budget, Mission, Proposal, ToolCall, ValidationFailed, metric, predicate, tool
from pursuit.core.events import CallIntended, CallRefused, Event, ReportWritten, ScriptEnded
from pursuit.core.tools import ToolResult
from pursuit.errors import UpstreamUnavailable

ROWS = 600


class Given(World):
    """A world with these tools."""

    def __init__(self, *tools: Callable[..., Any]) -> None:
        super().__init__()
        self._tools = tools

    def tools(self) -> list[Any]:
        return list(self._tools)


class Deadly:
    """A tool that may be sent again; its process dies while the first call of it is under way."""

    def __init__(self) -> None:
        self.runtime: CrashingRuntime | None = None
        self.sent: list[dict[str, Any]] = []

    def tool(self) -> Callable[..., Any]:
        @tool(idempotent=True)
        async def put(seen: str = "") -> dict[str, Any]:
            self.sent.append({"seen": seen})
            if self.runtime is not None:
                self.runtime.ledger.dead = True
            return {}

        return put


async def dead_in_put(folder: Path, deadly: Deadly, wanted: Mission, *tools: Callable[..., Any]) -> str:
    """A mission whose driver died inside `put`."""
    async with CrashingRuntime(Given(deadly.tool(), *tools), folder / "ledger.db") as runtime:
        deadly.runtime = runtime
        mission_id = (await runtime.runner.start(wanted)).session_id
        with pytest.raises(BaseException) as caught:
            await runtime.runner.run(mission_id)
        assert isinstance(caught.value, Crash) or caught.group_contains(Crash)
        deadly.runtime = None
    assert len(deadly.sent) == 1
    return mission_id


async def test_a_predicate_over_many_large_results_is_still_answered(tmp_path: Path) -> None:
    def rows() -> dict[str, Any]:
        return {"rows": [{"i": i, "name": "abc"} for i in range(ROWS)]}

    newest = "obs['tool_results'][-1]['result']['rows'][599]['i'] == 599"
    wanted = mission(
        criteria=[predicate(f"obs['iteration'] >= 3 and len(obs['tool_results']) == 160 and {newest}")],
        budget=Budget(max_iterations=5),
        proposer=script("for i in range(40):\n    world.rows()\n"),
    )
    async with stage(tmp_path, rows) as runtime:
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id)
        statuses = [row["criteria"][0]["status"] for row in await history(runtime, mission_id)]
        assert statuses == ["unmet"] * 3 + ["met"]
        assert (state.verdict_reason, state.iteration_count) == ("criteria_met", 4)


async def test_a_mission_without_its_servers_is_refused_and_spends_nothing(tmp_path: Path) -> None:
    def step() -> dict[str, Any]:
        return {}

    wanted = mission(budget=Budget(max_iterations=100), proposer=script("world.step()"))
    async with stage(tmp_path, step) as runtime:
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.iterate(mission_id)
        before = len(await events_of(runtime, mission_id, Event))
    async with stage(tmp_path) as runtime:
        for verb in (runtime.resume, runtime.runner.run, runtime.runner.iterate):
            with pytest.raises(UpstreamUnavailable, match="world") as caught:
                await verb(mission_id)
            assert caught.value.details["servers"] == ["world"]
        assert len(await events_of(runtime, mission_id, Event)) == before
        assert (await runtime.runner.state(mission_id)).iteration_count == 1
    async with stage(tmp_path, step) as runtime:
        assert (await runtime.runner.iterate(mission_id))["iterations"][0]["iteration_index"] == 1


@pytest.mark.parametrize(("cap", "outcome", "sent"), [(2, "ok", 2), (1, "unknown", 1)])
async def test_a_call_that_is_sent_again_after_a_crash_counts_again(
    tmp_path: Path, cap: int, outcome: str, sent: int
) -> None:
    """No more calls are sent than the cap allows, whatever crashes."""
    deadly = Deadly()
    wanted = mission(budget=Budget(max_iterations=1, max_tool_calls=cap), proposer=repeat("put"))
    mission_id = await dead_in_put(tmp_path, deadly, wanted)
    async with stage(tmp_path, deadly.tool()) as runtime:
        state = await runtime.runner.run(mission_id)
        assert await outcomes(runtime, mission_id) == [("world.put", outcome)]
        assert len(await events_of(runtime, mission_id, CallIntended)) == sent
        assert await events_of(runtime, mission_id, CallRefused) == []
        assert (state.tool_calls, len(deadly.sent)) == (sent, sent)


def not_a_number() -> dict[str, Any]:
    return {"value": float("nan"), "worst": float("-inf")}


def number_keys() -> ToolResult:
    keyed: Any = {1: "one", "more": {2: "two"}}
    return ToolResult(structured=keyed)


def big_number() -> ToolResult:
    return ToolResult(structured={"value": 10**30, "list": [-(2**63)]})


def mixed() -> ToolResult:
    return ToolResult(structured={"value": 7, "odd": "\ud800"})


@pytest.mark.parametrize(
    ("odd", "seen"),
    [
        (not_a_number, {"value": None, "worst": None}),
        (number_keys, {"1": "one", "more": {"2": "two"}}),
        (big_number, {"value": 10**30, "list": [-(2**63)]}),
        (mixed, {"value": 7, "odd": "?"}),
    ],
    ids=["not a number", "keys that are numbers", "big numbers", "half a character"],
)
async def test_a_replayed_script_sees_what_the_first_run_saw(
    tmp_path: Path, odd: Callable[..., Any], seen: dict[str, Any]
) -> None:
    deadly = Deadly()
    wanted = mission(proposer=script(f"seen = world.{odd.__name__}()\nworld.put(seen=repr(seen))\n"))
    mission_id = await dead_in_put(tmp_path, deadly, wanted, odd)
    async with stage(tmp_path, deadly.tool(), odd) as runtime:
        state = await runtime.runner.run(mission_id)
        (ended,) = await events_of(runtime, mission_id, ScriptEnded)
        assert ended.error is None
        assert state.status == "terminated"
        assert await outcomes(runtime, mission_id) == [(f"world.{odd.__name__}", "ok"), ("world.put", "ok")]
        assert deadly.sent == [{"seen": repr(seen)}] * 2


async def test_a_run_is_durable_before_its_script_begins(tmp_path: Path) -> None:
    def step() -> dict[str, Any]:
        return {}

    endless = "n = 0\nwhile n < 1000000000:\n    n = n + 1\n"
    async with stage(tmp_path, step) as runtime, stage(tmp_path, step) as other:
        mission_id = (await runtime.runner.start(mission(proposer=script(endless)))).session_id
        began = anyio.Event()

        def observer(_mission_id: str, phase: str, _state: Any) -> None:
            if phase == "execute":
                began.set()

        async def drive() -> None:
            await runtime.runner.run(mission_id, observer=observer)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drive)
            await began.wait()
            assert (await other.runner.status(mission_id)).status == "running"
            assert await other.runner.interrupted() == [mission_id]
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("broken", ["propose", "execute", "evaluate", "ended"])
async def test_an_observer_that_fails_does_not_break_the_mission(tmp_path: Path, broken: str) -> None:
    told: list[str] = []

    def step() -> dict[str, Any]:
        return {}

    def observer(_mission_id: str, phase: str, _state: Any) -> None:
        told.append(phase)
        if phase == broken:
            raise BrokenPipeError("nobody reads any more")

    async with stage(tmp_path, step) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("step")))).session_id
        state = await runtime.runner.run(mission_id, observer=observer)
        assert (state.status, state.verdict_reason) == ("terminated", "max_iterations")
        assert len(await events_of(runtime, mission_id, ReportWritten)) == 1
        assert told[-1] == broken, "one that fails is not told any more"


def renamed(y: int) -> dict[str, Any]:
    return {"value": y}


@pytest.mark.parametrize("now", [{}, {"double": renamed}], ids=["gone", "renamed"])
async def test_positional_arguments_replay_by_the_parameters_of_the_start(
    tmp_path: Path, now: dict[str, Callable[..., Any]]
) -> None:
    deadly = Deadly()

    def double(x: int) -> dict[str, Any]:
        return {"value": 2 * x}

    source = "r = world.double(7)\nstate.memory['value'] = r['value']\nworld.put()\n"
    mission_id = await dead_in_put(tmp_path, deadly, mission(proposer=script(source)), double)
    servers = {"world": {"put": deadly.tool(), **now}}
    async with stage(tmp_path, servers=servers) as runtime:
        state = await runtime.runner.run(mission_id)
        (ended,) = await events_of(runtime, mission_id, ScriptEnded)
        assert ended.error is None
        assert state.memory == {"value": 14}
        assert await outcomes(runtime, mission_id) == [("world.double", "ok"), ("world.put", "ok")]


async def test_an_extension_cannot_remove_the_last_real_cap(tmp_path: Path) -> None:
    def step() -> dict[str, Any]:
        return {}

    async with stage(tmp_path, step) as runtime:
        service = runtime.runner

        async def start(budget: Budget) -> str:
            return (await service.start(mission(budget=budget, proposer=repeat("step")))).session_id

        alone = await start(Budget(max_iterations=1, max_tool_calls=5))
        before = len(await events_of(runtime, alone, Event))
        with pytest.raises(ValidationFailed) as caught:
            await service.extend(alone, {"max_iterations": -1})
        assert [fault.field for fault in caught.value.faults] == ["budget"]
        assert len(await events_of(runtime, alone, Event)) == before

        both = await start(Budget(max_iterations=1, max_wall_clock_seconds=60))
        with pytest.raises(ValidationFailed):
            await service.extend(both, {"max_iterations": -1, "max_wall_clock_seconds": -1})
        assert (await service.extend(both, {"max_iterations": -1})).cap("max_iterations") is None
        with pytest.raises(ValidationFailed):
            await service.extend(both, {"max_wall_clock_seconds": -1})

        open_ended = await start(Budget(max_iterations=1, unbounded=True))
        assert (await service.extend(open_ended, {"max_iterations": -1})).cap("max_iterations") is None


async def test_a_replayed_script_is_somebody_elses_word(tmp_path: Path) -> None:
    def step() -> dict[str, Any]:
        return {}

    given: dict[str, Any] = {
        "criteria": [metric("a") < 1],
        "proposer": replay({"script": "mission.observe('a', 0)"}),
    }
    async with stage(tmp_path, step) as runtime:
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.start(mission(**given))
        assert [fault.field for fault in caught.value.faults] == ["proposer.proposals[0].script"]
        allowed = mission(**given, allow_scripted_strategies=True)
        mission_id = (await runtime.runner.start(allowed)).session_id
        state = await runtime.runner.run(mission_id)
        (ended,) = await events_of(runtime, mission_id, ScriptEnded)
        assert (ended.error, ended.claimed, dict(ended.observed)) == (None, True, {"a": 0})
        assert (state.status, state.verdict_reason) == ("terminated", "max_iterations")


@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "side by side"])
async def test_the_loop_guard_counts_within_one_proposal(tmp_path: Path, parallel: bool) -> None:
    ran: list[int] = []

    @tool(parallel_safe=parallel)
    async def look(at: int = 0) -> dict[str, Any]:
        ran.append(at)
        return {}

    wanted = mission(budget=Budget(max_iterations=5), proposer={"kind": "client"})
    async with stage(tmp_path, look) as runtime:
        mission_id = (await runtime.runner.start(wanted)).session_id
        same = Proposal(tool_calls=[ToolCall(tool_name="world.look")] * 5)
        await runtime.runner.iterate(mission_id, proposal=same)
        (first,) = await history(runtime, mission_id)
        assert [call["outcome"] for call in first["calls"]] == ["ok", "ok", "denied", "denied", "denied"]
        assert len(ran) == 2
        other = Proposal.model_validate(proposal(("look", {"at": 1}), ("look", {"at": 2}), ("look", {"at": 1})))
        await runtime.runner.iterate(mission_id, proposal=other)
        assert sorted(ran) == [0, 0, 1, 1, 2], "what differs is no loop"
