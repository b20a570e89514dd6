"""One rule of the operator: which calls it means.

Owns: the match of server, tool and arguments. Does not know: what follows from it. Invariant: pure; where a value can
be read in several ways, a rule that forbids matches if any reading does, and a rule that allows only if all do.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import unquote

from pursuit.core.tools import Tool
from pursuit.tools.ruling import Decision

ANY = "*"
MOST_FORMS = 16
_SLASHES = re.compile("/+")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_ORIGIN = re.compile(r"[^/?#:]+://[^/?#]*")
_DROPPED = re.compile("[\t\r\n]")  # what readers of addresses leave out, wherever it stands


class _Unreadable(Exception):
    """Escaped more often than anybody does in good faith."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Globs over the server, the tool and the text of arguments, which are named by their dotted path."""

    decision: Decision
    server: str = ANY
    tool: str = ANY
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""

    def means(self, tool: Tool) -> bool:
        """Whether it is about this tool, whatever the arguments.

        A rule that allows means the server of a mission file only if it names it: who wrote `*` did not know of it.
        """
        if self.decision == "allow" and not tool.operators and not self._names(tool.server):
            return False
        return (self.server == ANY or fnmatchcase(tool.server, self.server)) and (
            self.tool == ANY or fnmatchcase(tool.name, self.tool) or fnmatchcase(tool.qualified, self.tool)
        )

    def _names(self, server: str) -> bool:
        return self.server == server or self.tool.startswith(f"{server}.")

    def matches(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether it is about this call: every pattern finds its argument."""
        if not self.means(tool):
            return False
        allows = self.decision == "allow"
        try:
            return all(
                _fits(values_at(arguments, path.split(".")), pattern, every=allows)
                for path, pattern in self.arguments.items()
            )
        except (RecursionError, _Unreadable):  # cannot be looked through: that allows nothing
            return not allows

    def __str__(self) -> str:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in self.arguments.items())
        said = f"{self.decision} {self.server}.{self.tool}" + (f" when {when}" if when else "")
        return f"{said}: {self.reason}" if self.reason else said


def _fits(values: Sequence[Any], pattern: str, *, every: bool) -> bool:
    patterns = {pattern, _folded(pattern)}
    readings = (reading for value in values for reading in _readings(value))
    fitting = (any(fnmatchcase(reading, one) for one in patterns) for reading in readings)
    return bool(values) and all(fitting) if every else any(fitting)


def values_at(value: Any, path: Sequence[str]) -> list[Any]:
    """What lies at a dotted path: `*` is any key, a list stands for its elements, a key may itself hold dots."""
    if isinstance(value, list | tuple):
        return [found for item in cast("Sequence[Any]", value) for found in values_at(item, path)]
    if not path:
        return [value]
    if not isinstance(value, Mapping):
        return []
    table = cast("Mapping[str, Any]", value)
    if path[0] == ANY:
        return [found for item in table.values() for found in values_at(item, path[1:])]
    found: list[Any] = []
    for length in range(1, len(path) + 1):
        key = ".".join(path[:length])
        if key in table:
            found += values_at(table[key], path[length:])
    return found


def _readings(value: Any) -> Iterator[str]:
    """The text of a value; if it may be a path or an address in disguise, also where it really leads."""
    if not isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return
    for form in _forms(value):
        yield form
        if "/" in form:
            yield from _straight(form)


def _forms(text: str) -> Iterator[str]:
    """The text as servers may undo its escapes, in whichever order and however often: the text itself comes first."""
    forms = [text]
    for form in forms:
        yield form
        plainer = [unquote(form)] if "%" in form else []
        if "\\" in form:
            plainer.append(form.replace("\\", "/"))
        if ":" in form and _DROPPED.search(form):
            plainer.append(_DROPPED.sub("", form))
        plainer.append(_folded(form))
        forms += dict.fromkeys(one for one in plainer if one not in forms)
        if len(forms) > MOST_FORMS:
            raise _Unreadable


def _folded(text: str) -> str:
    """An address, or a pattern of addresses, with its scheme and host in small letters: their case says nothing."""
    origin = _ORIGIN.match(text)
    return text if origin is None else f"{origin.group().lower()}{text[origin.end() :]}"


def _straight(text: str) -> Iterator[str]:
    """Where a text leads as a path, and as an address if it is one; nothing where that is the text itself."""
    address = _ADDRESS.fullmatch(text)
    path = posixpath.normpath(_SLASHES.sub("/", text))
    if address is None:
        if path not in (text, text.removesuffix("/")):  # a slash at the end is no detour
            yield path
        return
    scheme, host, inside, rest = address.groups()
    if "/.." in text:  # to a reader of paths the scheme is a folder, which can be left
        yield f"{scheme}://{path.removeprefix(f'{scheme}:/')}" if path.startswith(f"{scheme}:/") else path
    straight = posixpath.normpath(_SLASHES.sub("/", inside)) if inside else ""  # from the root: no `..` takes the host
    if straight not in (inside, inside.removesuffix("/")):
        yield f"{scheme}://{host}{straight}{rest}"
