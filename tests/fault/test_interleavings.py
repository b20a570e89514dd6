"""Two things at one moment: a word of the operator, a cancellation or a death between two steps of a driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from crashing import Crash
from engine_stage import Gate, driving, events_of, mission, outcomes, proposal, repeat, replay, stage

from pursuit import Budget, Pace, Proposal, event, tool
from pursuit.core.events import (
    AbortOrdered,
    CallSettled,
    Event,
    IterationEnded,
    MissionEnded,
    ReportWritten,
    RunClaimed,
)
from pursuit.errors import SessionPaused
from pursuit.ledger.contract import Ledger
from pursuit.service.service import Service

Hook = Callable[[], Awaitable[Any]]


class DeafWakeup:
    """Never wakes the driver: it notices an event of the operator only when its own append conflicts."""

    async def wait(self) -> None:
        await anyio.sleep_forever()


class Between:
    """A real ledger that lets something happen, once, right before a chosen append or the release of the lock."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._hooks: dict[str, Hook] = {}
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def before(self, moment: str, hook: Hook) -> None:
        """Calls the hook before the first append with an event of this type; `release` is the lock's release."""
        self._hooks[moment] = hook

    @contextmanager
    def wakeup(self, stream: str | None = None) -> Generator[DeafWakeup]:
        yield DeafWakeup()

    async def append(self, stream: str, expected: Any, drafts: Any, **named: Any) -> Any:
        for draft in drafts:
            await self._meanwhile(draft.type)
        if self.dead:
            raise Crash
        return await self._ledger.append(stream, expected, drafts, **{**named, "by": None})

    async def claim(self, stream: str) -> Any:
        claim = await self._ledger.claim(stream)
        return None if claim is None else Held(claim, self)

    async def _meanwhile(self, moment: str) -> None:
        hook = self._hooks.pop(moment, None)
        if hook is not None:
            await hook()


class Held:
    """The lock of such a ledger."""

    def __init__(self, claim: Any, ledger: Between) -> None:
        self._claim = claim
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    async def release(self) -> None:
        await self._ledger._meanwhile("release")
        await self._claim.release()


def on(service: Service, ledger: Between) -> Service:
    """The service with this ledger under it."""
    given: Any = ledger
    return replace(service, ledger=given, driver=replace(service.driver, ledger=given))


def nothing() -> dict[str, Any]:
    return {}


async def test_a_stop_that_a_siblings_settlement_folds_cancels_the_other_siblings(tmp_path: Path) -> None:
    gate = Gate()

    @tool(parallel_safe=True)
    async def hold() -> dict[str, Any]:
        return await gate.hold()

    @tool(parallel_safe=True)
    async def quick() -> dict[str, Any]:
        await gate.entered.wait()
        return {}

    async with stage(tmp_path, hold, quick) as runtime, stage(tmp_path, hold, quick) as other:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        wanted = mission(proposer=replay(proposal(("hold", {}), ("quick", {}))))
        mission_id = (await service.start(wanted)).session_id
        ledger.before("CallSettled", lambda: other.runner.abort(mission_id))
        state = await service.run(mission_id)
        assert (state.status, state.verdict_reason) == ("terminated", "user_abort")
        assert gate.cancelled == 1
        assert await outcomes(other, mission_id) == [("world.hold", "cancelled"), ("world.quick", "ok")]


async def test_an_extension_that_a_siblings_settlement_folds_reaches_the_calls_under_way(tmp_path: Path) -> None:
    ends: list[float] = []

    @tool(parallel_safe=True)
    async def slow() -> dict[str, Any]:
        """Ends once it has more time than it began with; the scene itself ends later than both."""
        while not ends or ends[-1] < ends[0] + 5:
            ends.append(anyio.current_effective_deadline())
            await anyio.sleep(0.01)
        return {}

    quick = tool(parallel_safe=True)(nothing)
    async with stage(tmp_path, slow, quick) as runtime, stage(tmp_path, slow, quick) as other:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        wanted = mission(
            budget=Budget(max_iterations=1, max_wall_clock_seconds=10),
            proposer=replay(proposal(("slow", {}), ("nothing", {}))),
        )
        mission_id = (await service.start(wanted)).session_id
        ledger.before("CallSettled", lambda: other.runner.extend(mission_id, {"max_wall_clock_seconds": 1000}))
        state = await service.run(mission_id)
        assert await outcomes(other, mission_id) == [("world.slow", "ok"), ("world.nothing", "ok")]
        assert state.verdict_reason == "max_iterations"


