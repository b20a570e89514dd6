"""Checks: calls that the runtime makes itself, when they are due, and what their results must satisfy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, driving, events_of, history, mission, outcomes, proposal, repeat, replay, stage

from pursuit import Budget, ValidationFailed, check, event, metric, succeeded, tool
from pursuit.core.criteria import Check, Expectation
from pursuit.core.events import CallIntended, CallRefused, CallSettled
from pursuit.errors import SessionTerminal

Certify = dict[str, Any]


def certify() -> Certify:
    """Meets the criterion that stands beside the check."""
    return {"events": [{"event_name": "certified"}]}


def _python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


async def _judged(folder: Path, criterion: Check, *tools: Any, **given: Any) -> tuple[str, dict[str, Any]]:
    """The verdict's reason after one iteration, and how the check stood."""
    async with stage(folder, certify, *tools, **given) as runtime:
        wanted = mission(criteria=[event("certified"), criterion], proposer=repeat("certify"))
        report = await runtime.pursue(wanted)
    return report.verdict_reason or "", report.data["criteria"][1]


PRINTS = "print('3 passed'); print('ok a'); print('ok b'); open('made.txt', 'w').close()"


@pytest.mark.parametrize(
    ("source", "expect", "met"),
    [
        (PRINTS, {}, True),
        ("raise SystemExit(3)", {}, False),
        ("raise SystemExit(3)", {"exit_code": 3}, True),
        (PRINTS, {"exit_code": 1}, False),
        (PRINTS, {"text": r"\d+ passed"}, True),
        (PRINTS, {"text": "failed"}, False),
        (PRINTS, {"count": {"pattern": "^ok|\nok", "op": "==", "target": 2}}, True),
        (PRINTS, {"count": {"pattern": "ok", "op": ">", "target": 2}}, False),
        (PRINTS, {"file": "made.txt"}, True),
        (PRINTS, {"file": "other.txt"}, False),
        (PRINTS, {"predicate": "result['exit_code'] == 0 and 'ok b' in result['stdout']"}, True),
        (PRINTS, {"predicate": "len(result['stderr']) > 0"}, False),
        (PRINTS, {"text": "passed", "file": "other.txt"}, False),
        ("import sys; sys.stderr.write('warned')", {"text": "warned"}, True),
    ],
)
async def test_a_command_must_satisfy_everything_that_is_expected(
    tmp_path: Path, source: str, expect: dict[str, Any], met: bool
) -> None:
    reason, row = await _judged(tmp_path, check(_python(source), cwd=str(tmp_path), **expect))
    assert row["status"] == ("met" if met else "unmet"), row
    assert reason == ("criteria_met" if met else "max_iterations")
    assert row["source"]["tool"].startswith("check:")
    assert set(row["evidence"]) == {"met", "exit_code", *expect}


@pytest.mark.guarantee("out-of-reach-ends-at-once")
@pytest.mark.parametrize(("code", "reason", "made"), [(3, "out_of_reach", 1), (4, "max_iterations", 2)])
async def test_a_check_that_can_never_be_met_any_more_ends_the_mission_at_once(
    tmp_path: Path, code: int, reason: str, made: int
) -> None:
    judge = check(_python(f"raise SystemExit({code})"), never_exit_codes=[3, 5])
    async with stage(tmp_path, certify) as runtime:
        wanted = {"criteria": [event("certified"), judge], "proposer": repeat("certify")}
        started = await runtime.runner.start(mission(budget=Budget(max_iterations=2), **wanted))
        await runtime.runner.iterate(started.session_id)
        state = await runtime.runner.state(started.session_id)
        assert state.terminal == (code == 3)
        assert ("never" in state.results[judge.criterion_id].evidence) == (code == 3)
    async with stage(tmp_path, certify) as runtime:  # somebody else goes on, and there is nothing to go on with
        if code == 3:
            with pytest.raises(SessionTerminal):
                await runtime.runner.iterate(started.session_id)
            with pytest.raises(SessionTerminal):  # more budget would not help either
                await runtime.runner.extend(started.session_id, {"max_iterations": 9})
        else:
            await runtime.runner.run(started.session_id)
        state = await runtime.runner.state(started.session_id)
        assert (state.status, state.verdict_reason, state.iteration_count) == ("terminated", reason, made)


def test_exit_codes_that_say_never_go_with_a_command_and_are_not_the_wanted_one() -> None:
    for what, codes, why in ((["true"], [1, 0], "meets"), ("world.weld", [1], "do not have exit codes")):
        with pytest.raises(ValidationFailed) as refused:
            check(what, never_exit_codes=codes)
        assert why in refused.value.faults[0].reason


