"""Tools for a language model that can only write: they are told in words, and its calls are read out of its text.

Owns: how tools are told and which texts are calls. Pure. Knows no provider and no protocol. Invariants: reading takes a
bounded time whatever the text is, and gives only what the ledger can hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import msgspec

from pursuit.model.events import WantedCall
from pursuit.proposers.language import OfferedTool

LONGEST = 256 * 1024
MOST_TRIES = 100
"""How many places of a text are tried as the beginning of a JSON value."""

_FORM = """\
You cannot call tools directly in this conversation: write the calls. Answer with one JSON object and nothing else:
{"why": "one sentence", "calls": [{"tool": "NAME", "args": {}}]}
These are the tools, one on each line, each with its JSON Schema of args:"""
_LISTS = ("calls", "tool_calls")
_NAMES = ("tool", "name", "tool_name")
_ARGS = ("args", "arguments", "input", "parameters")


class Written(NamedTuple):
    """What a text holds: calls, and the words about them."""

    calls: list[WantedCall]
    words: str


def told(tools: Sequence[OfferedTool]) -> str:
    """The tools, and the form of an answer; what servers say of their tools is quoted as everything else is."""
    rows = [{"tool": tool.name, "description": tool.description, "args": tool.schema} for tool in tools]
    lines = [f"| {json.dumps(row, default=str)}" for row in rows]  # in ASCII nothing can look like another line
    mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return "\n".join([_FORM, f"<<< {mark} tools", *lines, f">>> {mark} tools"])


def written(text: str) -> Written:
    """The calls in an answer, wherever in it they stand; what looks like JSON and is none is one malformed call."""
    text = text[:LONGEST]
    calls: list[WantedCall] = []
    words: list[str] = []
    begun = at = 0
    for begin, end, value in _values(text):
        found = _calls(value)
        if found:
            calls += found
            words += [text[at:begin], _why(value)]
            at, begun = end, 1
    words.append(text[at:])
    if not begun and text.strip(" \n`").removeprefix("json").lstrip().startswith(("{", "[")):
        calls.append(WantedCall(name="(unreadable)", malformed=storable(text[:1_000])))
    return Written(calls, storable(" ".join(" ".join(words).replace("```json", " ").replace("```", " ").split())))


def wanted(name: object, args: object) -> WantedCall:
    """One call; what the ledger could not hold is no JSON."""
    try:
        encoded = args if isinstance(args, str) else msgspec.json.encode({} if args is None else args)
        read: object = msgspec.json.decode(encoded) if encoded.strip() else {}
    except (TypeError, ValueError, RecursionError):
        read = None
    shown = storable(str(name))[:200]
    if isinstance(read, dict):
        return WantedCall(name=shown, args=cast("dict[str, Any]", read))
    return WantedCall(name=shown, malformed=storable(str(args)[:1_000]))


def storable(text: str) -> str:
    """Text that can be encoded."""
    return text.encode(errors="replace").decode()


def _values(text: str) -> Iterator[tuple[int, int, object]]:
    """The JSON objects and lists in a text, one after another: where each begins and ends, and what it is."""
    decoder = json.JSONDecoder(parse_constant=_no_number)
    at = 0
    for _ in range(MOST_TRIES):
        places = [place for place in (text.find("{", at), text.find("[", at)) if place >= 0]
        if not places:
            return
        begin = min(places)
        try:
            value, at = cast("tuple[object, int]", decoder.raw_decode(text, begin))
        except (ValueError, RecursionError):
            at = begin + 1
        else:
            yield begin, at, value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _calls(value: object) -> list[WantedCall]:
    """The calls that a value is: a list of them, an object with such a list, or one alone."""
    if isinstance(value, list):
        rows = cast("list[object]", value)
        return [call for row in rows for call in _one(row)] if all(_one(row) for row in rows) else []
    given = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    listed: object = next((given[key] for key in _LISTS if key in given), None)
    return _calls(cast("object", listed)) if isinstance(listed, list) else _one(given)


def _one(value: object) -> list[WantedCall]:
    if not isinstance(value, Mapping):
        return []
    given = cast("Mapping[str, Any]", value)
    inner: object = given.get("function")
    if isinstance(inner, Mapping):
        return _one(cast("object", inner))
    name: object = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    if name is None:
        return []
    return [wanted(name, next((given[key] for key in _ARGS if key in given), None))]


def _why(value: object) -> str:
    given = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    why: object = given.get("why")
    return why if isinstance(why, str) else ""
