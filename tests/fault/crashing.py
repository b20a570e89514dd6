"""A ledger that dies at a chosen write, and the world that tools leave their marks in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pursuit.config.configuration import Configuration
from pursuit.core.events import CallIntended, CallRefused, CallSettled, decode
from pursuit.core.mission import Mission
from pursuit.ledger.contract import Ledger
from pursuit.runtime import Runtime
from pursuit.upstream.functions import tool


class Crash(BaseException):
    """The process is gone. Nothing in the product catches it."""


class CrashingLedger:
    """Passes everything on to a real ledger until its time has come; a dead process writes nothing more."""

    def __init__(self, ledger: Ledger, at: int | None, when: Literal["before", "after"]) -> None:
        self._ledger = ledger
        self._at = at
        self._when = when
        self.writes = 0
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, *args: Any, **named: Any) -> Any:
        if self.dead:
            raise Crash
        self.writes += 1
        mine = self.writes
        if mine == self._at and self._when == "before":
            self.dead = True
            raise Crash
        head = await self._ledger.append(*args, **named)
        if mine == self._at or self.dead:
            self.dead = True
            raise Crash
        return head


class CrashingRuntime(Runtime):
    """A runtime on such a ledger."""

    def __init__(self, world: World, state: Path, at: int | None = None, when: Literal["before", "after"] = "before"):
        super().__init__(state=state, config=Configuration(), servers={"world": world.tools()})
        self._at, self._when = at, when
        self.ledger: CrashingLedger

    def _open_ledger(self, path: Path) -> Any:
        self.ledger = CrashingLedger(super()._open_ledger(path), self._at, self._when)
        return self.ledger


class World:
    """What really happened: each execution is counted by the key that the call carried."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()

    def tools(self) -> list[Any]:
        @tool(read_only=True, parallel_safe=True)
        async def read(key: str) -> dict[str, Any]:
            self.executed[key] += 1
            return {"metrics": {"reads": self.executed.total()}}

        @tool(idempotent=True)
        async def put(key: str) -> dict[str, Any]:
            self.executed[key] += 1
            return {"stored": key}

        async def write(key: str) -> dict[str, Any]:
            self.executed[key] += 1
            done = {"event_name": "wrote", "key": key}
            return {"metrics": {"writes": sum(1 for k in self.executed if k.startswith("w"))}, "events": [done]}

        @tool(parallel_safe=True)
        async def send(key: str) -> dict[str, Any]:
            self.executed[key] += 1
            return {"sent": key}

        return [read, put, write, send]


async def calls_of(ledger: Any, mission_id: str) -> dict[str, dict[str, Any]]:
    """Every call in the ledger: its tool, key, how often it was intended, and how it settled."""
    calls: dict[str, dict[str, Any]] = {}
    for stored in await ledger.read(mission_id):
        event = decode(stored.type, stored.body)
        if isinstance(event, CallIntended):
            row = calls.setdefault(event.call_id, {"tool": event.tool, "intents": 0, "settled": []})
            row["key"] = event.args.get("key", event.call_id)
            row["intents"] += 1
        elif isinstance(event, CallSettled):
            calls[event.call_id]["settled"].append(event.outcome)
        elif isinstance(event, CallRefused):
            row = calls.setdefault(event.call_id, {"tool": event.tool, "intents": 0, "settled": [], "key": ""})
            row["settled"].append(event.outcome)
    return calls


async def first_run(
    mission: Mission, world: World, state: Path, at: int | None, when: Literal["before", "after"]
) -> tuple[str | None, int]:
    """Runs until the crash; gives the mission's id, if it got one, and how many writes there were."""
    mission_id: str | None = None
    runtime = CrashingRuntime(world, state, at, when)
    try:
        async with runtime:
            mission_id = (await runtime.runner.start(mission)).session_id
            await runtime.runner.run(mission_id)
    except BaseException as error:
        if not is_crash(error):
            raise
    return mission_id, runtime.ledger.writes


def is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(is_crash(inner) for inner in error.exceptions)
    return isinstance(error, Crash)
