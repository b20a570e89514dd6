"""The ports: ours keep their contracts, the runtime uses what it is given, and the checks can fail."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from engine_stage import mission, play, repeat

from pursuit import Budget, Runtime, metric, ports, testing
from pursuit.config.commands import CommandConfig
from pursuit.config.configuration import Configuration
from pursuit.core.proposing import BUILT_IN
from pursuit.ledger.contract import Draft, every_stream
from pursuit.ledger.placement import InProcessPlacement
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.ports import Job, KnownTraits, Requirements, ServerConfig, Traits

SERVER = """
from pursuit.testing import SmallServer


def price(thing: str = "beam") -> dict:
    "What it costs."
    return {"metrics": {"price": 7}}


SmallServer("shop", price).run()
"""


def count(x: float = 1) -> dict[str, Any]:
    return {"metrics": {"x": x}}


class ReadsAll(KnownTraits):
    """Everything only reads; it notes what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def of(self, server: ServerConfig, definition: Mapping[str, Any]) -> Traits:
        self.asked.append((server.name, definition["name"]))
        return Traits(read_only=True, destructive=False)


async def test_our_placements_and_stores_keep_the_contracts(tmp_path: Path) -> None:
    await testing.check_placement(InProcessPlacement())
    await testing.check_task_store(testing.InMemoryTaskStore())
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    await testing.check_task_store(ledger)
    await ledger.close()
    testing.check_tool_traits(KnownTraits())


async def test_our_kinds_keep_the_contract() -> None:
    await testing.check_proposer({"kind": "repeat", "tool_name": "count"}, [count])
    await testing.check_proposer({"kind": "script", "script": "await call('count', x=1)"}, [count])
    parameters = {"x": {"low": 0.0, "high": 1.0}}
    search = {"kind": "search", "tool_name": "count", "parameters": parameters, "objective": "x", "seed": 1}
    await testing.check_proposer({**search, "direction": "minimize"}, [count])


class IdleSettings(ports.ProposerSettings):
    kind: Literal["idle"] = "idle"


class IdleProposer(ports.Proposer):
    async def propose(self, state: ports.MissionState, reasons: Sequence[str]) -> ports.Proposed:
        return ports.Failed("no idea")


class Idle(ports.SimpleKind[IdleSettings]):
    settings = IdleSettings

    def make(self, settings: IdleSettings, context: ports.ProposerContext) -> ports.Proposer:
        return IdleProposer()


async def test_a_kind_that_never_proposes_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "idle", f"{__name__}:Idle")
    with pytest.raises(AssertionError, match=r"it proposes valid calls: .*no idea"):
        await testing.check_proposer({"kind": "idle"}, [count])


class CarelessSettings(ports.ProposerSettings):
    kind: Literal["careless"] = "careless"


class CarelessProposer(ports.Proposer):
    """Makes two calls in each iteration, counts its answers, and cannot leave its result."""

    keeps_result = True

    async def propose(self, state: ports.MissionState, reasons: Sequence[str]) -> ports.Proposed:
        self.memory = {"answers": state.remembered.get("answers", 0) + 1}
        return ports.Proposal(tool_calls=[ports.ToolCall(tool_name="count", args={"x": self.memory["answers"]})])

    def after_calls(self, state: ports.MissionState) -> bool:
        return state.open is not None and len(state.open.calls) < 2

    async def completed(self, state: ports.MissionState) -> Mapping[str, str]:
        raise OSError("the disk is full")


class Careless(ports.SimpleKind[CarelessSettings]):
    settings = CarelessSettings

    def make(self, settings: CarelessSettings, context: ports.ProposerContext) -> ports.Proposer:
        return CarelessProposer()

    def report(self, mission: ports.Mission, settings: CarelessSettings, report: Any) -> Mapping[str, Any]:
        raise KeyError("rows")


async def test_a_kind_answers_again_in_an_iteration_and_its_failures_at_the_end_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "careless", f"{__name__}:Careless")
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), tools=[count]) as runtime:
        wanted = {"criteria": [metric("x") >= 4], "proposer": {"kind": "careless"}, "budget": Budget(max_iterations=5)}
        report = await runtime.pursue(ports.Mission(directive="d", **wanted))
        state = await runtime.runner.state(report.session_id)
        assert (report.completed, state.iteration_count, state.remembered) == (True, 2, {"answers": 4})
        warned = str(report.data["warnings"])
        assert "left no result: OSError: the disk is full" in warned
        assert "rows of the proposer are missing: KeyError: 'rows'" in warned


async def test_a_placement_that_forgets_what_a_job_needs_fails_its_check() -> None:
    class Forgetful(InProcessPlacement):
        async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
            await super().enqueue(key, Requirements(), caller=caller, delay=delay)

    with pytest.raises(AssertionError, match="only the jobs"):
        await testing.check_placement(Forgetful())


async def test_a_placement_that_hands_out_one_job_at_a_time_twice_fails_its_check() -> None:
    class Doubling(InProcessPlacement):
        async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
            self._add(Job(key=f"{key} {len(self._due)}"), needs, delay)

    with pytest.raises(AssertionError, match="a key is one job"):
        await testing.check_placement(Doubling())


