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

from pursuit.tools.contract import Tool
from pursuit.tools.ruling import Decision

ANY = "*"
_SLASHES = re.compile("/+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Globs over the server, the tool and the text of arguments, which are named by their dotted path."""

    decision: Decision
    server: str = ANY
    tool: str = ANY
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""

    def means(self, tool: Tool) -> bool:
        """Whether it is about this tool, whatever the arguments."""
        return (self.server == ANY or fnmatchcase(tool.server, self.server)) and (
            self.tool == ANY or fnmatchcase(tool.name, self.tool) or fnmatchcase(tool.qualified, self.tool)
        )

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
        except RecursionError:  # nested too deeply to be looked through: that allows nothing
            return not allows

    def __str__(self) -> str:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in self.arguments.items())
        said = f"{self.decision} {self.server}.{self.tool}" + (f" when {when}" if when else "")
        return f"{said}: {self.reason}" if self.reason else said


def _fits(values: Sequence[Any], pattern: str, *, every: bool) -> bool:
    readings = [reading for value in values for reading in _readings(value)]
    if every:
        return bool(readings) and all(fnmatchcase(reading, pattern) for reading in readings)
    return any(fnmatchcase(reading, pattern) for reading in readings)


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
    """The text of a value; if it may be a path or an address with detours, also where it really leads."""
    if not isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return
    yield value
    head, mark, rest = value.rpartition("://")
    straight = posixpath.normpath(_SLASHES.sub("/", rest)) if "/" in rest else rest
    if straight not in (rest, rest.removesuffix("/")):  # a slash at the end is no detour
        yield f"{head}{mark}{straight}"
