"""Counts what one operation passes: distinct files of the source, switches between them, and calls of each function.

    .venv/bin/python tests/meta/files_passed.py           prints a row for each operation beside the recorded one
    .venv/bin/python tests/meta/files_passed.py --write   records the rows in files_passed.toml

Each operation runs twice, each time in an empty folder, and the second time counts: all modules are loaded then. Only
functions count, not the bodies of modules and classes. An operation is the task that begins it and the tasks that begin
meanwhile. What the event loop calls back, other threads, the tasks that ran before and those that look for work again
and again are not part of it: whether one of them is at work meanwhile depends on the machine.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anyio

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), *(str(TESTS / one) for one in ("unit", "servers", "surface", "support", "page"))]
    os.environ["PURSUIT_TRUST"] = "1"

import pytest  # noqa: E402 - the stages are found after the lines above
from agent_stage import AgentPlace, library  # noqa: E402
from cli_stage import BEAM, Place, mission  # noqa: E402
from engine_stage import mission as started  # noqa: E402
from engine_stage import repeat, stage  # noqa: E402
from gateway_stage import house  # noqa: E402
from mcp import Client  # noqa: E402
from model_endpoint import calls  # noqa: E402
from model_stage import OPENAI, scripted, step  # noqa: E402
from page_stage import page  # noqa: E402
from quick_start import REAL  # noqa: E402

import pursuit  # noqa: E402
from pursuit import Budget, Runtime  # noqa: E402
from pursuit.config.configuration import Configuration  # noqa: E402
from pursuit.config.mission_file import load_mission_file  # noqa: E402
from pursuit.policy.rules import OperatorPolicy, Rule  # noqa: E402
from pursuit.server.missions.server import mission_server  # noqa: E402
from pursuit.service.approvals import Approvals  # noqa: E402

SOURCE = f"{Path(pursuit.__file__).parent}{os.sep}"
RECORDED = Path(__file__).with_suffix(".toml")
PERIODIC = ("_poll_interrupted",)
"""The last parts of the names of these tasks; anyio names a task after its function."""


def other_tasks() -> set[asyncio.Task[Any]]:
    """The tasks that run beside this one."""
    try:
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    except RuntimeError:  # no loop runs
        return set()


class Passage:
    """What was passed while it recorded."""

    def __init__(self) -> None:
        self.switches = 0
        self._others = other_tasks()
        self.calls: Counter[str] = Counter()
        """How often each function was called, as `config/trust.py:untrusted`; a coroutine counts once."""
        self._last = ""
        self._begin: dict[CodeType, int] = {}

    @property
    def files(self) -> set[str]:
        return {name.partition(":")[0] for name in self.calls}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        path = code.co_filename
        if event != "call" or not path.startswith(SOURCE) or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if not self._takes_part():
            return
        # A coroutine that goes on is a call, too, behind its begin.
        if self._begin.setdefault(code, frame.f_lasti) == frame.f_lasti:
            self.calls[f"{path.removeprefix(SOURCE)}:{code.co_qualname}"] += 1
        self.switches += path != self._last
        self._last = path

    def _takes_part(self) -> bool:
        """Whether the code that runs now is part of the operation."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs: a command before and after its own
            return True
        return task is not None and task not in self._others and not task.get_name().endswith(PERIODIC)


@contextmanager
def recording() -> Iterator[Passage]:
    passage = Passage()
    gc.disable()  # what a collection closes belongs to nobody
    sys.setprofile(passage)
    try:
        yield passage
    finally:
        sys.setprofile(None)
        gc.enable()


def run_command(folder: Path) -> Passage:
    place = Place(folder).configured()
    place.write("m.toml", mission(target=100, iterations=1))
    with recording() as passage:
        place.ask("run", "m.toml")
    return passage


def configured(folder: Path) -> Path:
    """A configuration with one server, which is a process."""
    return Place(folder).write("pursuit.toml", f'[policy]\nmode = "auto"\n{BEAM}')


@asynccontextmanager
async def mission_client(folder: Path) -> AsyncIterator[Client]:
    runtime = Runtime(config=configured(folder), state=folder / "ledger.db")
    async with runtime, mission_server(runtime) as server, Client(server, cache=None) as client:
        await client.list_tools()  # the SDK's client asks for the schemas of results, once
        yield client


DESIGN = {"h": 0.5, "l": 3.0, "t": 5.0, "b": 0.6}
STARTED = {
    "directive": "Look at a design",
    "criteria": [{"criterion_id": "done", "kind": "event", "event_name": "done", "required": True}],
    "budget": {"max_iterations": 9},
    "tool_allowlist": ["beam.evaluate"],
    "proposer": {"kind": "client"},
}


