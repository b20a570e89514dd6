"""Arguments that every tool takes, and some that a schema takes and a rule does not."""

from __future__ import annotations

from typing import Any

from wrong_input import DEEP, HUGE, nested

ID = "mission-0123456789abcdef"
TASK = f"task-{'0123456789abcdef' * 2}"

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
        "expect": {
            "predicate": "True",
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
COMMANDS = """
[commands.shout]
argv = ["echo", "-n{times}", ["--by", "{who}"], "{loud}", "{word}", "{more}", "x{factor}"]
[commands.shout.parameters]
word = { enum = ["hello", "bye"] }
times = { type = "integer", default = 2, minimum = 1, maximum = 9 }
who = { type = "string", required = false, min_length = 2, max_length = 20 }
loud = { type = "boolean", flag = "--loud" }
more = { type = "array", items = { type = "string", max_length = 10 }, max_items = 3, default = [] }
factor = { type = "number", default = 1.5 }
"""
SHOUT: dict[str, Any] = {"word": "bye", "times": 3, "who": "me", "loud": True, "more": ["a", "b c"], "factor": 2.5}
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
    "mission_tools": [{"session_id": ID, "names": ["demo.*"]}],
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
    "task_status": [{"task_id": TASK, "cursor": "abc"}],
    "task_tail": [{"task_id": TASK, "lines": 5}],
    "task_cancel": [{"task_id": TASK, "reason": "enough"}],
    "task_wait": [{"task_id": TASK, "timeout_seconds": 1.5}],
    "shout": [SHOUT],
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
    ("mission_start", start(tool_allowlist=None), "tool_allowlist", "exactly one"),
    ("mission_start", start(tool_allowlist=["demo.nope"]), "tool_allowlist[0]", "nope"),
    ("mission_start", start(tool_allowlist=["nowhere.*"]), "tool_allowlist[0]", "nowhere"),
    ("mission_start", start(use_sampling=True), "use_sampling", "leave it out"),
    ("mission_start", start(sampling_model_preferences={"costPriority": 2}), "sampling_model_preferences", "0 to 1"),
    ("mission_start", start(policy={"deny": ["demo.nope"]}), "policy.deny[0]", "nope"),
    ("mission_start", start(policy={"deny": ["demo.*"]}), "policy.deny", "every tool"),
    ("mission_start", start(observe=[{"tool": "nope", "metric": "m", "regex": "a"}]), "observe[0].tool", "nope"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"kilos": "x"}}), "proposer.args", "kilos"),
    ("mission_start", start(proposer={**START["proposer"], "args": {"a": DEEP}}), "proposer.args", "100 levels"),
    ("mission_start", start(sampling_model_preferences={"a": DEEP}), "sampling_model_preferences", "100 levels"),
    ("mission_start", criterion(0, command=["true"]), "criteria[0].command", "cannot run a command"),
    ("mission_start", criterion(5, command=["true"]), "criteria[5].command", "cannot run a command"),
    ("mission_start", criterion(5, cwd="/"), "criteria[5].cwd", "cannot run a command"),
    ("mission_start", criterion(5, expect={"file": "/etc/passwd"}), "criteria[5].expect.file", "look for files"),
    ("mission_start", criterion(5, idempotent=True), "criteria[5].idempotent", "may be repeated"),
    ("mission_start", criterion(5, tool_name="nope"), "criteria[5].tool_name", "nope"),
    ("mission_start", criterion(5, args={"kilos": []}), "criteria[5].args", "kilos"),
    ("mission_start", criterion(5, tool_name=None, args={}, check="named"), "criteria[5].check", "configuration"),
    ("mission_start", criterion(0, source="nope"), "criteria[0].source", "nope"),
    ("mission_start", criterion(3, tool_name="nope"), "criteria[3].tool_name", "nope"),
    ("mission_tools", {"names": ["demo.weight"]}, "names[0]", "did you mean 'demo.weigh'"),
    ("mission_tools", {"session_id": ID, "names": ["ship"]}, "names[0]", "ship"),
    ("mission_iterate", {"session_id": ID, "proposal": {}}, "proposal", "exactly one of tool_calls and script"),
    ("mission_iterate", propose(("weigh", {}), ("nope", {})), "proposal.tool_calls[1].tool_name", "nope"),
    ("mission_iterate", propose(("weigh", {"kilos": "x"})), "proposal.tool_calls[0].args", "kilos"),
    ("mission_iterate", propose(("weigh", {"kilos": HUGE})), "proposal.tool_calls[0].args", "kilos"),
    ("mission_iterate", propose(script="weigh("), "proposal.script", "not valid Python"),
    ("mission_iterate", propose(script="weigh()"), "proposal.script", "allow_scripted_strategies"),
]


