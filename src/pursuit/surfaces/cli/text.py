"""Words and numbers as this command line prints them.

Owns: cleaning and wording of single values. Knows neither a terminal nor a mission's meaning.
Invariant: what comes out holds no control characters, so that no text of a mission can steer a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SIGNS = {"<=": "\u2264", ">=": "\u2265", "!=": "\u2260", "==": "="}
MARKS = {"met": "\u2713", "unmet": "\u2717", "inconclusive": "?"}
EXIT = {"completed": 0, "terminated": 3, "waiting": 4, "paused": 4, "failed": 1}
"""The exit code of a command that drove a mission, by the status it left it in; any other status is 0."""

ENDED = ("completed", "terminated")
"""The statuses of a mission that is over."""


def counted(number: int, what: str) -> str:
    """So many of them: `1 call`, `2 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def clean(value: object) -> str:
    """Text without control characters."""
    return _CONTROL.sub("\ufffd", str(value))


def line(value: object, most: int | None = None) -> str:
    """Text on one line, cut to so many characters."""
    flat = " ".join(clean(value).split())
    return flat if most is None or len(flat) <= most else f"{flat[: most - 1].rstrip()}\u2026"


def sign(op: str) -> str:
    """A comparison as a person writes it."""
    return _SIGNS.get(op, op)


def of_cap(used: str, cap: str | None) -> str:
    """How much of how much."""
    return used if cap is None else f"{used} of {cap}"


def budget_parts(budget: Mapping[str, Any]) -> list[tuple[str, str, str | None, str | None]]:
    """Each part of a budget that has a cap or was used: its name, what was used, the cap, what is left."""
    from pursuit.reports.wording import figure, span  # noqa: PLC0415 - the report's words load with it

    rows = (
        ("iterations", "max_iterations", "iterations", figure),
        ("tool calls", "max_tool_calls", "tool_calls", figure),
        ("wall clock", "max_wall_clock_seconds", "wall_clock_seconds", span),
        ("tokens", "max_tokens", "tokens", figure),
        ("cost in USD", "max_cost_usd", "cost_usd", figure),
    )
    found: list[tuple[str, str, str | None, str | None]] = []
    for label, cap_name, used_name, words in rows:
        cap, used = budget[cap_name], budget["used"][used_name]
        if used is None:  # a cost that nobody knows
            found.append((label, "unknown", None if cap == -1 else words(cap), None))
            continue
        if cap == -1 and label in ("tokens", "cost in USD") and not used:
            continue
        capped = cap != -1
        found.append(
            (label, words(used), words(cap) if capped else None, words(max(0, cap - used)) if capped else None)
        )
    return found
