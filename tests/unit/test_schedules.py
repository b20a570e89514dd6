"""Schedules: one server of several starts what is due, and no kill loses a run. No test waits for the clock."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from crashing import CrashingRuntime, World, is_crash
from mission_files import mission_file, threshold

from pursuit.config.configuration import Configuration, Overlap, ScheduleTable, load_configuration
from pursuit.errors import ExtraMissing, ValidationFailed
from pursuit.service.run_loop import background_runs
from pursuit.service.schedules import Cron, Schedules, schedule_rows, stream_of
from pursuit.testing import FakeClock

TWO = datetime(2026, 11, 16, 2, 0, tzinfo=UTC).timestamp()
DAY = 86_400.0


def mission_of(tool: str) -> str:
    return mission_file(f"world.{tool}", threshold("reads", ">=", 1), iterations=5, args={"key": "k"})


class Server(CrashingRuntime):
    """A server's runtime whose process may die at a write."""

    def __init__(self, folder: Path, config: ScheduleTable, at: int | None, when: Literal["before", "after"]) -> None:
        super().__init__(World(), folder / "ledger.db", at, when)
        self._config = Configuration(schedule={"nightly": config})


def nightly(folder: Path, tool: str = "read", *, overlap: Overlap = "skip", cron: str = "0 2 * * *") -> ScheduleTable:
    path = folder / "mission.toml"
    path.write_text(mission_of(tool), encoding="utf-8")
    return ScheduleTable(cron=cron, mission=path, overlap=overlap, timezone="UTC")


@asynccontextmanager
async def serving(
    folder: Path,
    config: ScheduleTable,
    clock: FakeClock,
    at: int | None = None,
    when: Literal["before", "after"] = "before",
) -> AsyncIterator[tuple[Server, Schedules]]:
    async with (
        Server(folder, config, at, when) as runtime,
        background_runs(runtime.runner, runtime.use_servers_of) as runs,
    ):
        schedules = runtime.schedules(runs.begin, clock)
        assert schedules is not None
        yield runtime, schedules


async def missions(runtime: Server) -> list[dict[str, Any]]:
    return (await runtime.runner.list()).as_json()["sessions"]


async def ended(runtime: Server, count: int) -> list[dict[str, Any]]:
    """The missions once all of this many have ended."""
    with runtime.runner.ledger.wakeup() as wakeup:
        while len(found := [one for one in await missions(runtime) if one["status"] == "completed"]) < count:
            await wakeup.wait()
    return found


async def events(runtime: Server) -> list[str]:
    return [one.type for one in await runtime.runner.ledger.read(stream_of("nightly"))]


async def until_hour(schedules: Schedules, clock: FakeClock, at: float) -> None:
    clock.at = at
    await schedules.tick()


@pytest.mark.guarantee("one-server-fires")
async def test_of_several_servers_one_starts_the_run(tmp_path: Path) -> None:
    clock, config = FakeClock(TWO - 60), nightly(tmp_path)
    async with serving(tmp_path, config, clock) as (one, first), serving(tmp_path, config, clock) as (_two, second):
        for at in (TWO - 60, TWO - 1, TWO + 1, TWO + 2, TWO + DAY + 1):
            clock.at = at
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(first.tick)
                    tasks.start_soon(second.tick)
            if at == TWO + 2:
                await ended(one, 1)
        await ended(one, 2)
        assert await events(one) == ["ScheduleBegan", "RunOrdered", "RunOrdered"]
        assert len(await missions(one)) == 2
        audit = [line for line in await one.runner.audited() if line["verb"] == "start"]
        assert {line["who"] for line in audit} == {"schedule nightly"}


@pytest.mark.guarantee("a-kill-loses-no-scheduled-run")
async def test_a_server_that_dies_at_any_write_loses_no_run_and_starts_none_twice(tmp_path: Path) -> None:
    async def scene() -> int:
        at = 0
        while True:
            at += 1
            folder = tmp_path / str(at)
            folder.mkdir()
            clock, config = FakeClock(TWO - 60), nightly(folder)
            async with serving(folder, config, clock) as (_runtime, schedules):
                await schedules.tick()
            clock.at = TWO + 1
            try:
                async with serving(folder, config, clock, at, "after") as (runtime, schedules):
                    await schedules.tick()
                    await ended(runtime, 1)
                    return at
            except BaseException as error:
                if not is_crash(error):
                    raise
            clock.at += 30
            async with serving(folder, config, clock) as (runtime, schedules):
                await schedules.tick()
                await ended(runtime, 1)
                assert len(await missions(runtime)) == 1, at
                assert (await events(runtime)).count("RunOrdered") == 1, at

    assert await scene() > 4, "the order, the audit, the mission and its run are writes"


