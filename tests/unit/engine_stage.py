"""A stage for missions: a runtime on a fresh ledger with plain functions as tools, and what happened on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from pursuit import Budget, Mission, Proposal, Runtime, event
from pursuit.config.configuration import Configuration
from pursuit.core.events import CallIntended, CallRefused, CallSettled, Event, decode
from pursuit.core.state import MissionState
from pursuit.proposers.contract import Failed, Proposer, Waiting
from pursuit.proposers.repeat import RepeatKind

T = TypeVar("T")
E = TypeVar("E", bound=Event)
LONGEST = 120.0


def play(scene: Callable[[], Awaitable[T]], longest: float = LONGEST) -> T:
    """Runs one scene; one that hangs is a failure, not a stuck test run."""

    async def bounded() -> T:
        with anyio.fail_after(longest):
            return await scene()

    return anyio.run(bounded)


def stage(
    folder: Path,
    *tools: Callable[..., Any],
    checks: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, float] | None = None,
    servers: Mapping[str, Any] | None = None,
) -> Runtime:
    """A runtime whose server `world` has these functions; nothing of the machine's own configuration is read."""
    quick = {"task_patience": 0.05, **(settings or {})}
    configuration = Configuration(checks=checks or {}, settings=quick)
    world = {"world": list(tools)} if tools else {}
    return Runtime(state=folder / "ledger.db", config=configuration, servers={**world, **(servers or {})})


def mission(**given: Any) -> Mission:
    """A mission that nothing meets and one iteration ends, unless told otherwise."""
    defaults: dict[str, Any] = {
        "directive": "See what happens",
        "criteria": [event("never")],
        "budget": Budget(max_iterations=1),
        "allow_all_tools": "tool_allowlist" not in given,
        "stagnation_threshold": "off",
    }
    return Mission(**{**defaults, **given})


def proposal(*calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A proposal of calls, as plain data."""
    return {"tool_calls": [{"tool_name": name, "args": args} for name, args in calls], **more}


def replay(*proposals: Mapping[str, Any]) -> dict[str, Any]:
    """A proposer that hands out these proposals."""
    return {"kind": "replay", "proposals": list(proposals)}


def repeat(name: str, **args: Any) -> dict[str, Any]:
    """A proposer that makes one call over and over."""
    return {"kind": "repeat", "tool_name": name, "args": args}


def script(source: str) -> dict[str, Any]:
    """The operator's own script."""
    return {"kind": "script", "script": source}


async def events_of(runtime: Runtime, mission_id: str, kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    stored = [decode(one.type, one.body) for one in await runtime.runner.ledger.read(mission_id)]
    return [one for one in stored if isinstance(one, kind)]


async def outcomes(runtime: Runtime, mission_id: str) -> list[tuple[str, str | None]]:
    """Every call with its outcome, in the order in which they were intended or refused."""
    found: dict[str, tuple[str, str | None]] = {}
    for one in await events_of(runtime, mission_id, Event):
        match one:
            case CallIntended():
                found[one.call_id] = (one.tool, None)
            case CallRefused():
                found[one.call_id] = (one.tool, one.outcome)
            case CallSettled():
                found[one.call_id] = (found[one.call_id][0], one.outcome)
            case _:
                pass
    return list(found.values())


async def history(runtime: Runtime, mission_id: str) -> list[dict[str, Any]]:
    """The ended iterations with everything in them."""
    return (await runtime.runner.history(mission_id, full=True)).as_json()["iterations"]


async def until(runtime: Runtime, mission_id: str, holds: Callable[[MissionState], object]) -> None:
    """Follows the mission until its state is as wanted."""
    async for _event, state in runtime.runner.watch(mission_id):
        if holds(state):
            return


@asynccontextmanager
async def driving(runtime: Runtime, mission_id: str) -> AsyncIterator[None]:
    """The mission is driven meanwhile; leaving waits until the driver has let go."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.runner.run, mission_id)
        yield


class Gate:
    """A tool that says when it was entered and stays until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.entered = anyio.Event()
        self.release = anyio.Event()
        self.cancelled = 0
        self.passed = 0

    async def hold(self) -> dict[str, Any]:
        """Stays."""
        self.entered.set()
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        self.passed += 1
        return {"events": [{"event_name": "held"}]}


class Stubborn(Proposer):
    """A proposer that hands out these answers, the last one for ever, and keeps the reasons that it was given."""

    def __init__(self, *answers: Proposal | Exception) -> None:
        self.answers = list(answers)
        self.reasons: list[list[str]] = []

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The next answer."""
        self.reasons.append(list(reasons))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def proposing(monkeypatch: pytest.MonkeyPatch, proposer: Proposer) -> None:
    """Lets another proposer propose for missions that repeat."""
    monkeypatch.setattr(RepeatKind, "make", lambda _kind, _settings, _context: proposer)
