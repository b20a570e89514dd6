"""A peer that dies: what was sent and not answered is `unknown`, what was not sent is `failed`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from asker_stage import asker
from engine_stage import events_of, mission, outcomes, proposal, replay, script, stage
from model_endpoint import Reply, calls
from model_stage import BOTH, DONE, pursued, quickly, scripted, step

from pursuit import Budget, Runtime
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ClientSettings, ServerConfig
from pursuit.core.events import CallSettled, ModelAnswered, WaitBegan
from pursuit.core.tools import ToolOverride
from pursuit.policy.rules import OperatorPolicy
from pursuit.upstream import tasks

DYING = Path(__file__).parent.parent / "servers" / "dying.py"
DIES = 666
NOT_KNOWN = "not known"
WHEN = pytest.mark.parametrize("when", ["after", "before"])
"""When the peer dies: after the request was sent, or before."""

OUTCOME = {"after": "unknown", "before": "failed"}


def dying(name: str = "far", **more: Any) -> ServerConfig:
    """The server over stdio; one that ended is not there any more, unless `restart` says otherwise."""
    return ServerConfig(name=name, command=sys.executable, args=(str(DYING),), **{"restart": False, **more})


@contextmanager
def dying_http(folder: Path) -> Iterator[tuple[ServerConfig, subprocess.Popen[bytes]]]:
    """The same server at an address of its own, and its process."""
    port = folder / "port"
    with subprocess.Popen([sys.executable, str(DYING), f"http={port}"]) as process:
        try:
            while not port.exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield ServerConfig(name="far", transport="http", url=f"http://127.0.0.1:{port.read_text()}/mcp"), process
        finally:
            process.kill()


def staged(folder: Path, config: ServerConfig) -> Runtime:
    settings = {"task_patience": 5.0}
    configuration = Configuration(servers={"far": config}, settings=settings, policy=OperatorPolicy(mode="auto"))
    return Runtime(state=folder / "ledger.db", config=configuration)


async def settled(
    folder: Path, opened: Runtime, *wanted: Any, between: Callable[[], object] | None = None, **more: Any
) -> tuple[list[str | None], CallSettled]:
    """The outcomes of the calls of one mission, and the last settlement.

    With `between` the last call has a mission of its own, which begins when `between` returns.
    """
    async with opened as runtime:
        if between is not None and wanted[:-1]:
            first = await runtime.runner.start(mission(proposer=replay(proposal(*wanted[:-1]))))
            await runtime.runner.run(first.session_id)
            await anyio.to_thread.run_sync(between)
        given = {"proposer": replay(proposal(*(wanted if between is None else wanted[-1:]))), **more}
        mission_id = (await runtime.runner.start(mission(**given))).session_id
        await runtime.runner.run(mission_id)
        found = [outcome for _tool, outcome in await outcomes(runtime, mission_id)]
        return found, (await events_of(runtime, mission_id, CallSettled))[-1]


def effect(folder: Path, key: str, die: str = "", tool: str = "effect") -> tuple[str, dict[str, Any]]:
    return f"far.{tool}", {"key": key, "tally": str(folder / "tally"), "die": die}


def tally(folder: Path) -> list[str]:
    file = folder / "tally"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def ended_by(folder: Path, when: str, tool: str = "effect") -> list[tuple[str, dict[str, Any]]]:
    """Calls of which the last one finds a server that dies in it, or is dead."""
    last = effect(folder, "last", "after" if when == "after" else "", tool)
    return [last] if when == "after" else [effect(folder, "first", "after"), last]


@pytest.mark.guarantee("no-silent-repeat-when-a-server-dies")
@pytest.mark.parametrize("transport", ["stdio", "http"])
@WHEN
async def test_a_call_of_a_mission(when: str, transport: str, tmp_path: Path) -> None:
    if transport == "stdio":
        found, last = await settled(tmp_path, staged(tmp_path, dying()), *ended_by(tmp_path, when))
    else:
        with dying_http(tmp_path) as (config, process):
            wanted = ended_by(tmp_path, when)
            # Until the process is gone, its system may take a connection that nothing reads.
            found, last = await settled(tmp_path, staged(tmp_path, config), *wanted, between=process.wait)
    assert found[-1] == last.outcome == OUTCOME[when]
    assert (NOT_KNOWN in (last.error or "")) == (when == "after")
    assert (last.error or "").startswith("not sent: ") == (when == "before")
    assert ("last" in tally(tmp_path)) == (when == "after")


@WHEN
async def test_a_check(when: str, tmp_path: Path) -> None:
    *before, (tool, args) = ended_by(tmp_path, when)
    check = {"kind": "check", "criterion_id": "c", "tool_name": tool, "args": args, "when": "checkpoint"}
    opened = staged(tmp_path, dying())
    found, last = await settled(tmp_path, opened, *before, criteria=[check], proposer=replay(proposal(*before)))
    assert last.call_id.endswith(":check:c")
    assert found[-1] == last.outcome == OUTCOME[when]


async def test_a_check_whose_command_cannot_be_started_has_failed(tmp_path: Path) -> None:
    command = [str(tmp_path / "absent")]
    check = {"kind": "check", "criterion_id": "c", "command": command, "when": "checkpoint"}
    found, _last = await settled(tmp_path, staged(tmp_path, dying()), criteria=[check], proposer=replay(proposal()))
    assert found == ["failed"]


@WHEN
async def test_a_submission_of_a_mission(when: str, tmp_path: Path) -> None:
    """The problem's server is there when its own server dies, and says what it knows."""
    one = asker(tmp_path, "modern", "silent")
    server = one.to_mcp_server(state=tmp_path / "attempts.db", attempt_id="attempt-1")
    opened = stage(tmp_path, servers={"exam": server})
    async with opened as runtime:
        before = [("exam.probe", {"x": DIES})] if when == "before" else []
        given = replay(proposal(*before, ("exam.submit_final", {"x": DIES})))
        started = await runtime.runner.start(mission(proposer=given))
        if when == "before":
            (tmp_path / "there").unlink()  # from here on it cannot be started again
        await runtime.runner.run(started.session_id)
        last = (await events_of(runtime, started.session_id, CallSettled))[-1]
    assert last.outcome == OUTCOME[when], last.error
    assert ("it is not known whether it accepted the submission" in (last.error or "")) == (when == "after")


