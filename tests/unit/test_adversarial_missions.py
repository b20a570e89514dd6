"""Missions made to be misjudged, through the engine: `tests/data/adversarial_missions.toml` says how each must end."""

from __future__ import annotations

import json
import tomllib
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, proposal, replay, stage

DATA = Path(__file__).parent.parent / "data" / "adversarial_missions.toml"
CASES: dict[str, dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))
KEYS = ("tool_allowlist", "observe", "checkpoint_cadence", "stagnation_threshold", "policy", "pace", "budget")


class World:
    """The tools of a mission: each answers what the case says, in order, and then the last answer again."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[Any]] = {}

    def set(self, calls: list[list[dict[str, Any]]], checks: list[Any]) -> None:
        made = [one for calls_of in calls for one in calls_of]
        self._answers = {name: deque(o for o in made if o.get("tool", "a") == name) for name in "ab"}
        self._answers["verify"] = deque(checks)

    def _next(self, name: str) -> Any:
        left = self._answers[name]
        answer = left.popleft() if len(left) > 1 else left[0]
        if isinstance(answer, str):
            return json.loads(answer)
        if "fails" in answer:
            raise ValueError(answer["fails"])
        if "json" in answer:
            return json.loads(answer["json"])
        events = [{"event_name": name} for name in answer.get("events", ())]
        return {"metrics": answer.get("metrics", {}), "events": events, **answer.get("more", {})}

    def a(self, x: float = 0) -> Any:
        """The tool that most calls are of."""
        return self._next("a")

    def b(self, x: float = 0) -> Any:
        """Another tool."""
        return self._next("b")

    def verify(self) -> Any:
        """The tool of checks."""
        return self._next("verify")


def iterations(case: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The calls of each iteration; `times` repeats one."""
    found: list[list[dict[str, Any]]] = []
    for step in case["steps"]:
        calls = step if isinstance(step, list) else [step]
        found += [calls] * calls[0].get("times", 1)
    return found


@pytest.mark.guarantee("progress-in-own-terms")
async def test_each_mission_ends_as_it_must(tmp_path: Path) -> None:
    wrong: list[str] = []
    world = World()
    async with stage(tmp_path, world.a, world.b, world.verify) as runtime:
        for name, case in CASES.items():
            calls = iterations(case)
            world.set(calls, case.get("checks", []))
            asked = [[(f"world.{o.get('tool', 'a')}", {"x": o.get("x", 0)}) for o in each] for each in calls]
            given = {"tool_allowlist": ["world.*"], "stagnation_threshold": None, "budget": {}}
            given |= {key: case[key] for key in KEYS if key in case}
            given["budget"] = {"max_iterations": len(calls), **given["budget"]}
            criteria = [
                {"criterion_id": f"c{place}", **one, **({"cwd": str(tmp_path)} if "command" in one else {})}
                for place, one in enumerate(case["criteria"])
            ]
            proposer = replay(*(proposal(*each) for each in asked))
            report = await runtime.pursue(mission(criteria=criteria, proposer=proposer, **given))
            found = [report.status, report.verdict_reason, report.data["iteration_count"]]
            said = json.dumps(report.data)
            if found != case["ends"] or not all(word in said for word in case.get("says", ())):
                wrong.append(f"{name}: {found}, not {case['ends']}: {report.data.get('rationale')}")
    assert not wrong, "\n".join(wrong)
    assert len(CASES) >= 40
