"""Mission files from plain data: a test names what matters to it, the rest is the least that a mission needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pursuit.config.files import as_toml

RECORDER = Path(__file__).parents[1] / "servers" / "recorder.py"
NEVER = {"criterion_id": "never", "kind": "event", "event_name": "never"}
IDLE = {"kind": "replay", "proposals": [{"tool_calls": []}]}


def succeeded(tool: str, **more: Any) -> dict[str, Any]:
    return {"criterion_id": "done", "kind": "tool_call_succeeded", "tool_name": tool, **more}


def threshold(metric: str, op: str, target: float) -> dict[str, Any]:
    return {"criterion_id": metric, "kind": "metric_threshold", "metric": metric, "op": op, "target": target}


def calls(name: str, *each: Mapping[str, Any]) -> dict[str, Any]:
    """A proposer that makes one call of a tool in each iteration."""
    return {"kind": "replay", "proposals": [{"tool_calls": [{"tool_name": name, "args": args}]} for args in each]}


def recorder(record: Path, **tools: Any) -> str:
    """A configuration with the server `rec`, which records each execution; nobody is asked."""
    server = {"command": "__python_executable__", "args": [str(RECORDER)], "env": {"RECORD": str(record)}}
    return as_toml({"servers": {"rec": {**server, "tools": tools}}, "policy": {"mode": "auto"}})


def mission_file(
    tools: str | list[str],
    *criteria: Mapping[str, Any],
    iterations: int = 1,
    args: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """A mission that repeats a call of its tool until it succeeded, unless told otherwise; tables may follow."""
    tool, *_ = allowed = [tools] if isinstance(tools, str) else tools
    table = {
        "directive": "Take steps",
        "tool_allowlist": allowed,
        "criteria": criteria or [succeeded(tool)],
        "budget": {"max_iterations": iterations},
        "proposer": {"kind": "repeat", "tool_name": tool, "args": args or {}},
        **more,
    }
    return as_toml(table)
