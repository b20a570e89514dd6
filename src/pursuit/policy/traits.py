"""What a tool may do, and why: the operator's settings, then the table of known servers, then the server's annotations.

Without the operator's trust an annotation never makes a tool look safer, and a mission file never does. Without any
answer the worst is assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pursuit.core.audit import masked, redacted
from pursuit.core.pins import Changes
from pursuit.core.tools import Tool, ToolOverride, Traits
from pursuit.errors import advice

OPERATOR = "your configuration"
TRUSTED = "the server's own annotation, which you trust"
TIGHTENS = "the server's own annotation, which may tighten"
UNKNOWN = "nothing says otherwise"
DOUBTED = "the server's annotation says otherwise, and you do not trust it"
MISSION_FILE = "the mission file, which may tighten"
MISSION_FILE_IGNORED = "the mission file's own word does not count"
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
    """The traits, each with its reason.

    `curated` is the row of the table of known servers, `table` its name in a reason, and `timeout` the server's own
    call timeout, for a tool without one. If the server is not the `operators`, only what tightens counts: a mission
    file chose how it is started and what it says.
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
        unknown = MISSION_FILE_IGNORED if not operators else DOUBTED if doubted else UNKNOWN
        answer, reason = next(((a, r) for a, r in answers if a is not None), (worst, unknown))
        why[name] = reason
        return answer

    def tightened(value: bool | None, hint: str, worst: bool) -> tuple[bool | None, str]:
        """The table's answer; the server may say that the tool is worse."""
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
    """Only the answers that make the tool look worse."""
    return ToolOverride(
        read_only=None if said.read_only else said.read_only,
        idempotent=None if said.idempotent else said.idempotent,
        parallel_safe=None if said.parallel_safe else said.parallel_safe,
        destructive=said.destructive or None,
        timeout=said.timeout,
    )


def _holds(row: ToolOverride, said: ToolOverride, hints: Mapping[str, bool]) -> bool:
    """Whether a row of the table still describes the tool: if its main answer is contradicted, none of it counts.

    The operator may contradict it either way, the server only for the worse.
    """
    if said.read_only is not None and said.read_only is not row.read_only:
        return False
    if not row.read_only or said.read_only:
        return True
    destroys = hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True
    return not (said.destructive or hints.get("readOnlyHint") is False or destroys)


LONGEST_ARGUMENT = 600
LONGEST = 6_000
LONGEST_FORM = 32_000
"""A question is put to a client's user only if its whole text is not longer: a form has no way to show the rest."""


def effect(tool: Tool) -> str:
    """What it may do, in one word: reads, writes or destroys."""
    if tool.traits.read_only:
        return "reads"
    return "destroys" if tool.traits.destructive else "writes"


def tool_approval_description(tool: Tool, arguments: Mapping[str, Any], why: str) -> str:
    """The question to a person: which tool of which server, with which arguments, and why it is asked.

    Arguments with secretive names are redacted; a long value is cut, with its length. `whole_question` differs from a
    description that is cut.
    """
    may = {"reads": "only reads", "writes": "may change things", "destroys": "may destroy things"}[effect(tool)]
    first = f"{printable(tool.name)} of server {printable(tool.server)} ({may})"
    lines: list[str] = []
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
    return f"{first}\n{body}\nasked because {printable(why)}"


def whole_question(description: str, arguments: Mapping[str, Any]) -> str:
    """The question of this description with its arguments whole; secrets by their names are masked."""
    first, *_, last = description.splitlines()
    shown: Mapping[str, Any] = masked(arguments)
    lines = [
        f"  {printable(name)}: {printable(json.dumps(value, ensure_ascii=False, default=str))}"
        for name, value in shown.items()
    ]
    return "\n".join([first, *(lines or ["  without arguments"]), last])


def changes_description(changes: Changes) -> str:
    """The question whether the changed tools of a server are accepted; a long difference is cut, and says so."""
    text = changes.text
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…\n  (cut here: `{advice('pursuit tools diff')}` shows all of it)"
    return f"accept the changed tools of server {printable(changes.server)}?\n{text}\nasked because {changes.reason}"


def question_texts(tool: Tool, arguments: Mapping[str, Any], why: str, changes: Changes | None) -> tuple[str, str]:
    """The question about a call, or about the changes of its server; and the text with the arguments whole."""
    if changes is not None:
        text = changes_description(changes)
        return text, text
    text = tool_approval_description(tool, arguments, why)
    return text, whole_question(text, arguments)


def printable(text: str) -> str:
    """Text on one line, without control characters that steer a terminal or hide a part of it."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "\ufffd" for c in text)
