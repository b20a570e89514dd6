"""What may be said of any tool: the questions that a host is asked before a call.

Owns: the six predicates and the words of a question to a person. Does not know: policy or who is asked. Invariant:
pure; nothing that a server wrote about itself, its tool's name apart, gets into the words that a person decides by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pursuit.core.audit import redacted
from pursuit.core.tools import Tool

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