@pytest.mark.parametrize(
    ("expect", "met"),
    [
        ({}, True),
        ({"predicate": "result['welds'] == 4"}, True),
        ({"predicate": "result['welds'] > 4"}, False),
        ({"text": '"welds":4'}, True),
        ({"count": {"pattern": "weld", "op": "==", "target": 1}}, True),
    ],
)
async def test_a_tool_must_satisfy_everything_that_is_expected(
    tmp_path: Path, expect: dict[str, Any], met: bool
) -> None:
    def inspect(part: str) -> dict[str, Any]:
        assert part == "beam"
        return {"welds": 4}

    _, row = await _judged(tmp_path, check("inspect", {"part": "beam"}, **expect), inspect)
    assert row["status"] == ("met" if met else "unmet"), row
    assert row["source"]["tool"] == "world.inspect"


async def test_a_tool_that_fails_leaves_its_check_unmet(tmp_path: Path) -> None:
    def inspect() -> None:
        raise ValueError("cracked")

    reason, row = await _judged(tmp_path, check("inspect"), inspect)
    assert (reason, row["status"]) == ("max_iterations", "unmet")


@pytest.mark.parametrize(
    "criterion",
    [
        check(["no-such-program-anywhere"]),
        check(_python("pass"), predicate="result['no such key']"),
        check(_python("pass"), predicate="1"),
        check(_python("pass"), cwd="/no/such/folder"),
        check(_python("print('a' * 60 + 'b')"), text=r"(a|aa)+$"),
        check(_python("print('a' * 60 + 'b')"), count={"pattern": r"(a|aa)+$"}),
    ],
)
async def test_a_check_that_cannot_be_judged_is_inconclusive(tmp_path: Path, criterion: Check) -> None:
    reason, row = await _judged(tmp_path, criterion)
    assert (reason, row["status"]) == ("max_iterations", "inconclusive")
    assert row["evidence"]["error"]


async def test_a_large_result_is_judged_whole(tmp_path: Path) -> None:
    def inspect() -> dict[str, str]:
        return {"log": "x" * 30_000 + "the end"}

    _, row = await _judged(tmp_path, check("inspect", predicate="result['log'].endswith('the end')"), inspect)
    assert row["status"] == "met"


@pytest.mark.guarantee("check-is-a-recorded-call")
async def test_a_check_runs_only_when_all_else_is_met_and_is_recorded_like_any_call(tmp_path: Path) -> None:
    def step() -> dict[str, Any]:
        return {"metrics": {"mass": 3}}

    proposer = replay(proposal(("step", {})), proposal(("step", {})), proposal(("certify", {})))
    criteria = [event("certified"), metric("missing").trend("increasing").optional(), check(_python("print('ok')"))]
    async with stage(tmp_path, certify, step) as runtime:
        wanted = mission(criteria=criteria, budget=Budget(max_iterations=9), proposer=proposer)
        report = await runtime.pursue(wanted)
        assert report.completed
        rows = await history(runtime, report.session_id)
        assert [[call["purpose"] for call in row["calls"]] for row in rows] == [
            ["proposal"],
            ["proposal"],
            ["proposal", "check"],
        ]
        assert [row["criteria"][2]["status"] for row in rows] == ["inconclusive", "inconclusive", "met"]
        made = rows[2]["calls"][1]
        assert (made["outcome"], made["args"]["argv"]) == ("ok", _python("print('ok')"))
        intents = await events_of(runtime, report.session_id, CallIntended)
        settled = await events_of(runtime, report.session_id, CallSettled)
        assert (intents[-1].purpose, settled[-1].call_id) == ("check", intents[-1].call_id)
        assert report.data["budget"]["used"]["tool_calls"] == 4
        assert report.data["criteria"][2]["source"]["call_id"] == intents[-1].call_id


@pytest.mark.guarantee("check-is-a-recorded-call")
async def test_a_check_for_every_checkpoint_runs_at_checkpoints_and_nowhere_else(tmp_path: Path) -> None:
    audits: list[int] = []

    def audit() -> None:
        audits.append(1)

    def step() -> None: ...

    async with stage(tmp_path, audit, step) as runtime:
        wanted = mission(
            criteria=[event("never"), check("audit", when="checkpoint")],
            budget=Budget(max_iterations=6),
            checkpoint_cadence={"kind": "every_n_iterations", "n": 3},
            proposer=repeat("step"),
        )
        await runtime.pursue(wanted)
    assert len(audits) == 2


