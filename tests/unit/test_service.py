"""The verbs that look, prove and forget, and what a mission must pass to be started."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, driving, mission, repeat, script, stage

from pursuit import Budget, Runtime, event, metric
from pursuit.engine.journal import MISSION_ID
from pursuit.errors import Conflict, InvalidArgument, NoIterations, SessionNotFound
from pursuit.ledger.tombstones import own_audit
from pursuit.server.missions.result_text import MAX_CALLS, run_lines
from pursuit.service.runner import MAX_RESULTS


def step(key: str = "a") -> dict[str, Any]:
    return {"metrics": {"mass": 3}, "events": [{"event_name": "weighed"}]}


async def _started(runtime: Runtime, **given: Any) -> str:
    return (await runtime.runner.start(mission(**given))).session_id


async def test_the_status_has_the_specified_shape(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        mission_id = await _started(
            runtime,
            criteria=[metric("mass", source="step") <= 2, event("weighed").optional()],
            budget=Budget(max_iterations=5, max_tool_calls=10),
            proposer=repeat("step"),
        )
        assert MISSION_ID.fullmatch(mission_id)
        pending = (await service.status(mission_id)).as_json()
        assert pending["status"] == "pending"
        assert not {"started_at", "ended_at", "verdict", "waiting_for", "report"} & set(pending)
        assert [row["status"] for row in pending["criteria"]] == ["inconclusive", "inconclusive"]
        await service.iterate(mission_id, iterations=2)
        status = (await service.status(mission_id)).as_json()
        assert status["criteria"][0] == {
            "criterion_id": "mass <= 2",
            "kind": "metric_threshold",
            "required": True,
            "status": "unmet",
            "description": "mass <= 2",
            "evidence": {"value": 3, "op": "<=", "target": 2},
            "source": {"tool": "world.step", "call_id": f"{mission_id}:1:0", "iteration": 1},
        }
        assert status["budget"]["max_iterations"] == 5
        assert status["budget"]["used"] | {"wall_clock_seconds": 0} == {
            "iterations": 2,
            "wall_clock_seconds": 0,
            "tool_calls": 2,
            "tokens": 0,
            "cost_usd": 0,
        }
        assert (status["status"], status["iteration_count"], status["tool_allowlist"]) == (
            "running",
            2,
            ["world.step"],
        )
        assert (status["verdict"], status["verdict_reason"]) == ("continue", "in_progress")
        assert status["created_at"] <= status["started_at"]
        assert status["pending_approvals"] == [] and status["no_progress_counter"] == 1


async def test_history_comes_a_hundred_a_page(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, budget=Budget(max_iterations=205), proposer=repeat("step"))
        assert (await service.history(mission_id)).as_json()["iterations"] == []
        await service.iterate(mission_id, iterations=100)
        first = (await service.history(mission_id)).as_json()
        assert len(first["iterations"]) == 100 and "next_cursor" not in first
        await service.run(mission_id)
        page = (await service.history(mission_id)).as_json()
        found, pages = [row["iteration_index"] for row in page["iterations"]], 1
        while "next_cursor" in page:
            page = (await service.history(mission_id, cursor=page["next_cursor"])).as_json()
            found += [row["iteration_index"] for row in page["iterations"]]
            pages += 1
        assert found == list(range(205)) and pages == 3
        row = page["iterations"][-1]
        assert set(row) == {"iteration_index", "verdict", "verdict_reason", "started_at", "ended_at"}
        assert row["verdict_reason"] == "max_iterations"
        full = (await service.history(mission_id, full=True)).as_json()["iterations"][0]
        assert set(full) >= {"strategy", "calls", "observation", "criteria"}
        assert full["observation"]["metrics"] == {"mass": 3}
        assert full["calls"][0]["outcome"] == "ok"


@pytest.mark.parametrize("end", ["met", "budget", "abort", "paused"])
async def test_a_checkpoint_gives_the_answer_that_the_iteration_got(tmp_path: Path, end: str) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        criteria = [event("weighed")] if end == "met" else [event("never")]
        mission_id = await _started(
            runtime, criteria=criteria, budget=Budget(max_iterations=2), proposer=repeat("step")
        )
        with pytest.raises(NoIterations):
            await service.checkpoint(mission_id)
        (row,) = (await service.iterate(mission_id))["iterations"]
        if end == "budget":
            (row,) = (await service.iterate(mission_id))["iterations"]
        elif end == "abort":
            await service.abort(mission_id)
        elif end == "paused":
            await service.pause(mission_id)
        before = (await service.state(mission_id)).seq
        again = (await service.checkpoint(mission_id)).as_json()
        assert {**row, **again} == {"session_id": mission_id, **row}
        assert (await service.state(mission_id)).seq == before, "it only looks"


async def test_what_iterations_returned_is_bounded_and_the_newest_is_kept(tmp_path: Path) -> None:
    def long(size: int = 100_000) -> dict[str, Any]:
        return {"text": "x" * size, "metrics": {"size": size}}

    async with stage(tmp_path, long) as runtime:
        mission_id = await _started(runtime, budget=Budget(max_iterations=80), proposer=repeat("long", size=15_000))
        answer = await runtime.runner.iterate(mission_id, iterations=80)
        rows = answer["iterations"]
        assert len(rows) == 80 and len(json.dumps(rows)) < MAX_RESULTS + 80 * 200
        assert rows[-1]["calls"][0]["result"]["text"].startswith("xxx") and rows[-1]["metrics"] == {"size": 15_000}
        assert "calls" not in rows[0] and rows[0]["calls_omitted"] == 1
        text = "\n".join(run_lines(answer))
        assert len(text) < MAX_CALLS + 10_000 and "iteration 80: " in text and '"size": 15000' in text


async def test_a_forgotten_mission_leaves_a_tombstone_and_nothing_else(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold, step) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, directive="A secret plan", proposer=repeat("hold"))
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            with pytest.raises(InvalidArgument, match="abort it"):
                await service.forget(mission_id)
            gate.release.set()
        root = (await runtime.report(mission_id)).data["ledger"]["root"]
        await service.forget(mission_id)
        for verb in (service.status, service.report, service.history, service.run, service.forget, service.pause):
            with pytest.raises(SessionNotFound):
                await verb(mission_id)
        (row,) = (await service.list(status="forgotten")).as_json()["sessions"]
        assert (row["session_id"], row["status"], row["directive"]) == (mission_id, "forgotten", "")
        proof = await service.verify()
        head = await service.ledger.row(own_audit())
        assert head is not None and proof.ok
        assert (proof.events, proof.blobs) == (head.head.seq, 0), "who forgot it is still in the audit"
        assert root, "the report carried one"
    assert b"A secret plan" not in (tmp_path / "ledger.db").read_bytes()


async def test_a_mission_whose_driver_is_still_winding_up_is_not_forgotten_under_its_hands(tmp_path: Path) -> None:
    began, tidy = anyio.Event(), anyio.Event()

    async def slow_to_stop() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await tidy.wait()

    async with stage(tmp_path, slow_to_stop) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, proposer=repeat("slow_to_stop"))
        async with driving(runtime, mission_id):
            await began.wait()
            await service.abort(mission_id)
            try:
                with pytest.raises((Conflict, InvalidArgument)):
                    await service.forget(mission_id)
            finally:
                tidy.set()
        assert (await runtime.report(mission_id)).verdict_reason == "user_abort"
        await service.forget(mission_id)


@pytest.mark.guarantee("root-survives-growth")
@pytest.mark.damaged_ledger("edits the database")
async def test_the_root_in_a_report_holds_while_the_ledger_grows_and_finds_a_cut_tail(tmp_path: Path) -> None:
    async def looks(root: str | None) -> tuple[str, ...]:
        async with stage(tmp_path, step) as runtime:
            return (await runtime.runner.verify(expect=root)).faults

    async with stage(tmp_path, step) as runtime:
        other = await runtime.pursue(mission(proposer=repeat("step")))
        report = await runtime.pursue(mission(proposer=repeat("step")))
        root = report.data["ledger"]["root"]
        assert (await runtime.runner.verify(expect=root)).ok
        await runtime.pursue(mission(proposer=repeat("step")))
        await runtime.runner.forget(other.session_id)
        assert (await runtime.runner.verify(expect=root)).ok
        with pytest.raises(InvalidArgument):
            await runtime.runner.verify(expect="no root")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        stream, seq = database.execute(
            "SELECT id, head_seq FROM streams WHERE kind = 'mission' AND status <> 'forgotten'"
        ).fetchone()
        database.execute("DELETE FROM events WHERE stream = ? AND seq > ?", (stream, seq - 3))
        kept = database.execute("SELECT hash FROM events WHERE stream = ? AND seq = ?", (stream, seq - 3)).fetchone()
        database.execute("UPDATE streams SET head_seq = ?, head_hash = ? WHERE id = ?", (seq - 3, kept[0], stream))
        database.execute("DELETE FROM blob_refs WHERE stream = ?", (stream,))
        database.execute("DELETE FROM blobs WHERE digest NOT IN (SELECT digest FROM blob_refs)")
    database.close()
    assert all("the expected" not in fault for fault in await looks(None))
    assert any("the expected" in fault for fault in await looks(root))


async def test_a_report_of_a_mission_that_goes_on_says_how_it_stands(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        mission_id = await _started(runtime, budget=Budget(max_iterations=3), proposer=script("world.step()"))
        await runtime.runner.iterate(mission_id)
        report = await runtime.report(mission_id)
        assert (report.status, report.data["iteration_count"], report.metric("mass")) == ("running", 1, 3)
        assert "report" not in (await runtime.runner.status(mission_id)).as_json(), (
            "only an ended mission has a final one"
        )
