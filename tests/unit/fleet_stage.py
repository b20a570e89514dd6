"""A stage for fleets: a parent that spawns, children that measure or enter, and tools for them."""

from __future__ import annotations

from typing import Any

import anyio
from engine_stage import mission, proposal, replay

from pursuit import Budget, metric, tool

SPAWN = "fleet.spawn"


@tool(read_only=True, parallel_safe=True)
def measure(value: float = 7) -> dict[str, Any]:
    """Looks."""
    return {"metrics": {"score": value}}


def child(**given: Any) -> dict[str, Any]:
    """The arguments of a spawn whose child measures once and is done."""
    return {
        "directive": "Measure",
        "criteria": [{"criterion_id": "c", "kind": "metric_threshold", "metric": "score", "op": ">=", "target": 7}],
        "budget": {"max_iterations": 2},
        "tool_allowlist": ["world.measure"],
        "proposer": {"kind": "repeat", "tool_name": "world.measure", "args": {}},
        **given,
    }


def parent(*calls: dict[str, Any], **given: Any) -> Any:
    defaults: dict[str, Any] = {
        "budget": Budget(max_iterations=10),
        "fleet": {},
        "criteria": [metric("score", source=SPAWN) >= 7],
        "proposer": replay(proposal(*[(SPAWN, args) for args in calls])),
    }
    return mission(**{**defaults, **given})


class Crowd:
    """A tool that writes, and says how many were inside at once."""

    def __init__(self, wanted: int) -> None:
        self.inside = self.most = self.cut = 0
        self.wanted = wanted
        self.full = anyio.Event()
        self.go = anyio.Event()

    async def enter(self) -> dict[str, Any]:
        """Stays until it is let go."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == self.wanted:
            self.full.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cut += 1
            raise
        finally:
            self.inside -= 1
        return {"metrics": {"score": 7}}


def entering(**given: Any) -> dict[str, Any]:
    return child(tool_allowlist=["world.enter"], proposer={"kind": "repeat", "tool_name": "world.enter"}, **given)
