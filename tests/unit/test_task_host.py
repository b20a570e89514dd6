"""Tasks at work in a process: begun, cancelled, broken, and taken up from a dead one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit.errors import Conflict, TaskTerminal
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.model.tasks import TaskState
from pursuit.tasks.execution import TaskContext, task_execution
from pursuit.tasks.host import TaskHost
from pursuit.tasks.store import Ending, TaskStore

OK = Ending(status="completed", result={"content": []})


def with_host(tmp_path: Path, body: Callable[[TaskHost], Awaitable[Any]], **given: Any) -> Any:
    async def run() -> Any:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        try:
            with anyio.fail_after(20):
                async with TaskHost(TaskStore(ledger), **given) as host:
                    host.tend()
                    return await body(host)
        finally:
            await ledger.close()

    return anyio.run(run)


async def begin(host: TaskHost, work: Any, **given: Any) -> str:
    state = await host.begin(work, **{"kind": "call", "title": "t", "requestor": "local", **given})
    return state.task_id


def test_work_tells_asks_and_ends(tmp_path: Path) -> None:
    async def work(ctx: TaskContext) -> Ending:
        await ctx.update_status("asking", done=1, total=2, item="a")
        answers = await ctx.ask({"name": {"method": "elicitation/create", "params": {}}})
        return Ending(status="completed", result={"content": [{"type": "text", "text": answers["name"]}]}, done=2)

    async def body(host: TaskHost) -> None:
        task_id = await begin(host, work)
        state = await host.store.wait(task_id, lambda now: bool(now.asked))
        assert (state.status, state.message, state.done, state.total) == ("input_required", "asking", 1, 2)
        await host.store.answer(task_id, {"name": "Ann"})
        state = await host.store.wait(task_id)
        assert (state.status, state.done, state.item) == ("completed", 2, "a")
        assert state.result == {"content": [{"type": "text", "text": "Ann"}]}

    with_host(tmp_path, body)


def test_a_cancel_cuts_the_work_and_counts_at_once(tmp_path: Path) -> None:
    cut = anyio.Event()

    async def work(ctx: TaskContext) -> Ending:
        try:
            await anyio.sleep_forever()
        finally:
            cut.set()
        raise AssertionError("slept for ever")

    async def body(host: TaskHost) -> None:
        task_id = await begin(host, work)
        assert (await host.cancel(task_id, by="ann", reason="enough")).status == "cancelled"
        await cut.wait()
        assert (await host.store.get(task_id)).message == "cancelled by ann: enough"

    with_host(tmp_path, body)


def test_work_that_ends_after_its_cancel_harms_nobody(tmp_path: Path) -> None:
    async def stubborn(ctx: TaskContext) -> Ending:
        with anyio.CancelScope(shield=True):
            await ctx.wait_cancelled()
            return OK

    async def quick(ctx: TaskContext) -> Ending:
        return OK

    async def body(host: TaskHost) -> None:
        task_id = await begin(host, stubborn)
        await host.cancel(task_id)
        while "WordDropped" not in [event.type for event in await host.store.ledger.read(task_id)]:
            await anyio.lowlevel.checkpoint()
        assert (await host.store.get(task_id)).status == "cancelled"
        assert (await host.store.wait(await begin(host, quick))).status == "completed"

    with_host(tmp_path, body)


def test_one_that_stops_by_itself_settles_when_it_has_stopped(tmp_path: Path) -> None:
    async def winding(ctx: TaskContext) -> Ending:
        await ctx.wait_cancelled()
        return Ending(status="cancelled", message="stopped in order", exit_code=143)

    async def body(host: TaskHost) -> None:
        task_id = await begin(host, winding, kind="process")
        assert (await host.cancel(task_id)).status == "working"
        state = await host.store.wait(task_id)
        assert (state.status, state.message, state.exit_code) == ("cancelled", "stopped in order", 143)

    with_host(tmp_path, body)


def test_an_exception_is_the_tasks_own_end(tmp_path: Path) -> None:
    async def broken(ctx: TaskContext) -> Ending:
        raise RuntimeError("no luck")

    async def body(host: TaskHost) -> None:
        state = await host.store.wait(await begin(host, broken))
        assert (state.status, state.message) == ("failed", "RuntimeError: no luck")
        assert state.error == {"code": -32603, "message": "RuntimeError: no luck"}

    with_host(tmp_path, body)


def orphan(tmp_path: Path, kind: str) -> str:
    """A task whose process is gone: its host was left, so its lock is free."""

    async def endless(ctx: TaskContext) -> Ending:
        await anyio.sleep_forever()
        return OK

    return with_host(tmp_path, lambda host: begin(host, endless, kind=kind, origin={"n": 7}))


def test_an_orphan_goes_on_where_its_kind_can(tmp_path: Path) -> None:
    task_id = orphan(tmp_path, "process")

    def resume(state: TaskState) -> Any:
        async def work(ctx: TaskContext) -> Ending:
            return Ending(status="completed", message=f"resumed {state.origin['n']}")

        return work

    async def body(host: TaskHost) -> None:
        assert (await host.store.wait(task_id)).message == "resumed 7"

    with_host(tmp_path, body, resume={"process": resume})


def test_an_orphan_that_cannot_go_on_fails_with_the_reason(tmp_path: Path) -> None:
    task_id = orphan(tmp_path, "call")
    state = with_host(tmp_path, lambda host: host.store.wait(task_id))
    assert state.status == "failed"
    assert "the process that worked at it ended" in state.message


def test_a_task_in_good_hands_is_left_alone(tmp_path: Path) -> None:
    async def endless(ctx: TaskContext) -> Ending:
        await anyio.sleep_forever()
        return OK

    async def body(host: TaskHost) -> None:
        task_id = await begin(host, endless)
        async with TaskHost(TaskStore(host.store.ledger)) as other:
            assert await other.take_up_all() == 0
            await other.cancel(task_id)
        assert (await host.store.get(task_id)).status == "cancelled"

    with_host(tmp_path, body)


async def some_work(store: TaskStore) -> str:
    return (await store.create(kind="work", title="t", requestor="local")).task_id


def test_own_work_completes_with_what_it_says(tmp_path: Path) -> None:
    async def body(host: TaskHost) -> None:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store) as ctx:
            await ctx.update_status("half way", done=1, total=2)
            assert not ctx.cancelled
            await ctx.complete({"answer": 42})
        state = await host.store.get(task_id)
        assert (state.status, state.message, state.done) == ("completed", "half way", 1)
        assert state.result is not None
        assert state.result["structuredContent"] == {"answer": 42}

    with_host(tmp_path, body)


def test_own_work_that_raises_fails_and_the_exception_goes_on(tmp_path: Path) -> None:
    async def body(host: TaskHost) -> None:
        task_id = await some_work(host.store)
        with pytest.raises(ZeroDivisionError):
            async with task_execution(task_id, host.store):
                raise ZeroDivisionError("by zero")
        assert (await host.store.get(task_id)).message == "ZeroDivisionError: by zero"

    with_host(tmp_path, body)


def test_own_work_hears_of_a_cancel_and_its_late_word_is_dropped(tmp_path: Path) -> None:
    async def body(host: TaskHost) -> None:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store) as ctx:
            await host.cancel(task_id)
            await ctx.wait_cancelled()
            assert ctx.cancelled
            assert not await ctx.complete("too late")
        assert (await host.store.get(task_id)).status == "cancelled"

    with_host(tmp_path, body)


def test_two_workers_cannot_have_one_task(tmp_path: Path) -> None:
    async def body(host: TaskHost) -> None:
        task_id = await some_work(host.store)
        async with task_execution(task_id, host.store):
            with pytest.raises(Conflict):
                async with task_execution(task_id, host.store):
                    pass
        with pytest.raises(TaskTerminal):
            async with task_execution(task_id, host.store):
                pass

    with_host(tmp_path, body)
