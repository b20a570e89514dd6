"""Tasks at work in a process: begun, cancelled, broken, and taken up from a dead one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit import Configuration, Runtime, tasks
from pursuit.core.tasks import TaskState
from pursuit.errors import Conflict, TaskTerminal
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.execution import TaskContext, task_execution
from pursuit.tasks.host import TaskHost
from pursuit.tasks.limits import TaskLimits
from pursuit.tasks.store import Ending, TaskRecords
from pursuit.testing import InMemoryTaskStore

OK = Ending(status="completed", result={"content": []})


@asynccontextmanager
async def with_host(tmp_path: Path, *, tend: bool = True, **given: Any) -> AsyncIterator[TaskHost]:
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    try:
        async with TaskHost(TaskRecords(ledger), **given) as host:
            if tend:
                host.maintain()
            yield host
    finally:
        await ledger.close()


async def begin(host: TaskHost, work: Any, **given: Any) -> str:
    state = await host.begin(work, **{"kind": "call", "title": "t", "requestor": "local", **given})
    return state.task_id


async def test_work_tells_asks_and_ends(tmp_path: Path) -> None:
    async def work(ctx: TaskContext) -> Ending:
        await ctx.update_status("asking", done=1, total=2, item="a")
        answers = await ctx.ask({"name": {"method": "elicitation/create", "params": {}}})
        return Ending(status="completed", result={"content": [{"type": "text", "text": answers["name"]}]}, done=2)

    async with with_host(tmp_path) as host:
        task_id = await begin(host, work)
        state = await host.store.wait(task_id, lambda now: bool(now.asked))
        assert (state.status, state.message, state.done, state.total) == ("input_required", "asking", 1, 2)
        await host.store.answer(task_id, {"name": "Ann"})
        state = await host.store.wait(task_id)
        assert (state.status, state.done, state.item) == ("completed", 2, "a")
        assert state.result == {"content": [{"type": "text", "text": "Ann"}]}


async def test_a_cancel_cuts_the_work_and_counts_at_once(tmp_path: Path) -> None:
    cut = anyio.Event()

    async def work(ctx: TaskContext) -> Ending:
        try:
            await anyio.sleep_forever()
        finally:
            cut.set()
        raise AssertionError("slept for ever")

    async with with_host(tmp_path) as host:
        task_id = await begin(host, work)
        assert (await host.cancel(task_id, by="ann", reason="enough")).status == "cancelled"
        await cut.wait()
        assert (await host.store.get(task_id)).message == "cancelled by ann: enough"


async def test_one_that_stops_by_itself_settles_when_it_has_stopped(tmp_path: Path) -> None:
    async def winding(ctx: TaskContext) -> Ending:
        await ctx.wait_cancelled()
        return Ending(status="cancelled", message="stopped in order", exit_code=143)

    async with with_host(tmp_path) as host:
        task_id = await begin(host, winding, kind="process")
        assert (await host.cancel(task_id)).status == "working"
        state = await host.store.wait(task_id)
        assert (state.status, state.message, state.exit_code) == ("cancelled", "stopped in order", 143)


async def orphan(tmp_path: Path, kind: str) -> str:
    """A task whose process is gone: its host was left, so its lock is free."""

    async def endless(ctx: TaskContext) -> Ending:
        await anyio.sleep_forever()
        return OK

    async with with_host(tmp_path) as host:
        return await begin(host, endless, kind=kind, origin={"n": 7})


async def test_an_orphan_goes_on_where_its_kind_can(tmp_path: Path) -> None:
    task_id = await orphan(tmp_path, "process")

    def resume(state: TaskState) -> Any:
        async def work(ctx: TaskContext) -> Ending:
            return Ending(status="completed", message=f"resumed {state.origin['n']}")

        return work

    async with with_host(tmp_path, resume={"process": resume}) as host:
        assert (await host.store.wait(task_id)).message == "resumed 7"


async def test_a_task_in_good_hands_is_left_alone(tmp_path: Path) -> None:
    async def endless(ctx: TaskContext) -> Ending:
        await anyio.sleep_forever()
        return OK

    async with with_host(tmp_path) as host:
        task_id = await begin(host, endless)
        async with TaskHost(TaskRecords(host.store.ledger)) as other:
            assert await other.take_up_all() == 0
            await other.cancel(task_id)
        assert (await host.store.get(task_id)).status == "cancelled"


async def some_work(store: TaskRecords) -> str:
    return (await store.create(kind="work", title="t", requestor="local")).task_id


async def test_own_work_completes_with_what_it_says(tmp_path: Path) -> None:
    async with with_host(tmp_path) as host:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store) as ctx:
            await ctx.update_status("half way", done=1, total=2)
            assert not ctx.cancelled
            await ctx.complete({"answer": 42})
        state = await host.store.get(task_id)
        assert (state.status, state.message, state.done) == ("completed", "half way", 1)
        assert state.result["structuredContent"] == {"answer": 42}


async def test_own_work_that_raises_fails_and_its_exception_is_suppressed_unless_wanted(tmp_path: Path) -> None:
    async with with_host(tmp_path) as host:
        first, second = await some_work(host.store), await some_work(host.store)
        async with task_execution(first, host.store):
            raise ZeroDivisionError("by zero")
        with pytest.raises(ZeroDivisionError):
            async with task_execution(second, host.store, reraise=True):
                raise ZeroDivisionError("by zero")
        for task_id in (first, second):
            state = await host.store.get(task_id)
            assert (state.status, state.message) == ("failed", "ZeroDivisionError: by zero")


async def test_a_task_is_cancelled_once_by_the_public_functions(tmp_path: Path) -> None:
    store = InMemoryTaskStore()
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), task_store=store) as runtime:
        task_id = tasks.generate_task_id()
        records = runtime.tasks.store
        made = await tasks.create_task(records, title="Fold", task_id=task_id)
        assert made.task_id == task_id and not tasks.is_terminal(made.status)
        assert await store.row(task_id) is not None
        state = await tasks.cancel_task(records, task_id, reason="enough")
        assert tasks.is_terminal(state.status) and state.status == "cancelled"
        for wrong in (task_id, tasks.generate_task_id(), "x"):
            with pytest.raises(tasks.InvalidTask) as refused:
                await tasks.cancel_task(records, wrong)
            assert refused.value.code == -32602


async def test_own_work_hears_of_a_cancel_and_its_late_word_is_dropped(tmp_path: Path) -> None:
    async with with_host(tmp_path) as host:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store) as ctx:
            await host.cancel(task_id)
            await ctx.wait_cancelled()
            assert ctx.cancelled
            assert not await ctx.complete("too late")
        assert (await host.store.get(task_id)).status == "cancelled"


async def test_two_workers_cannot_have_one_task(tmp_path: Path) -> None:
    async with with_host(tmp_path) as host:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store):
            with pytest.raises(Conflict):
                async with task_execution(task_id, host.store):
                    pass
        with pytest.raises(TaskTerminal):
            async with task_execution(task_id, host.store):
                pass


@pytest.mark.parametrize("result", [{"content": [], "x": object()}, {"content": [], "x": {(1, 2): 3}}])
async def test_an_end_that_cannot_be_stored_is_that_tasks_own_failure(tmp_path: Path, result: Any) -> None:
    async def odd(ctx: TaskContext) -> Ending:
        return Ending(status="completed", result=result)

    async def steady(ctx: TaskContext) -> Ending:
        await ctx.ask({"go": {}})
        return OK

    async with with_host(tmp_path) as host:
        good, bad = await begin(host, steady), await begin(host, odd)
        state = await host.store.wait(bad)
        assert state.status == "failed" and "could not be stored" in (state.message or "")
        await host.store.answer(good, {"go": 1})
        assert (await host.store.wait(good)).status == "completed"


async def test_whatever_is_wrong_with_one_task_the_others_are_looked_after(tmp_path: Path) -> None:
    task_id = await orphan(tmp_path, "process")

    def resume(state: TaskState) -> Any:
        raise ValueError("no such thing")

    async with with_host(tmp_path, resume={"process": resume}) as host:
        assert (await host.store.wait(task_id)).message == "ValueError: no such thing"
        tried = anyio.Event()

        async def clear(_task_id: str) -> bool:
            tried.set()
            raise ValueError("odd files")

        host.retention.clear = clear
        host.store.limits = TaskLimits(kept=0)
        await host.store.settle(await some_work(host.store), OK)
        async with TaskHost(host.store) as tending:
            tending.retention.clear = clear
            tending.maintain()
            await tried.wait()
            left = await host.store.create(kind="call", title="t", requestor="local", owner="owner-0")
            assert (await host.store.wait(left.task_id)).status == "failed"


async def test_a_time_to_live_is_kept_by_whoever_works_and_ends_with_the_work(tmp_path: Path) -> None:
    stopping, stopped = anyio.Event(), anyio.Event()

    async def winding(ctx: TaskContext) -> Ending:
        await ctx.wait_cancelled()
        stopping.set()
        await stopped.wait()
        return Ending(status="failed", message="out of time", exit_code=143)

    async def endless(ctx: TaskContext) -> Ending:
        await anyio.sleep_forever()
        return OK

    async with with_host(tmp_path, tend=False) as host:
        cut = await host.store.wait(await begin(host, endless, ttl=0.05))
        assert (cut.status, cut.message) == ("failed", "its time to live ended before the work did")
        task_id = await begin(host, winding, kind="process", ttl=0.05)
        await stopping.wait()
        assert (await host.store.get(task_id)).status == "working", "it has not stopped yet"
        stopped.set()
        state = await host.store.wait(task_id)
        assert (state.status, state.message, state.exit_code) == ("failed", "out of time", 143)


async def test_own_work_out_of_time_hears_of_it_and_has_failed(tmp_path: Path) -> None:
    async with with_host(tmp_path, tend=False) as host:
        task_id = (await host.store.create(kind="work", title="t", requestor="local", ttl=0.05)).task_id
        async with task_execution(task_id, host.store) as ctx:
            await ctx.wait_cancelled()
            assert not await ctx.complete("too late")
        assert (await host.store.get(task_id)).status == "failed"
