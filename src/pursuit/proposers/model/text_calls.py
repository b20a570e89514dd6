"""The calls of a model that only writes text: describes the tools to it, and reads its answer.

Pure. An answer is the JSON object that `describe_tools` requests: the whole text, or the last code block in it. Reading
any text takes a bounded time, and gives only values that the ledger can store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pursuit.core.events import WantedCall
from pursuit.proposers.language import OfferedTool, as_row, storable

LONGEST = 256 * 1024
_THOUGHT = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*", re.IGNORECASE | re.DOTALL)
_BLOCK = re.compile(r"^ {0,3}```+([^`\n]*)\n(.*?)(?:^ {0,3}```+[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)

_FORM = """\
You cannot call tools directly in this conversation: write the calls. Answer with one JSON object and nothing else:
{"why": "one sentence", "calls": [{"tool": "NAME", "args": {}}]}
These are the tools, one on each line, each with its JSON Schema of args:"""


class Written(NamedTuple):
    """The calls in a text, and the text around them."""

    calls: list[WantedCall]
    words: str


class _WrittenCall(msgspec.Struct):
    tool: str
    args: dict[str, Any]


class _WrittenAnswer(msgspec.Struct):
    calls: list[_WrittenCall]
    why: str = ""


def describe_tools(tools: Sequence[OfferedTool]) -> str:
    """The tools and the form of an answer; the descriptions of servers are quoted like all foreign text."""
    lines = [f"| {as_row(tool)}" for tool in tools]
    mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return "\n".join([_FORM, f"<<< {mark} tools", *lines, f">>> {mark} tools"])


def read_calls(text: str) -> Written:
    """The calls of an answer. JSON in another form is one malformed call; JSON elsewhere in the text does not count."""
    spoken = text[:LONGEST].strip()
    if not spoken.startswith("{"):
        spoken = _THOUGHT.sub("", spoken).strip()
    found, around = spoken, ""
    if not spoken.startswith("{"):
        block = max(_BLOCK.finditer(spoken), key=lambda one: one.start(), default=None)
        if (
            block is None
            or block[1].strip().lower() not in ("", "json")
            or not block[2].lstrip().startswith(("{", "["))
        ):
            return Written([], _words(spoken))
        found, around = block[2].strip(), f"{spoken[: block.start()]} {spoken[block.end() :]}"
    try:
        answer = msgspec.json.decode(found, type=_WrittenAnswer)
    except (ValueError, RecursionError):
        return Written([WantedCall(name="(unreadable)", malformed=storable(found[:1_000]))], _words(around))
    calls = [WantedCall(name=one.tool[:200], args=one.args) for one in answer.calls]
    return Written(calls, _words(f"{around} {answer.why}"))


def _words(text: str) -> str:
    return storable(" ".join(text.split()))