def _starts() -> list[dict[str, Any]]:
    """Missions that the schema takes, at its edges and in all its forms."""
    plain: dict[str, Any] = {
        "directive": "Weigh it",
        "criteria": START["criteria"][:1],
        "budget": {"max_iterations": 5},
        "tool_allowlist": ["demo.weigh"],
    }
    names = [{**START["criteria"][2], "criterion_id": f"c{place}"} for place in range(64)]
    changes: list[dict[str, Any]] = [
        {},
        {"directive": "ü" * 8_192},
        {"directive": "a\x00b\u2028\U0001f600"},
        *({"criteria": [row]} for row in START["criteria"]),
        {"criteria": names},
        {
            "criteria": [
                START["criteria"][0],
                {**START["criteria"][0], "criterion_id": "far", "required": False, "target": -1e308, "source": None},
            ]
        },
        {"criteria": [{**START["criteria"][0], "metric": "metrics.scores.0.f1", "target": 10**300}]},
        {"criteria": [{**START["criteria"][1], "window": 1_000, "min_points": 1_000}]},
        {"criteria": [{**START["criteria"][3], "min_count": 2**53}]},
        {"criteria": [{**START["criteria"][5], "expect": {}, "timeout": 86_400}]},
        {"criteria": [{**START["criteria"][5], "expect": {"text": None, "count": {"pattern": "a", "target": 0}}}]},
        {"budget": {"max_iterations": 1, "max_wall_clock_seconds": -1, "max_tokens": -1}},
        {"budget": {"unbounded": True}},
        {"tool_allowlist": None, "allow_all_tools": True},
        {"tool_allowlist": ["weigh", "demo.*", "*.ship"]},
        *({"checkpoint_cadence": example["checkpoint_cadence"]} for example in EXAMPLES["mission_start"]),
        *({"stagnation_threshold": value} for value in (1, 1_000, 3.0, "off", None)),
        *({"pace": value} for value in (1, 0.5, 86_400, None, {"seconds": 1, "backoff": 1, "max_seconds": None})),
        {"observe": [{"tool": "weigh", "metric": "m", "regex": "", "jmespath": None}]},
        *(
            {"proposer": example["proposer"], "allow_scripted_strategies": True}
            for example in EXAMPLES["mission_start"]
        ),
        {"proposer": {"kind": "replay", "proposals": [{"tool_calls": []}]}},
        {"proposer": {"kind": "repeat", "tool_name": "weigh", "args": {"note": {"deep": nested(90)}}}},
        {"proposer": {"kind": "repeat", "tool_name": "weigh", "args": {"note": {"large": 10**30, "": None}}}},
        {"use_sampling": False, "sampling_model_preferences": {"costPriority": 1.0}},
    ]
    return [START, *({**plain, **change} for change in changes)]


# What every schema takes; the last ones end the mission.
GOOD: list[tuple[str, dict[str, Any]]] = [
    *(("mission_start", given) for given in _starts()),
    ("mission_iterate", {"session_id": ID, "proposal": {"tool_calls": []}, "max_iterations_this_call": 1.0}),
    ("mission_iterate", {"session_id": ID, "proposal": {**PROPOSAL, "script": None, "rationale": "x" * 8_192}}),
    ("mission_iterate", {"session_id": ID, "proposal": {"tool_calls": [{"tool_name": "demo.weigh"}]}, "after": 2}),
    ("mission_iterate", {"session_id": ID, "proposal": None, "background": True, "after": 0}),
    ("mission_iterate", {"session_id": ID, "max_iterations_this_call": 1_000_000, "after": None}),
    *((tool, {"session_id": ID}) for tool in ("mission_status", "mission_checkpoint", "mission_history")),
    ("mission_tools", {}),
    ("mission_tools", {"session_id": ID, "names": ["weigh", "demo.*"]}),
    ("mission_tools", {"session_id": None, "names": None}),
    *(("mission_history", {"session_id": ID, "format": form, "cursor": "0"}) for form in ("summary", "full")),
    ("mission_history", {"session_id": ID, "cursor": None}),
    ("mission_list", {}),
    ("mission_list", {"status": None, "cursor": None}),
    *(("mission_list", {"status": status}) for status in ("pending", "running", "waiting", "completed")),
    ("task_status", {}),
    ("task_status", {"task_id": None, "cursor": None}),
    *((tool, {"task_id": TASK}) for tool in ("task_status", "task_tail", "task_cancel", "task_wait")),
    ("task_tail", {"task_id": TASK, "lines": 10_000}),
    ("task_cancel", {"task_id": TASK, "reason": None}),
    ("task_wait", {"task_id": TASK, "timeout_seconds": 86_400}),
    ("shout", {"word": "hello"}),
    ("shout", SHOUT),
    ("shout", {**SHOUT, "times": 3.0, "loud": False, "more": [], "factor": -1, "who": "a-b"}),
    ("mission_abort", {"session_id": ID, "pause": True, "reason": None}),
    ("mission_resume", {"session_id": ID}),
    ("mission_complete", {"session_id": ID, "reason": ""}),
]
