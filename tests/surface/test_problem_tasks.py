"""Calls at a problem that are tasks, or become some: counted, cut at the end of the time, one submission all the same.

Both generations: a client of the first says which call is a task, for one of the second every call that takes long is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from hands import LONG, Hands
from problem_stage import METRIC, SCHEMA, attempts, problem, under_way
from tasks_stage import EXTENSION, FIRST, GENERATIONS, SECOND, Caller, Message, Stage

from pursuit import Problem

WAITS, SLOW = 777, 888
RULE = {"metric": "distance", "expression": "abs(arguments['x'] - result['structuredContent']['accepted'])"}
BY_RESULT = {"kind": "predicates", "predicates": [RULE], "metrics": [METRIC]}


@asynccontextmanager
async def at(one: Problem, folder: Path, era: str, **options: Any) -> AsyncIterator[Caller]:
    """A client that knows tasks, at a problem."""
    served = SimpleNamespace(server=one.to_mcp_server(state=folder / "ledger.db", **options))
    caller = Caller(cast("Stage", served), era, {"extensions": {EXTENSION: {}}} if era == SECOND else {})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.serve)
        tasks.start_soon(caller.read)
        await caller.hello()
        await caller.result("tools/list")
        yield caller
        await caller.leave()
        tasks.cancel_scope.cancel()


async def begin(caller: Caller, tool: str, **arguments: Any) -> str:
    more: Message = {"task": {}} if caller.era == FIRST else {}
    return caller.task(await caller.call(tool, arguments, **more))["taskId"]


async def ended(caller: Caller, task_id: str) -> tuple[str, Message]:
    """How a task ended, and the result of its call."""
    task = await caller.until_status(task_id)
    if caller.era == FIRST:
        return task["status"], await caller.result("tasks/result", {"taskId": task_id})
    return task["status"], task["result"]


def words(result: Message) -> str:
    return "".join(block["text"] for block in result["content"])


@pytest.mark.parametrize("era", GENERATIONS)
async def test_a_task_is_cut_off_when_the_time_is_over(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = problem(tmp_path, "nap", submission=SCHEMA, budget={"wall_seconds": LONG})
    async with at(one, tmp_path, era) as caller:
        task_id = await begin(caller, "nap")
        await under_way(tmp_path)
        hands.forward()
        status, cut = await ended(caller, task_id)
        assert status == ("failed" if era == FIRST else "completed") and cut["isError"]
        assert f"the budget wall_seconds ({LONG:g}) is spent" in words(cut)
        late = await caller.call("submit_final", {"x": 3})
        assert late["isError"] and "wall_seconds" in words(late)
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.failed_calls, list(state.spent)) == (1, 1, ["wall_seconds"])


@pytest.mark.parametrize("era", GENERATIONS)
async def test_what_a_task_came_to_is_in_the_log_of_its_attempt(tmp_path: Path, era: str) -> None:
    one = problem(
        tmp_path, "probe", "grade", submission=SCHEMA, scorer={"kind": "tool", "tool": "grade", "metrics": [METRIC]}
    )
    async with at(one, tmp_path, era) as caller:
        if era == FIRST:
            status, result = await ended(caller, await begin(caller, "probe", x=1))
            assert status == "completed" and result["structuredContent"]["metrics"] == {"distance": 2}
            status, result = await ended(caller, await begin(caller, "submit_final", x=3))
            assert status == "completed" and "receipt" in result["structuredContent"]
        else:  # what ends soon is none
            assert (await caller.call("probe", {"x": 1}))["structuredContent"]["metrics"] == {"distance": 2}
            await caller.call("submit_final", {"x": 3})
        hidden = await caller.refused("tools/call", {"name": "grade", "arguments": {"x": 3}, "task": {}})
        assert hidden["message"] == "Unknown tool: grade"
    (state,) = await attempts(tmp_path)
    ((number, told),) = state.series
    assert (number, dict(told)) == (1, {"distance": 2})
    assert state.calls == 1 and state.scored is not None and state.scored.solved


@pytest.mark.guarantee("one-attempt-one-submission")
@pytest.mark.parametrize("era", GENERATIONS)
async def test_a_submission_that_takes_long_is_the_one_also_as_a_task(tmp_path: Path, era: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    one = problem(tmp_path, "submit_final", str(pipe), scorer=BY_RESULT)
    async with at(one, tmp_path, era) as caller:
        task_id = await begin(caller, "submit_final", x=SLOW)
        other = await begin(caller, "submit_final", x=4)
        await anyio.to_thread.run_sync(pipe.write_text, "go on")
        status, result = await ended(caller, task_id)
        assert status == "completed" and result["structuredContent"]["accepted"] == SLOW
        again = await caller.call("submit_final", {"x": 4})
        _, waited = await ended(caller, other)
        assert waited["isError"] and again["isError"] and "receipt" in words(again)
        assert words(waited) == words(again), "the one that raced has the same receipt"
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": SLOW} and not state.taken.unknown
    assert state.scored is not None and state.scored.solved


@pytest.mark.guarantee("an-unknown-submission-is-the-one")
@pytest.mark.parametrize("era", GENERATIONS)
@pytest.mark.parametrize("how", ["cancelled", "left"])
async def test_a_submission_whose_task_is_cut_may_have_been_taken(tmp_path: Path, era: str, how: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    one = problem(tmp_path, "submit_final", str(pipe), scorer=BY_RESULT)
    async with at(one, tmp_path, era, attempt_id="attempt-1") as caller:
        task_id = await begin(caller, "submit_final", x=WAITS)
        await anyio.to_thread.run_sync(pipe.read_text)
        if how == "cancelled":
            await caller.result("tasks/cancel", {"taskId": task_id})
            await caller.until_status(task_id, "cancelled")
    async with at(one, tmp_path, era, attempt_id="attempt-1") as caller:
        again = await caller.call("submit_final", {"x": 4})
        assert again["isError"] and '"fate": "unknown"' in words(again)
    (state,) = await attempts(tmp_path)
    assert state.taken is not None and state.taken.submission == {"x": WAITS} and state.taken.unknown
    assert state.scored is not None and state.scored.error is not None
