"""A Python function proposes: what it sees, what it may answer, what survives, and who may never name one."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from engine_stage import driving
from mission_files import mission_file, threshold

import pursuit
from pursuit import Budget, Mission, Runtime, ValidationFailed, View, metric
from pursuit.config.configuration import Configuration
from pursuit.config.mission_file import load_mission_file
from pursuit.config.trust import of_mission, record
from pursuit.errors import NotTrusted

GOAL = metric("mass") <= 2.4


def evaluate(width: float) -> dict[str, Any]:
    """The mass of a beam."""
    return {"metrics": {"mass": 1.2 * width, "stress": 300 / width}}


def thinner(view: View) -> Any:
    """A thinner beam in each iteration."""
    return pursuit.call("evaluate", width=3 - 0.1 * view.iteration)


def wanted(proposer: Any, **more: Any) -> Mission:
    return Mission(
        **{"directive": "d", "criteria": [GOAL], "budget": Budget(max_iterations=20), **more}, proposer=proposer
    )


def ran(folder: Path, proposer: Any, **more: Any) -> pursuit.Report:
    return pursuit.run(wanted(proposer, **more), tools=[evaluate], state=folder / "ledger.db")


class Halving:
    """An object that proposes, with an async method."""

    async def propose(self, view: View) -> Any:
        width = view.memory.get("width", 8)
        view.memory["width"] = width / 2
        return [pursuit.call("python.evaluate", width=width)]


@pytest.mark.guarantee("a-function-proposes")
@pytest.mark.parametrize(("proposer", "iterations"), [(thinner, 11), (Halving(), 3), (lambda view: thinner(view), 11)])
def test_a_function_or_an_object_proposes(tmp_path: Path, proposer: Any, iterations: int) -> None:
    report = ran(tmp_path, proposer)
    assert (report.status, report.data["iteration_count"]) == ("completed", iterations)


async def test_it_runs_where_a_loop_runs_already(tmp_path: Path) -> None:
    assert ran(tmp_path, thinner).status == "completed"


def test_an_interrupt_ends_a_run_in_a_second_thread(tmp_path: Path) -> None:
    """As in a notebook: its loop handles no signals while a cell runs."""
    over = threading.Event()

    def hangs(view: View) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        over.wait()

    async def cell() -> pursuit.Report:
        return ran(tmp_path, hangs)

    loop, before = asyncio.new_event_loop(), signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    over.set()
    loop.close()
    signal.signal(signal.SIGINT, before)

    async def goes_on() -> pursuit.Report:
        async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), tools=[evaluate]) as runtime:
            (row,) = (await runtime.missions()).missions
            assert row.status == "interrupted"
            return await runtime.mission(row.mission_id, proposer=thinner).run()

    assert anyio.run(goes_on).completed


def test_a_view_shows_the_mission_and_what_happened(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def looking(view: View) -> Any:
        seen.append(
            {
                "directive": view.directive,
                "criteria": [(one.criterion_id, one.status) for one in view.criteria],
                "left": view.budget_left,
                "history": [[call.metrics for call in one.calls] for one in view.history],
                "trials": [call.args for call in view.trials(1)],
                "metrics": view.metrics,
                "faults": list(view.faults),
            }
        )
        if len(seen) == 2:
            return pursuit.call("evaluate", height=1)
        return thinner(view)

    ran(tmp_path, looking, budget=Budget(max_iterations=2))
    first, second, third = seen
    assert (first["directive"], first["left"], first["history"]) == ("d", {"max_iterations": 2}, [])
    assert second["criteria"] == [(GOAL.criterion_id, "unmet")]
    assert second["history"] == [[{"mass": 3.5999999999999996}]]
    assert second["trials"] == [{"width": 3.0}]
    assert second["metrics"]["stress"] == 100
    assert "height" in third["faults"][0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda view: pursuit.done("nothing left"), "proposer_done"),
        (lambda view: pursuit.nothing(), "no_progress"),
        (lambda view: pursuit.script("await python.evaluate(width=1)"), "criteria_met"),
        (lambda view: 7, "proposer_failed"),
        (lambda view: 1 / 0, "proposer_failed"),
    ],
)
def test_each_answer_has_its_meaning(tmp_path: Path, answer: Callable[[View], Any], reason: str) -> None:
    assert ran(tmp_path, answer).verdict_reason == reason


def test_a_wait_ends_by_itself(tmp_path: Path) -> None:
    asked: list[int] = []

    def patient(view: View) -> Any:
        asked.append(view.iteration)
        return pursuit.wait(0.01) if len(asked) < 3 else pursuit.call("evaluate", width=1)

    assert ran(tmp_path, patient).status == "completed"
    assert asked == [0, 0, 0]


async def test_a_mission_that_was_done_can_be_extended(tmp_path: Path) -> None:
    config = Configuration()
    async with Runtime(state=tmp_path / "ledger.db", config=config, tools=[evaluate]) as runtime:
        report = await runtime.pursue(wanted(lambda view: pursuit.done("x") if view.iteration == 2 else thinner(view)))
        assert (report.verdict_reason, report.data["iteration_count"]) == ("proposer_done", 2)
        state = await runtime.runner.extend(report.session_id, {"max_iterations": 30})
        assert state.status == "paused"


def test_a_failure_is_asked_again_twice_and_shows_its_last_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def broken(view: View) -> Any:
        asked.append(view.iteration)
        raise KeyError("lost")

    with caplog.at_level(logging.ERROR):
        report = ran(tmp_path, broken)
    assert asked == [0, 1, 2]
    assert report.verdict_reason == "proposer_failed"
    assert "KeyError: 'lost'" in str(report.data["reason_text"])
    assert 'raise KeyError("lost")' in caplog.text


@pytest.mark.parametrize("sync", [True, False])
def test_a_function_that_hangs_is_abandoned(tmp_path: Path, sync: bool) -> None:
    over = threading.Event()

    async def hangs(view: View) -> Any:
        await anyio.sleep_forever()

    given = pursuit.PythonProposer.of((lambda view: over.wait()) if sync else hangs)
    report = ran(tmp_path, given.model_copy(update={"proposer_seconds": 0.01}))
    over.set()
    assert report.verdict_reason == "proposer_failed"
    assert "proposer_seconds" in str(report.data["reason_text"])


async def test_a_pause_abandons_a_function(tmp_path: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    def hangs(view: View) -> Any:
        asked.set()
        over.wait()

    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), tools=[evaluate]) as runtime:
        started = await runtime.runner.start(wanted(hangs, tool_allowlist=["python.*"]))
        async with driving(runtime, started.session_id):
            await anyio.to_thread.run_sync(asked.wait)
            await runtime.runner.pause(started.session_id)
        over.set()
        assert (await runtime.runner.state(started.session_id)).status == "paused"


async def test_the_operator_resumes_a_mission_whose_proposer_failed(tmp_path: Path) -> None:
    repaired = False

    def proposer(view: View) -> Any:
        return thinner(view) if repaired else 1 / 0

    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), tools=[evaluate]) as runtime:
        report = await runtime.pursue(wanted(proposer))
        assert report.verdict_reason == "proposer_failed"
        repaired = True
        assert (await runtime.resume(report.session_id)).completed
        assert (await runtime.runner.verify()).ok


def test_keys_are_in_no_trace_and_in_no_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-of-the-operator")

    def broken(view: View) -> Any:
        raise ValueError("Bearer abcdef.ghi was refused\nfor sk-of-the-operator " + "x" * 9_000)

    report = ran(tmp_path, broken)
    shown = caplog.text + str(report.data)
    assert "ValueError: Bearer *** was refused for ***" in str(report.data["reason_text"])
    assert "sk-of-the-operator" not in shown
    assert "abcdef.ghi" not in shown
    assert all(len(one.getMessage()) < 5_000 for one in caplog.records)


async def test_a_changed_source_is_a_warning(tmp_path: Path) -> None:
    state, config = tmp_path / "ledger.db", Configuration(proposers={"callables": [f"{tmp_path}/strategy.py:propose"]})
    (tmp_path / "strategy.py").write_text(STRATEGY)
    async with Runtime(state=state, config=config, tools=[evaluate]) as runtime:
        settings = pursuit.PythonProposer(callable=f"{tmp_path}/strategy.py:propose", digest="0" * 64)
        report = await runtime.pursue(wanted(settings, tool_allowlist=["python.*"]))
        assert report.completed
        assert "has changed since the mission was started" in str(report.data["warnings"])


@pytest.mark.parametrize("memory", [{"x": object()}, {"x": "y" * 70_000}])
def test_memory_that_cannot_be_stored_is_a_fault(tmp_path: Path, memory: dict[str, Any]) -> None:
    faults: list[str] = []

    def forgetful(view: View) -> Any:
        faults.extend(view.faults)
        view.memory.update(memory)
        return thinner(view)

    assert ran(tmp_path, forgetful).verdict_reason == "proposer_failed"
    assert all(one.startswith("memory:") for one in faults) and faults


async def test_memory_survives_a_wait_a_new_process_and_a_change_deep_inside(tmp_path: Path) -> None:
    def counting(view: View) -> Any:
        asked = view.memory.setdefault("asked", {"times": []})["times"]
        asked.append(view.iteration)
        return pursuit.wait(0.01) if len(asked) % 2 else pursuit.call("evaluate", width=9)

    runtime: Any = {"state": tmp_path / "ledger.db", "config": Configuration(), "tools": [evaluate]}
    mission = wanted(counting, budget=Budget(max_iterations=2), tool_allowlist=["python.*"])
    async with Runtime(**runtime) as first:
        handle = await first.start(mission)
        await handle.iterate(1)
        assert (await first.runner.state(handle.mission_id)).remembered == {"asked": {"times": [0, 0]}}
    async with Runtime(**runtime) as second:
        handle = second.mission(handle.mission_id, proposer=counting)
        await handle.run()
        assert (await second.runner.state(handle.mission_id)).remembered == {"asked": {"times": [0, 0, 1, 1]}}
        assert (await second.runner.verify()).ok


def test_a_program_that_exits_in_its_function_is_a_failure(tmp_path: Path) -> None:
    report = ran(tmp_path, lambda view: sys.exit(3))
    assert (report.verdict_reason, "SystemExit: 3" in str(report.data["reason_text"])) == ("proposer_failed", True)


def test_a_process_ends_although_a_function_that_was_abandoned_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HANGS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["proposer_failed"]


def test_an_iterator_that_is_used_up_is_a_failure(tmp_path: Path) -> None:
    report = ran(tmp_path, lambda view: next(iter(())))
    assert report.verdict_reason == "proposer_failed"
    assert "StopIteration" in str(report.data["reason_text"])


def test_a_view_is_bounded(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    def wordy(width: float) -> dict[str, Any]:
        """Says much."""
        return {"text": "y" * 40_000, "metrics": {"mass": 9 + width}}

    def looking(view: View) -> Any:
        results = [str(call.result) for one in view.history for call in one.calls or ()]
        seen.append((len(view.history), len(view.trials(99)), max(map(len, results), default=0)))
        assert all("yyy" in one for one in results)
        return pursuit.call("wordy", width=view.iteration)

    mission = wanted(looking, budget=Budget(max_iterations=23), stagnation_threshold=99)
    pursuit.run(mission, tools=[wordy], state=tmp_path / "ledger.db")
    history, trials, longest = seen[-1]
    assert (len(seen), history, trials) == (23, 20, 20)
    assert longest < 10_000


STRATEGY_FILE = {"kind": "python", "callable": "strategy.py:propose"}
HANGS = """
import threading
from pursuit import Budget, Mission, PythonProposer, metric, run

