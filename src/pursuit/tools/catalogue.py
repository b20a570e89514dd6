"""The tools that exist, at one moment, over all servers.

Owns: how a name in a mission finds its tool, and the check of arguments against a tool's schema. Does not know:
servers, connections or policy. Invariant: immutable but for the cache of compiled schemas; nothing is ever fetched
to resolve a schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, cast

import jsonschema
import msgspec
import referencing.exceptions
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pursuit.errors import Fault
from pursuit.model.spelling import nearest
from pursuit.tools.contract import Tool

CONTROL_TOOLS = ("mission_*", "task_*", "approval*")
_GLOB = re.compile(r"[*?\[]")
_MOST_FAULTS = 20


def is_control_tool(tool: str) -> bool:
    """Whether this (bare) name is one that drives Pursuit itself: never for use inside a mission."""
    return any(fnmatchcase(tool, pattern) for pattern in CONTROL_TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Tools by qualified name; `failures` says which servers could not be asked, `warnings` what was left out."""

    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    _validators: dict[str, Validator | None] = field(default_factory=dict[str, "Validator | None"], repr=False)

    _fitted: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """The last arguments of each tool that were found to fit: whoever repeats a call is not checked again."""

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
        """Qualified names, each once, in the order asked for; and a fault for each word that finds none."""
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
        if exact:
            if is_control_tool(self.tools[exact[0]].name):
                return [], f"{word!r} is a control tool and cannot be used inside a mission"
            return exact, ""
        if _GLOB.search(word):
            return self._matching(word)
        bare = word.partition(".")[2] or word
        if is_control_tool(bare):
            return [], f"{word!r} is a control tool and cannot be used inside a mission"
        known = [*self.tools, *(tool.name for tool in self.tools.values())]
        server = word.partition(".")[0]
        because = f" (server {server!r}: {self.failures[server]})" if server in self.failures else ""
        return [], f"no server offers a tool {word!r}{because}{nearest(word, dict.fromkeys(known))}"

    def _matching(self, glob: str) -> tuple[list[str], str]:
        """A glob without a dot looks at bare names too; control tools are never among the matches."""
        bare = "." not in glob
        names = [
            name
            for name, tool in self.tools.items()
            if fnmatchcase(name, glob) or (bare and fnmatchcase(tool.name, glob))
        ]
        allowed = [name for name in names if not is_control_tool(self.tools[name].name)]
        if allowed:
            return allowed, ""
        if names:
            return [], f"{glob!r} finds control tools only, which cannot be used inside a mission"
        return [], f"no tool matches {glob!r}{nearest(glob, self.tools)}"

    def _owners(self, bare: str) -> list[str]:
        return [name for name, tool in self.tools.items() if tool.name == bare]

    def check(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """Everything that is wrong with the arguments, with its place; nothing where the schema is unusable."""
        tool = self.tools.get(name)
        if tool is None:
            return [f"there is no tool {name!r}"]
        if name in self._validators:
            validator = self._validators[name]
        else:
            validator = self._validators[name] = self._compile(tool)
        if validator is None:
            return []
        try:
            asked = msgspec.json.encode(arguments)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            return [f"the arguments are no JSON: {error}"]
        if self._fitted.get(name) == asked:
            return []
        try:
            if validator.is_valid(arguments):
                self._fitted[name] = asked
                return []
            errors = sorted(validator.iter_errors(arguments), key=lambda error: list(map(str, error.absolute_path)))
            return [_sentence(error) for error in errors[:_MOST_FAULTS]]
        except (referencing.exceptions.Unresolvable, RecursionError, re.error) as error:
            # The meta-schema cannot see a dangling or circular `$ref`, or a pattern that is no Python pattern.
            self._unusable(tool, error)
            return []

    def _compile(self, tool: Tool) -> Validator | None:
        schema = dict(tool.input_schema)
        try:
            return _compiled(msgspec.json.encode(schema))
        except (jsonschema.SchemaError, referencing.exceptions.Unresolvable, RecursionError, re.error, TypeError) as e:
            self._unusable(tool, e)
            return None

    def _unusable(self, tool: Tool, error: Exception) -> None:
        reason = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
        self.warnings.append(f"{tool.qualified}: arguments are not checked, its schema is unusable: {reason[:200]}")
        self._validators[tool.qualified] = None


@lru_cache(maxsize=1_024)
def _compiled(schema: bytes) -> Validator:
    """The validator of a schema, made once for a process: checking one costs hundreds of times what using it does."""
    body = msgspec.json.decode(schema)
    kind = cast("Any", validator_for(body, default=jsonschema.Draft202012Validator))
    kind.check_schema(body)
    # An explicit registry: the default one would fetch a remote `$ref` over the network.
    return cast("Validator", kind(body, registry=EMPTY_REGISTRY))


def _sentence(error: jsonschema.ValidationError) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    text = error.message if len(error.message) <= 300 else error.message[:297] + "..."
    return f"{place.removeprefix('.')}: {text}" if place else text
