"""The JSON Schemas of what the tools take and give.

Owns: the declared shapes. Knows no handler. Invariant: what `arguments` refuses, the input schema does not promise,
and every answer that is no error fits its output schema.
"""

from __future__ import annotations

from typing import Any, cast

from pursuit.core.base_model import LARGEST, InputModel
from pursuit.core.events import Verdict, WaitingFor
from pursuit.core.mission import CAPS, MAX_STAGNATION
from pursuit.core.patterns import MAX_EXPRESSION, MAX_PATH, MAX_PATTERN, MAX_SCRIPT
from pursuit.core.state import STATUSES
from pursuit.surfaces.mcp.arguments import Start

Schema = dict[str, Any]

NO_CAP = -1
LENGTHS = (
    ("Predicate", "expression", 1, MAX_EXPRESSION),
    ("Expectation", "predicate", 1, MAX_EXPRESSION),
    ("ScriptProposer", "script", 1, MAX_SCRIPT),
    ("Proposal", "script", 1, MAX_SCRIPT),
    ("ObserveRule", "regex", 0, MAX_PATTERN),
    ("ObserveRule", "jmespath", 1, MAX_PATH),
)

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "description": "ISO 8601, UTC"}
ANYTHING: Schema = {}
SESSION: Schema = {"type": "string", "pattern": "^mission-[0-9a-f]{16}$"}
STATUS: Schema = {"type": "string", "enum": list(STATUSES)}
VERDICT: Schema = {"type": "string", "enum": list(cast("Any", Verdict).__args__)}
WAITING_FOR: Schema = {"type": "string", "enum": list(cast("Any", WaitingFor).__args__)}


