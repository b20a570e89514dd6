"""The tools of all servers at one moment: finds tools by name, and checks arguments against their schemas.

Immutable, except for the cache of compiled schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from pursuit.core.base_model import nearest
from pursuit.core.tools import Tool, matches_tool
from pursuit.errors import Fault

if TYPE_CHECKING:
    from pursuit.core.validation import Validator

CONTROL_TOOLS = ("mission_*", "task_*", "approval*")
_GLOB = re.compile(r"[*?\[]")
_SHOWN = 5


def is_control_tool(tool: str) -> bool:
    """True if this (bare) name is a tool that controls Pursuit itself, which no mission may use."""
    return any(fnmatchcase(tool, pattern) for pattern in CONTROL_TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Tools by qualified name; `failures` has the servers that could not be asked, `warnings` what was left out."""

    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    _validators: dict[str, Validator | None] = field(default_factory=dict[str, "Validator | None"], repr=False)

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools.values())

    def get(self, name: str) -> Tool | None:
        """The tool with this qualified name, or with this bare name if only one server has it."""
        tool = self.tools.get(name)
        if tool is None:
            owners = self._owners(name)
            tool = self.tools[owners[0]] if len(owners) == 1 else None
        return tool

    def resolve(self, names_or_globs: Sequence[str]) -> tuple[list[str], list[Fault]]:
        """Qualified names, each once, in the given order; and a fault for each name that does not match a tool."""
        found: dict[str, None] = {}
        faults: list[Fault] = []
        for index, word in enumerate(names_or_globs):
            names, reason = self._find(word)
            if reason:
                faults.append(Fault(field=f"tools[{index}]", reason=reason))
            found.update(dict.fromkeys(names))
        return list(found), faults

    def _find(self, word: str) -> tuple[list[str], str]:
        exact = [word] if word in self.tools else self._owners(word)
        if len(exact) > 1:
            return [], f"{word!r} is offered by several servers; say which: {', '.join(exact)}"
        bare = self.tools[exact[0]].name if exact else word.partition(".")[2] or word
        if not exact and _GLOB.search(word):
            return self._matching(word)
        if is_control_tool(bare):
            return [], f"{word!r} is a control tool and cannot be used inside a mission"
        if exact:
            return exact, ""
        known = [*self.tools, *(tool.name for tool in self.tools.values())]
        server = word.partition(".")[0]
        because = f" (server {server!r}: {self.failures[server]})" if server in self.failures else ""
        return [], f"no server offers a tool {word!r}{because}{nearest(word, dict.fromkeys(known))}"

    def _matching(self, glob: str) -> tuple[list[str], str]:
        """The tools that a glob matches, never control tools; a glob without a dot also matches bare names."""
        names = [name for name in self.tools if matches_tool(glob, name)]
        allowed = [name for name in names if not is_control_tool(self.tools[name].name)]
        if allowed:
            return allowed, ""
        if names:
            return [], f"{glob!r} matches control tools only, which cannot be used inside a mission"
        known = dict.fromkeys(part for tool in self for part in (tool.qualified, tool.name, tool.server))
        close = nearest(_GLOB.sub("", glob).strip("."), known, most=1)
        there = f"; there are {', '.join(list(self.tools)[:_SHOWN])}" if self.tools else "; no server offers a tool"
        return [], f"no tool matches {glob!r}{close or there}"

    def _owners(self, bare: str) -> list[str]:
        return [name for name, tool in self.tools.items() if tool.name == bare]

    def check(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """All faults in the arguments, with their places; none if the schema is unusable."""
        tool = self.tools.get(name)
        if tool is None:
            return [f"unknown tool {name!r}"]
        try:
            msgspec.json.encode(arguments)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            return [f"the arguments are not JSON: {error}"]
        known = self._validators.get(name, ...)
        if known is None or (known is not ... and known.fits(arguments)):
            return []
        from pursuit.core.patterns import Unfinished  # noqa: PLC0415 - starting up checks nothing
        from pursuit.core.validation import UnusableSchema, compiled  # noqa: PLC0415

        try:
            validator = self._validators[name] = compiled(dict(tool.input_schema)) if known is ... else known
            return validator.faults(arguments)
        except UnusableSchema as error:
            reason = f"arguments are not checked because the schema is unusable: {str(error)[:200]}"
            self.warnings.append(f"{tool.qualified}: {reason}")
            self._validators[name] = None
            return []
        except Unfinished:  # the server checks them itself
            return []
