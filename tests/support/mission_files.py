"""Mission files from plain data: a test names what matters to it, the rest is the least that a mission needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.config.files import as_toml

NEVER = {"criterion_id": "never", "kind": "event", "event_name": "never"}
IDLE = {"kind": "replay", "proposals": [{"tool_calls": []}]}


def succeeded(tool: str, **more: Any) -> dict[str, Any]:
    return {"criterion_id": "done", "kind": "tool_call_succeeded", "tool_name": tool, **more}


def threshold(metric: str, op: str, target: float) -> dict[str, Any]:
    return {"criterion_id": metric, "kind": "metric_threshold", "metric": metric, "op": op, "target": target}


def calls(name: str, *each: Mapping[str, Any]) -> dict[str, Any]:
    """A proposer that makes one call of a tool in each iteration."""
    return {"kind": "replay", "proposals": [{"tool_calls": [{"tool_name": name, "args": args}]} for args in each]}


def mission_file(
    tool: str,
    *criteria: Mapping[str, Any],
    iterations: int = 1,
    args: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """A mission that repeats a call of the tool until it succeeded, unless told otherwise; tables may follow."""
    table = {
        "directive": "Take steps",
        "tool_allowlist": [tool],
        "criteria": criteria or [succeeded(tool)],
        "budget": {"max_iterations": iterations},
        "proposer": {"kind": "repeat", "tool_name": tool, "args": args or {}},
        **more,
    }
    return as_toml(table)
