"""The traits of a tool, from the operator's settings, the table of known servers, and the server's annotations.

An annotation makes a tool count as safer only if the operator trusts the server. A mission file cannot make a tool
count as safer. If no source specifies a trait, the least safe value is assumed.
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
MISSION_FILE_IGNORED = "the mission file cannot loosen this"
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

    `curated` is the row in the table of known servers, `table` its name in reasons, and `timeout` the server's call
    timeout, for a tool without one. If the server is not the `operators`, only answers that tighten count: a mission
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
        """The table's answer; the server's annotation can only make it worse."""
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
    """The answers that make the tool look worse, without the others."""
    return ToolOverride(
        read_only=None if said.read_only else said.read_only,
        idempotent=None if said.idempotent else said.idempotent,
        parallel_safe=None if said.parallel_safe else said.parallel_safe,
        destructive=said.destructive or None,
        timeout=said.timeout,
    )


def _holds(row: ToolOverride, said: ToolOverride, hints: Mapping[str, bool]) -> bool:
    """True if a row of the table still describes the tool: if its main answer is contradicted, the row is ignored.

    The operator may contradict it either way, the server only for the worse.
    """
    if said.read_only is not None and said.read_only is not row.read_only:
        return False
    if not row.read_only or said.read_only:
        return True
    destroys = hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True
    return not (said.destructive or hints.get("readOnlyHint") is False or destroys)


MAX_ARGUMENT = 600
MAX_DESCRIPTION = 6_000
MAX_FORM = 32_000
"""The longest question for a client's user: a form cannot show more."""


def effect(tool: Tool) -> str:
    """The effect of a tool in one word: reads, writes or destroys."""
    if tool.traits.read_only:
        return "reads"
    return "destroys" if tool.traits.destructive else "writes"


def tool_approval_description(tool: Tool, arguments: Mapping[str, Any], why: str) -> str:
    """The question to a person: the tool, its server, the arguments, and the reason for asking.

    Arguments named like secrets are redacted; long values are cut and their length is given. If anything was cut,
    `whole_question` differs from this description.
    """
    may = {"reads": "only reads", "writes": "may change things", "destroys": "may destroy things"}[effect(tool)]
    first = f"{printable(tool.name)} of server {printable(tool.server)} ({may})"
    body = "\n".join(_argument_lines(redacted(arguments), MAX_ARGUMENT))
    if len(body) > MAX_DESCRIPTION:
        body = f"{body[:MAX_DESCRIPTION]}…\n  ({len(arguments)} arguments, cut here)"
    return f"{first}\n{body}\nasked because {printable(why)}"


def whole_question(description: str, arguments: Mapping[str, Any]) -> str:
    """The question with the full arguments; those named like secrets are masked."""
    first, *_, last = description.splitlines()
    return "\n".join([first, *_argument_lines(masked(arguments)), last])


def _argument_lines(arguments: Mapping[str, Any], longest: int | None = None) -> list[str]:
    texts = {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in arguments.items()}
    for name, text in texts.items():
        if longest is not None and len(text) > longest:
            texts[name] = f"{text[:longest]}… ({len(text)} characters)"
    return [f"  {printable(name)}: {printable(text)}" for name, text in texts.items()] or ["  without arguments"]


def changes_description(changes: Changes) -> str:
    text = changes.text
    if len(text) > MAX_DESCRIPTION:
        text = f"{text[:MAX_DESCRIPTION]}…\n  (cut here: `{advice('pursuit tools diff')}` shows all of it)"
    return f"accept the changed tools of server {printable(changes.server)}?\n{text}\nasked because {changes.reason}"


def question_texts(tool: Tool, arguments: Mapping[str, Any], why: str, changes: Changes | None) -> tuple[str, str]:
    """The question about a call, or about the changes of its server; and the text with the full arguments."""
    if changes is not None:
        text = changes_description(changes)
        return text, text
    text = tool_approval_description(tool, arguments, why)
    return text, whole_question(text, arguments)


def printable(text: str) -> str:
    """The text on one line, without control characters that affect a terminal or hide text."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "\ufffd" for c in text)
