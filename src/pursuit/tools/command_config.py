"""Reads `[commands.NAME]` of `pursuit.toml`.

Owns: its keys, and what must agree between argv and parameters. Does not know: files, or how a command is run.
Invariant: every fault is told at once, with its table, field and reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pursuit.core.base_model import nearest
from pursuit.core.catalogue import CONTROL_TOOLS, is_control_tool
from pursuit.core.patterns import checked_pattern
from pursuit.tools.commands import CommandConfig
from pursuit.tools.fields import Fields, as_table, kind
from pursuit.tools.parameter_config import read_parameters
from pursuit.tools.parameters import LARGEST, Parameter
from pursuit.tools.server_config import SERVER_NAME, ToolOverride
from pursuit.tools.templates import Group, Place, Template, Word, climbs, places, read_word

PATTERNS = ("unit_pattern", "failure_pattern", "item_pattern")
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")
COMMAND_KEYS = (
    "argv", "parameters", "title", "description", "cwd", "env", "total", *PATTERNS, "disclaimer", "grace", "heartbeat",
    "timeout", "allow_parent_paths", *TRAITS,
)  # fmt: skip
LONGEST_GRACE = 86_400.0
LEAST_HEARTBEAT = 1.0
UPSTREAM = "commands"
"""The server that these tools belong to inside a mission."""


def read_commands(fields: Fields, base: Path) -> dict[str, CommandConfig]:
    """Every command of the file; those with a fault are left out."""
    found: dict[str, CommandConfig] = {}
    for name, value in fields.subtable(UPSTREAM).items():
        at = f"{UPSTREAM}.{name}"
        if not SERVER_NAME.match(name):
            why = "a command's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit"
            fields.fault(at, why)
        elif is_control_tool(name):
            taken = ", ".join(CONTROL_TOOLS)
            fields.fault(at, f"is a name of Pursuit's own tools ({taken}); choose another one")
        table = as_table(value)
        if table is None:
            fields.fault(at, f"must be a table, not {kind(value)}")
        else:
            found[name] = _read(name, Fields(table, at=at, source=fields.source, faults=fields.faults), base)
    return found


def _read(name: str, fields: Fields, base: Path) -> CommandConfig:
    fields.only(COMMAND_KEYS)
    parameters = read_parameters(fields.inside("parameters"))
    template = _template(fields, parameters)
    patterns = {key: _pattern(fields, key) for key in PATTERNS}
    traits = ToolOverride(**{key: fields.flag(key) for key in TRAITS}, timeout=fields.number("timeout"))
    if traits.read_only and traits.destructive:
        fields.fault("destructive", "a command cannot be read-only and destructive")
    return CommandConfig(
        name=name,
        argv=template,
        parameters=parameters,
        title=fields.text("title"),
        description=fields.text("description"),
        cwd=fields.text("cwd"),
        env=fields.text_map("env"),
        total=_total(fields, parameters),
        **patterns,
        disclaimer=fields.text("disclaimer"),
        grace=_between(fields, "grace", 0, LONGEST_GRACE),
        heartbeat=_between(fields, "heartbeat", LEAST_HEARTBEAT, LARGEST),
        timeout=traits.timeout,
        allow_parent_paths=bool(fields.flag("allow_parent_paths")),
        traits=traits,
        base=base,
    )


def _template(fields: Fields, parameters: Mapping[str, Parameter]) -> Template:
    value = cast("list[object] | None", fields.table.get("argv"))
    if not isinstance(value, list) or not value:
        wrong = "empty" if value == [] else kind(value)
        what = "is missing" if "argv" not in fields.table else f"must not be {wrong}"
        fields.fault("argv", f'{what}; give the words of the command, such as ["make", "{{target}}"]')
        return Template(groups=())
    groups: list[Group] = []
    for place, item in enumerate(value):
        at = f"argv[{place}]"
        words = cast("list[object]", item) if isinstance(item, list) else [item]
        group = tuple(word for word in (_word(fields, at, one) for one in words) if word is not None)
        _check_group(fields, at, group, parameters)
        if place == 0 and (isinstance(item, list) or places(group)):
            fields.fault(at, "the program itself cannot be a parameter; no caller chooses what is run")
        groups.append(group)
    used = {name for group in groups for name in places(group)} | _total_name(fields)
    declared: Mapping[str, Any] = fields.subtable("parameters")
    for name in declared:
        if name not in used:
            fields.fault(f"parameters.{name}", f"is never used; write {{{name}}} in argv, or leave it out")
    return Template(groups=tuple(groups))


def _word(fields: Fields, at: str, value: object) -> Word | None:
    if not isinstance(value, str):
        fields.fault(at, f"must be a text, not {kind(value)}")
        return None
    if "\x00" in value:
        fields.fault(at, "must not hold a null byte")
        return None
    try:
        return read_word(value)
    except ValueError as error:
        fields.fault(at, str(error))
        return None


def _check_group(fields: Fields, at: str, group: Group, parameters: Mapping[str, Parameter]) -> None:
    declared = fields.subtable("parameters")
    names = places(group)
    for name in names:
        if name not in declared:
            hint = nearest(name, declared) or "; `${…}` is expanded in env and cwd only, and {{ is a brace"
            fields.fault(at, f"there is no parameter {name!r}{hint}")
    kinds = {name: parameters[name].kind for name in names if name in parameters}
    if sum(one == "array" for one in kinds.values()) > 1:
        fields.fault(at, "has two lists; which of them would be repeated for which?")
    for word in group:
        flags = [part.name for part in word if isinstance(part, Place) and kinds.get(part.name) == "boolean"]
        if flags and len(word) > 1:
            fields.fault(at, f"{{{flags[0]}}} stands for a whole word, its flag; nothing can stand beside it")
        own = "".join(part if isinstance(part, str) else "x" for part in word)
        if any(isinstance(part, Place) for part in word) and climbs(own) and not fields.table.get("allow_parent_paths"):
            fields.fault(at, "has a '..' segment beside a parameter; say allow_parent_paths = true if that is meant")


def _pattern(fields: Fields, key: str) -> str | None:
    pattern = fields.text(key)
    try:
        return None if pattern is None else checked_pattern(pattern)
    except ValueError as error:
        fields.fault(key, str(error))
        return None


def _between(fields: Fields, key: str, least: float, most: float) -> float | None:
    value = fields.number(key)
    if value is not None and not least <= value <= most:
        fields.fault(key, f"must be a number from {least:g} to {most:g}, not {value:g}")
        return None
    return value


def _total_name(fields: Fields) -> set[str]:
    total: object = fields.table.get("total")
    return {total[1:-1]} if isinstance(total, str) and total.startswith("{") and total.endswith("}") else set()


def _total(fields: Fields, parameters: Mapping[str, Parameter]) -> float | str | None:
    """A number, or `{name}` of a parameter that is one."""
    names = _total_name(fields)
    if not names:
        return _between(fields, "total", 0, LARGEST)
    (name,) = names
    if name not in fields.subtable("parameters"):
        fields.fault("total", f"there is no parameter {name!r}{nearest(name, parameters)}")
    elif name in parameters and parameters[name].kind not in ("integer", "number"):
        fields.fault("total", f"the parameter {name!r} is no number")
    return name
