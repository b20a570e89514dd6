"""Wrong input to every tool is refused with the place that is wrong; nothing is stored and the server lives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import COMMAND
from engine_stage import play
from jsonschema import Draft202012Validator
from mcp import Client
from wrong_input import DEEP, HUGE, Wrong, nested, wrong_variants

from pursuit import Runtime
from pursuit.surfaces.mcp.server import mission_server
from pursuit.surfaces.mcp.stdio import LONGEST_LINE
from pursuit.tools.configuration import Configuration

LEGACY, MODERN = "legacy", "2026-07-28"
ID = "mission-0123456789abcdef"
LEAST_CASES = 1_000

CRITERIA: list[dict[str, Any]] = [
    {"kind": "metric_threshold", "metric": "m", "op": "<", "target": 2.5, "source": "weigh", "scope": "mission"},
    {"kind": "metric_trend", "metric": "m", "direction": "increasing", "window": 9, "min_points": 3, "source": "*"},
    {"kind": "event", "event_name": "e", "source": "demo.*", "scope": "iteration"},
    {"kind": "tool_call_succeeded", "tool_name": "weigh", "min_count": 2},
    {"kind": "predicate", "expression": "obs['iteration'] > 1"},
    {
        "kind": "check",
        "tool_name": "weigh",
        "args": {"kilos": 2},
        "timeout": 5,
        "idempotent": True,
        "expect": {
            "predicate": "True",
            "file": "f",
            "count": {"pattern": "a", "op": ">", "target": 2},
            "text": "a+",
        },
        "when": "checkpoint",
    },
]
START: dict[str, Any] = {
    "directive": "Weigh it",
    "criteria": [{"criterion_id": f"c{place}", "required": True, **one} for place, one in enumerate(CRITERIA)],
    "budget": {
        "max_iterations": 5,
        "max_wall_clock_seconds": 60.5,
        "max_tool_calls": 9,
        "max_tokens": 1,
        "max_cost_usd": 0.5,
        "on_exhausted": "wait",
        "unbounded": False,
    },
    "tool_allowlist": ["demo.weigh"],
    "allow_all_tools": False,
    "checkpoint_cadence": {"kind": "every_n_iterations", "n": 2},
    "stagnation_threshold": 4,
    "pace": {"seconds": 0.5, "backoff": 2, "max_seconds": 9},
    "observe": [
        {"tool": "weigh", "metric": "m", "jmespath": "a.b"},
        {"tool": "demo.*", "metric": "n", "regex": "m=([0-9]+)"},
    ],
    "proposer": {"kind": "repeat", "tool_name": "weigh", "args": {"kilos": 2}},
    "allow_scripted_strategies": True,
    "policy": {"deny": ["demo.ship"]},
    "use_sampling": False,
    "sampling_model_preferences": {"hints": [{"name": "small"}]},
}
PROPOSAL: dict[str, Any] = {"tool_calls": [{"tool_name": "weigh", "args": {"kilos": 2}}], "rationale": "because"}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "mission_start": [
        START,
        {
            **START,
            "checkpoint_cadence": {"kind": "every_t_seconds", "t": 2.5},
            "proposer": {"kind": "replay", "proposals": [PROPOSAL, {"script": "weigh(kilos=1)"}]},
        },
        {
            **START,
            "checkpoint_cadence": {"kind": "on_event", "event_name": "e"},
            "proposer": {"kind": "script", "script": "weigh(kilos=1)"},
        },
        {**START, "checkpoint_cadence": {"kind": "every_iteration"}, "proposer": {"kind": "client"}, "pace": 2},
    ],
    "mission_status": [{"session_id": ID}],
    "mission_iterate": [
        {"session_id": ID, "max_iterations_this_call": 2, "proposal": PROPOSAL, "background": False, "after": 0},
        {"session_id": ID, "proposal": {"script": "weigh(kilos=1)"}},
    ],
    "mission_checkpoint": [{"session_id": ID}],
    "mission_complete": [{"session_id": ID, "reason": "enough"}],
    "mission_abort": [{"session_id": ID, "pause": False, "reason": "enough"}],
    "mission_resume": [{"session_id": ID}],
    "mission_history": [{"session_id": ID, "format": "full", "cursor": "0"}],
    "mission_list": [{"status": "running", "cursor": "abc"}],
}


def start(**changes: Any) -> dict[str, Any]:
    return {**START, **changes}


def criterion(place: int, **changes: Any) -> dict[str, Any]:
    """The example with one criterion changed."""
    rows = [{**row, **changes} if at == place else row for at, row in enumerate(START["criteria"])]
    return start(criteria=rows)


def propose(*calls: tuple[str, Any], **more: Any) -> dict[str, Any]:
    named = {"tool_calls": [{"tool_name": name, "args": args} for name, args in calls]} if calls else {}
    return {"session_id": ID, "proposal": {**named, **more}}


# Good by the schema, wrong by a rule between fields or for what tools there are: tool, arguments, field, a word.
RULES: list[tuple[str, dict[str, Any], str, str]] = [
    ("mission_start", start(criteria=[START["criteria"][0]] * 2), "criteria", "given twice: c0"),
    ("mission_start", start(budget={"max_tokens": 5}), "budget", "max_iterations or max_wall_clock_seconds"),
    ("mission_start", start(allow_all_tools=True), "tool_allowlist", "exactly one"),
    ("mission_start", start(tool_allowlist=None), "tool_allowlist", "exactly one"),
    ("mission_start", start(tool_allowlist=["demo.nope"]), "tool_allowlist[0]", "nope"),
    ("mission_start", start(tool_allowlist=["nowhere.*"]), "tool_allowlist[0]", "nowhere"),
    ("mission_start", start(use_sampling=True), "use_sampling", "leave it out"),
    ("mission_start", start(policy={"deny": ["demo.nope"]}), "policy.deny[0]", "nope"),
    ("mission_start", start(policy={"deny": ["demo.*"]}), "policy.deny", "every tool"),
    ("mission_start", start(observe=[{"tool": "weigh", "metric": "m"}]), "observe[0]", "exactly one"),
    ("mission_start", start(observe=[{"tool": "a", "metric": "m", "regex": "("}]), "observe[0].regex", "regular"),
    ("mission_start", start(observe=[{"tool": "a", "metric": "m", "jmespath": "a["}]), "observe[0].jmespath", "parse"),
    ("mission_start", start(observe=[{"tool": "nope", "metric": "m", "regex": "a"}]), "observe[0].tool", "nope"),
    ("mission_start", start(proposer="repeat"), "proposer.tool_name", "missing"),
    ("mission_start", start(proposer="clinet"), "proposer", "did you mean 'client'"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"kilos": "x"}}), "proposer.args", "kilos"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"a": DEEP}}), "proposer.args", "100 levels"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"a": "\ud800"}}), "proposer.args", "Unicode"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"\ud800": 1}}), "proposer.args", "Unicode"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"a": 10**3_010}}), "proposer.args", "digits"),
    ("mission_start", start(proposer={"kind": "script", "script": "x = ("}), "proposer.script", "line 1, column 5"),
    ("mission_start", start(sampling_model_preferences={"a": DEEP}), "sampling_model_preferences", "100 levels"),
    ("mission_start", criterion(0, command=["true"]), "criteria[0].command", "cannot run a command"),
    ("mission_start", criterion(5, command=["true"]), "criteria[5].command", "cannot run a command"),
    ("mission_start", criterion(5, cwd="/"), "criteria[5].cwd", "cannot run a command"),
    ("mission_start", criterion(5, check="named"), "criteria[5]", "exactly one"),
    ("mission_start", criterion(5, tool_name=None), "criteria[5]", "exactly one"),
    ("mission_start", criterion(5, tool_name="nope"), "criteria[5].tool_name", "nope"),
    ("mission_start", criterion(5, args={"kilos": []}), "criteria[5].args", "kilos"),
    ("mission_start", criterion(5, tool_name=None, args={}, check="named"), "criteria[5].check", "configuration"),
    ("mission_start", criterion(1, min_points=10), "criteria[1]", "cannot exceed window"),
    ("mission_start", criterion(0, source="nope"), "criteria[0].source", "nope"),
    ("mission_start", criterion(0, metric="metrics."), "criteria[0].metric", "names no metric"),
    ("mission_start", criterion(3, tool_name="nope"), "criteria[3].tool_name", "nope"),
    ("mission_start", criterion(4, expression="(" * 200), "criteria[4].expression", "100 brackets"),
    ("mission_start", criterion(4, expression="a b"), "criteria[4].expression", "no valid Python"),
    ("mission_iterate", {"session_id": ID, "proposal": {}}, "proposal", "exactly one of tool_calls and script"),
    ("mission_iterate", propose(("weigh", {}), script="1"), "proposal", "exactly one of tool_calls and script"),
    ("mission_iterate", propose(("weigh", {}), ("nope", {})), "proposal.tool_calls[1].tool_name", "nope"),
    ("mission_iterate", propose(("ship", {})), "proposal.tool_calls[0].tool_name", "ship"),
    ("mission_iterate", propose(("weigh", {"kilos": "x"})), "proposal.tool_calls[0].args", "kilos"),
    ("mission_iterate", propose(("weigh", {"kilos": HUGE})), "proposal.tool_calls[0].args", "kilos"),
    ("mission_iterate", propose(("weigh", {"a": DEEP})), "proposal.tool_calls[0].args", "100 levels"),
    ("mission_iterate", propose(script="weigh("), "proposal.script", "no valid Python"),
    ("mission_iterate", propose(script="weigh()"), "proposal.script", "allow_scripted_strategies"),
]


def weigh(kilos: float = 3, note: dict[str, Any] | None = None) -> dict[str, Any]:
    """Says what it weighs."""
    return {"metrics": {"mass": kilos}}


def ship() -> str:
    """Sends it off."""
    return "gone"


class Stage:
    """A server with one mission that waits for its client to propose."""

    def __init__(self, runtime: Runtime, client: Client, mission_id: str) -> None:
        self.runtime, self.client, self.mission_id = runtime, client, mission_id

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        if arguments.get("session_id") == ID:
            arguments = {**arguments, "session_id": self.mission_id}
        result = await self.client.call_tool(tool, arguments)
        body = result.structured_content
        assert isinstance(body, dict)
        return result.is_error, body

    async def root(self) -> str:
        return await self.runtime.service.ledger.root()


@asynccontextmanager
async def stage(folder: Path, era: str) -> AsyncIterator[Stage]:
    here = Runtime(state=folder / "ledger.db", config=Configuration(), servers={"demo": [weigh, ship]})
    async with here as runtime, mission_server(runtime) as server, Client(server, mode=era) as client:
        known = START["criteria"][:1]
        mission = start(criteria=known, proposer="client", pace=None, policy=None, allow_scripted_strategies=False)
        started = await client.call_tool("mission_start", {**mission, "checkpoint_cadence": {"kind": "every_iteration"}})
        assert started.structured_content is not None
        yield Stage(runtime, client, started.structured_content["session_id"])


async def corpus(client: Client) -> list[Wrong]:
    """What is wrong by each tool's own schema, and by the rules that no schema holds."""
    declared = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert declared.keys() == EXAMPLES.keys()
    made = [case for name in declared for case in wrong_variants(name, declared[name], EXAMPLES[name])]
    made += [Wrong(tool=tool, how=word, arguments=given, field=at, word=word) for tool, given, at, word in RULES]
    return made


