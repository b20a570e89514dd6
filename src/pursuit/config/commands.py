"""Commands that are offered as tools: `[commands.NAME]` of `pursuit.toml`, and the command line of one call.

A `CommandConfig` has no fault. Wrong arguments are refused all at once. There is no shell: each word of `argv` stays
one word whatever its values hold, a value never turns a word into an option, and never climbs out of a folder unless
that is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote

from pursuit.config.files import Fields, as_table, kind
from pursuit.config.servers import SERVER_NAME
from pursuit.config.surroundings import (
    SURROUNDING_KEYS,
    USUAL_SURROUNDINGS,
    Inherit,
    Surroundings,
    read_surroundings,
)
from pursuit.core.base_model import nearest
from pursuit.core.catalogue import CONTROL_TOOLS, is_control_tool
from pursuit.core.log_metrics import TAKES, MetricRule, checked_group
from pursuit.core.patterns import Unfinished, checked_path, checked_pattern, find
from pursuit.core.tools import ToolOverride
from pursuit.errors import Fault, PathTraversal, ValidationFailed

COMMANDS_SERVER = "commands"
"""The server that these tools belong to inside a mission."""

Kind = Literal["string", "integer", "number", "boolean", "array"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LARGEST = 2**53
LONGEST = 4_096
MOST_ITEMS = 1_000
MOST_CHARACTERS = 100_000
LONGEST_KEY = 100
MOST_UNKNOWN = 100
LONGEST_GRACE = 86_400.0
LEAST_HEARTBEAT = 1.0
"""Each heartbeat is an event in the ledger."""

PARAMETER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_COMMON = ("type", "title", "description", "required", "default")
_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "string": ("enum", "pattern", "min_length", "max_length", "allow_options"),
    "integer": ("enum", "minimum", "maximum", "allow_options"),
    "number": ("enum", "minimum", "maximum", "allow_options"),
    "boolean": ("flag",),
    "array": ("items", "min_items", "max_items"),
}
_ITEM_KINDS: tuple[Kind, ...] = ("string", "integer", "number")
PARAMETER_KEYS = tuple(dict.fromkeys((*_COMMON, *(key for keys in _BY_KIND.values() for key in keys))))
PATTERNS = ("unit_pattern", "failure_pattern", "item_pattern")
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")
COMMAND_KEYS = (
    "argv", "parameters", "metrics", "title", "description", "cwd", *SURROUNDING_KEYS, "total", *PATTERNS, "disclaimer",
    "grace", "heartbeat", "timeout", "allow_parent_paths", *TRAITS,
)  # fmt: skip

METRIC_KEYS = ("pattern", "json", "file", "take")
MOST_METRICS = 100
LONGEST_METRIC = 128

_JSON_SCHEMA_NAMES = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
}
_BOUNDS: dict[Kind, Mapping[str, int]] = {
    "string": {"min_length": 1, "max_length": LONGEST},
    "array": {"max_items": MOST_ITEMS},
}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. `rules` are its bounds by their configuration keys, `flag` is the word of a true boolean."""

    kind: Kind = "string"
    description: str | None = None
    title: str | None = None
    required: bool = True
    default: Any = None
    flag: str | None = None
    allow_options: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    items: Parameter | None = None

    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        body: dict[str, Any] = {"type": self.kind}
        for key, value in (("title", self.title), ("description", self.description), ("default", self.default)):
            if value is not None:
                body[key] = value
        bounds = dict(_BOUNDS.get(self.kind, {})) if "enum" not in self.rules else {}
        body.update({_JSON_SCHEMA_NAMES.get(key, key): value for key, value in {**bounds, **self.rules}.items()})
        if self.items is not None:
            body["items"] = self.items.schema()
        return body

    def wrong(self, value: Any) -> list[tuple[str, str]]:
        """The faults of a value: where inside it, and why."""
        match self.kind:
            case "boolean":
                return [] if isinstance(value, bool) else [("", f"must be true or false, not {kind(value)}")]
            case "array":
                return self._wrong_list(value)
            case "string":
                return [("", reason) for reason in self._wrong_text(value)]
            case _:
                return [("", reason) for reason in self._wrong_number(value)]

    def _wrong_list(self, value: Any) -> list[tuple[str, str]]:
        if not isinstance(value, list | tuple):
            return [("", f"must be a list, not {kind(value)}")]
        given = cast("Sequence[Any]", value)
        least, most = self.rules.get("min_items", 0), self.rules.get("max_items", MOST_ITEMS)
        if not least <= len(given) <= most:
            return [("", f"must have {least} to {most} items, not {len(given)}")]
        inner = self.items or Parameter()
        return [(f"[{place}]{at}", why) for place, item in enumerate(given) for at, why in inner.wrong(item)]

    def _wrong_text(self, value: Any) -> list[str]:
        if not isinstance(value, str):
            return [f"must be a text, not {kind(value)}"]
        if "enum" in self.rules:
            return self._wrong_choice(value)
        least, most = self.rules.get("min_length", 1), self.rules.get("max_length", LONGEST)
        if not least <= len(value) <= most:
            return [f"must have {least} to {most} characters, not {len(value)}"]
        faults = ["must not hold a null byte"] if "\x00" in value else []
        if not value.isascii() and _SURROGATE.search(value):
            faults.append("holds half a character, which cannot be encoded")
        pattern = self.rules.get("pattern")
        try:
            if pattern is not None and find(pattern, value) is None:
                faults.append(f"must match {pattern}")
        except Unfinished as error:
            faults.append(f"cannot be compared: {error}")
        return faults

    def _wrong_number(self, value: Any) -> list[str]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"must be a number, not {kind(value)}"]
        if not abs(value) <= LARGEST:  # also catches NaN
            return ["must be a number of at most 16 digits"]
        if self.kind == "integer" and value != int(value):
            return [f"must be a whole number, not {value}"]
        if "enum" in self.rules:
            return self._wrong_choice(value)
        least, most = self.rules.get("minimum", -math.inf), self.rules.get("maximum", math.inf)
        if least <= value <= most:
            return []
        bounds = (("at least", least), ("at most", most))
        return [f"must be {' and '.join(f'{word} {limit:g}' for word, limit in bounds if math.isfinite(limit))}"]

    def _wrong_choice(self, value: Any) -> list[str]:
        choices: Sequence[Any] = self.rules["enum"]
        if value in choices:
            return []
        hint = nearest(value, [str(one) for one in choices]) if isinstance(value, str) else ""
        return [f"must be one of {', '.join(repr(one) for one in choices[:20])}{hint}"]