def listed(items: Schema) -> Schema:
    """An array of these."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these keys; more may come in later releases."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


NULLABLE_TEXT: Schema = {"type": ["string", "null"]}
BUDGET = record(
    {
        "max_iterations": NUMBER,
        "max_wall_clock_seconds": NUMBER,
        "max_tool_calls": NUMBER,
        "max_tokens": NUMBER,
        "max_cost_usd": NUMBER,
        "used": record(
            {
                "iterations": COUNT,
                "wall_clock_seconds": NUMBER,
                "tool_calls": COUNT,
                "tokens": COUNT,
                "cost_usd": {"type": ["number", "null"], "description": "null: nobody knows"},
            }
        ),
    },
    {"on_exhausted": TEXT},
)
CRITERION = record(
    {"criterion_id": TEXT, "kind": TEXT, "required": FLAG, "status": TEXT},
    {"evidence": ANYTHING, "source": ANYTHING, "text": TEXT},
)
VERDICT_ROW = record({"iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT})

STARTED = record(
    {
        "session_id": SESSION,
        "status": STATUS,
        "use_sampling": FLAG,
        "sampling_backend_resolved": NULLABLE_TEXT,
        "proposer": TEXT,
        "warnings": listed(TEXT),
    }
)
STATE = record(
    {
        "session_id": SESSION,
        "status": STATUS,
        "directive": TEXT,
        "criteria": listed(CRITERION),
        "budget": BUDGET,
        "tool_allowlist": listed(TEXT),
        "iteration_count": COUNT,
        "no_progress_counter": COUNT,
        "created_at": TIME,
        "pending_approvals": listed(ANYTHING),
    },
    {
        "waiting_for": WAITING_FOR,
        "waiting_detail": TEXT,
        "waiting_until": TIME,
        "proposer": TEXT,
        "metrics": {"type": "object"},
        "best": {"type": "object"},
        "warnings": listed(TEXT),
        "verdict": VERDICT,
        "verdict_reason": TEXT,
        "rationale": TEXT,
        "started_at": TIME,
        "ended_at": TIME,
        "failure": TEXT,
        "report": {"type": "string", "description": "The resource with the final report."},
        "parent": SESSION,
        "children": listed(record({"session_id": SESSION, "status": TEXT, "reserved": ANYTHING, "used": ANYTHING})),
    },
)
ITERATED = record(
    {"session_id": SESSION, "status": STATUS, "iterations": listed(VERDICT_ROW)},
    {"pending_approvals": listed(ANYTHING)},
)
CHECKPOINT = record({"session_id": SESSION, "iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT})
WHERE = record({"session_id": SESSION, "status": STATUS})
HISTORY = record(
    {
        "session_id": SESSION,
        "iterations": listed(
            record(
                {"iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT},
                {
                    "started_at": TIME,
                    "ended_at": TIME,
                    "strategy": {"type": "object"},
                    "calls": listed({"type": "object"}),
                    "observation": {"type": "object"},
                    "criteria": listed({"type": "object"}),
                },
            )
        ),
    },
    {"next_cursor": TEXT},
)
LISTING = record(
    {
        "sessions": listed(
            record(
                {
                    "session_id": SESSION,
                    "status": STATUS,
                    "created_at": TIME,
                    "iteration_count": COUNT,
                    "directive": TEXT,
                },
                {"waiting_for": WAITING_FOR, "parent": SESSION},
            )
        )
    },
    {"next_cursor": TEXT},
)


def input_schema(shape: type[InputModel], words: dict[str, str]) -> Schema:
    """The arguments as JSON Schema, with a word on each for whoever fills them in."""
    schema = cast("Schema", _plain(shape.model_json_schema()))
    schema.pop("description", None)
    for definition in cast("dict[str, Schema]", schema.get("$defs", {})).values():
        if "const" in definition["properties"].get("kind", {}):
            definition["required"] = ["kind", *definition.get("required", ())]
            definition["properties"]["kind"].pop("default", None)
    _bounded(schema)
    if shape is Start:
        _stricter(schema)
    for name, text in words.items():
        schema["properties"][name]["description"] = text
    return schema


def _plain(value: Any) -> Any:
    """What pydantic says in the words of JSON Schema alone, without titles and other things that help nobody."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    plain: Schema = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key == "properties":
            plain[key] = {name: _plain(inner) for name, inner in item.items()}
        elif not _is_noise(key, item):
            plain[_WORDS.get(key, key)] = _plain(item)
    return plain


# Bounds beside a validator of ours keep pydantic's own names.
_WORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _is_noise(key: str, item: Any) -> bool:
    return (
        key in ("title", "discriminator")
        or (key == "default" and (item is None or isinstance(item, dict)))
        or (key in _WORDS and abs(item) >= LARGEST)
    )


def _bounded(schema: Schema) -> None:
    """The lengths of code and patterns, which validators of ours look at."""
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    for name, field, least, most in LENGTHS:
        if name in definitions:
            declared = definitions[name]["properties"][field]
            text = next((form for form in declared.get("anyOf", ()) if form["type"] == "string"), declared)
            text.update(minLength=least, maxLength=most)


def _stricter(schema: Schema) -> None:
    """What is asked of a client and not of a mission file, and what validators of ours add."""
    definitions = cast("dict[str, Schema]", schema["$defs"])
    for definition in definitions.values():
        if "criterion_id" in definition["properties"]:
            definition["required"].append("required")
            definition["properties"]["required"].pop("default", None)
    for field in ("command", "cwd"):
        definitions["Check"]["properties"].pop(field)
    for cap in CAPS:
        declared = definitions["Budget"]["properties"][cap]
        real = {"type": declared.pop("type"), "exclusiveMinimum": 0}
        declared["anyOf"] = [real, {"const": NO_CAP}]
    properties = schema["properties"]
    properties["pace"]["anyOf"].insert(1, definitions["Pace"]["properties"]["seconds"])
    properties["proposer"]["oneOf"].append({"const": "client"})
    schema["properties"]["stagnation_threshold"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_STAGNATION}, {"enum": ["off", None]}]
    }
