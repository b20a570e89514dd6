"""Calls: checked before they run, side by side only when all are safe, each ending in exactly one outcome."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import events_of, history, mission, outcomes, proposal, repeat, replay, script, stage
from hands import LONG, Hands
from mcp.server.mcpserver import Context, MCPServer

from pursuit import Budget, ValidationFailed, event, metric, tool
from pursuit.core.events import CallIntended, CallSettled, IterationProposed
from pursuit.core.tools import ToolResult
from pursuit.engine.context import Deadline


async def test_a_fixed_proposal_with_bad_arguments_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    def put(key: str, size: int = 1) -> str:
        return key

    async with stage(tmp_path, put) as runtime:
        bad = proposal(("put", {"key": 3}), ("put", {"key": "a", "size": "big"}), ("pot", {}))
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.start(mission(proposer=replay(bad)))
        assert {fault.field for fault in caught.value.faults} == {
            "proposer.proposals[0].tool_calls[0].args",
            "proposer.proposals[0].tool_calls[1].args",
            "proposer.proposals[0].tool_calls[2].tool_name",
        }
        with pytest.raises(ValidationFailed):
            await runtime.runner.start(mission(proposer=repeat("put", size=1)))
        assert (await runtime.runner.list()).as_json()["sessions"] == []


async def test_a_script_that_calls_with_bad_arguments_is_denied_and_reads_why(tmp_path: Path) -> None:
    ran: list[str] = []

    def put(key: str) -> None:
        ran.append(key)

    source = "try:\n  world.put(key=3)\nexcept RuntimeError as e:\n  state.memory['why'] = str(e)\nworld.put('ok')"
    async with stage(tmp_path, put) as runtime:
        report = await runtime.pursue(mission(proposer=script(source)))
        assert await outcomes(runtime, report.session_id) == [("world.put", "denied"), ("world.put", "ok")]
        assert "schema" in (await runtime.runner.state(report.session_id)).memory["why"]
        assert report.data["refused"][0]["outcome"] == "denied"
    assert ran == ["ok"]


@pytest.mark.guarantee("parallel-only-when-all-safe")
async def test_calls_that_are_all_parallel_safe_run_together(tmp_path: Path) -> None:
    """Each waits for the other to have begun: one after the other they would never end."""
    here, there = anyio.Event(), anyio.Event()

    @tool(parallel_safe=True)
    async def left() -> None:
        here.set()
        await there.wait()

    @tool(read_only=True)
    async def right() -> None:
        there.set()
        await here.wait()

    async with stage(tmp_path, left, right) as runtime:
        report = await runtime.pursue(mission(proposer=replay(proposal(("left", {}), ("right", {})))))
        assert await outcomes(runtime, report.session_id) == [("world.left", "ok"), ("world.right", "ok")]


@pytest.mark.guarantee("parallel-only-when-all-safe")
@pytest.mark.parametrize("form", ["calls", "gather"])
async def test_one_unsafe_call_puts_the_whole_batch_in_order(tmp_path: Path, form: str) -> None:
    log: list[str] = []

    @tool(parallel_safe=True)
    async def safe(key: str) -> None:
        log.append(f"+{key}")
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        log.append(f"-{key}")

    async def unsafe(key: str) -> None:
        log.append(f"+{key}")
        await anyio.lowlevel.checkpoint()
        log.append(f"-{key}")

    calls = proposal(("safe", {"key": "a"}), ("unsafe", {"key": "b"}), ("safe", {"key": "c"}))
    source = "import asyncio\nawait asyncio.gather(world.safe('a'), world.unsafe('b'), world.safe('c'))"
    proposer = replay(calls) if form == "calls" else script(source)
    async with stage(tmp_path, safe, unsafe) as runtime:
        await runtime.pursue(mission(proposer=proposer))
    assert log == ["+a", "-a", "+b", "-b", "+c", "-c"]


@pytest.mark.parametrize("safe", [True, False])
async def test_one_failure_does_not_stop_the_others(tmp_path: Path, safe: bool) -> None:
    @tool(parallel_safe=safe)
    async def step(key: str) -> dict[str, str]:
        if key == "bad":
            raise OSError("no such thing")
        return {"key": key}

    calls = proposal(("step", {"key": "a"}), ("step", {"key": "bad"}), ("step", {"key": "c"}))
    async with stage(tmp_path, step) as runtime:
        report = await runtime.pursue(mission(proposer=replay(calls)))
        (row,) = await history(runtime, report.session_id)
        assert [call["outcome"] for call in row["calls"]] == ["ok", "failed", "ok"]
        assert row["calls"][1]["error"] == "OSError: no such thing"
        assert row["observation"]["errors"] == ["OSError: no such thing"]


async def test_results_come_in_proposed_order_and_the_later_call_wins_whoever_answers_first(tmp_path: Path) -> None:
    last = anyio.Event()

    @tool(parallel_safe=True)
    async def measure(key: str, value: int) -> dict[str, Any]:
        if key == "last":
            last.set()
        else:
            await last.wait()
        return {"key": key, "metrics": {"size": value}}

    calls = proposal(("measure", {"key": "first", "value": 1}), ("measure", {"key": "last", "value": 2}))
    async with stage(tmp_path, measure) as runtime:
        report = await runtime.pursue(mission(criteria=[metric("size") == 2], proposer=replay(calls)))
        assert report.completed
        settled = await events_of(runtime, report.session_id, CallSettled)
        assert [one.call_id[-1] for one in settled] == ["1", "0"], "the stage is wrong: the last must answer first"
        (row,) = await history(runtime, report.session_id)
        assert [call["args"]["key"] for call in row["calls"]] == ["first", "last"]
        assert report.metric("size") == 2
        assert row["observation"]["metrics"] == {"size": 2}
        assert (await runtime.runner.status(report.session_id)).metrics == {"size": 2}


@pytest.mark.guarantee("timeout-cancels-upstream")
@pytest.mark.parametrize("safe", [True, False])
async def test_a_call_past_its_timeout_is_cancelled_and_the_next_one_runs(tmp_path: Path, safe: bool) -> None:
    seen: list[str] = []

    @tool(timeout=0.05, parallel_safe=safe)
    async def forever() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cancelled")

    @tool(parallel_safe=safe)
    async def quick() -> None:
        seen.append("quick")

    async with stage(tmp_path, forever, quick) as runtime:
        report = await runtime.pursue(mission(proposer=replay(proposal(("forever", {}), ("quick", {})))))
        assert await outcomes(runtime, report.session_id) == [("world.forever", "timed_out"), ("world.quick", "ok")]
        (settled,) = [e for e in await events_of(runtime, report.session_id, CallSettled) if e.outcome != "ok"]
        assert settled.error is not None and "0.05 s" in settled.error
    assert sorted(seen) == ["cancelled", "quick"]


async def test_the_timeout_of_a_tool_without_one_is_the_operators_setting(tmp_path: Path) -> None:
    async def forever() -> None:
        await anyio.sleep_forever()

    async with stage(tmp_path, forever, settings={"call_timeout": 0.05}) as runtime:
        report = await runtime.pursue(mission(proposer=repeat("forever")))
        assert await outcomes(runtime, report.session_id) == [("world.forever", "timed_out")]


@pytest.mark.guarantee("timeout-cancels-upstream")
async def test_progress_resets_the_timeout_up_to_the_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, hands = MCPServer("slow"), Hands(monkeypatch)
    stopped: list[str] = []
    progressed, heard = Deadline.progressed, [anyio.Event()]

    async def spied(deadline: Deadline, *said: Any) -> None:
        await progressed(deadline, *said)
        heard[0].set()

    monkeypatch.setattr(Deadline, "progressed", spied)

    @server.tool()
    async def work(steps: int, ctx: Context) -> str:
        """Takes longer than its timeout, and says that it is alive."""
        try:
            for step in range(steps):
                hands.forward(0.55 * LONG)
                heard[0] = anyio.Event()
                await ctx.report_progress(step, steps)
                await heard[0].wait()
        except anyio.get_cancelled_exc_class():
            stopped.append("work")
            raise
        return "done"

    limits = {"call_timeout": LONG, "call_ceiling": 2 * LONG}
    async with stage(tmp_path, servers={"slow": server}, settings=limits) as runtime:
        calls = [proposal(("work", {"steps": 2})), proposal(("work", {"steps": 1_000}))]
        report = await runtime.pursue(mission(budget=Budget(max_iterations=2), proposer=replay(*calls)))
        assert await outcomes(runtime, report.session_id) == [("slow.work", "ok"), ("slow.work", "timed_out")]
        settled = await events_of(runtime, report.session_id, CallSettled)
        assert LONG < settled[0].seconds < 2 * LONG
        assert 2 * LONG <= settled[1].seconds < 3 * LONG
    assert stopped == ["work"]


async def test_a_large_result_is_stored_once_and_previewed_and_a_script_gets_the_whole(tmp_path: Path) -> None:
    def read() -> dict[str, Any]:
        return {"text": "x" * 20_000, "end": "here", "metrics": {"length": 20_000}}

    source = "r = world.read()\nagain = world.read()\nstate.memory['end'] = r['end'] + str(len(again['text']))"
    async with stage(tmp_path, read) as runtime:
        report = await runtime.pursue(mission(criteria=[metric("length") == 20_000], proposer=script(source)))
        assert report.completed, "metrics are lifted from a large result too"
        assert (await runtime.runner.state(report.session_id)).memory == {"end": "here20000"}
        settled = await events_of(runtime, report.session_id, CallSettled)
        assert settled[0].result is None and settled[0].blob == settled[1].blob
        assert settled[0].preview is not None and 100 < len(settled[0].preview) <= 2_000
        digests = await runtime.runner.ledger.digests(report.session_id)
        assert len(digests) == 2, "one result and one report"
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        assert database.execute("SELECT count(*) FROM blobs WHERE size > 20000").fetchone() == (1,)
    database.close()


async def test_a_result_of_the_limit_stays_inline(tmp_path: Path) -> None:
    def read() -> str:
        return "x" * 15_000

    async with stage(tmp_path, read) as runtime:
        report = await runtime.pursue(mission(proposer=repeat("read")))
        (settled,) = await events_of(runtime, report.session_id, CallSettled)
        assert settled.blob is None and settled.result["content"][0]["text"] == "x" * 15_000


async def test_an_error_result_is_a_failure_with_its_text_and_yields_no_metrics(tmp_path: Path) -> None:
    def broken() -> ToolResult:
        text = {"type": "text", "text": "the mill is jammed"}
        return ToolResult(content=[text], structured={"metrics": {"mass": 1}}, is_error=True)

    async with stage(tmp_path, broken) as runtime:
        report = await runtime.pursue(mission(criteria=[metric("mass") == 1], proposer=repeat("broken")))
        assert not report.completed
        assert report.metric("mass") is None
        assert await outcomes(runtime, report.session_id) == [("world.broken", "failed")]
        assert report.data["errors"] == [{"iteration": 0, "tool": "world.broken", "message": "the mill is jammed"}]


ODD_EVENT = '{"events": [{"event_name": "odd", "value": "\\ud800"}]}'
HALF_A_CHARACTER = ["\ud800", {"\ud800": 1}, {"value": "\ud800"}, ODD_EVENT]


@pytest.mark.parametrize("value", [float("nan"), 2**70, {1: 2}, {"a": {1, 2}}, object(), b"x", *HALF_A_CHARACTER])
@pytest.mark.parametrize("raised", [False, True])
async def test_a_result_that_is_hard_to_store_never_breaks_the_mission(
    tmp_path: Path, value: object, raised: bool
) -> None:
    def odd() -> object:
        if raised:
            raise ValueError(value)
        return value

    async with stage(tmp_path, odd) as runtime:
        report = await runtime.pursue(mission(proposer=repeat("odd")))
        assert report.verdict_reason == "max_iterations"
        assert (await outcomes(runtime, report.session_id))[0][1] in (("failed",) if raised else ("ok", "failed"))
        assert (await runtime.runner.verify()).ok
        events = (await runtime.runner.state(report.session_id)).events
        assert events.counts() == ({"odd": 1} if value == ODD_EVENT and not raised else {})


async def test_a_tool_that_is_gone_at_resume_fails_its_call_and_not_the_mission(tmp_path: Path) -> None:
    def stay() -> str:
        return "here"

    def go() -> str:
        return "soon away"

    proposer = replay(proposal(("go", {}), ("stay", {})))
    async with stage(tmp_path, stay, go) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=proposer))).session_id
    async with stage(tmp_path, stay) as runtime:
        report = await runtime.resume(mission_id)
        assert report.verdict_reason == "max_iterations"
        assert await outcomes(runtime, mission_id) == [("world.go", "failed"), ("world.stay", "ok")]
        assert "does not offer" in report.data["refused"][0]["reason"]
        assert len(await events_of(runtime, mission_id, CallIntended)) == 1, "what is not there is not sent"


async def test_nothing_to_do_is_an_iteration_that_is_evaluated(tmp_path: Path) -> None:
    def certify() -> dict[str, Any]:
        return {"events": [{"event_name": "certified"}]}

    criteria = [event("certified"), metric("never").trend("increasing").optional()]
    proposer = replay(proposal(rationale="think first"), proposal(("certify", {})))
    async with stage(tmp_path, certify) as runtime:
        wanted = mission(criteria=criteria, budget=Budget(max_iterations=5), proposer=proposer)
        report = await runtime.pursue(wanted)
        assert (report.verdict_reason, report.data["iteration_count"]) == ("criteria_met", 2)
        first, _second = await history(runtime, report.session_id)
        assert [row["status"] for row in first["criteria"]] == ["unmet", "inconclusive"]
        assert first["strategy"]["rationale"] == "think first"
        proposed = await events_of(runtime, report.session_id, IterationProposed)
        assert [len(one.calls) for one in proposed] == [0, 1], "the last call is not repeated"
