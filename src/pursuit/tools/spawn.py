"""The tool that starts a child mission, as a proposer sees it.

Owns: its name, its words and its schema. Knows no mission: what a child may be is decided where it is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.model.fleet import FLEET, SPAWN
from pursuit.tools.contract import Tool, Traits

_OBJECT: Mapping[str, Any] = {"type": "object"}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "directive": {"type": "string", "description": "The child's goal in words."},
        "criteria": {"type": "array", "items": _OBJECT, "minItems": 1, "description": "As those of any mission."},
        "budget": {
            "type": "object",
            "description": "Taken out of this mission's own; each cap that this mission has must be given.",
        },
        "tool_allowlist": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Some of this mission's tools; all of them if left out.",
        },
        "proposer": {
            "type": ["object", "string"],
            "description": "Who proposes; a model's is its parent's by default.",
        },
        "checkpoint_cadence": _OBJECT,
        "stagnation_threshold": {"type": ["integer", "string"]},
        "pace": {"type": ["object", "number"]},
        "observe": {"type": "array", "items": _OBJECT},
        "policy": _OBJECT,
        "fleet": {"type": "object", "description": "Lets the child start children, where this mission's depth does."},
    },
    "required": ["directive", "criteria", "budget"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Starts a child mission out of this mission's own budget and waits for its end. Several in one answer run side by "
    "side. The result has the child's session_id, status, verdict_reason, metrics and events."
)
SPAWN_TOOL = Tool(
    server=FLEET,
    name=SPAWN.partition(".")[2],
    description=_DESCRIPTION,
    input_schema=SCHEMA,
    traits=Traits(idempotent=True, parallel_safe=True, destructive=False),
    definition={"name": SPAWN.partition(".")[2], "description": _DESCRIPTION, "inputSchema": SCHEMA},
    long=True,
)
