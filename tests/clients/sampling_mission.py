"""The mission that clients' models complete, and what such a model says; for clients of any version.

Knows no SDK: it needs the standard library alone.
"""

from __future__ import annotations

import json
from typing import Any

TOOL = "workshop__step"
STEPS = 3
MISSION: dict[str, Any] = {
    "directive": "Take three steps",
    "criteria": [
        {
            "criterion_id": "enough",
            "kind": "metric_threshold",
            "metric": "steps",
            "op": ">=",
            "target": STEPS,
            "required": True,
        }
    ],
    "budget": {"max_iterations": 9},
    "tool_allowlist": ["workshop.*"],
    "sampling_model_preferences": {"hints": [{"name": "tiny"}], "speedPriority": 1},
}


def args_for(number: int) -> dict[str, Any]:
    """What the model wants in its answer of this number."""
    return {"log": "sampled", "key": f"k{number}"}


def in_words(number: int) -> str:
    """The same as a model writes it that has no tools."""
    call = {"tool": TOOL, "args": args_for(number)}
    return f"One more step.\n```json\n{json.dumps({'calls': [call]})}\n```"
