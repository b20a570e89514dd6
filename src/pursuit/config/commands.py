"""Commands that are offered as tools: `[commands.NAME]` of `pursuit.toml`, and the command line of one call.

A `CommandConfig` has no fault. Wrong arguments are refused all at once. There is no shell: each word of `argv` stays
one word whatever its values hold, a value never turns a word into an option, and never climbs out of a folder unless
that is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from pursuit.config.files import as_table
from pursuit.config.servers import SERVER_NAME
from pursuit.config.surroundings import Inherit, Surroundings, SurroundingsTable
from pursuit.config.variables import expand_variables
from pursuit.core.base_model import (
    AnyNumber,
    Broken,
    Filled,
    Flag,
    NotNegativeWhole,
    Positive,
    TableModel,
    filled,
    kind,
    must,
    nearest,
    number,
    refuse,
    rules,
)
from pursuit.core.catalogue import CONTROL_TOOLS, is_control_tool
from pursuit.core.log_metrics import MetricRule, Take, checked_group
from pursuit.core.patterns import Unfinished, checked_path, checked_pattern, find, to_the_end
from pursuit.core.tools import ToolOverride
from pursuit.errors import Fault, PathTraversal, ValidationFailed, advice

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
_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "string": ("enum", "pattern", "min_length", "max_length", "allow_options"),
    "integer": ("enum", "minimum", "maximum", "allow_options"),
    "number": ("enum", "minimum", "maximum", "allow_options"),
    "boolean": ("flag",),
    "array": ("items", "min_items", "max_items"),
}
_NAMED = ("title", "description", "required", "default")
_NO_RULES = ("flag", "allow_options", "items")
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")

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


def _choices(value: object) -> object:
    if not isinstance(value, list) or not value:
        given = "an empty one" if value == [] else kind(cast("object", value))
        raise ValueError(f"must be a list with the values to choose from, not {given}")
    return cast("object", value)


def _item_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if given.get("type") in ("array", "boolean"):
        yield Broken("input should be 'string', 'integer' or 'number'", "type")
    yield from (Broken("has no meaning for items", key) for key in given if key in _NAMED)


Length = Annotated[NotNegativeWhole, Field(le=MOST_CHARACTERS)]
Count = Annotated[NotNegativeWhole, Field(le=MOST_ITEMS)]
Bound = Annotated[AnyNumber, Field(ge=-LARGEST, le=LARGEST)]
PatternKey = Annotated[Filled, AfterValidator(checked_pattern)]


class CommandParameter(TableModel):
    """A parameter of a command: a type, bounds of its values, and `flag`, the word of a true boolean."""

    type: Kind = "string"
    title: Filled | None = None
    description: Filled | None = None
    required: Flag | None = None
    default: Any = None
    enum: Annotated[list[Any], BeforeValidator(_choices)] | None = None
    pattern: PatternKey | None = None
    min_length: Length | None = None
    max_length: Length | None = None
    minimum: Bound | None = None
    maximum: Bound | None = None
    min_items: Count | None = None
    max_items: Count | None = None
    items: Annotated[CommandParameter, rules(_item_rules)] | None = None
    flag: Filled | None = None
    allow_options: Flag = False

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """Only bounds that the type has, each below its opposite; a flag; a default or required."""
        chosen: Kind = given.get("type", "string")
        if chosen not in KINDS:
            return
        others = {key for keys in _BY_KIND.values() for key in keys if key not in _BY_KIND[chosen]}
        yield from (Broken(f"has no meaning for {chosen}", key) for key in given if key in others)
        for least, most in (("minimum", "maximum"), ("min_length", "max_length"), ("min_items", "max_items")):
            low, high = given.get(least), given.get(most)
            if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                yield Broken(f"is above {most}", least)
        if isinstance(given.get("enum"), list):
            yield from _wrong_choices(chosen, given)
        if chosen == "boolean" and "flag" not in given:
            why = 'is missing; give the word that stands in argv when it is true, such as "--verbose"'
            yield Broken(why, "flag")
        if given.get("required") is True and "default" in given:
            yield Broken("a parameter with a default is never missing; keep one of the two", "required")

    @property
    def bounds(self) -> Mapping[str, Any]:
        """The bounds that are given."""
        given = {key: getattr(self, key) for key in _BY_KIND[self.type] if key not in _NO_RULES}
        return {key: value for key, value in given.items() if value is not None}

    @property
    def absent(self) -> Any:
        """The value of a call that gives none."""
        return False if self.type == "boolean" and self.default is None else self.default

    @property
    def needed(self) -> bool:
        """Whether each call must give it: unless said otherwise, or it has a default, or is a boolean."""
        return self.absent is None if self.required is None else self.required

    def as_schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        body: dict[str, Any] = {"type": self.type}
        for key, value in (("title", self.title), ("description", self.description), ("default", self.absent)):
            if value is not None:
                body[key] = value
        bounds = dict(_BOUNDS.get(self.type, {})) if "enum" not in self.bounds else {}
        body.update({_JSON_SCHEMA_NAMES.get(key, key): value for key, value in {**bounds, **self.bounds}.items()})
        if self.type == "array":
            body["items"] = (self.items or CommandParameter()).as_schema()
        return body

    def wrong(self, value: Any) -> list[tuple[str, str]]:
        """The faults of a value: where inside it, and why."""
        match self.type:
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
        least, most = self.bounds.get("min_items", 0), self.bounds.get("max_items", MOST_ITEMS)
        if not least <= len(given) <= most:
            return [("", f"must have {least} to {most} items, not {len(given)}")]
        inner = self.items or CommandParameter()
        return [(f"[{place}]{at}", why) for place, item in enumerate(given) for at, why in inner.wrong(item)]

    def _wrong_text(self, value: Any) -> list[str]:
        if not isinstance(value, str):
            return [f"must be a text, not {kind(value)}"]
        if "enum" in self.bounds:
            return self._wrong_choice(value)
        least, most = self.bounds.get("min_length", 1), self.bounds.get("max_length", LONGEST)
        if not least <= len(value) <= most:
            return [f"must have {least} to {most} characters, not {len(value)}"]
        faults = ["must not hold a null byte"] if "\x00" in value else []
        if not value.isascii() and _SURROGATE.search(value):
            faults.append("holds half a character, which cannot be encoded")
        pattern = self.bounds.get("pattern")
        try:
            if pattern is not None and find(to_the_end(pattern), value) is None:
                faults.append(f"must match {pattern}")
        except Unfinished as error:
            faults.append(f"cannot be compared: {error}")
        return faults

    def _wrong_number(self, value: Any) -> list[str]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"must be a number, not {kind(value)}"]
        if not abs(value) <= LARGEST:  # also catches NaN
            return ["must be a number of at most 16 digits"]
        if self.type == "integer" and value != int(value):
            return [f"must be a whole number, not {value}"]
        if "enum" in self.bounds:
            return self._wrong_choice(value)
        least, most = self.bounds.get("minimum", -math.inf), self.bounds.get("maximum", math.inf)
        if least <= value <= most:
            return []
        bounds = (("at least", least), ("at most", most))
        return [f"must be {' and '.join(f'{word} {limit:g}' for word, limit in bounds if math.isfinite(limit))}"]

    def _wrong_choice(self, value: Any) -> list[str]:
        choices: Sequence[Any] = self.bounds["enum"]
        if value in choices:
            return []
        hint = nearest(value, [str(one) for one in choices]) if isinstance(value, str) else ""
        return [f"must be one of {', '.join(repr(one) for one in choices[:20])}{hint}"]


def _wrong_choices(chosen: Kind, given: Mapping[str, Any]) -> Iterator[Broken]:
    if any(key in given for key in _BY_KIND[chosen] if key not in ("enum", "allow_options")):
        yield Broken("says everything; leave out the other bounds", "enum")
    one = CommandParameter(type=chosen, min_length=0) if chosen == "string" else CommandParameter(type=chosen)
    for place, choice in enumerate(cast("list[Any]", given["enum"])):
        yield from (Broken(reason, ("enum", place)) for _, reason in one.wrong(choice))


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

    def fill(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
        """The words for values that fit their parameters; None is an absent value."""
        return [word for group in self.groups for word in _filled(group, values, parameters)]

    def chosen(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
        """Only the words that hold a value; the others are the operator's own."""
        some = (tuple(word for word in group if places((word,))) for group in self.groups)
        return [word for group in some for word in _filled(group, values, parameters)]

    def options(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
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


def _filled(group: Group, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
    names = places(group)
    if any(values.get(name) is None or values[name] is False for name in names):
        return []
    repeated = next((name for name in names if parameters[name].type == "array"), None)
    if repeated is None:
        return [_spell(word, values, parameters) for word in group]
    return [
        _spell(word, {**values, repeated: item}, parameters)
        for item in cast("Sequence[Any]", values[repeated])
        for word in group
    ]


def _dashed(word: Word, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
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


def _spell(word: Word, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> str:
    text = ""
    for part in word:
        if isinstance(part, str):
            text += part
        else:
            value = values[part.name]
            text += parameters[part.name].flag or "" if value is True else _as_word(value)
    return text


def _texts(value: Any, parameter: CommandParameter) -> list[str]:
    """The texts of a value that the caller may choose freely; `-1` is an option to most programs, too."""
    inner = parameter.items or parameter if parameter.type == "array" else parameter
    if inner.type == "boolean" or inner.allow_options or "enum" in inner.bounds or value is None:
        return []
    return [_as_word(item) for item in cast("Sequence[Any]", value)] if parameter.type == "array" else [_as_word(value)]


def climbs(word: str) -> bool:
    """Whether it holds a `..` segment: as a path, after a `=`, in a list of paths, or percent-encoded."""
    return _CLIMB.search(word) is not None or ("%" in word and _CLIMB.search(unquote(word)) is not None)


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


def _with_fitting_default(parameter: CommandParameter) -> CommandParameter:
    if parameter.default is not None:
        refuse(Broken(reason, f"default{at}") for at, reason in parameter.wrong(parameter.default))
    return parameter


def _parameter_table(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f'must be a table such as {{ type = "string" }}, not {kind(value)}')
    return cast("object", value)


def _checked_word(text: str) -> str:
    _read_word(text)
    return text


class MetricTable(TableModel):
    """Where a metric is found."""

    pattern: Annotated[Filled, AfterValidator(checked_group)] | None = None
    path: Annotated[Filled, AfterValidator(checked_path)] | None = Field(None, alias="json")
    file: Annotated[Filled, AfterValidator(_checked_word)] | None = None
    take: Take = "last"

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """One way to find it."""
        if ("pattern" in given) == ("json" in given):
            yield Broken("give exactly one of pattern and json (a path into a JSON line)", "pattern")

    def rule(self, name: str) -> MetricRule:
        """The rule of the metric of this name."""
        return MetricRule(name=name, pattern=self.pattern, json=self.path, file=self.file, take=self.take)


def _metric_table(value: object) -> object:
    """A text alone is a pattern."""
    if isinstance(value, str):
        return {"pattern": checked_group(filled(value))}
    if not isinstance(value, Mapping):
        raise ValueError(f'must be a regular expression, or a table such as {{ json = "loss" }}, not {kind(value)}')
    return cast("object", value)


def _not_too_many(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if len(given) > MOST_METRICS:
        yield Broken(f"has {len(given)} entries; at most {MOST_METRICS}")


def _between(least: float, most: float, value: float) -> float:
    if not least <= value <= most:
        raise ValueError(f"must be a number from {least:g} to {most:g}, not {value:g}")
    return value


def _place_of(text: object) -> str | None:
    """The parameter that `{name}` stands for."""
    return text[1:-1] if isinstance(text, str) and text.startswith("{") and text.endswith("}") else None


def _total(value: object) -> float | str:
    return _place_of(value) or _between(0, LARGEST, number(value))


def _words(value: object) -> Template:
    """The words of argv; each that cannot be read is a fault."""
    if not isinstance(value, list) or not value:
        wrong = "empty" if value == [] else kind(cast("object", value))
        raise ValueError(f"must not be {wrong}; {_ARGV}")
    groups, broken = list[Group](), list[Broken]()
    for place, item in enumerate(cast("list[object]", value)):
        words = cast("list[object]", item) if isinstance(item, list) else [item]
        try:
            groups.append(tuple(_read_word(word) for word in words))
        except ValueError as error:
            broken.append(Broken(str(error), (place,)))
    refuse(broken)
    return Template(groups=tuple(groups))


def _read_word(value: object) -> Word:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {kind(value)}")
    if "\x00" in value:
        raise ValueError("must not hold a null byte")
    return _parse_word(value)


def _readable(words: Sequence[object]) -> Group:
    """The words that can be read."""
    found: list[Word] = []
    for word in words:
        with suppress(ValueError):
            found.append(_read_word(word))
    return tuple(found)


_PARAMETER = "a parameter's name has 1 to 64 letters, digits or '_', and starts with a letter"
_METRIC = f"a metric's name has 1 to {LONGEST_METRIC} printable characters"
_ARGV = 'give the words of the command, such as ["make", "{target}"]'


class CommandTable(SurroundingsTable):
    """A command that is offered as a tool."""

    NEEDED = {"argv": _ARGV}  # noqa: RUF012 - a ClassVar of the base

    argv: Annotated[
        Template, PlainValidator(_words, json_schema_input_type=Annotated[list[str | list[str]], Field(min_length=1)])
    ]
    parameters: Mapping[
        Annotated[str, must(PARAMETER_NAME.fullmatch, _PARAMETER)],
        Annotated[CommandParameter, BeforeValidator(_parameter_table), AfterValidator(_with_fitting_default)],
    ] = Field(default_factory=dict)
    metrics: Annotated[
        Mapping[
            Annotated[str, must(lambda name: 0 < len(name) <= LONGEST_METRIC and name.isprintable(), _METRIC)],
            Annotated[MetricTable, BeforeValidator(_metric_table, json_schema_input_type=str | MetricTable)],
        ],
        rules(_not_too_many),
    ] = Field(default_factory=dict)
    """What its output, or a file that it writes, tells; `{name}` in a file's name is a parameter."""
    title: Filled | None = None
    description: Filled | None = None
    cwd: Filled | None = None
    total: Annotated[float | str, PlainValidator(_total, json_schema_input_type=float | str)] | None = None
    """The number of units, or the name of the parameter that states it."""
    unit_pattern: PatternKey | None = None
    failure_pattern: PatternKey | None = None
    item_pattern: PatternKey | None = None
    disclaimer: Filled | None = None
    grace: Annotated[Positive, AfterValidator(partial(_between, 0, LONGEST_GRACE))] | None = None
    heartbeat: Annotated[Positive, AfterValidator(partial(_between, LEAST_HEARTBEAT, LARGEST))] | None = None
    timeout: Positive | None = None
    allow_parent_paths: Flag = False
    read_only: Flag | None = None
    idempotent: Flag | None = None
    parallel_safe: Flag | None = None
    destructive: Flag | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """What argv, metrics and total say of the parameters."""
        if given.get("read_only") is True and given.get("destructive") is True:
            yield Broken("a command cannot be read-only and destructive", "destructive")
        declared = _Declared(as_table(given.get("parameters")) or {})
        argv: object = given.get("argv")
        if isinstance(argv, list):
            yield from declared.faults_of_argv(cast("list[object]", argv), given)
        for name, metric in (as_table(given.get("metrics")) or {}).items():
            file: object = (as_table(metric) or {}).get("file")
            for place in places(_readable([file])):
                yield from (Broken(why, ("metrics", name, "file")) for why in declared.no_text(place))
        total = _place_of(given.get("total"))
        yield from (Broken(why, "total") for why in declared.no_number(total) if total is not None)


class CommandConfig(CommandTable):
    """One command of a configuration, which inherits these variables unless it says otherwise."""

    name: str
    base: Path
    inherit: Inherit = ()

    @classmethod
    def of(cls, table: CommandTable, name: str, base: Path, inherit: Inherit) -> CommandConfig:
        """The command of this name."""
        return cls.model_construct(name=name, base=base, inherit=inherit, **dict(table))

    @property
    def surroundings(self) -> Surroundings:
        """What it gets."""
        return self.around(self.inherit)

    @property
    def traits(self) -> ToolOverride:
        """What it may do, as a tool."""
        return ToolOverride(timeout=self.timeout, **{key: getattr(self, key) for key in TRAITS})

    def folder(self, environ: Mapping[str, str]) -> str:
        """Where it runs."""
        place = Path(self.base, expand_variables(self.cwd or ".", environ)[0])
        return str(place.expanduser())

    def input_schema(self) -> dict[str, Any]:
        """The arguments of a call as JSON Schema."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: parameter.as_schema() for name, parameter in self.parameters.items()},
            "additionalProperties": False,
        }
        required = [name for name, parameter in self.parameters.items() if parameter.needed]
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
        return {name: arguments.get(name, parameter.absent) for name, parameter in self.parameters.items()}

    def units(self, arguments: Mapping[str, Any]) -> float | None:
        """The number of units, if it is known."""
        return self.values(arguments)[self.total] if isinstance(self.total, str) else self.total

    def rules(self, arguments: Mapping[str, Any]) -> list[MetricRule]:
        """Its metrics for these arguments; one whose file needs a parameter without a value is left out."""
        values, found = self.values(arguments), list[MetricRule]()
        for rule in (metric.rule(name) for name, metric in self.metrics.items()):
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
            if parameter.needed and name not in arguments
        ]
        if not faults:
            why = "must not begin with '-': it would be read as an option"
            values = self.values(arguments)
            faults += [Fault(field=name, reason=why) for name in self.argv.options(values, self.parameters)]
        return faults


class _Declared:
    """The parameters of a command as they are written, right or wrong."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.tables = tables
        self.kinds = {name: str((as_table(table) or {}).get("type", "string")) for name, table in tables.items()}

    def unknown(self, name: str, otherwise: str = "") -> Iterator[str]:
        """Whether there is no such parameter."""
        if name not in self.tables:
            yield f"there is no parameter {name!r}{nearest(name, self.tables) or otherwise}"

    def no_text(self, name: str) -> Iterator[str]:
        """Whether it cannot be a part of a name."""
        yield from self.unknown(name)
        if self.kinds.get(name) in ("array", "boolean"):
            yield f"the parameter {name!r} must be a text or a number"

    def no_number(self, name: str | None) -> Iterator[str]:
        """Whether it states no number."""
        yield from self.unknown(name or "")
        if self.kinds.get(name or "") in ("string", "boolean", "array"):
            yield f"the parameter {name!r} is not a number"

    def faults_of_argv(self, argv: Sequence[object], given: Mapping[str, Any]) -> Iterator[Broken]:
        """What the words ask of the parameters; and each parameter is used."""
        used = {_place_of(given.get("total"))}
        for at, item in enumerate(argv):
            group = _readable(cast("list[object]", item) if isinstance(item, list) else [item])
            used |= {*places(group)}
            yield from (Broken(why, ("argv", at)) for why in self._faults_of_group(group, given))
            if at == 0 and (isinstance(item, list) or places(group)):
                why = "the program itself cannot be a parameter; no caller chooses what is run"
                yield Broken(why, ("argv", at))
        for name in self.tables:
            if name not in used:
                why = f"is never used; write {{{name}}} in argv, or leave it out"
                yield Broken(why, ("parameters", name))

    def _faults_of_group(self, group: Group, given: Mapping[str, Any]) -> Iterator[str]:
        names = places(group)
        for name in names:
            yield from self.unknown(name, "; `${…}` is expanded in env and cwd only, and {{ is a brace")
        if sum(self.kinds.get(name) == "array" for name in names) > 1:
            yield "has two lists; only one list can be repeated in a group"
        for word in group:
            flags = [name for name in places((word,)) if self.kinds.get(name) == "boolean"]
            if flags and len(word) > 1:
                yield f"{{{flags[0]}}} stands for a whole word, its flag; nothing can stand beside it"
            own = "".join(part if isinstance(part, str) else "x" for part in word)
            if places((word,)) and climbs(own) and not given.get("allow_parent_paths"):
                yield "has a '..' segment beside a parameter; if meant: " + advice("allow_parent_paths = true")


def _command_name(name: str) -> str:
    if not SERVER_NAME.match(name):
        raise ValueError("a command's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit")
    if is_control_tool(name):
        raise ValueError(f"is a name of Pursuit's own tools ({', '.join(CONTROL_TOOLS)}); choose another one")
    return name


Commands = Mapping[Annotated[str, AfterValidator(_command_name)], CommandTable]