async def test_a_run_that_was_missed_is_told_and_not_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, config = FakeClock(TWO - 60), nightly(tmp_path)
    async with serving(tmp_path, config, clock) as (_runtime, schedules):
        await schedules.tick()
    clock.at = TWO + 3 * DAY + 3600  # four nights without a server
    async with serving(tmp_path, config, clock) as (runtime, schedules):
        (row,) = await schedule_rows(schedules.configs, runtime.runner.ledger, clock.at)
        assert row["missed"] == 4, "what no server has decided yet counts"
        await schedules.tick()
        assert await events(runtime) == ["ScheduleBegan", "DueMissed"]
        assert await missions(runtime) == []
        (again,) = await schedule_rows(schedules.configs, runtime.runner.ledger, clock.at)
        assert again == row
        assert row["last_missed_at"].startswith("2026-11-19T02:00")
        assert row["next_at"].startswith("2026-11-20T02:00")
        await until_hour(schedules, clock, TWO + 4 * DAY)
        await ended(runtime, 1)
    assert "scheduled runs were missed" in caplog.text


@pytest.mark.parametrize(
    ("overlap", "decided", "statuses"),
    [
        ("skip", ["DueSkipped", "DueSkipped"], ["waiting"]),
        ("queue", ["DueQueued", "DueSkipped", "RunOrdered"], ["waiting", "terminated"]),
        ("replace", ["RunOrdered", "RunOrdered"], ["waiting", "terminated", "terminated"]),
    ],
)
async def test_a_run_that_has_not_ended_at_the_next_due_time(
    overlap: Overlap, decided: list[str], statuses: list[str], tmp_path: Path
) -> None:
    config = nightly(tmp_path, "write", overlap=overlap)
    config.mission.write_text(mission_of("write") + '[policy]\nask = ["world.write"]\n', encoding="utf-8")
    clock = FakeClock(TWO - 60)
    async with serving(tmp_path, config, clock) as (runtime, schedules):

        async def waits() -> None:
            with runtime.runner.ledger.wakeup() as wakeup:
                while (await missions(runtime))[0]["status"] != "waiting":
                    await wakeup.wait()

        await schedules.tick()
        await until_hour(schedules, clock, TWO + 1)
        await waits()
        for day in (1, 2):
            await until_hour(schedules, clock, TWO + day * DAY)
            await waits()
        if overlap == "queue":
            await runtime.runner.abort((await missions(runtime))[0]["session_id"])
            await until_hour(schedules, clock, TWO + 2 * DAY + 10)
            await waits()
        assert (await events(runtime))[2:] == decided
        assert [one["status"] for one in await missions(runtime)] == statuses


async def test_a_mission_that_cannot_start_is_told_once_and_the_next_due_time_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, config = FakeClock(TWO - 60), nightly(tmp_path, "reed")
    async with serving(tmp_path, config, clock) as (runtime, schedules):
        await schedules.tick()
        for seconds in (1, 10, 20):
            await until_hour(schedules, clock, TWO + seconds)
        assert await events(runtime) == ["ScheduleBegan", "RunOrdered", "RunRefused"]
        (row,) = await schedule_rows(schedules.configs, runtime.runner.ledger, clock.at)
        assert row["last_run"]["status"] == "refused"
        assert "world.reed" in row["last_run"]["reason"]
        nightly(tmp_path, "read")
        await until_hour(schedules, clock, TWO + DAY)
        await ended(runtime, 1)
    assert caplog.text.count("scheduled run refused") == 1


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("30 2 * * *", "2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00"),  # 02:30 does not exist on this day
        ("30 2 * * *", "2026-10-25T00:00+02:00", "2026-10-25T02:30+02:00"),  # 02:30 exists twice
        ("30 2 * * *", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"),
        ("0 * * * *", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"),
        ("@daily", "2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"),
    ],
)
def test_due_times_follow_the_clocks_of_the_zone(cron: str, after: str, due: str) -> None:
    config = ScheduleTable(cron=cron, mission=Path("m"), timezone="Europe/Berlin")
    assert Cron("x", config).after(datetime.fromisoformat(after).timestamp()) == datetime.fromisoformat(due).timestamp()


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        ("cron = '0 25 * * *'\nmission = 'm'", "schedule.x.cron", "is not a cron expression"),
        ("cron = '0 2 30 2 *'\nmission = 'm'", "schedule.x.cron", "is not a cron expression"),
        ("cron = '0 2 * * *'\nmission = 'm'\ntimezone = 'Berlin'", "schedule.x.timezone", "Europe/Berlin"),
    ],
)
async def test_a_wrong_table_is_refused_with_its_field(text: str, field: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "pursuit.toml").write_text(f"[schedule.x]\n{text}", encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        await schedule_rows(load_configuration(tmp_path / "pursuit.toml").schedule, None, TWO)
    assert [(fault.field, why in fault.reason) for fault in refused.value.faults] == [(field, True)]


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "croniter", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'pursuit\[schedule\]'"):
        Cron("x", ScheduleTable(cron="* * * * *", mission=Path("m")))