async def test_a_store_without_compare_and_set_fails_its_check() -> None:
    class Trusting(testing.InMemoryTaskStore):
        async def append(self, stream: str, expected: Any, events: Any, **options: Any) -> Any:
            return await super().append(stream, ports.ANY, events, **options)

    with pytest.raises(AssertionError, match="raises Conflict"):
        await testing.check_task_store(Trusting())


def test_traits_that_believe_anybody_fail_their_check() -> None:
    with pytest.raises(AssertionError, match="look safer"):
        testing.check_tool_traits(ReadsAll())


async def test_tasks_live_in_the_store_that_the_program_gives(tmp_path: Path) -> None:
    store = testing.InMemoryTaskStore()
    command = CommandConfig(
        name="hello", argv=[sys.executable, "-c", "print('hi' * 20000)"], base=tmp_path, read_only=True
    )
    config = Configuration(commands={"hello": command})
    async with Runtime(state=tmp_path / "ledger.db", config=config, task_store=store) as runtime:
        task = await runtime.tasks.call("hello", {})
        ended = await runtime.tasks.store.wait(task.task_id)
        assert ended.status == "completed"
        assert [row["task_id"] for row in (await runtime.tasks.list())["tasks"]] == [task.task_id]
        handle = await runtime.start(
            mission(proposer=repeat("commands.hello"), tool_allowlist=["commands.*"], budget=Budget(max_iterations=1))
        )
        assert (await handle.run()).data["calls"]["by_outcome"] == {"ok": 1}
        assert len((await store.streams(kind="task")).rows) == 2
        assert (await runtime.verify()).ok
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    assert [row.name async for row in every_stream(ledger, kind="task")] == []
    await ledger.close()


async def test_a_wakeup_for_all_hears_of_tasks_and_of_missions(tmp_path: Path) -> None:
    store = testing.InMemoryTaskStore()
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), task_store=store) as runtime:
        ledger = runtime.runner.ledger
        for stream, kind in (("task-" + "0" * 32, "task"), ("mission-" + "0" * 16, "mission")):
            with ledger.wakeup() as wakeup, anyio.fail_after(20):
                await ledger.append(stream, 0, [Draft("A", b"{}")], kind=kind, status="working", summary={})
                await wakeup.wait()
        await store.forget("task-" + "0" * 32)


@pytest.mark.parametrize("operators", [True, False])
async def test_traits_decide_what_is_asked_and_a_mission_file_cannot_use_them(tmp_path: Path, operators: bool) -> None:
    (tmp_path / "shop.py").write_text(SERVER)
    args = (str(tmp_path / "shop.py"),)
    shop = ServerConfig(name="shop", command=sys.executable, args=args, operators=operators)
    traits = ReadsAll()
    config = Configuration(servers={"shop": shop})
    async with Runtime(state=tmp_path / "ledger.db", config=config, traits=traits) as runtime:
        wanted = mission(criteria=[metric("price") >= 1], proposer=repeat("shop.price"), tool_allowlist=["shop.*"])
        report = await (await runtime.start(wanted)).run()
    assert report.status == ("completed" if operators else "waiting")
    assert set(traits.asked) == ({("shop", "price")} if operators else set())


def test_a_placement_of_the_program_hands_missions_to_workers(tmp_path: Path) -> None:
    async def scene() -> None:
        placement = InProcessPlacement()
        given: dict[str, Any] = {"state": tmp_path / "ledger.db", "config": Configuration(), "tools": [count]}
        async with Runtime(**given, placement=placement) as runtime, anyio.create_task_group() as tasks:
            handle = await runtime.start(
                mission(proposer=repeat("count"), tool_allowlist=["python.*"], criteria=[metric("x") >= 1])
            )
            assert await handle.place()
            assert (await placement.health()).queued == 1
            worker = runtime.worker()
            tasks.start_soon(worker.run)
            assert (await handle.result()).completed
            worker.stop()

    play(scene)


async def test_the_clock_of_the_program_is_the_clock_of_its_missions(tmp_path: Path) -> None:
    clock = testing.FakeClock(at=1_000.0)
    with testing.temporary_ledger() as state:
        async with Runtime(state=state, config=Configuration(), tools=[count], clock=clock) as runtime:
            handle = await runtime.start(mission(proposer=repeat("count"), tool_allowlist=["python.*"]))
            assert (await handle.status()).as_json()["created_at"] == "1970-01-01T00:16:40.000+00:00"
            clock.advance(60)
            await handle.run()
            assert (await handle.status()).as_json()["ended_at"] == "1970-01-01T00:17:40.000+00:00"
    assert not state.exists()


async def test_a_scripted_model_proposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_ai")
    call = testing.Reply(calls=[("python__count", {"x": 3})])
    with testing.ScriptedModel(call, testing.Reply(text="done")) as model:
        for name, value in model.environment.items():
            monkeypatch.setenv(name, value)
        async with Runtime(state=tmp_path / "a.db", config=Configuration(), tools=[count]) as runtime:
            wanted = mission(
                proposer={"kind": "model", "model": "openai-chat:any"},
                tool_allowlist=["python.*"],
                criteria=[metric("x") >= 3],
                budget=Budget(max_iterations=2, max_tokens=10_000),
            )
            report = await (await runtime.start(wanted)).run()
    assert report.completed, report.data
    assert model.requests[0]["model"] == "any" and model.requests[0]["stream"]