def _as_word(value: str | float) -> str:
    """A text or number as a word of a command line."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(value)


_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
# `..` as a whole path segment: on each side an end or a character that no name has. Also after an option, as in `-I..`.
_CLIMB = re.compile(r"(?:^|[^\w.+~-]|^-{1,2}\w*)\.\.(?=$|[^\w.+~-])")
OPTIONS_END = "--"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter's value goes."""

    name: str


Word = tuple[str | Place, ...]
Group = tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An argv as groups of words, such as `["make", "-j{jobs}", ["--log", "{log}"], "{verbose}", "{targets}"]`.

    A group is left out whole if one of its parameters has no value: without `{log}` there is no `--log` either.
    """

    groups: tuple[Group, ...]

    def fill(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """The words for values that fit their parameters; None is an absent value."""
        return [word for group in self.groups for word in _filled(group, values, parameters)]

    def chosen(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """Only the words that hold a value; the others are the operator's own."""
        some = (tuple(word for word in group if places((word,))) for group in self.groups)
        return [word for group in some for word in _filled(group, values, parameters)]

    def options(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """The parameters whose value would begin a word with a dash and so be read as an option."""
        found: list[str] = []
        for word in (word for group in self.groups for word in group):
            if word == (OPTIONS_END,):
                break
            found += _dashed(word, values, parameters)
        return list(dict.fromkeys(found))


def places(group: Group) -> list[str]:
    """The parameters of a group, in order."""
    return [part.name for word in group for part in word if isinstance(part, Place)]


def _parse_word(text: str) -> Word:
    """One word as parts; `{{` and `}}` are braces. Raises `ValueError` that says what is wrong."""
    parts: list[str | Place] = []
    literal, end = "", 0
    for found in _PART.finditer(text):
        literal += text[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            literal += found[0][0]
        elif found[1]:
            parts += [literal, Place(found[1].strip())] if literal else [Place(found[1].strip())]
            literal = ""
        else:
            raise ValueError(f"has a lone {found[0]!r}; write {{name}} for a parameter and {{{{ or }}}} for a brace")
    literal += text[end:]
    return (*parts, literal) if literal else tuple(parts)


def _filled(group: Group, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
    names = places(group)
    if any(values.get(name) is None or values[name] is False for name in names):
        return []
    repeated = next((name for name in names if parameters[name].kind == "array"), None)
    if repeated is None:
        return [_spell(word, values, parameters) for word in group]
    return [
        _spell(word, {**values, repeated: item}, parameters)
        for item in cast("Sequence[Any]", values[repeated])
        for word in group
    ]


def _dashed(word: Word, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
    """The parameter whose value starts this word with a dash; after an empty value the next one starts it."""
    for part in word:
        if isinstance(part, str):
            break
        texts = _texts(values.get(part.name), parameters[part.name])
        if any(text.startswith("-") for text in texts):
            return [part.name]
        if "" not in texts:
            break
    return []


def _spell(word: Word, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> str:
    text = ""
    for part in word:
        if isinstance(part, str):
            text += part
        else:
            value = values[part.name]
            text += parameters[part.name].flag or "" if value is True else _as_word(value)
    return text


def _texts(value: Any, parameter: Parameter) -> list[str]:
    """The texts of a value that the caller may choose freely; `-1` is an option to most programs, too."""
    inner = parameter.items or parameter if parameter.kind == "array" else parameter
    if inner.kind == "boolean" or inner.allow_options or "enum" in inner.rules or value is None:
        return []
    return [_as_word(item) for item in cast("Sequence[Any]", value)] if parameter.kind == "array" else [_as_word(value)]


def climbs(word: str) -> bool:
    """Whether it holds a `..` segment: as a path, after a `=`, in a list of paths, or percent-encoded."""
    return _CLIMB.search(word) is not None or ("%" in word and _CLIMB.search(unquote(word)) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """One command."""

    name: str
    argv: Template
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    metrics: tuple[MetricRule, ...] = ()
    """What its output, or a file that it writes, tells; `{name}` in a file's name is a parameter."""
    title: str | None = None
    description: str | None = None
    cwd: str | None = None
    surroundings: Surroundings = USUAL_SURROUNDINGS
    total: float | str | None = None
    """The number of units, or the name of the parameter that states it."""
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
        """The arguments of a call as JSON Schema."""
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
            refuse_parent_paths(self.name, [*_argument_texts(arguments), *self.argv.chosen(values, self.parameters)])
        return words

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Each parameter with its value: given, or its default, or None."""
        return {name: arguments.get(name, parameter.default) for name, parameter in self.parameters.items()}

    def units(self, arguments: Mapping[str, Any]) -> float | None:
        """The number of units, if it is known."""
        return self.values(arguments)[self.total] if isinstance(self.total, str) else self.total

    def rules(self, arguments: Mapping[str, Any]) -> list[MetricRule]:
        """Its metrics for these arguments; one whose file needs a parameter without a value is left out."""
        values, found = self.values(arguments), list[MetricRule]()
        for rule in self.metrics:
            if rule.file is None:
                found.append(rule)
            else:
                words = _filled((_parse_word(rule.file),), values, self.parameters)
                found += [replace(rule, file=word) for word in words]
        return found

    def _faults(self, arguments: Mapping[str, Any]) -> list[Fault]:
        faults: list[Fault] = []
        unknown = [name for name in arguments if name not in self.parameters]
        for name in unknown[:MOST_UNKNOWN]:
            hint = nearest(name, self.parameters) or f"; known: {', '.join(self.parameters) or 'none'}"
            shown = f"{name[:LONGEST_KEY]}…" if len(name) > LONGEST_KEY else name or '""'
            faults.append(Fault(field=shown, reason=f"is not a known key{hint}"))
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


def refuse_parent_paths(name: str, words: list[str]) -> None:
    """Raises `PathTraversal` for words with a `..` segment."""
    found = [word for word in words if climbs(word)]
    if found:
        raise PathTraversal(
            f"{name}: {found[0][:200]!r} has a '..' segment, which could lead out of its folder; nothing was started",
            arguments=[word[:200] for word in dict.fromkeys(found)][:10],
        )


def _argument_texts(arguments: Mapping[str, Any]) -> list[str]:
    """The texts among valid arguments: alone, or in lists."""
    lists = [cast("list[Any]", value) if isinstance(value, list) else [value] for value in arguments.values()]
    return [value for values in lists for value in values if isinstance(value, str)]


def read_commands(fields: Fields, base: Path, inherit: Inherit = ()) -> dict[str, CommandConfig]:
    """Each command of the file, which inherits these variables unless it says otherwise; faults are in `fields`."""
    found: dict[str, CommandConfig] = {}
    for name, table in fields.tables(COMMANDS_SERVER):
        if not SERVER_NAME.match(name):
            why = "a command's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit"
            fields.fault(table.at, why)
        elif is_control_tool(name):
            taken = ", ".join(CONTROL_TOOLS)
            fields.fault(table.at, f"is a name of Pursuit's own tools ({taken}); choose another one")
        found[name] = _read_command(name, table, base, inherit)
    return found


def _read_command(name: str, fields: Fields, base: Path, inherit: Inherit) -> CommandConfig:
    fields.only(COMMAND_KEYS)
    declared = fields.inside("parameters")
    parameters = _read_parameters(declared)
    traits = ToolOverride(**{key: fields.flag(key) for key in TRAITS}, timeout=fields.number("timeout"))
    if traits.read_only and traits.destructive:
        fields.fault("destructive", "a command cannot be read-only and destructive")
    return CommandConfig(
        name=name,
        argv=_read_template(fields, parameters, declared),
        parameters=parameters,
        metrics=_read_metrics(fields, declared),
        title=fields.text("title"),
        description=fields.text("description"),
        cwd=fields.text("cwd"),
        surroundings=read_surroundings(fields, inherit),
        total=_read_total(fields, parameters, declared),
        **{key: _read_pattern(fields, key) for key in PATTERNS},
        disclaimer=fields.text("disclaimer"),
        grace=_read_number(fields, "grace", 0, LONGEST_GRACE),
        heartbeat=_read_number(fields, "heartbeat", LEAST_HEARTBEAT, LARGEST),
        timeout=traits.timeout,
        allow_parent_paths=bool(fields.flag("allow_parent_paths")),
        traits=traits,
        base=base,
    )


def _read_template(fields: Fields, parameters: Mapping[str, Parameter], declared: Fields) -> Template:
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
        group = tuple(word for word in (_read_word(fields, at, one) for one in words) if word is not None)
        _check_group(fields, at, group, parameters, declared)
        if place == 0 and (isinstance(item, list) or places(group)):
            fields.fault(at, "the program itself cannot be a parameter; no caller chooses what is run")
        groups.append(group)
    used = {name for group in groups for name in places(group)} | {_total_parameter(fields)}
    for name in declared.table:
        if name not in used:
            declared.fault(name, f"is never used; write {{{name}}} in argv, or leave it out")
    return Template(groups=tuple(groups))


def _read_word(fields: Fields, at: str, value: object) -> Word | None:
    if not isinstance(value, str):
        fields.fault(at, f"must be a text, not {kind(value)}")
    elif "\x00" in value:
        fields.fault(at, "must not hold a null byte")
    else:
        try:
            return _parse_word(value)
        except ValueError as error:
            fields.fault(at, str(error))
    return None


def _check_group(fields: Fields, at: str, group: Group, parameters: Mapping[str, Parameter], declared: Fields) -> None:
    names = places(group)
    for name in names:
        if name not in declared.table:
            hint = nearest(name, declared.table) or "; `${…}` is expanded in env and cwd only, and {{ is a brace"
            fields.fault(at, f"there is no parameter {name!r}{hint}")
    kinds = {name: parameters[name].kind for name in names if name in parameters}
    if sum(one == "array" for one in kinds.values()) > 1:
        fields.fault(at, "has two lists; only one list can be repeated in a group")
    for word in group:
        flags = [part.name for part in word if isinstance(part, Place) and kinds.get(part.name) == "boolean"]
        if flags and len(word) > 1:
            fields.fault(at, f"{{{flags[0]}}} stands for a whole word, its flag; nothing can stand beside it")
        own = "".join(part if isinstance(part, str) else "x" for part in word)
        if places((word,)) and climbs(own) and not fields.table.get("allow_parent_paths"):
            fields.fault(at, "has a '..' segment beside a parameter; say allow_parent_paths = true if that is meant")


def _read_metrics(fields: Fields, declared: Fields) -> tuple[MetricRule, ...]:
    """The metrics without a fault; a text alone is a pattern."""
    table = fields.inside("metrics")
    found: list[MetricRule] = []
    if len(table.table) > MOST_METRICS:
        fields.fault("metrics", f"has {len(table.table)} entries; at most {MOST_METRICS}")
    for name, value in list(table.table.items())[:MOST_METRICS]:
        before = len(fields.faults)
        if not 0 < len(name) <= LONGEST_METRIC or not name.isprintable():
            table.fault(name or '""', f"a metric's name has 1 to {LONGEST_METRIC} printable characters")
        if isinstance(value, str):
            rule = MetricRule(name=name, pattern=_read_checked(table, name, checked_group))
        elif isinstance(value, Mapping):
            rule = _read_metric(name, table.inside(name), declared)
        else:
            why = f'must be a regular expression, or a table such as {{ json = "loss" }}, not {kind(value)}'
            table.fault(name, why)
            continue
        if len(fields.faults) == before:
            found.append(rule)
    return tuple(found)


def _read_metric(name: str, fields: Fields, declared: Fields) -> MetricRule:
    fields.only(METRIC_KEYS)
    if ("pattern" in fields.table) == ("json" in fields.table):
        fields.fault("pattern", "give exactly one of pattern and json (a path into a JSON line)")
    file = fields.text("file")
    word = None if file is None else _read_word(fields, "file", file)
    for place in () if word is None else places((word,)):
        known = as_table(declared.table.get(place))
        if known is None:
            fields.fault("file", f"there is no parameter {place!r}{nearest(place, declared.table)}")
        elif known.get("type") in ("array", "boolean"):
            fields.fault("file", f"the parameter {place!r} must be a text or a number")
    return MetricRule(
        name=name,
        pattern=_read_checked(fields, "pattern", checked_group),
        json=_read_checked(fields, "json", checked_path),
        file=file,
        take=fields.word("take", TAKES) or "last",
    )


def _read_number(fields: Fields, key: str, least: float, most: float) -> float | None:
    value = fields.number(key)
    if value is not None and not least <= value <= most:
        fields.fault(key, f"must be a number from {least:g} to {most:g}, not {value:g}")
        return None
    return value


def _total_parameter(fields: Fields) -> str | None:
    total: object = fields.table.get("total")
    return total[1:-1] if isinstance(total, str) and total.startswith("{") and total.endswith("}") else None


def _read_total(fields: Fields, parameters: Mapping[str, Parameter], declared: Fields) -> float | str | None:
    """A number, or the name of a parameter that is one, given as `{name}`."""
    name = _total_parameter(fields)
    if name is None:
        return _read_number(fields, "total", 0, LARGEST)
    if name not in declared.table:
        fields.fault("total", f"there is no parameter {name!r}{nearest(name, parameters)}")
    elif name in parameters and parameters[name].kind not in ("integer", "number"):
        fields.fault("total", f"the parameter {name!r} is not a number")
    return name


def _read_parameters(fields: Fields) -> dict[str, Parameter]:
    """The parameters of a command that have no fault."""
    found: dict[str, Parameter] = {}
    for name, value in fields.table.items():
        if PARAMETER_NAME.fullmatch(name) is None:
            fields.fault(name, "a parameter's name has 1 to 64 letters, digits or '_', and starts with a letter")
        elif not isinstance(value, Mapping):
            fields.fault(name, f'must be a table such as {{ type = "string" }}, not {kind(value)}')
        else:
            parameter = _read_parameter(fields.inside(name))
            if parameter is not None:
                found[name] = parameter
    return found


def _read_parameter(fields: Fields) -> Parameter | None:
    chosen = _read_kind(fields, KINDS)
    if chosen is None:
        return None
    fields.only((*_COMMON, *_BY_KIND[chosen]))
    before = len(fields.faults)
    parameter = replace(
        _read_value_rules(fields, chosen), title=fields.text("title"), description=fields.text("description")
    )
    if chosen == "array":
        items = fields.inside("items")
        of = _read_kind(items, _ITEM_KINDS)
        if of is not None:
            items.only(("type", *_BY_KIND[of]))
        parameter = replace(parameter, items=Parameter() if of is None else _read_value_rules(items, of))
    if chosen == "boolean" and parameter.flag is None and "flag" not in fields.table:
        fields.fault("flag", 'is missing; give the word that stands in argv when it is true, such as "--verbose"')
    return _with_default(fields, parameter, sound=len(fields.faults) == before)


def _read_kind(fields: Fields, known: tuple[Kind, ...]) -> Kind | None:
    """The type; a text by default."""
    if "type" not in fields.table:
        return "string"
    said = fields.text("type")
    found: Kind | None = None if said not in known else said
    if said is not None and found is None:
        fields.fault("type", f"{said!r} is not a type{nearest(said, known) or '; known: ' + ', '.join(known)}")
    return found


def _read_value_rules(fields: Fields, chosen: Kind) -> Parameter:
    keys = _BY_KIND[chosen]
    rules = {
        key: value
        for key in keys
        if key in fields.table and key not in ("flag", "allow_options", "items")
        if (value := _read_rule(fields, key, chosen)) is not None
    }
    for least, most in (("minimum", "maximum"), ("min_length", "max_length"), ("min_items", "max_items")):
        if least in rules and most in rules and rules[least] > rules[most]:
            fields.fault(least, f"is above {most}")
    if "enum" in rules and len(rules) > 1:
        fields.fault("enum", "says everything; leave out the other bounds")
    return Parameter(
        kind=chosen,
        flag=fields.text("flag") if "flag" in keys else None,
        allow_options="allow_options" in keys and bool(fields.flag("allow_options")),
        rules=rules,
    )


def _with_default(fields: Fields, parameter: Parameter, *, sound: bool) -> Parameter:
    """The parameter with its default. It is required unless said otherwise, or it has a default, or is a boolean."""
    given = "default" in fields.table
    default: Any = fields.table["default"] if given else False if parameter.kind == "boolean" else None
    required = fields.flag("required")
    if required and given:
        fields.fault("required", "a parameter with a default is never missing; keep one of the two")
    if given and sound:
        for at, reason in parameter.wrong(default):
            fields.fault(f"default{at}", reason)
    return replace(parameter, default=default, required=default is None if required is None else required)


def _read_rule(fields: Fields, key: str, chosen: Kind) -> Any:
    match key:
        case "enum":
            return _read_choices(fields, chosen)
        case "pattern":
            return _read_pattern(fields, key)
        case "minimum" | "maximum":
            bound = Parameter(kind="number")
        case _:
            most = MOST_ITEMS if key.endswith("items") else MOST_CHARACTERS
            bound = Parameter(kind="integer", rules={"minimum": 0, "maximum": most})
    value = fields.table[key]
    for _at, reason in bound.wrong(value):
        fields.fault(key, reason)
        return None
    return value if bound.kind == "number" else int(value)


def _read_choices(fields: Fields, chosen: Kind) -> list[Any] | None:
    choices = cast("list[Any] | None", fields.table["enum"])
    if not isinstance(choices, list) or not choices:
        given = "an empty one" if choices == [] else kind(choices)
        fields.fault("enum", f"must be a list with the values to choose from, not {given}")
        return None
    one = Parameter(kind=chosen, rules={"min_length": 0} if chosen == "string" else {})
    for place, choice in enumerate(choices):
        for at, reason in one.wrong(choice):
            fields.fault(f"enum[{place}]{at}", reason)
    return choices


def _read_pattern(fields: Fields, key: str) -> str | None:
    return _read_checked(fields, key, checked_pattern)


def _read_checked(fields: Fields, key: str, check: Callable[[str], str]) -> str | None:
    text = fields.text(key)
    try:
        return None if text is None else check(text)
    except ValueError as error:
        fields.fault(key, str(error))
        return None