async def test_a_call_that_came_back_as_the_driver_was_told_to_go_is_settled(tmp_path: Path) -> None:
    ran: list[int] = []
    scope = anyio.CancelScope()

    async def pay() -> dict[str, Any]:
        ran.append(1)
        scope.cancel()
        return {"paid": len(ran)}

    async with stage(tmp_path, pay) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("pay")))).session_id
        with scope:
            await runtime.runner.run(mission_id)
        assert scope.cancelled_caught
        assert await outcomes(runtime, mission_id) == [("world.pay", "ok")]
        assert (await runtime.runner.run(mission_id)).verdict_reason == "max_iterations"
        assert await outcomes(runtime, mission_id) == [("world.pay", "ok")]
        assert len(ran) == 1


async def _die_in_a_call(folder: Path, deadly: int, **given: Any) -> str:
    """A mission whose driver died while the call of this number was under way; the call may be repeated."""
    calls: list[int] = []

    @tool(idempotent=True)
    async def put() -> dict[str, Any]:
        calls.append(1)
        ledger.dead = len(calls) == deadly
        return {}

    async with stage(folder, put) as runtime:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        mission_id = (await service.start(mission(proposer=repeat("put"), **given))).session_id
        with pytest.raises(BaseException) as caught:
            await service.iterate(mission_id, iterations=3)
        assert isinstance(caught.value, Crash) or caught.group_contains(Crash)
    return mission_id


@tool(idempotent=True)
def put() -> dict[str, Any]:
    return {}


async def test_an_abort_settles_the_repeatable_call_of_a_dead_driver_as_unknown(tmp_path: Path) -> None:
    mission_id = await _die_in_a_call(tmp_path, 1)
    async with stage(tmp_path, put) as runtime:
        assert await outcomes(runtime, mission_id) == [("world.put", None)], "it died in the middle"
        state = await runtime.runner.abort(mission_id)
        assert (state.status, state.verdict_reason) == ("terminated", "user_abort")
        assert await outcomes(runtime, mission_id) == [("world.put", "unknown")]
        kinds = [type(one) for one in await events_of(runtime, mission_id, Event)]
        assert kinds.index(CallSettled) < kinds.index(IterationEnded)


async def test_an_interrupted_run_goes_on_to_its_own_goal_and_no_further(tmp_path: Path) -> None:
    mission_id = await _die_in_a_call(tmp_path, 2, budget=Budget(max_iterations=50))
    async with stage(tmp_path, put) as runtime:
        assert await runtime.runner.interrupted() == [mission_id]
        state = await runtime.runner.continue_run(mission_id)
        assert (state.iteration_count, state.terminal) == (3, False)
        assert await runtime.runner.interrupted() == []
        assert (await runtime.runner.continue_run(mission_id)).iteration_count == 3, "it is where it was to go"


async def test_an_interrupted_run_that_was_paused_meanwhile_stays_paused(tmp_path: Path) -> None:
    mission_id = await _die_in_a_call(tmp_path, 2, budget=Budget(max_iterations=50))
    async with stage(tmp_path, put) as runtime:
        await runtime.runner.pause(mission_id)
        before = len(await events_of(runtime, mission_id, Event))
        with pytest.raises(SessionPaused):
            await runtime.runner.continue_run(mission_id)
        assert (await runtime.runner.state(mission_id)).status == "paused"
        assert len(await events_of(runtime, mission_id, Event)) == before


