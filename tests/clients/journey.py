"""What a client does with missions from the first call to the last, written once for every client.

Owns: the steps, and what each must answer. Knows no SDK: it needs the standard library and a `Port` alone, so that
a client of any version can run it in an environment of its own.
Invariant: every error code of the mission tools is met on the way, each at least once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

CODES = {
    "conflict",
    "invalid_argument",
    "no_iterations",
    "not_paused",
    "path_traversal_detected",
    "session_not_found",
    "session_paused",
    "session_terminal",
    "task_not_found",
    "validation_error",
}
VERBS = ("start", "tools", "status", "iterate", "checkpoint", "complete", "abort", "resume", "history", "list")
TASK_VERBS = ("status", "tail", "cancel", "wait")
COMMANDS = ("count", "linger")
TOOLS = {*(f"mission_{verb}" for verb in VERBS), *(f"task_{verb}" for verb in TASK_VERBS), *COMMANDS}
NOBODY = "mission-0000000000000000"
NOTHING = f"task-{'0' * 32}"
LONG = 250
PATIENCE = 120.0
AN_HOUR = 3_600_000

Answer = dict[str, Any]


class Port(Protocol):
    """A connected client, whatever it is made of."""

    async def call(self, name: str, arguments: Answer, progress: list[Any] | None = None) -> tuple[bool, Any]:
        """Calls a tool: whether it is an error, and its structured content. A list asks for progress."""
        ...

    async def call_and_cancel(self, name: str, arguments: Answer, when: Callable[[], Awaitable[None]]) -> None:
        """Calls a tool, and cancels the request as soon as `when` returns."""
        ...


@dataclass
class Traveller:
    """Goes the way through a port and keeps all that it was answered; `logs` is where the workshop writes."""

    port: Port
    logs: Path
    answers: list[tuple[str, bool, Any]] = field(default_factory=list)
    missions: list[str] = field(default_factory=list)

    async def done(self, name: str, progress: list[Any] | None = None, **arguments: Any) -> Answer:
        """The answer of a call that must succeed."""
        is_error, answer = await self._call(name, arguments, progress)
        assert not is_error, (name, arguments, answer)
        return answer

    async def refused(self, code: str, name: str, **arguments: Any) -> Answer:
        """The answer of a call that must be refused with this code."""
        is_error, answer = await self._call(name, arguments)
        assert is_error, (name, arguments, answer)
        assert answer["code"] == code, (name, arguments, answer)
        return answer

    async def start(self, name: str, *, steps: int, iterations: int = 1_000, **more: Any) -> str:
        """A new mission that is met by so many steps."""
        answer = await self.done(
            "mission_start",
            directive=f"Take steps: {name}",
            criteria=[
                {
                    "criterion_id": "enough",
                    "kind": "metric_threshold",
                    "metric": "steps",
                    "op": ">=",
                    "target": steps,
                    "required": True,
                }
            ],
            budget={"max_iterations": iterations},
            tool_allowlist=["workshop.*"],
            **more,
        )
        assert answer["status"] == "pending", answer
        self.missions.append(answer["session_id"])
        return answer["session_id"]

    async def until(self, mission: str, holds: Callable[[Answer], bool]) -> Answer:
        """The first status that fits."""
        ends = time.monotonic() + PATIENCE
        while True:
            status = await self.done("mission_status", session_id=mission)
            if holds(status):
                return status
            assert time.monotonic() < ends, status
            await asyncio.sleep(0.02)

    async def until_free(self, mission: str, **arguments: Any) -> Answer:
        """Iterates once the driver that was cancelled has let go."""
        ends = time.monotonic() + PATIENCE
        while True:
            is_error, answer = await self._call("mission_iterate", {"session_id": mission, **arguments})
            if not is_error:
                return answer
            assert answer["code"] == "conflict" and time.monotonic() < ends, answer
            await asyncio.sleep(0.02)

    async def until_let_go(self, mission: str) -> None:
        """Returns when the driver of a mission that was paused has gone: only then does the pause itself refuse."""
        ends = time.monotonic() + PATIENCE
        while True:
            is_error, answer = await self._call("mission_iterate", {"session_id": mission})
            assert is_error and answer["code"] in ("conflict", "session_paused"), answer
            if answer["code"] == "session_paused":
                return
            assert time.monotonic() < ends, answer
            await asyncio.sleep(0.02)

    async def until_logged(self, log: str, line: str) -> None:
        """Returns when the workshop has written a line."""
        ends = time.monotonic() + PATIENCE
        while line not in self.lines(log):
            assert time.monotonic() < ends, (line, self.lines(log))
            await asyncio.sleep(0.01)

    def lines(self, log: str) -> list[str]:
        path = self.logs / log
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    async def _call(self, name: str, arguments: Answer, progress: list[Any] | None = None) -> tuple[bool, Any]:
        is_error, answer = await self.port.call(name, arguments, progress)
        self.answers.append((name, is_error, answer))
        return is_error, answer


def calls(log: str, *steps: tuple[str, float]) -> Answer:
    """A proposal of steps, each a key and how many milliseconds it takes."""
    return {"tool_calls": [{"tool_name": "step", "args": {"log": log, "key": key, "ms": ms}} for key, ms in steps]}


def verdict(row: Answer) -> Answer:
    """A row of `mission_iterate` without what its calls returned."""
    return {key: row[key] for key in ("iteration_index", "verdict", "verdict_reason")}


def repeating(log: str, ms: float = 0) -> Answer:
    return {"kind": "repeat", "tool_name": "step", "args": {"log": log, "ms": ms}}


async def journey(port: Port, logs: Path) -> Traveller:
    """The whole way."""
    me = Traveller(port, logs)
    await wrong_from_the_start(me)
    await with_proposals_of_its_own(me)
    await with_a_script(me)
    await a_long_history(me)
    await in_the_background(me)
    await a_cancelled_call(me)
    await the_list(me)
    await commands(me)
    return me


async def wrong_from_the_start(me: Traveller) -> None:
    await me.refused("session_not_found", "mission_status", session_id=NOBODY)
    assert (await me.refused("session_not_found", "mission_iterate", session_id=NOBODY))["iterations"] == []
    await me.refused("validation_error", "mission_status", session_id="../ledger.db")
    answer = await me.refused(
        "validation_error", "mission_start", directive="", criteria=[{"criterion_id": "a", "kind": "event"}], budget={}
    )
    fields = {fault["field"] for fault in answer["details"]["faults"]}
    assert {"directive", "budget", "criteria[0].required", "criteria[0].event_name"} <= fields, fields


async def with_proposals_of_its_own(me: Traveller) -> None:
    mission = await me.start("own", steps=3)
    await me.refused("no_iterations", "mission_checkpoint", session_id=mission)
    await me.refused("not_paused", "mission_resume", session_id=mission)
    wrong = {"tool_calls": [{"tool_name": "leap", "args": {}}, {"tool_name": "step", "args": {"log": 7}}]}
    refusal = await me.refused("validation_error", "mission_iterate", session_id=mission, proposal=wrong)
    assert len(refusal["details"]["faults"]) == 2 and refusal["iterations"] == [], refusal
    ahead = await me.refused("invalid_argument", "mission_iterate", session_id=mission, after=5)
    assert ahead["iterations"] == [], ahead

    turn = await me.done("mission_iterate", session_id=mission)
    assert (turn["status"], turn["iterations"]) == ("waiting", []), turn
    assert (await me.done("mission_status", session_id=mission))["waiting_for"] == "proposal"

    told: list[Any] = []
    first = await me.done("mission_iterate", told, session_id=mission, proposal=calls("own", ("a", 0)), after=0)
    row = {"iteration_index": 0, "verdict": "continue", "verdict_reason": "in_progress"}
    assert [verdict(one) for one in first["iterations"]] == [row], first
    (made,) = first["iterations"][0]["calls"]
    assert (made["tool"], made["args"]["key"], made["outcome"]) == ("workshop.step", "a", "ok"), first
    assert made["result"]["metrics"]["steps"] == first["iterations"][0]["metrics"]["steps"] == 1, first
    values = [value for value, _total, _message in told]
    assert values and values == sorted(set(values)), told
    again = await me.done("mission_iterate", session_id=mission, proposal=calls("own", ("a", 0)), after=0)
    assert again["iterations"] == first["iterations"] and me.lines("own").count("begun a") == 1, again
    assert await me.done("mission_checkpoint", session_id=mission) == {"session_id": mission, **row}

    paused = await me.done("mission_abort", session_id=mission, pause=True, reason="lunch")
    assert paused["status"] == "paused", paused
    refusal = await me.refused("session_paused", "mission_iterate", session_id=mission, proposal=calls("own", ("b", 0)))
    assert refusal["iterations"] == [], refusal
    resumed = await me.done("mission_resume", session_id=mission)
    assert resumed["status"] in ("running", "waiting"), resumed
    await me.refused("not_paused", "mission_resume", session_id=mission)

    last = await me.done("mission_iterate", session_id=mission, proposal=calls("own", ("b", 0), ("c", 0)), after=1)
    end = {"iteration_index": 1, "verdict": "complete", "verdict_reason": "criteria_met"}
    assert (last["status"], [verdict(one) for one in last["iterations"]]) == ("completed", [end]), last
    assert await me.done("mission_checkpoint", session_id=mission) == {"session_id": mission, **end}
    for name in ("mission_iterate", "mission_abort", "mission_complete", "mission_resume"):
        await me.refused("session_terminal", name, session_id=mission)
    status = await me.done("mission_status", session_id=mission)
    assert status["criteria"][0]["status"] == "met" and status["report"], status
    full = await me.done("mission_history", session_id=mission, format="full")
    outcomes = [[call["outcome"] for call in row["calls"]] for row in full["iterations"]]
    assert outcomes == [["ok"], ["ok", "ok"]], full


async def with_a_script(me: Traveller) -> None:
    script = 'workshop.step(log="script", key=f"{state.iteration}")'
    mission = await me.start("script", steps=3, proposer={"kind": "script", "script": script})
    await me.refused("invalid_argument", "mission_iterate", session_id=mission, proposal=calls("script", ("x", 0)))
    told: list[Any] = []
    answer = await me.done("mission_iterate", told, session_id=mission, max_iterations_this_call=10)
    assert answer["status"] == "completed" and len(answer["iterations"]) == 3, answer
    values = [value for value, _total, _message in told]
    assert values == sorted(set(values)) and values[-1] > 2 and {total for _, total, _ in told} == {10}, told


async def a_long_history(me: Traveller) -> None:
    mission = await me.start("long", steps=1_000_000, proposer=repeating("long"))
    answer = await me.done("mission_iterate", session_id=mission, max_iterations_this_call=LONG)
    assert answer["status"] == "running" and len(answer["iterations"]) == LONG, answer
    for form in ("summary", "full"):
        seen: list[int] = []
        sizes: list[int] = []
        cursor: Answer = {}
        while True:
            page = await me.done("mission_history", session_id=mission, format=form, **cursor)
            sizes.append(len(page["iterations"]))
            seen += [row["iteration_index"] for row in page["iterations"]]
            if "next_cursor" not in page:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert sizes == [100, 100, LONG - 200] and seen == list(range(LONG)), (form, sizes)
    await me.refused("invalid_argument", "mission_history", session_id=mission, cursor="elsewhere")
    completed = await me.done("mission_complete", session_id=mission, reason="seen enough")
    assert completed == {"session_id": mission, "status": "completed"}, completed
    assert (await me.done("mission_status", session_id=mission))["verdict_reason"] == "forced_complete"


async def in_the_background(me: Traveller) -> None:
    mission = await me.start("background", steps=1_000_000, proposer=repeating("background", ms=10))
    answer = await me.done("mission_iterate", session_id=mission, background=True, max_iterations_this_call=900)
    assert answer == {"session_id": mission, "status": "running", "iterations": []}, answer
    assert (await me.refused("conflict", "mission_iterate", session_id=mission))["iterations"] == []
    await me.until(mission, lambda status: status["iteration_count"] >= 3)
    assert (await me.done("mission_abort", session_id=mission, pause=True))["status"] == "paused"
    await me.until_let_go(mission)
    assert (await me.done("mission_resume", session_id=mission))["status"] == "running"
    before = (await me.done("mission_status", session_id=mission))["iteration_count"]
    turn = await me.done("mission_iterate", session_id=mission, max_iterations_this_call=2)
    indexes = [row["iteration_index"] for row in turn["iterations"]]
    assert indexes == [before, before + 1], (before, indexes)
    ended = await me.done("mission_abort", session_id=mission, reason="enough")
    assert ended == {"session_id": mission, "status": "terminated"}, ended
    assert (await me.done("mission_status", session_id=mission))["verdict_reason"] == "user_abort"


async def a_cancelled_call(me: Traveller) -> None:
    mission = await me.start("cancelled", steps=2)
    slow = calls("cancelled", ("a", 0), ("b", AN_HOUR), ("c", 0))
    asked = {"session_id": mission, "proposal": slow}
    await me.port.call_and_cancel("mission_iterate", asked, lambda: me.until_logged("cancelled", "begun b"))
    await me.until_logged("cancelled", "cancelled b")
    answer = await me.until_free(mission)
    (row,) = answer["iterations"]
    assert (answer["status"], row["iteration_index"], row["verdict_reason"]) == ("completed", 0, "criteria_met"), answer
    assert [call["outcome"] for call in row["calls"]] == ["ok", "cancelled", "ok"], row
    (only,) = (await me.done("mission_history", session_id=mission, format="full"))["iterations"]
    assert [call["outcome"] for call in only["calls"]] == ["ok", "cancelled", "ok"], only
    assert me.lines("cancelled") == ["begun a", "done a", "begun b", "cancelled b", "begun c", "done c"]


async def the_list(me: Traveller) -> None:
    everything = [row["tool_name"] for row in (await me.done("mission_tools"))["tools"]]
    assert everything == ["workshop.step", "commands.count", "commands.linger"], everything
    mine = (await me.done("mission_tools", session_id=me.missions[0], names=["workshop.*"]))["tools"]
    assert [row["tool_name"] for row in mine] == ["workshop.step"], mine
    assert mine[0]["input_schema"]["required"] == ["log"], mine
    newest_first = [row["session_id"] for row in (await me.done("mission_list"))["sessions"]]
    assert newest_first == me.missions[::-1], newest_first
    ended = {"completed": 4, "terminated": 1, "paused": 0}
    for status, count in ended.items():
        rows = (await me.done("mission_list", status=status))["sessions"]
        assert [row["status"] for row in rows] == [status] * count, rows
    await me.refused("validation_error", "mission_list", status="asleep")
    await me.refused("invalid_argument", "mission_list", cursor="elsewhere")


async def commands(me: Traveller) -> None:
    told: list[Any] = []
    done = await me.done("count", told, units=3)
    task = done["task_id"]
    assert (done["status"], done["units_done"], done["units_total"]) == ("completed", 3, 3), done
    values = [value for value, _total, _message in told]
    assert values == sorted(set(values)) and {total for _, total, _ in told} <= {3}, told
    assert sorted((await me.done("task_tail", task_id=task, lines=9))["lines"]) == [
        "done",
        "unit 1",
        "unit 2",
        "unit 3",
    ]
    (row,) = (await me.done("task_status", task_id=task))["tasks"]
    assert row["exit_code"] == 0 and row["result"]["structuredContent"] == done, row
    assert (await me.done("task_wait", task_id=task))["status"] == "completed"
    assert (await me.done("task_cancel", task_id=task))["status"] == "completed"

    is_error, failed = await me.port.call("count", {"units": 2, "code": 7})
    assert is_error and (failed["exit_code"], failed["units_done"], failed["stderr_tail"]) == (7, 2, ["done"]), failed
    refusal = await me.refused("validation_error", "count", units=0, unit=1)
    assert {fault["field"] for fault in refusal["details"]["faults"]} == {"units", "unit"}, refusal
    await me.refused("path_traversal_detected", "linger", mark="../mark")
    await me.refused("task_not_found", "task_status", task_id=NOTHING)

    await me.port.call_and_cancel("linger", {"mark": "mark"}, lambda: me.until_logged("mark", "here"))
    ends = time.monotonic() + PATIENCE
    while True:
        newest = (await me.done("task_status"))["tasks"][0]
        if newest["status"] == "cancelled":
            break
        assert time.monotonic() < ends, newest
        await asyncio.sleep(0.02)
    assert [row["task_id"] for row in (await me.done("task_status"))["tasks"]][1:] == [failed["task_id"], task]