async def test_a_check_waits_for_a_check_of_every_checkpoint_that_is_not_met(tmp_path: Path) -> None:
    """`when every other required criterion is met`: a required check that failed just now is one of the others."""
    late: list[int] = []

    def fails() -> None:
        raise ValueError("not yet")

    def expensive() -> None:
        late.append(1)

    criteria = [event("certified"), check("fails", when="checkpoint"), check("expensive")]
    async with stage(tmp_path, certify, fails, expensive) as runtime:
        await runtime.pursue(mission(criteria=criteria, proposer=repeat("certify")))
    assert late == []


@pytest.mark.guarantee("check-is-a-recorded-call")
@pytest.mark.parametrize(("calls", "done"), [(1, False), (2, True)])
@pytest.mark.parametrize("what", ["audit", _python("pass")])
async def test_a_check_counts_into_max_tool_calls(
    tmp_path: Path, calls: int, done: bool, what: str | list[str]
) -> None:
    def audit() -> None: ...

    async with stage(tmp_path, certify, audit) as runtime:
        wanted = mission(
            criteria=[event("certified"), check(what)],
            budget=Budget(max_iterations=9, max_tool_calls=calls),
            proposer=repeat("certify"),
        )
        report = await runtime.pursue(wanted)
        assert report.verdict_reason == ("criteria_met" if done else "max_tool_calls")
        assert (await outcomes(runtime, report.session_id))[-1][1] == ("ok" if done else "skipped")
        assert report.data["budget"]["used"]["tool_calls"] == calls


async def test_a_slow_tool_of_a_check_is_stopped_by_pause_and_the_mission_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, certify, gate.hold) as runtime:
        wanted = mission(
            criteria=[event("certified"), check("hold")],
            budget=Budget(max_iterations=3),
            proposer=repeat("certify"),
        )
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await runtime.runner.pause(mission_id)
        assert (await outcomes(runtime, mission_id))[-1] == ("world.hold", "cancelled")
        gate.release.set()
        assert (await runtime.resume(mission_id)).completed


@pytest.mark.guarantee("check-is-a-recorded-call")
@pytest.mark.parametrize("form", ["tool", "command"])
async def test_a_repeatable_check_that_a_pause_cut_off_runs_again_when_the_mission_goes_on(
    tmp_path: Path, form: str
) -> None:
    """It has looked at nothing yet; the second attempt is the same call, and is counted, too."""
    entered, release = tmp_path / "entered", tmp_path / "release"

    async def look() -> None:
        entered.touch()
        while not release.exists():
            await anyio.sleep(0.01)

    source = "import pathlib, time\npathlib.Path('entered').touch()\n"
    source += "while not pathlib.Path('release').exists(): time.sleep(0.01)"
    call: dict[str, Any] = {"command": _python(source), "cwd": str(tmp_path)}
    criterion = Check(criterion_id="looked", idempotent=True, **(call if form == "command" else {"tool_name": "look"}))
    async with stage(tmp_path, certify, look) as runtime:
        wanted = mission(
            criteria=[event("certified"), criterion],
            budget=Budget(max_iterations=3, max_tool_calls=3),
            proposer=repeat("certify"),
        )
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            while not entered.exists():
                await anyio.sleep(0.01)
            await runtime.runner.pause(mission_id)
        (_, cut_off) = await events_of(runtime, mission_id, CallSettled)
        assert (cut_off.outcome, cut_off.error) == ("cancelled", "stopped by the operator")
        release.touch()
        report = await runtime.resume(mission_id)
        assert (report.verdict_reason, report.data["iteration_count"]) == ("criteria_met", 1)
        attempts = [(one.call_id, one.attempt) for one in await events_of(runtime, mission_id, CallIntended)]
        assert attempts[1:] == [(cut_off.call_id, 1), (cut_off.call_id, 2)]
        assert report.data["budget"]["used"]["tool_calls"] == 3


NAMED = {"check": "lint", "criterion_id": "lint", "kind": "check", "required": True}


async def test_a_named_check_runs_the_command_of_the_operators_configuration(tmp_path: Path) -> None:
    checks = {"lint": {"command": _python("print('clean')"), "cwd": str(tmp_path), "timeout": 30}}
    criterion = Check(criterion_id="lint", check="lint", expect=Expectation(text="clean"))
    reason, row = await _judged(tmp_path, criterion, checks=checks)
    assert (reason, row["status"], row["source"]["tool"]) == ("criteria_met", "met", "check:lint")


async def test_the_timeout_of_a_named_check_holds(tmp_path: Path) -> None:
    checks = {"lint": {"command": _python("import time; time.sleep(600)"), "timeout": 0.2}}
    _, row = await _judged(tmp_path, Check(**NAMED), checks=checks)
    assert row["evidence"]["error"].startswith("timed_out")


