"""The record of a task: created, changed, ended once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit.core.tasks import TaskProgressed, TaskState
from pursuit.errors import Conflict, TaskNotFound, TooManyTasks
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.host import Retention
from pursuit.tasks.limits import TaskLimits
from pursuit.tasks.record import record_of
from pursuit.tasks.store import Ending, TaskRecords

OK = Ending(status="completed", result={"content": []})


@asynccontextmanager
async def with_store(
    tmp_path: Path, *, limits: TaskLimits | None = None, now: Any = None
) -> AsyncIterator[TaskRecords]:
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    try:
        yield TaskRecords(ledger, limits=limits, now=now) if now else TaskRecords(ledger, limits=limits)
    finally:
        await ledger.close()


async def some_task(store: TaskRecords, **given: Any) -> str:
    return (await store.create(**{"kind": "work", "title": "t", "requestor": "local", **given})).task_id


async def test_ids_hold_a_hundred_and_twenty_eight_random_bits(tmp_path: Path) -> None:
    async with with_store(tmp_path) as it:
        task_id = await some_task(it)
    assert len(bytes.fromhex(task_id.removeprefix("task-"))) == 16


@pytest.mark.guarantee("an-ended-task-never-changes")
async def test_whatever_comes_after_the_end_is_dropped_and_recorded(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        await store.ask(task_id, {"q": {"method": "elicitation/create"}})
        await store.order_cancel(task_id, by="ann")
        before = record_of(await store.get(task_id))
        assert before["status"] == "cancelled"
        assert not await store.settle(task_id, Ending(status="completed", message="done", result={"content": [1]}))
        await store.answer(task_id, {"q": {"action": "accept"}})
        await store.progress(task_id, TaskProgressed(message="still at it", done=5))
        await store.ask(task_id, {"late": {"method": "elicitation/create"}})
        assert record_of(await store.get(task_id)) == before
        assert record_of(await TaskRecords(store.ledger).get(task_id)) == before
        dropped = [event.type for event in await store.ledger.read(task_id) if event.type == "WordDropped"]
        assert len(dropped) == 2
        assert (await store.ledger.row(task_id)).status == "cancelled"  # type: ignore[union-attr]


async def test_of_many_endings_at_once_one_counts(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        rivals = [store, *(TaskRecords(store.ledger) for _ in range(9))]
        for rival in rivals:
            await rival.get(task_id)
        won: list[int] = []

        async def end(number: int) -> None:
            if await rivals[number].settle(task_id, Ending(status="completed", message=str(number))):
                won.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(end, number)
        assert len(won) == 1
        assert (await store.get(task_id)).message == str(won[0])


@pytest.mark.guarantee("every-waiter-wakes")
async def test_every_waiter_wakes(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        woken: list[str] = []

        async def wait() -> None:
            woken.append((await store.wait(task_id)).status)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await store.settle(task_id, OK)
        assert woken == ["completed"] * 20


async def test_answers_count_once_and_only_for_what_was_asked(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        await store.ask(task_id, {"a": {}, "b": {}})
        assert (await store.get(task_id)).status == "input_required"
        await store.answer(task_id, {"a": 1, "never asked": 0})
        await store.answer(task_id, {"a": 2})
        assert (await store.get(task_id)).status == "input_required"
        await store.answer(task_id, {"b": 3})
        state = await store.get(task_id)
        assert (state.status, state.answers) == ("working", {"a": 1, "b": 3})


async def test_a_heartbeat_is_no_change(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        before = (await store.get(task_id)).updated_at
        await store.progress(task_id, TaskProgressed(at=before + 30, message="still running", alive=True))
        state = await store.get(task_id)
        assert (state.updated_at, state.message, state.done) == (before, "still running", 0)


async def test_somebody_elses_task_is_like_none(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store, requestor="client:ann")
        for asked in (task_id, "task-" + "0" * 32, "../etc", "mission-0123456789abcdef"):
            with pytest.raises(TaskNotFound):
                await store.get(asked, requestor="client:bob")
        rows = await Retention(store).list(requestor="client:bob")
        assert rows.rows == ()
        assert [row.name for row in (await Retention(store).list(requestor="client:ann")).rows] == [task_id]


@pytest.mark.guarantee("tasks-have-limits")
async def test_more_tasks_than_allowed_are_refused_until_one_ends(tmp_path: Path) -> None:
    async with with_store(tmp_path, limits=TaskLimits(concurrent=4, concurrent_each=3)) as store:
        mine = [await some_task(store) for _ in range(3)]
        with pytest.raises(TooManyTasks, match="tasks_each"):
            await some_task(store)
        await some_task(store, requestor="client:ann")
        with pytest.raises(TooManyTasks, match="tasks_at_once"):
            await some_task(store, requestor="client:bob")
        fresh = TaskRecords(store.ledger, limits=store.limits)
        with pytest.raises(TooManyTasks):
            await some_task(fresh)
        await store.settle(mine[0], OK)
        await some_task(store)


async def test_pruning_keeps_the_newest_and_never_a_running_one(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with with_store(tmp_path, now=lambda: clock[0]) as store:
        running = await some_task(store)
        ended = []
        for _ in range(5):
            clock[0] += 1
            ended.append(await some_task(store))
            await store.settle(ended[-1], OK)
        removed = await Retention(store).prune(keep=2)
        assert sorted(removed) == sorted(ended[:3])
        clock[0] += 8 * 86_400
        assert sorted(await Retention(store).prune()) == sorted(ended[3:])
        assert (await store.get(running)).status == "working"
        with pytest.raises(TaskNotFound):
            await store.get(ended[0])


HALF = "half \udcff"
WHOLE = "half ?"


async def test_half_a_character_is_replaced_wherever_it_comes_from(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store, title=HALF, origin={HALF: [HALF]}, kind="process")
        await store.progress(task_id, TaskProgressed(message=HALF, item=HALF, mark={"at": HALF}))
        await store.ask(task_id, {"q": {"message": HALF}})
        assert (await store.get(task_id)).asked == {"q": {"message": WHOLE}}
        await store.answer(task_id, {"q": {"text": HALF}, HALF: 1}, by=HALF)
        state = await store.order_cancel(task_id, by=HALF, reason=HALF, settle=False)
        assert state.cancel is not None and state.cancel.reason == WHOLE
        result = {"content": [{"type": "text", "text": HALF}], HALF: ({"x": HALF},)}
        error = {"code": 1, "message": HALF}
        assert await store.settle(task_id, Ending(status="failed", message=HALF, result=result, error=error))
        for found in (await store.get(task_id), await TaskRecords(store.ledger).get(task_id)):
            assert (found.title, found.message, found.item, found.mark) == (WHOLE, WHOLE, WHOLE, {"at": WHOLE})
            assert found.origin == {WHOLE: [WHOLE]} and found.answers == {"q": {"text": WHOLE}}
            text = {"type": "text", "text": WHOLE}
            assert await store.result(found) == {"content": [text], WHOLE: [{"x": WHOLE}]}
            assert found.error == {"code": 1, "message": WHOLE}


@pytest.mark.parametrize(
    "number",
    [float("nan"), float("inf"), 10**400, 2**53 + 1],
    ids=lambda number: f"{min(number, 10**300):.0e}",
)
async def test_a_number_that_cannot_be_counted_with_counts_nothing(tmp_path: Path, number: float) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store, total=number)
        await store.progress(task_id, TaskProgressed(done=3, total=4))
        await store.progress(task_id, TaskProgressed(done=number, total=number))
        await store.settle(task_id, Ending(status="completed", done=number))
        here, there = await store.get(task_id), await TaskRecords(store.ledger).get(task_id)
        assert (here.done, here.total) == (there.done, there.total)
        assert here.done == (3 if number != number or abs(number) > 1e308 else float(number))
        assert record_of(here) == record_of(there)


@pytest.mark.guarantee("tasks-have-limits")
@pytest.mark.parametrize("count_every", [1.0, -1.0])  # below zero, each of them counts anew
async def test_of_many_that_come_at_once_no_more_than_allowed_are_taken(tmp_path: Path, count_every: float) -> None:
    async with with_store(tmp_path, limits=TaskLimits(concurrent_each=5, count_every=count_every)) as store:
        taken: list[str] = []
        refused: list[str] = []

        async def one() -> None:
            try:
                taken.append(await some_task(store))
            except TooManyTasks as error:
                refused.append(error.message)

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
        assert (len(taken), len(refused)) == (5, 45)
        await store.settle(taken[0], OK)
        await some_task(store)
        with pytest.raises(TooManyTasks):
            await some_task(store)


async def test_a_task_that_was_not_stored_takes_no_place(tmp_path: Path) -> None:
    async with with_store(tmp_path, limits=TaskLimits(concurrent_each=2)) as store:
        for _ in range(3):
            with pytest.raises(TypeError):
                await some_task(store, origin={"x": object()})
        task_id = await some_task(store)
        with pytest.raises(Conflict):
            await some_task(store, task_id=task_id)
        await some_task(store)
        with pytest.raises(TooManyTasks):
            await some_task(store)


async def test_a_task_that_another_process_removed_is_gone_here_too(tmp_path: Path) -> None:
    async with with_store(tmp_path) as store:
        task_id = await some_task(store)
        result = {"content": [{"type": "text", "text": "x" * 100_000}]}
        await store.settle(task_id, Ending(status="completed", result=result))
        held = await store.get(task_id)
        assert await store.result(held) == result
        elsewhere = SqliteLedger.open(tmp_path / "ledger.db")
        try:
            assert await Retention(TaskRecords(elsewhere)).prune(keep=0) == [task_id]
        finally:
            await elsewhere.close()
        for look in (store.get(task_id), store.result(held), store.answer(task_id, {"x": 1}), store.wait(task_id)):
            with pytest.raises(TaskNotFound):
                await look


async def test_what_its_time_to_live_ended_is_seen_before_it_goes(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with with_store(tmp_path, now=lambda: clock[0]) as store:
        shelf, task_id = Retention(store), await some_task(store, ttl=5)
        clock[0] += 100
        for _ in range(2):
            await shelf.tidy(now=True)
            assert (await store.get(task_id)).status == "failed"
        clock[0] += 61
        await shelf.tidy(now=True)
        with pytest.raises(TaskNotFound):
            await store.get(task_id)


async def test_work_that_winds_down_is_ordered_to_and_has_not_ended(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with with_store(tmp_path, now=lambda: clock[0]) as store:
        task_id = await some_task(store, ttl=5, kind="process", owner="owner-x")
        clock[0] += 6
        await Retention(store).expire()
        state = await store.get(task_id)
        assert (state.status, state.cancel and state.cancel.by) == ("working", "its time to live")


async def test_a_task_stays_while_what_belongs_to_it_does_and_while_it_is_waited_for(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with with_store(tmp_path, now=lambda: clock[0]) as store:
        shelf, task_id = Retention(store), await some_task(store)
        await store.settle(task_id, OK)
        answers = {"cleared": False, "needed": True}
        asked: list[str] = []

        async def clear(one: str) -> bool:
            assert (await store.get(one)).terminal, "the record goes last"
            asked.append("clear")
            return answers["cleared"]

        async def needed(state: TaskState) -> bool:
            asked.append("needed")
            return state.task_id == task_id and answers["needed"]

        shelf.clear, shelf.needed = clear, needed
        assert await shelf.prune(keep=0) == [] and asked == ["needed"]
        answers["needed"] = False
        assert await shelf.prune(keep=0) == [] and asked == ["needed", "needed", "clear"]
        answers["cleared"] = True
        assert await shelf.prune(keep=0) == [task_id]
        other = await some_task(store)
        await store.settle(other, OK)
        answers["needed"], answers["cleared"] = True, False
        clock[0] += 31 * 86_400  # nobody waits longer than a task may live
        assert await shelf.prune() == [other]
