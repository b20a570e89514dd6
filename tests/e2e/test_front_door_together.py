"""Several clients and a terminal at one mission: all see the same, each hears what it asked for, any can stop it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from front_door import TRANSPORTS, House
from journey import AN_HOUR, Traveller
from promptly import promptly
from sdk_client import ERAS, SdkPort, client

from pursuit.core.events import CallIntended, CallSettled, MissionPaused

HALF_A_SECOND = 0.5
SLOW_AT_LAST = f"""
workshop.step(log="log", key=f"{{state.iteration}}", ms=0 if state.iteration < 3 else {AN_HOUR})
"""


def essence(status: dict[str, Any]) -> dict[str, Any]:
    """A status without what the clock alone changes."""
    used = {key: value for key, value in status["budget"]["used"].items() if key != "wall_clock_seconds"}
    return {**status, "budget": {**status["budget"], "used": used}}


@pytest.mark.slow
@pytest.mark.guarantee("one-mission-for-all")
async def test_two_clients_and_the_terminal_see_one_mission_and_the_terminal_stops_it(tmp_path: Path) -> None:
    house = House(tmp_path)

    async def paused(mine: Traveller, theirs: Traveller, mission: str, place: int) -> float:
        """The mission in the middle of its long call, and how long after a pause that is over."""
        asked = {"session_id": mission, "background": True, "max_iterations_this_call": 900}
        await mine.done("mission_iterate", **asked)
        await mine.until_logged("log", f"begun {place}")

        seen = essence(await mine.done("mission_status", session_id=mission))
        assert (seen["status"], seen["iteration_count"]) == ("running", place)
        assert essence(await theirs.done("mission_status", session_id=mission)) == seen
        told = await anyio.to_thread.run_sync(house.json_of, "status", mission)
        assert {key: essence(told)[key] for key in seen} == seen
        assert await theirs.done("mission_list") == await mine.done("mission_list")
        await theirs.refused("conflict", "mission_iterate", session_id=mission)

        await anyio.to_thread.run_sync(house.run, "pause", mission)
        await mine.until_logged("log", f"cancelled {place}")
        for each in (mine, theirs):
            assert (await each.done("mission_status", session_id=mission))["status"] == "paused"
            await each.until_let_go(mission)
        await theirs.done("mission_resume", session_id=mission)
        answer = await mine.done("mission_iterate", session_id=mission)
        assert [row["iteration_index"] for row in answer["iterations"]] == [place]

        events = await house.events(mission)
        *_, pause = [number for number, event in enumerate(events) if isinstance(event, MissionPaused)]
        after = next(event for event in events[pause:] if isinstance(event, CallSettled | CallIntended))
        assert isinstance(after, CallSettled) and after.outcome == "cancelled"
        return after.at - events[pause].at

    with house.serving() as served:
        url = served.url
        async with client(url, ERAS[0]) as first, client(url, ERAS[1]) as second:
            mine, theirs = (Traveller(SdkPort(each), house.logs) for each in (first, second))
            mission = await mine.start("shared", steps=1_000, proposer={"kind": "script", "script": SLOW_AT_LAST})
            for place, watch in enumerate(promptly(HALF_A_SECOND), 3):
                watch.took = await paused(mine, theirs, mission, place)


@pytest.mark.slow
@pytest.mark.guarantee("progress-to-who-asked")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("era", ERAS)
async def test_progress_goes_only_to_the_one_who_asked(era: str, transport: str, tmp_path: Path) -> None:
    house = House(tmp_path)
    heard: dict[str, list[types.ProgressNotification]] = {"one": [], "two": []}

    async def iterate(me: Traveller, name: str, told: list[Any] | None) -> None:
        script = f'workshop.step(log="{name}", key=f"{{state.iteration}}", ms=30)'
        mission = await me.start(name, steps=4, proposer={"kind": "script", "script": script})
        answer = await me.done("mission_iterate", told, session_id=mission, max_iterations_this_call=9)
        assert answer["status"] == "completed"

    with house.target(transport) as target:
        async with AsyncExitStack() as stack:
            travellers: dict[str, Traveller] = {}
            for name in heard if transport == "http" else ("one",):

                async def hear(message: Any, name: str = name) -> None:
                    if isinstance(message, types.ProgressNotification):
                        heard[name].append(message)

                connected = await stack.enter_async_context(client(target, era, message_handler=hear))
                travellers[name] = Traveller(SdkPort(connected), house.logs)
            told: list[Any] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate, travellers["one"], "asked", told)
                tasks.start_soon(iterate, travellers["one"], "unasked", None)
                if "two" in travellers:
                    tasks.start_soon(iterate, travellers["two"], "elsewhere", None)
    values = [value for value, _total, _message in told]
    assert len(values) > 4 and values == sorted(set(values)) and values[-1] <= 9
    assert {total for _, total, _ in told} == {9}
    assert [(each.params.progress, each.params.message) for each in heard["one"]] == [(v, m) for v, _, m in told]
    assert len({each.params.progress_token for each in heard["one"]}) == 1
    assert heard["two"] == []
