"""Usage limits of coding agents: a mission at a limit waits and continues, for each form in which agents tell it.

Time passes by the clock of the program. Each `drive` opens its own runtime and leaves a waiting mission as `kill -9`
leaves it: the next one has only the ledger.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_stage import AgentPlace, library

from pursuit import Runtime, Status
from pursuit.config.mission_file import load_mission_file
from pursuit.testing import FakeClock

RIGHT = [{"write": library(2)}, {"say": "Done."}]
RATE_LIMIT = {"code": -32603, "message": "Internal error", "data": {"errorKind": "rate_limit"}}
OVERLOAD = {"code": -32603, "message": "Internal error", "data": {"errorKind": "overloaded"}}
BILLING = {"code": -32603, "message": "Internal error", "data": {"errorKind": "billing_error"}}
CODEX = {"code": -32603, "message": "You've hit your usage limit.", "data": {"codexErrorInfo": "usageLimitExceeded"}}
CODEX_AT = {"code": -32603, "message": "You've hit your usage limit. Try again at 3:34 AM."}
TRIES_AGAIN = {"_meta": {"codex": {"error": "429", "willRetry": True, "httpStatusCode": 429}}}


class Course:
    """A mission of an agent over several processes, on one clock."""

    def __init__(self, place: AgentPlace) -> None:
        self.place, self.clock, self.mission_id = place, FakeClock(), ""

    async def drive(self) -> Status:
        """Drives until the mission ends, fails, or waits for a limit."""
        config = self.place.folder / "pursuit.toml"
        async with Runtime(state=self.place.ledger, config=config, clock=self.clock) as runtime:
            if not self.mission_id:
                file = load_mission_file(self.place.folder / "fix.toml")
                self.mission_id = (await runtime.start_file(file)).session_id
            handle = runtime.mission(self.mission_id)

            def see(_mission: str, phase: str, state: Any) -> None:
                if phase == "waiting" and state.waiting_for == "limit":
                    tasks.cancel_scope.cancel()

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    await handle.run(observer=see)
            return await handle.status()

    def wait(self, status: Status) -> float:
        """The seconds of the wait that a status shows; lets them pass."""
        assert (status.status, status.waiting_for) == ("interrupted", "limit"), status
        assert status.waiting_until is not None
        seconds = _seconds(status.waiting_until) - self.clock.at
        self.clock.advance(seconds)
        return seconds


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def course(folder: Path, *turns: list[dict[str, Any]], proposer: str = "", **options: Any) -> Course:
    place = AgentPlace(folder, list(turns), **options)
    place.mission(f'name = "standin"\n{proposer}', budget="max_iterations = 2\nmax_wall_clock_seconds = 600")
    return Course(place)


async def test_a_limit_with_a_known_end_is_waited_for_and_costs_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    rejected = {"_meta": {"_claude/rateLimit": {"status": "rejected", "resetsAt": int(clock.at) + 7_200}}}
    mission = course(tmp_path, [{"update": rejected}, {"error": RATE_LIMIT}], RIGHT)
    status = await mission.drive()
    assert status.waiting_detail == "usage limit of standin"
    assert 7_200 <= mission.wait(status) <= 7_260
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)
    assert done.budget.caps["max_wall_clock_seconds"].used < 60
    logs, _ = await anyio.to_thread.run_sync(mission.place.ask, "logs", mission.mission_id)
    assert "usage limit of standin, continues at " in logs
    assert len(mission.place.prompts) == 2


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ([{"error": RATE_LIMIT}], "usage limit"),
        ([{"error": OVERLOAD}], "overload"),
        ([{"error": CODEX}], "usage limit"),
        ([{"update": TRIES_AGAIN}, {"say": "I could not start."}], "usage limit"),
        ([{"error": {"code": -32603, "message": "429 Too Many Requests"}}], "usage limit"),
        ([{"say": "API Error: 529 Overloaded"}], "overload"),
    ],
)
async def test_a_limit_without_a_known_end_is_tried_again(
    tmp_path: Path, first: list[dict[str, Any]], words: str
) -> None:
    mission = course(tmp_path, first, first, RIGHT)
    status = await mission.drive()
    assert status.waiting_detail == f"{words} of standin"
    assert mission.wait(status) == pytest.approx(300, abs=1)
    assert mission.wait(await mission.drive()) == pytest.approx(600, abs=1)
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


async def test_the_wall_clock_stands_still_while_a_process_waits_for_a_limit(tmp_path: Path) -> None:
    mission = course(tmp_path, [{"error": RATE_LIMIT}], RIGHT)
    config = mission.place.folder / "pursuit.toml"
    async with Runtime(state=mission.place.ledger, config=config, clock=mission.clock) as runtime:
        started = await runtime.start_file(load_mission_file(mission.place.folder / "fix.toml"))
        handle = runtime.mission(started.session_id)
        waits = anyio.Event()

        def see(_mission: str, phase: str, state: Any) -> None:
            if phase == "waiting" and state.waiting_for == "limit":
                waits.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(handle.run, observer=see))
            await waits.wait()
            await anyio.wait_all_tasks_blocked()
            mission.clock.advance(200)
            await handle.pause()
        status = await handle.status()
        assert status.status == "paused" and status.budget.caps["max_wall_clock_seconds"].used < 100


async def test_a_time_of_day_in_a_text_is_the_next_one_in_this_zone(tmp_path: Path) -> None:
    mission = course(tmp_path, [{"error": CODEX_AT}], RIGHT)
    status = await mission.drive()
    assert status.waiting_until is not None
    local = time.localtime(_seconds(status.waiting_until))
    assert (local.tm_hour, local.tm_min) in {(3, 34), (3, 35)}
    assert 0 < mission.wait(status) <= 86_400 + 60
    assert (await mission.drive()).status == "completed"


async def test_a_limit_at_the_start_of_a_session_is_a_wait_too(tmp_path: Path) -> None:
    mission = course(tmp_path, RIGHT, refuse=[RATE_LIMIT])
    mission.wait(await mission.drive())
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


@pytest.mark.parametrize(("error", "proposer"), [(BILLING, ""), (RATE_LIMIT, 'on_limit = "stop"')])
async def test_what_a_person_must_settle_fails_and_can_be_resumed(
    tmp_path: Path, error: dict[str, Any], proposer: str
) -> None:
    mission = course(tmp_path, [{"error": error}], RIGHT, proposer=proposer)
    status = await mission.drive()
    assert status.status == "failed" and "of standin" in (status.failure or "")
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


async def test_a_turn_that_changed_the_tree_before_the_limit_is_checked_and_counts(tmp_path: Path) -> None:
    mission = course(tmp_path, [{"write": library(3)}, {"error": RATE_LIMIT}], RIGHT)
    status = await mission.drive()
    assert status.iteration_count == 1
    mission.wait(status)
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 2)


async def test_a_turn_that_speaks_of_limits_and_changes_files_is_work(tmp_path: Path) -> None:
    mission = course(tmp_path, [{"write": library(2)}, {"say": "I added a rate limit."}])
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


async def test_a_silent_agent_is_asked_again_later_and_two_silent_turns_warn(tmp_path: Path) -> None:
    silent = [{"quiet": True}]
    mission = course(tmp_path, silent, silent, RIGHT, proposer="turn_idle_seconds = 0.3")
    status = await mission.drive()
    assert status.waiting_detail == "silence of standin"
    assert mission.wait(status) == pytest.approx(300, abs=1)
    status = await mission.drive()
    assert mission.wait(status) == pytest.approx(600, abs=1)
    assert any("did not respond in 2 turns" in one for one in status.warnings), status.warnings


async def test_limits_without_an_end_use_up_the_time_for_them_and_then_a_person_decides(tmp_path: Path) -> None:
    always = [{"error": RATE_LIMIT}]
    mission = course(tmp_path, always, always, RIGHT, proposer="limit_wait_seconds = 600")
    mission.wait(await mission.drive())
    status = await mission.drive()
    assert (status.status, status.waiting_for, status.waiting_until) == ("waiting", "limit", None)
    assert "did not end within 600 s (limit_wait_seconds)" in (status.waiting_detail or "")
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


async def test_a_headless_agent_tells_its_limit_in_a_line_of_json(tmp_path: Path) -> None:
    script = tmp_path / "headless.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "sys.stdin.read()\n"
        "seen = pathlib.Path(sys.argv[1])\n"
        "if not seen.exists():\n"
        "    seen.touch()\n"
        "    print(json.dumps({'type': 'result', 'is_error': True, 'api_error_status': 429}))\n"
        "    sys.exit(1)\n"
        f"pathlib.Path('lib.py').write_text({library(2)['lib.py']!r})\n",
        encoding="utf-8",
    )
    place = AgentPlace(tmp_path, [])
    words = json.dumps([sys.executable, str(script), str(tmp_path / "seen")])
    place.write("pursuit.toml", "[agents]\nisolation = false\n")
    place.mission(f'name = "standin"\nheadless = {words}\nunattended = true\n', budget="max_iterations = 2")
    mission = Course(place)
    assert mission.wait(await mission.drive()) == pytest.approx(300, abs=1)
    done = await mission.drive()
    assert (done.status, done.iteration_count) == ("completed", 1)


async def test_limits_that_never_end_cost_an_iteration_after_twenty(tmp_path: Path) -> None:
    mission = course(tmp_path, [{"error": RATE_LIMIT}], proposer="limit_wait_seconds = 100000")
    for _ in range(21):
        status = await mission.drive()
        mission.wait(status)
    assert status.iteration_count == 1
