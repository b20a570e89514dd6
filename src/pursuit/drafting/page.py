"""A drafted mission as a TOML file that a person reads, changes and runs.

Owns: how values are written in TOML, and the comments. Invariant: what is written is read back as the same mission.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pursuit.model.criteria import AnyCriterion

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 110


def value(item: Any) -> str:
    """A value as TOML."""
    match item:
        case bool():
            return "true" if item else "false"
        case int():
            return str(item)
        case float():
            return str(int(item)) if item.is_integer() and abs(item) < 2**53 else repr(item)
        case str():
            return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            table = cast("Mapping[str, Any]", item)
            inner = ", ".join(f"{key(name)} = {value(one)}" for name, one in table.items() if one is not None)
            return f"{{ {inner} }}" if inner else "{}"
        case _:
            return f"[{', '.join(value(one) for one in item)}]"


def key(name: str) -> str:
    """A key as TOML."""
    return name if _BARE.fullmatch(name) else value(name)


def comment(text: str) -> list[str]:
    """Words as comment lines; nothing in them can be anything else."""
    words = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text.encode(errors="replace").decode()).split()
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"# {word}")
    return lines


def criterion_lines(criterion: AnyCriterion, remarks: Sequence[str]) -> list[str]:
    """One criterion with what is to be said of it."""
    told = criterion.model_dump(exclude_defaults=True)
    row = {"criterion_id": criterion.criterion_id, "kind": criterion.kind, **told}
    body = [f"{key(name)} = {value(item)}" for name, item in row.items() if item is not None]
    return ["[[criteria]]", *(line for remark in remarks for line in comment(remark)), *body]


def mission_page(
    directive: str, criteria: Iterable[Sequence[str]], *, budget: Mapping[str, Any], proposer: str | None, by: str
) -> str:
    """The whole file; each of `criteria` is the lines of one."""
    head = comment(f"Drafted by {by}. Read it, change what is wrong, then: pursuit run THIS-FILE")
    who = (
        [f"proposer = {value(proposer)}"]
        if proposer is not None
        else comment(
            "Who suggests the calls. Without one, whoever drives the mission hands in each proposal (client); others: "
            'proposer = "anthropic:claude-haiku-4-5", or a table [proposer] of kind script, search or repeat.'
        )
    )
    tools = [*comment("Better name the tools that it may use: tool_allowlist = [...]"), "allow_all_tools = true"]
    caps = ["[budget]", *(f"{name} = {value(cap)}" for name, cap in budget.items())]
    parts = [[*head, f"directive = {value(directive)}"], tools, who, caps, *criteria]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
