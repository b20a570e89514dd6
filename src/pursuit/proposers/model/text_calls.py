"""Reads the calls in a language model's answer; for a model that only writes text, also describes the tools in text.

Pure. Reading takes a bounded time whatever the text is, and gives only what the ledger can store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import msgspec

from pursuit.core.events import WantedCall
from pursuit.proposers.language import OfferedTool, as_row

LONGEST = 256 * 1024
_THOUGHT = re.compile(r"</think(?:ing)?>|<think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"^ {0,3}```+([^`\n]*)$\n?", re.MULTILINE)

_FORM = """\
You cannot call tools directly in this conversation: write the calls. Answer with one JSON object and nothing else:
{"why": "one sentence", "calls": [{"tool": "NAME", "args": {}}]}
These are the tools, one on each line, each with its JSON Schema of args:"""
_LISTS = ("calls", "tool_calls")
_NAMES = ("tool", "name", "tool_name")
_ARGS = ("args", "arguments", "input", "parameters")


class Written(NamedTuple):
    """The calls in a text, and the words around them."""

    calls: list[WantedCall]
    words: str


def describe_tools(tools: Sequence[OfferedTool]) -> str:
    """The tools and the form of an answer; the descriptions of servers are quoted like all foreign text."""
    lines = [f"| {as_row(tool)}" for tool in tools]
    mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return "\n".join([_FORM, f"<<< {mark} tools", *lines, f">>> {mark} tools"])


def read_calls(text: str) -> Written:
    """The calls of an answer that is JSON, or whose last code block is; JSON elsewhere does not count.

    Text that looks like such an answer and cannot be read is one malformed call.
    """
    spoken = _spoken(text[:LONGEST])
    around, found = _block(spoken)
    if not found.startswith(("{", "[")):
        return Written([], _words(spoken))
    try:
        value = cast("object", json.loads(found, parse_constant=_no_number))
        calls = _calls(value)
    except (ValueError, RecursionError):
        value = calls = None
    if calls is None:
        calls = [WantedCall(name="(unreadable)", malformed=storable(found[:1_000]))]
    return Written(calls, _words(f"{around} {_why(value)}"))


def wanted_call(name: object, args: object, call_id: str = "") -> WantedCall:
    """One call as the model wrote it; arguments that the ledger cannot store are malformed."""
    try:
        encoded = args if isinstance(args, str) else msgspec.json.encode({} if args is None else args)
        read: object = msgspec.json.decode(encoded) if encoded.strip() else {}
    except (TypeError, ValueError, RecursionError):
        read = None
    shown = storable(str(name))[:200]
    if isinstance(read, dict):
        return WantedCall(name=shown, args=cast("dict[str, Any]", read), id=storable(call_id))
    return WantedCall(name=shown, malformed=storable(str(args)[:1_000]), id=storable(call_id))


def storable(text: str) -> str:
    """Text that can be encoded."""
    return text.encode(errors="replace").decode()


def _spoken(text: str) -> str:
    """An answer without its thinking; one that never stopped thinking has no answer."""
    marks = [] if text.lstrip().startswith(("{", "[")) else list(_THOUGHT.finditer(text))
    if not marks:
        return text
    last = marks[-1]
    return text[last.end() :] if last.group().startswith("</") else text[: last.start()]


def _block(text: str) -> tuple[str, str]:
    """The text around the part of an answer that may hold calls, and that part."""
    if text.lstrip().startswith(("{", "[")):
        return "", text.strip()
    last: tuple[int, int, int, int] | None = None
    begun: tuple[int, int] | None = None
    for fence in _FENCE.finditer(text):
        if begun is None:
            begun = fence.span()
            last = (*begun, len(text), len(text))  # a block that is cut off reaches to the end
        elif not fence[1].strip():
            last, begun = (*begun, *fence.span()), None
    if last is None:
        return text, ""
    before, begin, end, after = last
    info = text[before:begin].strip(" `\n").lower()
    found = text[begin:end].strip() if info in ("", "json") else ""
    return f"{text[:before]} {text[after:]}", found


def _words(text: str) -> str:
    return storable(" ".join(text.split()))


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _calls(value: object) -> list[WantedCall] | None:
    """The calls in a value: a list, an object with such a list, or a single call; None if it is something else."""
    if isinstance(value, list):
        found = [_one(row) for row in cast("list[object]", value)]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else None
    given = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    listed: object = next((given[key] for key in _LISTS if key in given), None)
    if isinstance(listed, list):
        return _calls(cast("object", listed))
    one = _one(given)
    return None if one is None else [one]


def _one(value: object) -> WantedCall | None:
    """One call; its arguments may be empty, but without them it is malformed."""
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    inner: object = given.get("function")
    if isinstance(inner, Mapping):
        return _one(cast("object", inner))
    name: object = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    if name is None:
        return None
    key = next((key for key in _ARGS if key in given), None)
    if key is None:
        return WantedCall(name=storable(str(name))[:200], malformed='there is no "args"')
    return wanted_call(name, given[key])


def _why(value: object) -> str:
    given = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    why: object = given.get("why")
    return why if isinstance(why, str) else ""
