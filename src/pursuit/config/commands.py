"""Commands that are offered as tools: `[commands.NAME]` of `pursuit.toml`, and the command line of one call.

A `CommandConfig` is always valid, and all faults of arguments are reported together. There is no shell: each word of
`argv` stays one word, and a value cannot become an option or, unless allowed, leave its folder by `..`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)

from pursuit.config.files import as_table
from pursuit.config.process_environment import EnvironmentTable, Inherit, ProcessEnvironment
from pursuit.config.servers import SERVER_NAME
from pursuit.config.variables import expand_variables
from pursuit.core.base_model import (
    WHOLE,
    AnyNumber,
    Broken,
    Filled,
    Flag,
    InputModel,
    NotNegativeWhole,
    Positive,
    TableModel,
    faults_of,
    filled,
    kind,
    must,
    nearest,
    number,
    plain_text,
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
MAX_ITEMS = 1_000
MAX_CHARACTERS = 100_000
MAX_GRACE = 86_400.0
LEAST_HEARTBEAT = 1.0
"""The minimum protects the ledger: each heartbeat is an event."""

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

MAX_METRICS = 100
MAX_METRIC_NAME = 128

_JSON_SCHEMA_NAMES = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
}
_BOUNDS: dict[Kind, Mapping[str, int]] = {
    "string": {"min_length": 1, "max_length": LONGEST},
    "array": {"max_items": MAX_ITEMS},
}


def _choices(value: object) -> object:
    if not isinstance(value, list) or not value:
        given = "an empty list" if value == [] else kind(cast("object", value))
        raise ValueError(f"must be a list of allowed values, not {given}")
    return cast("object", value)


def _item_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if given.get("type") in ("array", "boolean"):
        yield Broken("input should be 'string', 'integer' or 'number'", "type")
    yield from (Broken("does not apply to items", key) for key in given if key in _NAMED)


Length = Annotated[NotNegativeWhole, Field(le=MAX_CHARACTERS)]
Count = Annotated[NotNegativeWhole, Field(le=MAX_ITEMS)]
Bound = Annotated[AnyNumber, Field(ge=-LARGEST, le=LARGEST)]
PatternKey = Annotated[Filled, AfterValidator(checked_pattern)]


class CommandParameter(TableModel):
    """A parameter of a command: its type, the bounds of its values, and `flag`, the word for a true boolean."""

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
        chosen: Kind = given.get("type", "string")
        if chosen not in KINDS:
            return
        others = {key for keys in _BY_KIND.values() for key in keys if key not in _BY_KIND[chosen]}
        yield from (Broken(f"does not apply to {chosen}", key) for key in given if key in others)
        for least, most in (("minimum", "maximum"), ("min_length", "max_length"), ("min_items", "max_items")):
            low, high = given.get(least), given.get(most)
            if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                yield Broken(f"is above {most}", least)
        choices, bounds = given.get("enum"), {*_BY_KIND[chosen]} - {"enum", "allow_options"}
        if choices is not None and bounds & given.keys():
            yield Broken("cannot be combined with other bounds", "enum")
        plain = CommandParameter.model_construct(type=chosen, min_length=0)
        for place, choice in enumerate(cast("list[Any]", choices) if isinstance(choices, list) else ()):
            yield from plain.wrong(choice, f"enum[{place}]")
        if chosen == "boolean" and "flag" not in given:
            why = 'is missing; give the word to add to argv when the value is true, such as "--verbose"'
            yield Broken(why, "flag")
        if given.get("required") is True and "default" in given:
            yield Broken("contradicts the default; remove one of the two", "required")

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        refuse(() if self.default is None else self.wrong(self.default, "default"))
        return self

    @property
    def bounds(self) -> Mapping[str, Any]:
        given = {key: getattr(self, key) for key in _BY_KIND[self.type] if key not in _NO_RULES}
        usual: Mapping[str, int] = _BOUNDS.get(self.type, {}) if self.enum is None else {}
        return {**usual, **{key: value for key, value in given.items() if value is not None}}

    @property
    def absent(self) -> Any:
        """The value used if a call omits the parameter."""
        return False if self.type == "boolean" and self.default is None else self.default

    @property
    def needed(self) -> bool:
        """True if each call must give it: the default for parameters without a default value, except booleans."""
        return self.absent is None if self.required is None else self.required

    def as_schema(self) -> dict[str, Any]:
        body: dict[str, Any] = {"type": self.type}
        for key, value in (("title", self.title), ("description", self.description), ("default", self.absent)):
            if value is not None:
                body[key] = value
        body.update({_JSON_SCHEMA_NAMES.get(key, key): value for key, value in self.bounds.items()})
        if self.type == "array":
            body["items"] = (self.items or CommandParameter()).as_schema()
        return body

    @property
    def wanted(self) -> Any:
        """The pydantic type of its values."""
        one = self.bounds.get
        chosen = AfterValidator(partial(_among, one("enum")))
        match self.type:
            case "boolean":
                return Flag
            case "array":
                inner = (self.items or CommandParameter()).wanted
                return Annotated[list[inner], Field(min_length=one("min_items"), max_length=one("max_items"))]
            case "string":
                length = Field(min_length=one("min_length"), max_length=one("max_length"))
                fits = AfterValidator(partial(_matching, one("pattern")))
                return Annotated[str, length, AfterValidator(plain_text), fits, chosen]
            case _:
                given = BeforeValidator(partial(number, negative=True, whole=self.type == "integer"))
                least, most = one("minimum", -LARGEST), one("maximum", LARGEST)
                return Annotated[float, given, Field(ge=least, le=most), chosen]

    def wrong(self, value: Any, at: str) -> list[Broken]:
        try:
            TypeAdapter(self.wanted).validate_python(value)
        except ValidationError as error:
            return [Broken(one.reason, at + one.field.removeprefix(WHOLE)) for one in faults_of(error, type(self))]
        return []


def _among(choices: Sequence[Any] | None, value: Any) -> Any:
    if choices is not None and value not in choices:
        hint = nearest(value, [str(one) for one in choices]) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(repr(one) for one in choices[:20])}{hint}")
    return value


def _matching(pattern: str | None, value: str) -> str:
    try:
        if pattern is not None and find(to_the_end(pattern), value) is None:
            raise ValueError(f"must match {pattern}")
    except Unfinished as error:
        raise ValueError(f"cannot be compared: {error}") from None
    return value


def _as_word(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(value)


_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
# `..` as a path segment: bounded by ends or by characters that names do not contain; even after an option: `-I..`.
_CLIMB = re.compile(r"(?:^|[^\w.+~-]|^-{1,2}\w*)\.\.(?=$|[^\w.+~-])")
OPTIONS_END = "--"


@dataclass(frozen=True, slots=True)
class Place:
    name: str


Word = tuple[str | Place, ...]
Group = tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An argv as groups of words, such as `["make", "-j{jobs}", ["--log", "{log}"], "{verbose}", "{targets}"]`.

    A group is omitted if one of its parameters lacks a value: without `{log}` there is no `--log` either.
    """

    groups: tuple[Group, ...]

    def fill(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
        """Returns the words for valid values; None means absent."""
        return [word for group in self.groups for word in _filled(group, values, parameters)]

    def chosen(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
        """Returns only the words that contain a value; the operator wrote the others."""
        some = (tuple(word for word in group if places((word,))) for group in self.groups)
        return [word for group in some for word in _filled(group, values, parameters)]

    def options(self, values: Mapping[str, Any], parameters: Mapping[str, CommandParameter]) -> list[str]:
        """Returns the parameters whose value would start a word with a dash and be read as an option."""
        found: list[str] = []
        for word in (word for group in self.groups for word in group):
            if word == (OPTIONS_END,):
                break
            found += _dashed(word, values, parameters)
        return list(dict.fromkeys(found))


def places(group: Group) -> list[str]:
    return [part.name for word in group for part in word if isinstance(part, Place)]


def _parse_word(text: str) -> Word:
    """Parses a word into parts; `{{` and `}}` are braces. Raises `ValueError` with the reason."""
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
    """The parameters whose value starts this word with a dash; empty values are skipped."""
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
    """The texts of a value that the caller chooses freely; numbers count too: most programs read `-1` as an option."""
    inner = parameter.items or parameter if parameter.type == "array" else parameter
    if inner.type == "boolean" or inner.allow_options or "enum" in inner.bounds or value is None:
        return []
    return [_as_word(item) for item in cast("Sequence[Any]", value)] if parameter.type == "array" else [_as_word(value)]


def climbs(word: str) -> bool:
    """True if the word contains a `..` segment: in a path, after a `=`, in a list of paths, or percent-encoded."""
    return _CLIMB.search(word) is not None or ("%" in word and _CLIMB.search(unquote(word)) is not None)


def refuse_parent_paths(name: str, words: list[str]) -> None:
    found = [word for word in words if climbs(word)]
    if found:
        raise PathTraversal(
            f"{name}: {found[0][:200]!r} contains a '..' segment, which could leave the folder; nothing was started",
            arguments=[word[:200] for word in dict.fromkeys(found)][:10],
        )


def _argument_texts(arguments: Mapping[str, Any]) -> list[str]:
    lists = [cast("list[Any]", value) if isinstance(value, list) else [value] for value in arguments.values()]
    return [value for values in lists for value in values if isinstance(value, str)]


def _parameter_table(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f'must be a table such as {{ type = "string" }}, not {kind(value)}')
    return cast("object", value)


def _checked_word(text: str) -> str:
    _read_word(text)
    return text


class MetricTable(TableModel):
    """Where to find a metric."""

    pattern: Annotated[Filled, AfterValidator(checked_group)] | None = None
    path: Annotated[Filled, AfterValidator(checked_path)] | None = Field(None, alias="json")
    file: Annotated[Filled, AfterValidator(_checked_word)] | None = None
    take: Take = "last"

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if ("pattern" in given) == ("json" in given):
            yield Broken("give exactly one of pattern and json (a path into a JSON line)", "pattern")

    def rule(self, name: str) -> MetricRule:
        return MetricRule(name=name, pattern=self.pattern, json=self.path, file=self.file, take=self.take)


def _metric_table(value: object) -> object:
    """Reads a plain text as a pattern."""
    if isinstance(value, str):
        return {"pattern": checked_group(filled(value))}
    if not isinstance(value, Mapping):
        raise ValueError(f'must be a regular expression, or a table such as {{ json = "loss" }}, not {kind(value)}')
    return cast("object", value)


def _not_too_many(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if len(given) > MAX_METRICS:
        yield Broken(f"has {len(given)} entries; at most {MAX_METRICS}")


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
    """Parses the words of argv; each unreadable word is a fault."""
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
        raise ValueError(f"must be a string, not {kind(value)}")
    if "\x00" in value:
        raise ValueError("must not hold a null byte")
    return _parse_word(value)


def _readable(words: Sequence[object]) -> Group:
    found: list[Word] = []
    for word in words:
        with suppress(ValueError):
            found.append(_read_word(word))
    return tuple(found)


_PARAMETER = "a parameter's name has 1 to 64 letters, digits or '_', and starts with a letter"
_METRIC = f"a metric's name has 1 to {MAX_METRIC_NAME} printable characters"
_ARGV = 'give the words of the command, such as ["make", "{target}"]'


class CommandTable(EnvironmentTable):
    """A command that is offered as a tool."""

    NEEDED = {"argv": _ARGV}  # noqa: RUF012 - a ClassVar of the base

    argv: Annotated[
        Template, PlainValidator(_words, json_schema_input_type=Annotated[list[str | list[str]], Field(min_length=1)])
    ]
    parameters: Mapping[
        Annotated[str, must(PARAMETER_NAME.fullmatch, _PARAMETER)],
        Annotated[CommandParameter, BeforeValidator(_parameter_table)],
    ] = Field(default_factory=dict)
    metrics: Annotated[
        Mapping[
            Annotated[str, must(lambda name: 0 < len(name) <= MAX_METRIC_NAME and name.isprintable(), _METRIC)],
            Annotated[MetricTable, BeforeValidator(_metric_table, json_schema_input_type=str | MetricTable)],
        ],
        rules(_not_too_many),
    ] = Field(default_factory=dict)
    """Metrics from its output or from files that it writes; `{name}` in a file's name is a parameter."""
    title: Filled | None = None
    description: Filled | None = None
    cwd: Filled | None = None
    total: Annotated[float | str, PlainValidator(_total, json_schema_input_type=float | str)] | None = None
    """The number of units, or the name of the parameter that holds it."""
    unit_pattern: PatternKey | None = None
    failure_pattern: PatternKey | None = None
    item_pattern: PatternKey | None = None
    disclaimer: Filled | None = None
    grace: Annotated[Positive, AfterValidator(partial(_between, 0, MAX_GRACE))] | None = None
    heartbeat: Annotated[Positive, AfterValidator(partial(_between, LEAST_HEARTBEAT, LARGEST))] | None = None
    timeout: Positive | None = None
    allow_parent_paths: Flag = False
    read_only: Flag | None = None
    idempotent: Flag | None = None
    parallel_safe: Flag | None = None
    destructive: Flag | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if given.get("read_only") is True and given.get("destructive") is True:
            yield Broken("a command cannot be read-only and destructive", "destructive")
        declared = _Declared(as_table(given.get("parameters")) or {})
        argv: object = given.get("argv")
        if isinstance(argv, list):
            yield from declared.faults_of_argv(cast("list[object]", argv), given)
        for name, metric in (as_table(given.get("metrics")) or {}).items():
            file: object = (as_table(metric) or {}).get("file")
            for place in places(_readable([file])):
                faults = declared.misfits(place, ("array", "boolean"), "must be a string or a number")
                yield from (Broken(why, ("metrics", name, "file")) for why in faults)
        if (total := _place_of(given.get("total"))) is not None:
            faults = declared.misfits(total, ("string", "boolean", "array"), "is not a number")
            yield from (Broken(why, "total") for why in faults)


class CommandConfig(CommandTable):
    """A command of a configuration; `inherit` is the default for its variables."""

    name: str
    base: Path
    inherit: Inherit = ()

    @classmethod
    def of(cls, table: CommandTable, name: str, base: Path, inherit: Inherit) -> CommandConfig:
        return cls.model_construct(name=name, base=base, inherit=inherit, **dict(table))

    @property
    def process_environment(self) -> ProcessEnvironment:
        return self.around(self.inherit)

    @property
    def traits(self) -> ToolOverride:
        return ToolOverride(timeout=self.timeout, **{key: getattr(self, key) for key in TRAITS})

    def folder(self, environ: Mapping[str, str]) -> str:
        place = Path(self.base, expand_variables(self.cwd or ".", environ)[0])
        return str(place.expanduser())

    def input_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: parameter.as_schema() for name, parameter in self.parameters.items()},
            "additionalProperties": False,
        }
        required = [name for name, parameter in self.parameters.items() if parameter.needed]
        return {**schema, "required": required} if required else schema

    def words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Returns the argv for these arguments. Raises `ValidationFailed` with every fault, or `PathTraversal`."""
        if faults := self._faults(arguments):
            raise ValidationFailed(faults, f"the arguments do not fit {self.name}; nothing was started")
        values = self.values(arguments)
        words = self.argv.fill(values, self.parameters)
        if not self.allow_parent_paths:
            refuse_parent_paths(self.name, [*_argument_texts(arguments), *self.argv.chosen(values, self.parameters)])
        return words

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: arguments.get(name, parameter.absent) for name, parameter in self.parameters.items()}

    def units(self, arguments: Mapping[str, Any]) -> float | None:
        return self.values(arguments)[self.total] if isinstance(self.total, str) else self.total

    def rules(self, arguments: Mapping[str, Any]) -> list[MetricRule]:
        """The command's metrics for these arguments; omits metrics whose file name needs a missing parameter."""
        values, found = self.values(arguments), list[MetricRule]()
        for rule in (metric.rule(name) for name, metric in self.metrics.items()):
            if rule.file is None:
                found.append(rule)
            else:
                words = _filled((_parse_word(rule.file),), values, self.parameters)
                found += [replace(rule, file=word) for word in words]
        return found

    @cached_property
    def _arguments(self) -> type[InputModel]:
        fields = dict[str, Any]()
        for place, (name, parameter) in enumerate(self.parameters.items()):
            fields[f"a{place}"] = (parameter.wanted, Field(... if parameter.needed else None, alias=name))
        return create_model(self.name, __base__=InputModel, **fields)

    def _faults(self, arguments: Mapping[str, Any]) -> list[Fault]:
        try:
            self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            return faults_of(error, self._arguments)
        why = "must not begin with '-': it would be read as an option"
        return [Fault(field=name, reason=why) for name in self.argv.options(self.values(arguments), self.parameters)]


class _Declared:
    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.tables = tables
        self.kinds = {name: str((as_table(table) or {}).get("type", "string")) for name, table in tables.items()}

    def unknown(self, name: str, otherwise: str = "") -> Iterator[str]:
        if name not in self.tables:
            yield f"there is no parameter {name!r}{nearest(name, self.tables) or otherwise}"

    def misfits(self, name: str, kinds: Sequence[str], why: str) -> Iterator[str]:
        """The fault of a parameter that is unknown or of one of these kinds."""
        yield from self.unknown(name)
        if self.kinds.get(name) in kinds:
            yield f"the parameter {name!r} {why}"

    def faults_of_argv(self, argv: Sequence[object], given: Mapping[str, Any]) -> Iterator[Broken]:
        """Checks that argv and the parameters match, and that every parameter is used."""
        used = {_place_of(given.get("total"))}
        for at, item in enumerate(argv):
            group = _readable(cast("list[object]", item) if isinstance(item, list) else [item])
            used |= {*places(group)}
            yield from (Broken(why, ("argv", at)) for why in self._faults_of_group(group, given))
            if at == 0 and (isinstance(item, list) or places(group)):
                why = "the program itself cannot be a parameter; callers must not choose the program"
                yield Broken(why, ("argv", at))
        for name in self.tables:
            if name not in used:
                why = f"is never used; write {{{name}}} in argv, or remove the parameter"
                yield Broken(why, ("parameters", name))

    def _faults_of_group(self, group: Group, given: Mapping[str, Any]) -> Iterator[str]:
        names = places(group)
        for name in names:
            yield from self.unknown(name, "; `${…}` is expanded in env and cwd only, and {{ is a brace")
        if sum(self.kinds.get(name) == "array" for name in names) > 1:
            yield "contains two lists; a group can repeat only one"
        for word in group:
            flags = [name for name in places((word,)) if self.kinds.get(name) == "boolean"]
            if flags and len(word) > 1:
                yield f"{{{flags[0]}}} is replaced by its flag and must be a word by itself"
            own = "".join(part if isinstance(part, str) else "x" for part in word)
            if places((word,)) and climbs(own) and not given.get("allow_parent_paths"):
                yield "contains a '..' segment beside a parameter; to allow it: " + advice("allow_parent_paths = true")


def _command_name(name: str) -> str:
    if not SERVER_NAME.match(name):
        raise ValueError("a command's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit")
    if is_control_tool(name):
        raise ValueError(f"is a name of Pursuit's own tools ({', '.join(CONTROL_TOOLS)}); choose another one")
    return name


Commands = Mapping[Annotated[str, AfterValidator(_command_name)], CommandTable]
