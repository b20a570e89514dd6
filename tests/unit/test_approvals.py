"""A person is asked first: durably, once, and silence is a no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from engine_stage import events_of, mission, outcomes, proposal, repeat, replay, script, until
from hands import LONG, Hands

from pursuit import Budget, Proposal, Runtime, tool
from pursuit.config.configuration import Configuration
from pursuit.core.events import ApprovalAnswered, ApprovalAsked, WaitBegan
from pursuit.core.report import ApprovalRow
from pursuit.engine.driver import RunOrder
from pursuit.errors import ApprovalNotFound, Conflict, InvalidArgument, SessionTerminal, ValidationFailed
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.run_loop import background_runs

ASKS = OperatorPolicy(rules=(Rule(decision="ask", tool="write*"),))
ALICE = Caller(who="alice", transport="terminal")


class World:
    """Tools that remember what was done."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, text: str = "x") -> dict[str, Any]:
        self.done.append(text)
        return {"metrics": {"written": len(self.done)}}

    def write_more(self, text: str = "x") -> None:
        self.done.append(("more", text))

    def read(self) -> None:
        self.done.append("read")

    def stage(self, folder: Path, *, policy: OperatorPolicy = ASKS, **settings: float) -> Runtime:
        return Runtime(
            state=folder / "ledger.db",
            config=Configuration(policy=policy, settings=settings),
            servers={"world": [self.write, self.write_more, self.read]},
        )


async def _run(runtime: Runtime, **given: Any) -> tuple[str, Approvals]:
    made = mission(**{"budget": Budget(max_iterations=3), **given})
    name = (await runtime.runner.start(made)).session_id
    await runtime.runner.run(name)
    return name, Approvals(runtime.runner)


