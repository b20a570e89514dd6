"""Writes the ledger that a release leaves behind, so that later releases are tested on it.

Run once for each release that changes an event:  python tests/data/make_ledger.py tests/data/ledger-VERSION
It makes ledger-VERSION.db and ledger-VERSION.json, what every mission in it looked like then.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio

from pursuit import Budget, Mission, Pace, Proposal, Runtime, check, event, metric, predicate, tool
from pursuit.config.configuration import Configuration
from pursuit.sandbox import leave


@tool(read_only=True)
def look(x: float) -> dict[str, Any]:
    """A number that falls."""
    return {"metrics": {"loss": 10 / (1 + x), "scores": [{"f1": x}]}, "events": [{"event_name": "looked", "x": x}]}


def fail(why: str) -> str:
    """Never works."""
    raise ValueError(why)


def large() -> str:
    """More than an event holds."""
    return "x" * 40_000


def missions() -> list[tuple[Mission, list[Proposal]]]:
    """One of each kind."""
    common: dict[str, Any] = {"budget": Budget(max_iterations=6), "allow_all_tools": True}
    scripted = "look = world.look(state.iteration)\nstate.memory['n'] = state.iteration\nmission.observe('n', 1)"
    calls = Proposal.model_validate(
        {"tool_calls": [{"tool_name": "look", "args": {"x": 9}}, {"tool_name": "fail", "args": {"why": "so"}}]}
    )
    return [
        (
            Mission(
                directive="Scripted",
                criteria=[metric("loss") <= 3, predicate("obs['metrics']['n'] == 1")],
                proposer={"kind": "script", "script": scripted},
                **common,
            ),
            [],
        ),
        (
            Mission(
                directive="Repeated",
                criteria=[event("never")],
                proposer={"kind": "repeat", "tool_name": "large"},
                **common,
            ),
            [],
        ),
        (
            Mission(
                directive="Checked",
                criteria=[check("look", {"x": 1}, text="loss")],
                proposer={"kind": "repeat", "tool_name": "look", "args": {"x": 1}},
                pace=Pace(seconds=0.01),
                **common,
            ),
            [],
        ),
        (
            Mission(
                directive="Proposed",
                criteria=[event("never"), metric("scores.0.f1").trend("increasing").optional()],
                **common,
            ),
            [calls, calls],
        ),
    ]


async def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "ledger.db"
        seen: dict[str, Any] = {}
        async with Runtime(state=state, config=Configuration(), servers={"world": [look, fail, large]}) as runtime:
            for mission, proposals in missions():
                mission_id = (await runtime.runner.start(mission)).session_id
                for proposal in proposals:
                    await runtime.runner.iterate(mission_id, proposal=proposal)
                if proposals:
                    await runtime.runner.pause(mission_id, reason="lunch")
                    await runtime.runner.extend(mission_id, {"max_iterations": 9})
                else:
                    await runtime.runner.run(mission_id)
                seen[mission_id] = (await runtime.runner.status(mission_id)).as_json()
            root = await runtime.runner.ledger.root()
        with closing(sqlite3.connect(state)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        target.with_suffix(".db").write_bytes(state.read_bytes())
    target.with_suffix(".json").write_text(json.dumps({"root": root, "missions": seen}, indent=1) + "\n")


if __name__ == "__main__":
    platform.node = lambda: "example"  # the name of the machine that makes it is nobody's business
    anyio.run(main, Path(sys.argv[1] + ".x"))
    leave(0)
