"""A folder with a ledger that has something for every view of the page, served by real processes.

What tools, models and people wrote in it is the corpus of `hostile`.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from browser import Viewer, apart
from engine_stage import mission, play, proposal, repeat, replay
from fleet_stage import SPAWN
from front_door import House
from hostile import DOCUMENTS, STRINGS
from problem_stage import SCHEMA, problem

from pursuit import Budget, Runtime, event, metric, tool
from pursuit.core.tools import ToolResult
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt
from pursuit.server.bind import PAGE_PATH

COLOURS = "\x1b[32munit 1\x1b[0m done, \x1b[1;31mone failed\x1b[0m, \x1b[38;5;208mone is odd\x1b[0m"
SCORER: dict[str, Any] = {
    "kind": "predicates",
    "predicates": [{"metric": "error", "expression": "submission['x']"}],
    "metrics": [{"metric": "error", "direction": "minimize", "target": 0.5}],
}


@tool(read_only=True, parallel_safe=True)
def weigh(kilos: float = 3) -> dict[str, Any]:
    """Says what it weighs."""
    return {"metrics": {"mass": kilos}}


@tool(read_only=True, parallel_safe=True)
def say(place: int) -> ToolResult:
    """Returns one of the strings or documents."""
    if place < len(STRINGS):
        return ToolResult(content=({"type": "text", "text": STRINGS[place]},), is_error=place % 7 == 0)
    return ToolResult(content=(DOCUMENTS[place - len(STRINGS)],))


def ship(note: str = "") -> str:
    """Sends it off."""
    return "gone"


class Site(House):
    """The folder; `seed` fills its ledger, `serving` serves it, `sign_in` opens the page as its operator."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        super().__init__(folder, mode="ask", fresh=fresh)
        self.missions: dict[str, str] = {}
        self.approvals: list[str] = []
        self.task = ""

    def sign_in(self, viewer: Viewer) -> Viewer:
        """Opens the page by a new link, as `pursuit page` prints it."""
        link = apart(lambda: self.json("page", "--no-browser"))["page"]
        viewer.root = link.partition(PAGE_PATH)[0] + PAGE_PATH
        viewer.page.goto(link)
        return viewer

    def runtime(self, **more: Any) -> Runtime:
        """A runtime over the same ledger, with the tools of this module."""
        return Runtime(
            state=self.ledger, config=self.folder / "pursuit.toml", servers={"odd": [weigh, say, ship]}, **more
        )

    def seed(self) -> Site:
        """Missions that ended, wait, were interrupted and have children; tasks, attempts, lessons and an audit."""
        apart(lambda: play(self._seed))
        (self.folder / "problems").mkdir()
        one = problem(self.folder / "problems" / "mine", problem_id="mine", submission=SCHEMA, scorer=SCORER)
        for number, label in enumerate((STRINGS[0], "second")):
            apart(partial(play, partial(self._attempt, one, number, label)))
            apart(partial(self.ask, "problem", "replay", _attempt_id(number), "--problem", one.manifest.path))
        return self

    async def _seed(self) -> None:
        async with self.runtime(mode="auto") as runtime:
            service = runtime.runner
            light = [proposal(("odd.weigh", {"kilos": kilos}), rationale="Lighter.") for kilos in (4, 3, 1.5)]
            weighed = mission(
                directive="Make it light enough to carry",
                criteria=[metric("mass", source="odd.weigh") <= 2],
                budget=Budget(max_iterations=20, max_tool_calls=100),
                proposer=replay(*light),
            )
            self.missions["done"] = (await runtime.pursue(weighed)).session_id
            everything = range(len(STRINGS) + len(DOCUMENTS))
            said = [
                proposal(
                    *(("odd.say", {"place": one}) for one in everything[first : first + 20]), rationale=STRINGS[first]
                )
                for first in everything[::20]
            ]
            odd = mission(directive=STRINGS[1], budget=Budget(max_iterations=5), proposer=replay(*said))
            self.missions["hostile"] = (await runtime.pursue(odd)).session_id
            child = {
                "directive": STRINGS[3],
                "criteria": [
                    {"criterion_id": "c", "kind": "metric_threshold", "metric": "mass", "op": ">=", "target": 1}
                ],
                "budget": {"max_iterations": 2},
                "tool_allowlist": ["odd.weigh"],
                "proposer": {"kind": "repeat", "tool_name": "odd.weigh", "args": {}},
            }
            parent = mission(
                directive="Lead a fleet",
                fleet={},
                criteria=[metric("mass", source=SPAWN) >= 1],
                budget=Budget(max_iterations=10),
                proposer=replay(proposal((SPAWN, child), (SPAWN, {**child, "directive": "The other child"}))),
            )
            self.missions["fleet"] = (await runtime.pursue(parent)).session_id
            stepped = mission(
                directive="Go step by step", budget=Budget(max_iterations=9), proposer=repeat("odd.weigh")
            )
            self.missions["stepped"] = (await service.start(stepped)).session_id
            await service.iterate(self.missions["stepped"], iterations=2)
            stopped = (await service.start(mission(directive=STRINGS[4], proposer=repeat("odd.weigh")))).session_id
            await service.abort(stopped, reason=STRINGS[6])
            task = await runtime.tasks.run(["printf", "%s\\n%s\\n%s", COLOURS, *STRINGS[:2]], title=STRINGS[2])
            self.task = (await runtime.tasks.wait(task.task_id)).task_id
        async with self.runtime() as runtime:  # with questions
            for number, note in enumerate((STRINGS[0], *STRINGS[20:22])):
                asks = mission(
                    directive="Ship it" if number else STRINGS[5],
                    criteria=[event("shipped")],
                    budget=Budget(max_iterations=3),
                    proposer=replay(proposal(("odd.ship", {"note": note}))),
                    policy={"ask": ["odd.ship"]},
                )
                waits = (await runtime.pursue(asks)).session_id
                self.missions[f"waiting-{number}"] = waits
                (asked,) = (await runtime.runner.status(waits)).as_json()["pending_approvals"]
                self.approvals.append(asked["approval_id"])

    async def _attempt(self, one: Any, number: int, label: str) -> None:
        ledger, now = SqliteLedger.open(self.ledger), time.time()
        await Attempt(ledger, lambda: now - 100, one.manifest, _attempt_id(number), label=label).open()
        attempt = Attempt(ledger, lambda: now - 40, one.manifest, _attempt_id(number))
        for _ in range(3 + number):
            await attempt.called("probe", {})
        await attempt.submit({"x": 0.3 + number})
        await ledger.close()


def _attempt_id(number: int) -> str:
    return f"attempt-{number:016x}"