@WHEN
async def test_a_call_that_is_a_task(when: str, tmp_path: Path) -> None:
    config = dying(tools={"effect": ToolOverride(long=True)})
    async with staged(tmp_path, config) as runtime:
        given = replay(*(proposal(one) for one in ended_by(tmp_path, when)))
        wanted = mission(proposer=given, budget=Budget(max_iterations=2))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        task = (await runtime.tasks.list())["tasks"][0]
        last = (await events_of(runtime, mission_id, CallSettled))[-1]
        last, task = last, await runtime.tasks.store.get(task["task_id"])
    assert last.outcome == OUTCOME[when]
    assert task.status == "failed"
    assert (NOT_KNOWN in task.message) == (when == "after")
    assert task.error.get("data") == ({"outcome": "unknown"} if when == "after" else None)


@pytest.mark.parametrize(("when", "restart"), [("after", True), ("after", False), ("before", False)])
async def test_a_task_of_the_server(when: str, restart: bool, tmp_path: Path) -> None:
    """It took the call: a server that was started anew does not know the task, one that is gone cannot be asked."""
    opened = staged(tmp_path, dying(restart=restart, client=ClientSettings(task_retry=0.01)))
    found, last = await settled(tmp_path, opened, *ended_by(tmp_path, when, "job"))
    assert found[-1] == last.outcome == OUTCOME[when]
    assert (tasks.LOST in (last.error or "")) == (when == "after")


@BOTH
@WHEN
async def test_a_request_to_a_language_model(
    when: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = scripted(monkeypatch, Reply(fault="cut", text="It is cut off."))

    async def scene() -> tuple[str | None, int]:
        async with stage(tmp_path, step) as runtime:
            service = quickly(runtime.runner)
            mission_id = (await service.start(mission(criteria=DONE, proposer=model))).session_id
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.run, mission_id)
                while not await events_of(runtime, mission_id, WaitBegan):
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            (wait, *_), answers = [await events_of(runtime, mission_id, kind) for kind in (WaitBegan, ModelAnswered)]
            return wait.detail, len(answers)

    with endpoint:
        found = await scene() if when == "after" else None
    said, answers = found or await scene()  # the address was given back before anything is asked
    assert answers == 0
    assert ("the provider may charge for them" in (said or "")) == (when == "after")


@BOTH
def test_an_answer_says_how_many_requests_before_it_were_lost(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, busy = Reply(fault="cut", text="It is cut off."), Reply(status=503)
    with scripted(monkeypatch, cut, busy, cut, calls(("world__step", {}))):
        _state, found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=model))
    (answered,) = found[ModelAnswered]
    assert answered.answer.lost == 2


PATIENT = """
for key, die in [("a", "after"), ("b", ""), ("c", "before"), ("d", "after"), ("e", "")]:
    for attempt in range(3):
        try:
            far.effect(key=key, tally="TALLY", die=die)
            break
        except RuntimeError as problem:
            if " failed: " not in str(problem):
                break
"""


@pytest.mark.guarantee("no-silent-repeat-when-a-server-dies")
async def test_a_script_that_repeats_only_what_failed_repeats_no_effect(tmp_path: Path) -> None:
    config = dying(restart=True, client=ClientSettings(first_pause=0.01))
    source = PATIENT.replace("TALLY", str(tmp_path / "tally"))
    found, _last = await settled(tmp_path, staged(tmp_path, config), proposer=script(source))
    assert tally(tmp_path) == ["a", "b", "d", "e"]
    assert found == ["unknown", "ok", "unknown", "unknown", "ok"]