def evaluate():
    return {}

settings = PythonProposer.of(lambda view: threading.Event().wait()).model_copy(update={"proposer_seconds": 0.01})
wanted = Mission(directive="d", criteria=[metric("x") < 1], budget=Budget(max_iterations=9), proposer=settings)
print(run(wanted, tools=[evaluate]).verdict_reason)
"""
FILE = mission_file("python.*", threshold("mass", "<=", 2.4), iterations=20, proposer=STRATEGY_FILE)
STRATEGY = """
import pursuit

def propose(view):
    return pursuit.call("evaluate", width=3 - 0.1 * view.iteration)
"""


@pytest.mark.guarantee("code-is-never-taken-from-the-ledger")
async def test_a_file_names_code_beside_it_if_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURSUIT_TRUST")
    path, config = tmp_path / "mission.toml", Configuration()
    path.write_text(FILE)
    (tmp_path / "strategy.py").write_text(STRATEGY)
    file = load_mission_file(path)
    async with Runtime(state=tmp_path / "a.db", config=config, tools=[evaluate]) as runtime:
        with pytest.raises(NotTrusted, match=r"strategy\.py"):
            await runtime.start_file(file)
        monkeypatch.setenv("PURSUIT_TRUST", "1")
        started = await runtime.start_file(file)
        assert (await runtime.resume(started.session_id)).completed
    (tmp_path / "strategy.py").unlink()
    with pytest.raises(ValidationFailed, match="cannot be read"):
        load_mission_file(path)


@pytest.mark.guarantee("code-is-never-taken-from-the-ledger")
async def test_code_that_changed_after_the_yes_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURSUIT_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    path, code, state = tmp_path / "mission.toml", tmp_path / "strategy.py", tmp_path / "a.db"
    path.write_text(FILE)
    code.write_text(STRATEGY)
    file = load_mission_file(path)
    record([of_mission(file)])
    async with Runtime(state=state, config=Configuration(), tools=[evaluate]) as runtime:
        started = await runtime.start_file(file)
    code.write_text(f"open({str(tmp_path / 'owned')!r}, 'w').close()\n{STRATEGY}")
    async with Runtime(state=state, config=Configuration(), tools=[evaluate]) as runtime:
        with pytest.raises(NotTrusted, match=r"strategy\.py"):
            await runtime.resume(started.session_id)
    assert not (tmp_path / "owned").exists()