def complaint(case: Wrong, failed: bool, body: dict[str, Any]) -> str | None:
    """What is wrong with how a wrong call was refused."""
    if not failed:
        return "was accepted"
    if body["code"] != "validation_error":
        return f"has code {body['code']}"
    faults = body["details"]["faults"]
    here = [fault["reason"] for fault in faults if fault["field"] == case.field]
    if not any(case.word in reason for reason in here):
        return f"says nothing of {case.field} ({case.word}), but {faults[:3]}"
    if len(json.dumps(body)) > 20_000:
        return f"is told at length: {len(json.dumps(body))}"
    return None


@pytest.mark.guarantee("wrong-input-stores-nothing")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_wrong_input_to_every_tool_is_refused_by_name_and_stores_nothing(era: str, tmp_path: Path) -> None:
    async def scene() -> None:
        complaints: list[str] = []
        async with stage(tmp_path, era) as here:
            cases = await corpus(here.client)
            assert len(cases) >= LEAST_CASES
            assert {case.tool for case in cases} == EXAMPLES.keys()
            before = await here.root()
            for case in cases:
                failed, body = await here.call(case.tool, case.arguments)
                wrong = complaint(case, failed, body)
                if wrong is None and await here.root() != before:
                    wrong = "has stored something"
                if wrong is not None:
                    complaints.append(f"{case.tool} {case.how}: {wrong}"[:500])
                    before = await here.root()
            listed = (await here.call("mission_list", {}))[1]
            assert [row["session_id"] for row in listed["sessions"]] == [here.mission_id]
        assert not complaints, "\n".join([f"{len(complaints)} of {len(cases)}", *complaints[:40]])

    play(scene)
