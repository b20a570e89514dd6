"""Reads the parameters of a configured command.

Owns: the keys of `[commands.NAME.parameters]`, their types, and what does not go together. Does not know: argv.
Invariant: every fault is noted; a parameter that comes out without one takes its own default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pursuit.core.base_model import nearest
from pursuit.core.patterns import checked_pattern
from pursuit.tools.fields import Fields, kind
from pursuit.tools.parameters import KINDS, MOST_ITEMS, Kind, Parameter

PARAMETER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
MOST_CHARACTERS = 100_000
_COMMON = ("type", "title", "description", "required", "default")
_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "string": ("enum", "pattern", "min_length", "max_length", "allow_options"),
    "integer": ("enum", "minimum", "maximum", "allow_options"),
    "number": ("enum", "minimum", "maximum", "allow_options"),
    "boolean": ("flag",),
    "array": ("items", "min_items", "max_items"),
}
_INNER: tuple[Kind, ...] = ("string", "integer", "number")
PARAMETER_KEYS = tuple(dict.fromkeys((*_COMMON, *(key for keys in _BY_KIND.values() for key in keys))))


def read_parameters(fields: Fields) -> dict[str, Parameter]:
    """Every parameter of a command; those that are wrong are faults and left out."""
    found: dict[str, Parameter] = {}
    for name, value in fields.table.items():
        if PARAMETER_NAME.fullmatch(name) is None:
            fields.fault(name, "a parameter's name has 1 to 64 letters, digits or '_', and starts with a letter")
        elif not isinstance(value, Mapping):
            fields.fault(name, f'must be a table such as {{ type = "string" }}, not {kind(value)}')
        else:
            parameter = _read(fields.inside(name))
            if parameter is not None:
                found[name] = parameter
    return found


def _read(fields: Fields) -> Parameter | None:
    said = _kind(fields, KINDS)
    if said is None:
        return None
    fields.only((*_COMMON, *_BY_KIND[said]))
    before = len(fields.faults)
    parameter = _typed(fields, said)
    parameter = replace(parameter, title=fields.text("title"), description=fields.text("description"))
    if said == "array":
        parameter = replace(parameter, items=_items(fields))
    if said == "boolean" and parameter.flag is None and "flag" not in fields.table:
        fields.fault("flag", 'is missing; give the word that stands in argv when it is true, such as "--verbose"')
    return _with_default(fields, parameter, sound=len(fields.faults) == before)


def _items(fields: Fields) -> Parameter:
    table = fields.inside("items")
    said = _kind(table, _INNER)
    if said is None:
        return Parameter()
    table.only(("type", *_BY_KIND[said]))
    return _typed(table, said)


def _kind(fields: Fields, known: tuple[Kind, ...]) -> Kind | None:
    """The type; a text unless said."""
    if "type" not in fields.table:
        return "string"
    said = fields.text("type")
    found: Kind | None = None if said not in known else said
    if said is not None and found is None:
        fields.fault("type", f"{said!r} is no type{nearest(said, known) or '; known: ' + ', '.join(known)}")
    return found


def _typed(fields: Fields, said: Kind) -> Parameter:
    return Parameter(
        kind=said,
        flag=fields.text("flag") if said == "boolean" else None,
        allow_options=bool(fields.flag("allow_options")) if "allow_options" in _BY_KIND[said] else False,
        rules=_rules(fields, said),
    )


def _with_default(fields: Fields, parameter: Parameter, *, sound: bool) -> Parameter:
    """Whether it must be given: unless said, whatever has no default, but for a boolean."""
    given = "default" in fields.table
    default: Any = fields.table["default"] if given else False if parameter.kind == "boolean" else None
    required = fields.flag("required")
    if required and given:
        fields.fault("required", "it has a default, so nobody must give it; keep one of the two")
    if given and sound:
        for at, reason in parameter.wrong(default):
            fields.fault(f"default{at}", reason)
    return replace(parameter, default=default, required=default is None if required is None else required)


def _rules(fields: Fields, said: Kind) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for key in _BY_KIND[said]:
        if key in fields.table and key not in ("flag", "allow_options", "items"):
            value = _rule(fields, key, said)
            if value is not None:
                rules[key] = value
    for least, most in (("minimum", "maximum"), ("min_length", "max_length"), ("min_items", "max_items")):
        if least in rules and most in rules and rules[least] > rules[most]:
            fields.fault(least, f"is above {most}")
    if "enum" in rules and len(rules) > 1:
        fields.fault("enum", "says everything; leave out the other bounds")
    return rules


def _rule(fields: Fields, key: str, said: Kind) -> Any:
    match key:
        case "enum":
            return _choices(fields, said)
        case "pattern":
            return _pattern(fields)
        case "minimum" | "maximum":
            return _bound(fields, key)
        case _:
            return _size(fields, key, MOST_ITEMS if key.endswith("items") else MOST_CHARACTERS)


def _choices(fields: Fields, said: Kind) -> list[Any] | None:
    choices = cast("list[Any] | None", fields.table["enum"])
    if not isinstance(choices, list) or not choices:
        named = "an empty one" if choices == [] else kind(choices)
        fields.fault("enum", f"must be a list with the values to choose from, not {named}")
        return None
    one = Parameter(kind=said, rules={"min_length": 0} if said == "string" else {})
    for place, choice in enumerate(choices):
        for at, reason in one.wrong(choice):
            fields.fault(f"enum[{place}]{at}", reason)
    return choices


def _pattern(fields: Fields) -> str | None:
    pattern = fields.text("pattern")
    try:
        return None if pattern is None else checked_pattern(pattern)
    except ValueError as error:
        fields.fault("pattern", str(error))
        return None


def _bound(fields: Fields, key: str) -> float | None:
    for _at, reason in Parameter(kind="number").wrong(fields.table[key]):
        fields.fault(key, reason)
        return None
    return fields.table[key]


def _size(fields: Fields, key: str, most: int) -> int | None:
    for _at, reason in Parameter(kind="integer", rules={"minimum": 0, "maximum": most}).wrong(fields.table[key]):
        fields.fault(key, reason)
        return None
    return int(fields.table[key])