async def _ask(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert answer.structured_content is not None and not answer.is_error, answer
    return answer.structured_content


async def mission_start(folder: Path) -> Passage:
    async with mission_client(folder) as client:
        with recording() as passage:
            await _ask(client, "mission_start", STARTED)
    return passage


async def mission_iterate(folder: Path) -> Passage:
    proposed = {"proposal": {"tool_calls": [{"tool_name": "beam.evaluate", "args": DESIGN}]}}
    async with mission_client(folder) as client:
        name = {"session_id": (await _ask(client, "mission_start", STARTED))["session_id"]}
        with recording() as passage:
            await _ask(client, "mission_iterate", {**name, **proposed})
    return passage


async def gateway_call(folder: Path) -> Passage:
    async with house(folder, config=configured(folder)) as stage:
        client = await stage.client("2026-07-28")
        with recording() as passage:
            await client.call("evaluate", DESIGN)
    return passage


def write(text: str) -> str:
    """Changes the world."""
    return text


async def page_approval(folder: Path) -> Passage:
    asks = Configuration(policy=OperatorPolicy(rules=(Rule(decision="ask", tool="write"),)))
    runtime = Runtime(state=folder / "ledger.db", config=asks, servers={"world": [write]})
    async with runtime, page(runtime, folder) as served, served.person() as person:
        asked = started(proposer=repeat("write", text="a"), budget=Budget(max_iterations=3))
        await runtime.runner.run((await runtime.runner.start(asked)).session_id)
        (row,) = await Approvals(runtime.runner).open()
        with recording() as passage:
            await person.press(f"/approvals/{row.approval_id}", answer="once")
    return passage


async def _iteration(runtime: Runtime, name: str) -> Passage:
    with recording() as passage:
        await runtime.runner.iterate(name)
    return passage


async def model_iteration(folder: Path) -> Passage:
    with pytest.MonkeyPatch.context() as patch, scripted(patch, calls(("world__step", {})), calls(("world__step", {}))):
        async with stage(folder, step) as runtime:
            wanted = started(proposer=OPENAI, budget=Budget(max_iterations=9))
            return await _iteration(runtime, (await runtime.runner.start(wanted)).session_id)


async def agent_turn(folder: Path) -> Passage:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", REAL)  # an isolated agent sees no Python but the real one
        place = AgentPlace(folder, [[{"write": library(3)}, {"say": "Done."}]])
        file = load_mission_file(place.mission())
    async with Runtime(state=place.ledger, config=place.folder / "pursuit.toml") as runtime:
        mission_id = (await runtime.start_file(file)).session_id
        passage = await _iteration(runtime, mission_id)
        (turn, _check) = (await runtime.runner.state(mission_id)).last.calls.values()
        assert turn.outcome == "ok", turn.error
        return passage


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "pursuit run": run_command,
    "mission_start": mission_start,
    "mission_iterate": mission_iterate,
    "gateway call": gateway_call,
    "approval on the page": page_approval,
    "iteration of a model": model_iteration,
    "turn of an agent": agent_turn,
}


def passed(operation: str, folder: Path) -> Passage:
    """What an operation passes; `folder` is empty."""
    scene = OPERATIONS[operation]
    for name in ("first", "second"):
        (folder / name).mkdir()
        again = folder / name
        found = anyio.run(scene, again) if inspect.iscoroutinefunction(scene) else scene(again)
    return found


def recorded() -> dict[str, dict[str, int]]:
    return tomllib.loads(RECORDED.read_text(encoding="utf-8"))


def main() -> None:
    before = recorded() if RECORDED.exists() else {}
    lines = ["# Distinct files that an operation passes, and switches between files; files_passed.py writes it.\n"]
    print(f"{'operation':24}{'files':>8}{'recorded':>10}{'switches':>10}{'recorded':>10}")
    for operation in OPERATIONS:
        with tempfile.TemporaryDirectory() as folder:
            found = passed(operation, Path(folder))
        files, old = len(found.files), before.get(operation, {})
        figures = f"{files:8}{old.get('files', '-'):>10}{found.switches:10}{old.get('switches', '-'):>10}"
        print(f"{operation:24}{figures}")
        lines.append(f'["{operation}"]\nfiles = {files}\nswitches = {found.switches}\n')
    if "--write" in sys.argv:
        RECORDED.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