@pytest.mark.parametrize(
    ("budget", "more"),
    [
        (Budget(max_iterations=2, max_wall_clock_seconds=0.3), {"max_wall_clock_seconds": 1000}),
        (Budget(max_iterations=1), {"max_iterations": 2}),
    ],
    ids=["before an iteration", "at the end of an iteration"],
)
async def test_an_extension_at_the_moment_of_exhaustion_is_not_lost(
    tmp_path: Path, budget: Budget, more: dict[str, float]
) -> None:
    async with stage(tmp_path, nothing) as runtime, stage(tmp_path, nothing) as other:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        wanted = mission(budget=budget, pace=Pace(seconds=0.5), proposer=repeat("nothing"))
        mission_id = (await service.start(wanted)).session_id
        ledger.before("MissionEnded", lambda: other.runner.extend(mission_id, more))
        state = await service.run(mission_id)
        assert (state.verdict_reason, state.iteration_count) == ("max_iterations", 2)
        assert len(await events_of(other, mission_id, MissionEnded)) == 1


async def test_the_iteration_of_an_abort_does_not_end_before_the_abort(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("hold")))).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await runtime.runner.abort(mission_id)
        (ordered,) = await events_of(runtime, mission_id, AbortOrdered)
        (settled,) = await events_of(runtime, mission_id, CallSettled)
        (iteration,) = await events_of(runtime, mission_id, IterationEnded)
        (ended,) = await events_of(runtime, mission_id, MissionEnded)
        assert settled.outcome == "cancelled"
        assert ordered.at <= settled.at <= iteration.at <= ended.at
        assert settled.elapsed <= iteration.elapsed


@pytest.mark.parametrize("verb", ["abort", "complete"])
async def test_a_stop_between_the_last_turn_and_the_release_is_closed_with_a_report(tmp_path: Path, verb: str) -> None:
    async with stage(tmp_path, nothing) as runtime, stage(tmp_path, nothing) as other:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        wanted = mission(criteria=[event("never")], budget=Budget(max_iterations=3), proposer=repeat("nothing"))
        mission_id = (await service.start(wanted)).session_id
        ledger.before("release", lambda: getattr(other.runner, verb)(mission_id))
        answer = await service.iterate(mission_id)
        status = "terminated" if verb == "abort" else "completed"
        assert answer["status"] == status
        (ended,) = await events_of(other, mission_id, MissionEnded)
        assert ended.status == status
        assert len(await events_of(other, mission_id, ReportWritten)) == 1
        assert (await other.runner.state(mission_id)).closed


@pytest.mark.parametrize("verb", ["pause", "extend"])
async def test_a_word_before_the_first_commit_of_a_clients_run_is_obeyed_before_its_call(
    tmp_path: Path, verb: str
) -> None:
    ran: list[int] = []

    def step() -> dict[str, Any]:
        ran.append(1)
        return {}

    said = Proposal(**proposal(("step", {})))
    async with stage(tmp_path, step) as runtime, stage(tmp_path, step) as other:
        ledger = Between(runtime.runner.ledger)
        service = on(runtime.runner, ledger)
        mission_id = (await service.start(mission(budget=Budget(max_iterations=9)))).session_id
        words: dict[str, Callable[[], Awaitable[Any]]] = {
            "pause": lambda: other.runner.pause(mission_id),
            "extend": lambda: other.runner.extend(mission_id, {"max_iterations": 20}),
        }
        ledger.before("CallIntended", words[verb])
        if verb == "pause":
            with pytest.raises(SessionPaused):
                await service.iterate(mission_id, proposal=said)
            assert ran == []
            assert await events_of(other, mission_id, RunClaimed) == []
        else:
            done = await service.iterate(mission_id, proposal=said)
            assert (ran, len(done["iterations"])) == ([1], 1)
            assert (await other.runner.state(mission_id)).budget["max_iterations"] == 20
