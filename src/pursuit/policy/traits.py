"""What a tool may do: whose word counts, and why we think so.

Owns: the order of belief: the operator, then the table of well-known servers, then the server's own annotations.
Does not know: where any of them came from. Invariant: without the operator's trust an annotation never makes a tool
look safer, and a mission file never does; nothing known means the worst.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pursuit.core.audit import redacted
from pursuit.core.tools import Tool, ToolOverride, Traits

OPERATOR = "your configuration"
TRUSTED = "the server's own annotation, which you trust"
TIGHTENS = "the server's own annotation, which may tighten"
UNKNOWN = "nobody says otherwise"
DOUBTED = "the server's annotation says otherwise, and you do not trust it"
MISSION_FILE = "the mission file, which may tighten"
UNHEARD = "the mission file's own word does not count"
READS = "follows from read-only"

_SILENT = ToolOverride()
_HINTS = {"read_only": "readOnlyHint", "idempotent": "idempotentHint", "destructive": "destructiveHint"}


def traits(
    override: ToolOverride | None,
    annotations: Mapping[str, Any] | None,
    trusted: bool = False,
    *,
    timeout: float | None = None,
    curated: ToolOverride | None = None,
    table: str = "",
    speaker: str = OPERATOR,
    operators: bool = True,
) -> Traits:
    """The answers, each with its reason.

    `curated` is the row of the table of well-known servers, `table` how that is named, and `timeout` the server's own
    call timeout, for a tool without one. Where the server is not the `operators`, only what tightens counts: neither
    how it is started nor what is believed of it is the operator's word.
    """
    said = override or _SILENT
    if not operators:
        said, trusted, curated, speaker = _tightening(said), False, None, MISSION_FILE
    hints = {key: value for key, value in (annotations or {}).items() if isinstance(value, bool)}
    row = curated if curated is not None and _holds(curated, said, hints) else _SILENT
    believed: Mapping[str, bool] = hints if trusted else {}
    why: dict[str, str] = {}

    def first(name: str, *answers: tuple[bool | None, str], worst: bool) -> bool:
        doubted = hints.get(_HINTS.get(name, "")) is (not worst)
        unknown = UNHEARD if not operators else DOUBTED if doubted else UNKNOWN
        answer, reason = next(((a, r) for a, r in answers if a is not None), (worst, unknown))
        why[name] = reason
        return answer

    def tightened(value: bool | None, hint: str, worst: bool) -> tuple[bool | None, str]:
        """The table's answer; the server may say that it is worse."""
        return (worst, TIGHTENS) if value is (not worst) and hints.get(hint) is worst else (value, table)

    read_only = first(
        "read_only",
        (said.read_only, speaker),
        (False if said.destructive else None, speaker),
        (row.read_only, table),
        (believed.get("readOnlyHint"), TRUSTED),
        worst=False,
    )
    reads = True if read_only else None
    return Traits(
        read_only=read_only,
        idempotent=first(
            "idempotent",
            (said.idempotent, speaker),
            (row.idempotent, table) if read_only else tightened(row.idempotent, "idempotentHint", worst=False),
            (reads, READS),
            (believed.get("idempotentHint"), TRUSTED),
            worst=False,
        ),
        parallel_safe=first(
            "parallel_safe", (said.parallel_safe, speaker), (row.parallel_safe, table), (reads, READS), worst=False
        ),
        destructive=first(
            "destructive",
            (said.destructive, speaker),
            (False if read_only else None, READS),
            tightened(row.destructive, "destructiveHint", worst=True),
            (believed.get("destructiveHint"), TRUSTED),
            worst=True,
        ),
        timeout=said.timeout if said.timeout is not None else timeout,
        why=why,
    )


def _tightening(said: ToolOverride) -> ToolOverride:
    """What of it makes the tool look worse."""
    return ToolOverride(
        read_only=None if said.read_only else said.read_only,
        idempotent=None if said.idempotent else said.idempotent,
        parallel_safe=None if said.parallel_safe else said.parallel_safe,
        destructive=said.destructive or None,
        timeout=said.timeout,
    )


def _holds(row: ToolOverride, said: ToolOverride, hints: Mapping[str, bool]) -> bool:
    """Whether a row of the table still describes the tool: if somebody contradicts its main answer, none of it counts.

    The operator may contradict it either way, the server only for the worse.
    """
    if said.read_only is not None and said.read_only is not row.read_only:
        return False
    if not row.read_only or said.read_only:
        return True
    destroys = hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True
    return not (said.destructive or hints.get("readOnlyHint") is False or destroys)


# What may be said of any tool: the questions that a host is asked before a call.

LONGEST_ARGUMENT = 600
LONGEST = 6_000


def is_mcp_tool(tool: Tool) -> bool:
    """Whether it lies behind MCP: all do but the plain Python functions of this process."""
    return not tool.local


def tool_is_read_only(tool: Tool) -> bool:
    """Whether it changes nothing."""
    return tool.traits.read_only


def tool_is_parallel_safe(tool: Tool) -> bool:
    """Whether it may run beside other calls."""
    return tool.traits.parallel_safe


def tool_is_idempotent(tool: Tool) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return tool.traits.idempotent


def tool_is_destructive(tool: Tool) -> bool:
    """Whether it may destroy something."""
    return tool.traits.destructive


def effect(tool: Tool) -> str:
    """What it may do, in one word: reads, writes or destroys."""
    if tool.traits.read_only:
        return "reads"
    return "destroys" if tool.traits.destructive else "writes"


def tool_approval_description(tool: Tool, arguments: Mapping[str, Any], why: str) -> str:
    """The question to a person: which tool of which server, with which arguments, and why it is asked.

    Secrets are left out by the names of their arguments; a long value is cut, with its length.
    """
    may = {"reads": "only reads", "writes": "may change things", "destroys": "may destroy things"}[effect(tool)]
    lines = [f"{printable(tool.name)} of server {printable(tool.server)} ({may})"]
    for name, value in redacted(arguments).items():
        text = json.dumps(value, ensure_ascii=False, default=str)
        if len(text) > LONGEST_ARGUMENT:
            text = f"{text[:LONGEST_ARGUMENT]}… ({len(text)} characters)"
        lines.append(f"  {printable(name)}: {printable(text)}")
    if not arguments:
        lines.append("  without arguments")
    body = "\n".join(lines)
    if len(body) > LONGEST:
        body = f"{body[:LONGEST]}…\n  ({len(arguments)} arguments, cut here)"
    return f"{body}\nasked because {printable(why)}"


def printable(text: str) -> str:
    """Text on one line that cannot steer a terminal or hide a part of itself."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "\ufffd" for c in text)
