"""Commands that are stopped: by their time to live, their timeout or a person, and what each is told of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hands import LONG, Hands
from process_ends import lives
from tasks_stage import FIRST, Stage, World

from pursuit import Runtime
from pursuit.core.tasks import TaskState
from pursuit.server.missions.server import mission_server
from pursuit.tasks import execution
from pursuit.tasks.execution import ITS_TIMEOUT, TaskContext, stopping_time
from pursuit.tasks.store import Ending, TaskRecords

STUBBORN = 'trap "" TERM; echo "here $$"; while :; do sleep 0.1; done'
CONFIG = f"""
[commands.late]
argv = ["sh", "-c", '{STUBBORN.replace(":", "[ -e stay ]")}']
timeout = 20
grace = 300
[commands.slow]
argv = ["sh", "-c", '{STUBBORN.replace(":", "[ -e stay ]")}']
grace = 60
"""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Runtime]:
    (folder / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    with anyio.fail_after(120):
        async with Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml") as runtime:
            yield runtime


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Stage]:
    async with opened(folder) as runtime, mission_server(runtime) as server, anyio.create_task_group() as tasks:
        yield Stage(runtime, server, World(), tasks)
        tasks.cancel_scope.cancel()


async def pid_of(runtime: Runtime, task_id: str) -> int:
    async for line in runtime.tasks.follow(task_id):
        return int(line.split()[1])
    raise AssertionError("it said nothing")


async def test_a_time_to_live_stops_a_command_and_it_has_ended_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    async with opened(tmp_path) as runtime:
        state = await runtime.tasks.run(["sh", "-c", STUBBORN], ttl=LONG, grace=0.5)
        pid = await pid_of(runtime, state.task_id)
        assert (await runtime.tasks.get(state.task_id)).status == "working"
        hands.forward()
        state = await runtime.tasks.wait(state.task_id, timeout=60)
        assert state.status == "failed" and "time to live" in (state.message or "")
        assert not lives(pid), "it had ended before it was gone"
        result = await runtime.tasks.store.result(state) or {}
        said = result["structuredContent"]
        assert result["isError"] and (said["status"], said["reason"]) == ("failed", state.message)
        assert (state.ended_at or 0) - state.created_at < LONG, "the command itself says when it ended"
        assert (tmp_path / "tasks" / state.task_id).exists()
        assert await runtime.tasks.prune(keep=0) == [state.task_id]
        assert not (tmp_path / "tasks" / state.task_id).exists()


async def test_a_time_to_live_holds_for_who_goes_on_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    async with opened(tmp_path) as runtime:
        task_id = (await runtime.tasks.run(["sh", "-c", STUBBORN], ttl=LONG, grace=0.5)).task_id
        pid = await pid_of(runtime, task_id)
    assert lives(pid)
    hands.forward()
    async with opened(tmp_path) as runtime:
        state = await runtime.tasks.wait(task_id, timeout=60)
        assert state.status == "failed" and "time to live" in (state.message or "")
        assert not lives(pid)


async def test_what_a_person_cancels_is_cancelled_also_when_its_timeout_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, stay = Hands(monkeypatch), tmp_path / "stay"
    stay.touch()
    comes = anyio.Event()
    order = TaskRecords.order_cancel

    async def spied(store: TaskRecords, task_id: str, *, by: str, **more: Any) -> TaskState:
        state = await order(store, task_id, by=by, **more)
        if by == ITS_TIMEOUT:
            comes.set()
        return state

    monkeypatch.setattr(TaskRecords, "order_cancel", spied)
    async with opened(tmp_path) as runtime:
        task_id = (await runtime.tasks.call("late", {})).task_id
        await pid_of(runtime, task_id)
        await runtime.tasks.cancel(task_id)
        hands.forward()
        await comes.wait()
        assert not (await runtime.tasks.get(task_id)).terminal
        stay.unlink()
        state = await runtime.tasks.wait(task_id, timeout=60)
        result = await runtime.tasks.store.result(state) or {}
        assert (state.status, result["structuredContent"]["status"]) == ("cancelled", "cancelled")
        assert "timeout" not in (state.message or "")


async def test_a_cancel_waits_for_as_long_as_its_command_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.0)
    monkeypatch.setattr(execution, "MARGIN", 0.0)
    stay = tmp_path / "stay"
    async with served(tmp_path) as here:
        client = await here.client(FIRST)
        for _ in range(2):
            stay.touch()
            task_id = (await client.call("slow", {}, task={}))["task"]["taskId"]
            await pid_of(here.runtime, task_id)
            asked = await client.begin("tasks/cancel", {"taskId": task_id})
            await here.runtime.tasks.store.wait(task_id, lambda state: state.cancel is not None)
            await anyio.sleep(0.1)  # time for whoever does not wait
            stay.unlink()
            assert (await client.ended(asked))["result"]["status"] == "cancelled"


async def test_a_long_grace_is_kept_with_the_task(tmp_path: Path) -> None:
    async with opened(tmp_path) as runtime:
        state = await runtime.tasks.run(["true"], grace=40)
        assert stopping_time(state) > 40
        assert 10 < stopping_time(await runtime.tasks.run(["true"])) < 20
        await runtime.tasks.wait(state.task_id)


@pytest.mark.parametrize(("ends", "code"), [(True, -32602), (False, -32603)])
async def test_a_first_generation_cancel_says_cancelled_or_is_an_error(
    tmp_path: Path, ends: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.3)
    monkeypatch.setattr(execution, "MARGIN", 0.0 if not ends else 20.0)

    async def work(ctx: TaskContext) -> Ending:
        await ctx.wait_cancelled()
        if not ends:
            await anyio.sleep_forever()
        return Ending(status="completed", result={"content": []})

    async with served(tmp_path) as here:
        client = await here.client(FIRST)
        host = await here.runtime.tasks.host()
        state = await host.begin(work, kind="process", title="t", requestor="local")
        error = await client.refused("tasks/cancel", {"taskId": state.task_id})
        assert error["code"] == code
