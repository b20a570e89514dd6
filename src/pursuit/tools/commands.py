"""What the operator says about one command that is offered as a tool.

Owns: the value `CommandConfig`, how it is read from `[commands.NAME]`, and how arguments become an argv. Does not know:
files, processes or tasks. Invariant: a `CommandConfig` has no fault; arguments that are wrong are refused all at once,
and nothing in them becomes more than one word where one was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pursuit.core.base_model import nearest
from pursuit.errors import Fault, PathTraversal, ValidationFailed
from pursuit.tools.parameters import Parameter
from pursuit.tools.server_config import ToolOverride
from pursuit.tools.templates import Template, climbs

LONGEST_KEY = 100
MOST_UNKNOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """One command. `env` may name secrets and stays out of `repr`."""

    name: str
    argv: Template
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    title: str | None = None
    description: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    total: float | str | None = None
    """How many units there are, or the name of the parameter that says so."""
    unit_pattern: str | None = None
    failure_pattern: str | None = None
    item_pattern: str | None = None
    disclaimer: str | None = None
    grace: float | None = None
    heartbeat: float | None = None
    timeout: float | None = None
    allow_parent_paths: bool = False
    traits: ToolOverride = field(default_factory=ToolOverride)
    base: Path | None = None

    def input_schema(self) -> dict[str, Any]:
        """What a call takes."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: parameter.schema() for name, parameter in self.parameters.items()},
            "additionalProperties": False,
        }
        required = [name for name, parameter in self.parameters.items() if parameter.required]
        return {**schema, "required": required} if required else schema

    def words(self, arguments: Mapping[str, Any]) -> list[str]:
        """The argv for these arguments. Raises `ValidationFailed` with every fault, or `PathTraversal`."""
        faults = self._faults(arguments)
        if faults:
            raise ValidationFailed(faults, f"the arguments do not fit {self.name}; nothing was started")
        values = self.values(arguments)
        words = self.argv.fill(values, self.parameters)
        if not self.allow_parent_paths:
            refuse_climbing(self.name, [*_texts(arguments), *self.argv.chosen(values, self.parameters)])
        return words

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Every parameter with its value: given, or by default, or None."""
        return {name: arguments.get(name, parameter.default) for name, parameter in self.parameters.items()}

    def units(self, arguments: Mapping[str, Any]) -> float | None:
        """How many units there will be, if that is known."""
        return self.values(arguments)[self.total] if isinstance(self.total, str) else self.total

    def _faults(self, arguments: Mapping[str, Any]) -> list[Fault]:
        faults: list[Fault] = []
        unknown = [name for name in arguments if name not in self.parameters]
        for name in unknown[:MOST_UNKNOWN]:
            hint = nearest(name, self.parameters) or f"; known: {', '.join(self.parameters) or 'none'}"
            faults.append(Fault(field=_shown(name), reason=f"is not a known key{hint}"))
        if len(unknown) > MOST_UNKNOWN:
            faults.append(Fault(field="(input)", reason=f"there are {len(unknown) - MOST_UNKNOWN} more unknown keys"))
        for name, parameter in self.parameters.items():
            wrong = parameter.wrong(arguments[name]) if name in arguments else []
            faults += [Fault(field=f"{name}{at}", reason=reason) for at, reason in wrong]
        faults += [
            Fault(field=name, reason="is missing; it must be given")
            for name, parameter in self.parameters.items()
            if parameter.required and name not in arguments
        ]
        if not faults:
            why = "must not begin with '-': it would be read as an option"
            values = self.values(arguments)
            faults += [Fault(field=name, reason=why) for name in self.argv.options(values, self.parameters)]
        return faults


def _shown(key: str) -> str:
    """A key that somebody made up, as a fault names it."""
    return f"{key[:LONGEST_KEY]}…" if len(key) > LONGEST_KEY else key or '""'


def refuse_climbing(name: str, words: list[str]) -> None:
    """Refuses words with a `..` segment."""
    found = [word for word in words if climbs(word)]
    if found:
        raise PathTraversal(
            f"{name}: {found[0][:200]!r} has a '..' segment, which could lead out of its folder; nothing was started",
            arguments=[word[:200] for word in dict.fromkeys(found)][:10],
        )


def _texts(arguments: Mapping[str, Any]) -> list[str]:
    """The texts among arguments that fit their parameters: alone, or in lists."""
    several = [cast("list[Any]", value) if isinstance(value, list) else [value] for value in arguments.values()]
    return [value for values in several for value in values if isinstance(value, str)]
