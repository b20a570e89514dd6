"""Changes one member of a JSON text and leaves every other character as it was.

Owns: where members stand in a text, and how a new one is laid out so that it looks like its neighbours. Does not know:
files, or what a member means. Invariant: the new text stands for the old value with that one member changed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    key: str
    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    start: int
    end: int
    members: tuple[_Member, ...]

    def member(self, key: str) -> _Member | None:
        return next((member for member in self.members if member.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """How the text is laid out; without a unit it is all on one line."""

    newline: str
    unit: str | None
    comma: str
    colon: str

    def pair(self, key: str, value: Any, indent: str | None) -> str:
        return json.dumps(key, ensure_ascii=False) + self.colon + self.value(value, indent)

    def value(self, value: Any, indent: str | None) -> str:
        if indent is None or self.unit is None:
            return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon))
        laid = json.dumps(value, ensure_ascii=False, indent=self.unit, separators=(",", self.colon))
        return laid.replace("\n", self.newline + indent)


def set_member(text: str, within: str, key: str, value: Any) -> str:
    """The text of an object whose object `within` has this member; both are made if they are not there."""
    text = text if text.strip() else "{}\n"
    root, style = _read(text)
    outer = root.member(within)
    if outer is None:
        return _add(text, root, within, {key: value}, style)
    inner = _object(text, outer.value)
    member = inner.member(key)
    if member is None:
        return _add(text, inner, key, value, style)
    return text[: member.value] + style.value(value, _indent(text, member.start)) + text[member.end :]


def drop_member(text: str, within: str, key: str) -> str:
    """The text without this member of the object `within`, which must both be there."""
    root, _ = _read(text)
    outer = root.member(within)
    inner = _object(text, outer.value) if outer else root
    place = [member.key for member in inner.members].index(key)
    member = inner.members[place]
    if len(inner.members) == 1:
        return text[: inner.start] + "{}" + text[inner.end :]
    if place + 1 < len(inner.members):
        return text[: member.start] + text[inner.members[place + 1].start :]
    return text[: inner.members[place - 1].end] + text[member.end :]


def is_json_with_comments(text: str) -> bool:
    """Whether only comments and last commas, which some editors allow, keep this from being JSON."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _add(text: str, into: _Object, key: str, value: Any, style: _Style) -> str:
    if into.members:
        end = into.members[-1].end
        lead = _indent(text, into.members[0].start)
        between = style.comma if lead is None else f",{style.newline}{lead}"
        return text[:end] + between + style.pair(key, value, lead) + text[end:]
    if style.unit is None:
        return text[: into.start] + "{" + style.pair(key, value, None) + "}" + text[into.end :]
    line = text[text.rfind("\n", 0, into.start) + 1 : into.start]
    outer = line[: len(line) - len(line.lstrip())]
    inner = outer + style.unit
    body = f"{{{style.newline}{inner}{style.pair(key, value, inner)}{style.newline}{outer}}}"
    return text[: into.start] + body + text[into.end :]


def _read(text: str) -> tuple[_Object, _Style]:
    root = _object(text, _skip(text, 0))
    newline = "\r\n" if "\r\n" in text else "\n"
    if not root.members:
        return root, _Style(newline=newline, unit="  ", comma=", ", colon=": ")
    first = root.members[0]
    tight = text[first.value - 1] == ":"
    unit = _indent(text, first.start)
    return root, _Style(newline=newline, unit=unit, comma="," if tight else ", ", colon=":" if tight else ": ")


def _indent(text: str, place: int) -> str | None:
    """What stands before this place on its line, if that is space alone; None if the line has begun before."""
    line = text.rfind("\n", 0, place) + 1
    return text[line:place] if not text[line:place].strip() else None


def _object(text: str, start: int) -> _Object:
    """The members of the object that starts here; the text is known to be JSON."""
    members: list[_Member] = []
    place = _skip(text, start + 1)
    while text[place] != "}":
        key, end = _DECODER.raw_decode(text, place)
        value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key=key, start=place, value=value, end=end))
        place = _skip(text, end)
        place = _skip(text, place + 1) if text[place] == "," else place
    return _Object(start=start, end=place + 1, members=tuple(members))


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