async def test_a_name_that_means_no_command_is_a_fault_at_the_start(tmp_path: Path) -> None:
    async with stage(tmp_path, certify) as runtime:
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.start(mission(criteria=[Check(**NAMED)]))
        assert (await runtime.runner.list()).as_json()["sessions"] == []
        (fault,) = caught.value.faults
    assert fault.field == "criteria[0].check"
    assert "no [checks.lint] in the configuration" in fault.reason


async def test_a_named_check_that_left_the_configuration_is_inconclusive_and_not_a_crash(tmp_path: Path) -> None:
    criteria = [event("certified"), Check(**NAMED)]
    async with stage(tmp_path, certify, checks={"lint": {"command": ["true"]}}) as runtime:
        started = await runtime.runner.start(mission(criteria=criteria, proposer=repeat("certify")))
    async with stage(tmp_path, certify) as runtime:
        report = await runtime.resume(started.session_id)
        assert report.verdict_reason == "max_iterations"
        assert report.data["criteria"][1]["status"] == "inconclusive"
        assert report.data["criteria"][1]["evidence"]["error"] == "failed: no [checks.lint] in the configuration"
        (refused,) = await events_of(runtime, started.session_id, CallRefused)
        assert (refused.tool, refused.outcome, refused.purpose) == ("check:lint", "failed", "check")


async def test_a_check_names_a_tool_of_the_mission_with_arguments_that_fit(tmp_path: Path) -> None:
    @tool(read_only=True)
    def inspect(part: str) -> None: ...

    async with stage(tmp_path, certify, inspect) as runtime:
        wrong = [check("inspect", {"prt": 1}), check("inspekt").named("other")]
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.start(mission(criteria=wrong))
        fields = {fault.field for fault in caught.value.faults}
        assert fields == {"criteria[0].args", "criteria[1].tool_name"}


LONG = "print('first line'); print('x' * 200_000); print('last line')"


@pytest.mark.parametrize(
    ("expect", "status"),
    [
        ({"text": "last line"}, "met"),
        ({"text": "first line"}, "inconclusive"),
        ({"count": {"pattern": "line", "op": "==", "target": 1}}, "inconclusive"),
        ({}, "met"),
    ],
)
async def test_an_output_that_was_cut_before_it_was_searched_is_inconclusive(
    tmp_path: Path, expect: dict[str, Any], status: str
) -> None:
    _, row = await _judged(tmp_path, check(_python(LONG), **expect))
    assert row["status"] == status
    if status == "inconclusive":
        assert "only the last 65536 bytes of stdout are kept" in row["evidence"]["error"]


async def test_a_call_is_kept_for_each_check(tmp_path: Path) -> None:
    """Three calls are proposed and three are allowed: the third is the check's."""
    asked: list[int] = []

    def audit() -> dict[str, Any]:
        asked.append(1)
        return {"result": 1}

    async with stage(tmp_path, certify, audit) as runtime:
        criteria = [event("certified"), check("audit")]
        calls = replay(proposal(("certify", {}), ("certify", {}), ("certify", {})))
        report = await runtime.pursue(mission(criteria=criteria, proposer=calls, budget=_calls(3)))
        assert (report.verdict_reason, asked) == ("criteria_met", [1])
        assert [row["reason"] for row in report.data["refused"]] == [
            "max_tool_calls is used up, except for 1 reserved for checks"
        ]
        never = mission(criteria=[event("never"), check("audit")], proposer=repeat("certify"), budget=_calls(3))
        report = await runtime.pursue(never)
        assert (report.verdict_reason, report.data["iteration_count"], asked) == ("max_tool_calls", 2, [1])
        only = mission(criteria=[event("never"), check("audit")], proposer=repeat("certify"), budget=_calls(1))
        report = await runtime.pursue(only)
        assert (report.verdict_reason, report.data["calls"]["total"]) == ("max_tool_calls", 1)


def _calls(most: int) -> Budget:
    return Budget(max_tool_calls=most, max_iterations=50)


async def test_the_call_of_a_check_is_no_success_of_the_mission(tmp_path: Path) -> None:
    def audit() -> dict[str, Any]:
        return {"result": 1}

    async with stage(tmp_path, certify, audit) as runtime:
        criteria = [succeeded("audit"), check("audit", when="checkpoint")]
        wanted = mission(criteria=criteria, proposer=repeat("certify"), budget=Budget(max_iterations=2))
        report = await runtime.pursue(wanted)
        assert report.verdict_reason == "max_iterations"
        assert [row["status"] for row in report.data["criteria"]] == ["unmet", "met"]