@pytest.mark.guarantee("asks-before-it-writes")
async def test_a_call_that_policy_asks_about_waits_durably_and_goes_on_at_a_yes(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        name, desk = await _run(runtime, proposer=repeat("write", text="a"))
        status = (await runtime.runner.status(name)).as_json()
        assert (status["status"], status["waiting_for"], world.done) == ("waiting", "approval", [])
        (row,) = status["pending_approvals"]
        assert (row["tool"], row["args"]) == ("world.write", {"text": "a"})
        assert "write" in row["description"] and '"a"' in row["description"]
        assert [ApprovalRow.of(one).as_json() for one in await desk.open()] == [row]
        assert await desk.open() == await desk.open(name)
        await runtime.runner.run(name)
        assert len(await events_of(runtime, name, ApprovalAsked)) == 1, "asked again, it is the same question"
    async with world.stage(tmp_path) as runtime:  # answered while no process drives
        desk = Approvals(runtime.runner)
        answered = await desk.answer(row["approval_id"], "once", reason="fine", caller=ALICE)
        assert (answered.status, answered.by) == ("running", "alice (terminal)")
        assert await runtime.runner.interrupted() == [name]
    async with world.stage(tmp_path) as runtime:
        await runtime.runner.run(name)
        assert world.done == ["a"], "one yes is for one call"
        status = (await runtime.runner.status(name)).as_json()
        assert (status["waiting_for"], status["iteration_count"]) == ("approval", 1)
        (word,) = await events_of(runtime, name, ApprovalAnswered)
        assert (word.by, word.reason) == ("alice (terminal)", "fine")


async def test_a_no_is_an_outcome_that_the_mission_sees(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        calls = proposal(("write", {}), ("read", {}))
        name, desk = await _run(runtime, proposer=replay(calls), budget=Budget(max_iterations=1))
        (row,) = await desk.open()
        assert world.done == [], "the whole batch waits for the answer"
        await desk.answer(row.approval_id, "denied", reason="not today", caller=ALICE)
        await runtime.runner.run(name)
        assert await outcomes(runtime, name) == [("world.write", "denied"), ("world.read", "ok")]
        report = await runtime.report(name)
        assert "denied by alice (terminal): not today" in str(report.data)


@pytest.mark.guarantee("a-yes-covers-what-was-said")
async def test_a_yes_reaches_as_far_as_was_said_and_no_further(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        steps = [("write", {"text": "a"}), ("write", {"text": "a"}), ("write", {"text": "b"}), ("write_more", {})]
        proposer = replay(*(proposal(step) for step in steps))
        name, desk = await _run(runtime, proposer=proposer, budget=Budget(max_iterations=4))
        asked: list[tuple[str, Any]] = []
        for width in ("arguments", "mission", "denied"):
            (row,) = await desk.open()
            asked.append((row.tool, row.args))
            await desk.answer(row.approval_id, width)
            await runtime.runner.run(name)
        assert asked == [("world.write", {"text": "a"}), ("world.write", {"text": "b"}), ("world.write_more", {})]
        assert world.done == ["a", "a", "b"]
        other, _ = await _run(runtime, proposer=repeat("write", text="a"))
        assert len(await desk.open(other)) == 1, "a yes is for its own mission"


async def test_silence_is_a_no_and_a_serving_process_goes_on_by_itself(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path, approval_timeout=0.2) as runtime:
        made = mission(proposer=repeat("write"), budget=Budget(max_iterations=1))
        name = (await runtime.runner.start(made)).session_id
        async with background_runs(runtime.runner, runtime.use_servers_of) as runs:
            await runs.begin(RunOrder(name, iterations=1))
            await until(runtime, name, lambda state: state.iteration_count == 1)
        ((tool, outcome),) = await outcomes(runtime, name)
        assert (tool, outcome, world.done) == ("world.write", "denied", [])
        assert "it was not approved in time" in str(await runtime.runner.history(name, full=True))


async def test_pause_and_abort_end_a_wait(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        name, desk = await _run(runtime, proposer=repeat("write"))
        (row,) = await desk.open()
        await runtime.runner.pause(name)
        assert (await runtime.runner.status(name)).status == "paused"
        await desk.answer(row.approval_id, "mission")
        assert (await runtime.runner.status(name)).status == "paused", "a yes resumes nothing"
        await runtime.runner.run(name)
        assert world.done == ["x", "x", "x"]
        other, _ = await _run(runtime, proposer=repeat("write"))
        (row,) = await desk.open(other)
        await runtime.runner.abort(other)
        with pytest.raises((ApprovalNotFound, SessionTerminal)):
            await desk.answer(row.approval_id, "once")
        assert world.done == ["x", "x", "x"]


async def test_scripts_and_checks_ask_too_and_go_on_where_they_were(tmp_path: Path) -> None:
    world = World()
    source = "world.read()\nworld.write(text='s')\nworld.read()"
    async with world.stage(tmp_path) as runtime:
        check = {"criterion_id": "c", "kind": "check", "tool_name": "world.write_more", "args": {"text": "check"}}
        name, desk = await _run(runtime, proposer=script(source), criteria=[check], budget=Budget(max_iterations=1))
        assert world.done == ["read"]
        (row,) = await desk.open()
        await desk.answer(row.approval_id, "once")
        await runtime.runner.run(name)
        assert world.done == ["read", "s", "read"], "nothing ran twice"
        (row,) = await desk.open()
        assert row.tool == "world.write_more"
        await desk.answer(row.approval_id, "once")
        await runtime.runner.run(name)
        assert world.done[-1] == ("more", "check")
        assert (await runtime.runner.status(name)).status == "completed"


async def test_wrong_answers_are_refused_and_the_first_one_counts(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        name, desk = await _run(runtime, proposer=replay(proposal(("write", {}), ("write_more", {}))))
        first, second = await desk.open(name)
        root = await runtime.runner.ledger.root()
        with pytest.raises(InvalidArgument):
            await desk.answer("../x", "once")
        with pytest.raises(ApprovalNotFound):
            await desk.answer("approval-0123456789abcdef", "once")
        with pytest.raises(ValidationFailed):
            await desk.answer(first.approval_id, "perhaps")  # pyright: ignore[reportArgumentType]
        assert await runtime.runner.ledger.root() == root
        await desk.answer(first.approval_id, "once")
        assert (await runtime.runner.status(name)).status == "waiting", "one question is still open"
        with pytest.raises(Conflict, match="already answered"):
            await desk.answer(first.approval_id, "denied")
        await desk.answer(second.approval_id, "denied")
        await runtime.runner.run(name)
        assert world.done == ["x"]
        waits = [one for one in await events_of(runtime, name, WaitBegan) if one.waiting_for == "approval"]
        assert len(waits) == 1


async def test_a_proposal_of_a_client_waits_for_its_answer(tmp_path: Path) -> None:
    world = World()
    async with world.stage(tmp_path) as runtime:
        name = (await runtime.runner.start(mission(budget=Budget(max_iterations=3)))).session_id
        said = Proposal(**proposal(("write", {"text": "c"})))
        answer = await runtime.runner.iterate(name, proposal=said)
        assert (answer["status"], answer["iterations"]) == ("waiting", [])
        desk = Approvals(runtime.runner)
        (row,) = await desk.open(name)
        await desk.answer(row.approval_id, "once")
        answer = await runtime.runner.iterate(name)
        assert [one["iteration_index"] for one in answer["iterations"]] == [0]
        assert world.done == ["c"]


@pytest.mark.guarantee("a-no-ends-no-mission")
@pytest.mark.parametrize("how", ["denied", "expired"])
@pytest.mark.parametrize("rescued", [True, False])
async def test_a_call_that_nobody_approves_is_neither_a_failure_nor_progress(
    how: str, rescued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch goes on, also if its script does not catch the refusal, which is worded anew each time."""
    world, hands = World(), Hands(monkeypatch)
    source = "try:\n    world.write()\nexcept Exception:\n    pass\n" if rescued else "world.write()"
    async with world.stage(tmp_path, approval_timeout=LONG) as runtime:
        name, desk = await _run(runtime, proposer=script(source), budget=Budget(max_iterations=5))
        for place in range(4):
            (row,) = await desk.open()
            if how == "denied":
                await desk.answer(row.approval_id, "denied", reason=f"no {'!' * place}", caller=ALICE)
            else:
                hands.forward()
            await runtime.runner.run(name)
            status = (await runtime.runner.status(name)).as_json()
            assert (status["status"], status["iteration_count"]) == ("waiting", place + 1)
        assert status["no_progress_counter"] == 3, "the first checkpoint compares with nothing"
        assert await outcomes(runtime, name) == [("world.write", "denied")] * 4


@pytest.mark.guarantee("parallel-only-when-all-safe")
async def test_with_one_among_safe_calls_that_needed_a_yes_they_run_in_order(tmp_path: Path) -> None:
    log: list[str] = []

    @tool(parallel_safe=True)
    async def safe(key: str) -> None:
        log.append(f"+{key}")
        await anyio.lowlevel.checkpoint()
        log.append(f"-{key}")

    rules = Rule(decision="ask", tool="safe", arguments={"key": "b"}), Rule(decision="allow", tool="safe")
    config = Configuration(policy=OperatorPolicy(mode="ask", rules=rules))
    async with Runtime(state=tmp_path / "ledger.db", config=config, servers={"world": [safe]}) as runtime:
        name, desk = await _run(runtime, proposer=replay(proposal(*[("safe", {"key": key}) for key in "abc"])))
        (row,) = await desk.open(name)
        assert log == [], "nothing is sent before the answer"
        await desk.answer(row.approval_id, "once")
        await runtime.runner.run(name)
    assert log == ["+a", "-a", "+b", "-b", "+c", "-c"]
