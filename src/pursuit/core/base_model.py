"""The base of every input model: frozen, no unknown keys, all faults at once, each with what to do.

Invariant: a fault in one field never hides a broken rule between fields, nor the other way round. No fault is lost
(past a bound it is counted), none is reported twice, and the report is short however long the input was.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    Strict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails

from pursuit.errors import Fault, ValidationFailed

M = TypeVar("M", bound=BaseModel)
WHOLE = "(input)"
HALF_A_CHARACTER = "must be valid Unicode text; it holds half of a surrogate pair"
MOST_FAULTS = 500
MOST_HINTS = 100
LONGEST_KEY = 100
LONGEST_REASON = 1_000
LARGEST = 2**53
MAX_ARGS_DEPTH = 100
MAX_ARGS_BITS = 10_000
"""Python itself reads and writes no number of more than 4,300 digits."""
_HALF = re.compile("[\ud800-\udfff]")
_A_DICTIONARY = "must be a dictionary (an object in JSON, a table in TOML)"
_MEANT = {"=>": ">=", "=<": "<=", "=!": "!=", "notifications": "notify", "notification": "notify"}
"""Words that are not spelled like the known ones that they stand for."""


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`; did you mean …?` with the closest known words, or an empty string; a unique beginning wins."""
    if len(word) > LONGEST_KEY:
        return ""
    words = list(known)
    begun = [other for other in words if len(word) > 2 and other.startswith(word)]
    meant = [other for other in words if other == _MEANT.get(word)]
    close = begun if len(begun) == 1 else meant or difflib.get_close_matches(word, words, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    ((list, tuple), "a list"),
    (Mapping, "a table"),
)


def kind(value: object) -> str:
    """What a person would call this value."""
    return next((word for types, word in _KINDS if isinstance(value, types)), type(value).__name__)


_NO_TABLE = ("model_type", "model_attributes_type", "mapping_type", "dict_type", "dataclass_type")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_PLAIN = {
    "string_unicode": HALF_A_CHARACTER,
    "union_tag_not_found": "needs a `kind`",
    "missing": "is missing; it must be given",
}
_WANTED = {"string_type": "a text", "bool_type": "true or false"}


class _Place(NamedTuple):
    """Where a fault is: the path as the user wrote it, the tables around its last key, and what is wanted there."""

    path: str
    tables: Sequence[type]
    wanted: Sequence[Any]


def faults_of(error: ValidationError, model: type, *, source: str | None = None) -> list[Fault]:
    """Every fault in a pydantic error, with the path as the user wrote it; past a bound only how many more."""
    found: dict[tuple[str, str], Fault] = {}
    items = error.errors(include_url=False)
    for number, item in enumerate(items[:MOST_FAULTS]):
        place = _walk(model, item["loc"])
        reason = _needed(item, place) or _reason(item, place, model, hints=number < MOST_HINTS)
        cause = (item.get("ctx") or {}).get("error")
        line, column = getattr(cause, "line", None), getattr(cause, "column", None)
        fault = Fault(
            field=place.path, reason=cut_short(reason, LONGEST_REASON), source=source, line=line, column=column
        )
        found.setdefault((fault.field, fault.reason), fault)
    if len(items) > MOST_FAULTS:
        more = f"there are {len(items) - MOST_FAULTS} more faults; fix these first"
        found["", more] = Fault(field=WHOLE, reason=more, source=source)
    return list(found.values())


def _walk(model: type, loc: Sequence[int | str]) -> _Place:
    """`('criteria', 0, 'metric_threshold', 'op')` is `criteria[0].op`: union tags are not the user's words."""
    path, tables = "", cast("Sequence[type]", [model])
    here: Sequence[Any] = [model]
    for item in loc:
        tagged = [one for one in here if _tag(one) == item]
        if item == "[key]" or (len(here) > 1 and tagged):
            here = tagged or here
            continue
        chosen = [one.chosen(str(item)) for one in here if isinstance(one, type) and issubclass(one, InputModel)]
        if any(chosen):
            here = [one for one in chosen if one is not None]
            continue
        tables = [one for one in here if isinstance(one, type)]
        here = [inner for one in here for inner in _inside(one, item)]
        path += f"[{item}]" if isinstance(item, int) else f".{_short(item)}" if path else _short(item)
    return _Place(path or WHOLE, tables, here)


def _inside(annotation: Any, item: int | str) -> list[Any]:
    """What is wanted at a key or place of a table or a list."""
    if isinstance(annotation, type):
        return _choices(_fields(annotation).get(str(item)))
    arguments = [one for one in get_args(annotation) if one is not ...]
    return _choices(arguments[-1]) if arguments else []


def _choices(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself; without what is annotated to them."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if isinstance(annotation, type) or isinstance(get_origin(annotation), type):
        return [annotation] if get_origin(annotation) is not UnionType else _members(annotation)
    return _members(annotation)


def _members(annotation: Any) -> list[Any]:
    return [one for inner in get_args(annotation) for one in _choices(inner)]


def _fields(table: type[Any]) -> Mapping[str, Any]:
    """The keys of a model or a dataclass, each with its annotation."""
    if issubclass(table, BaseModel):
        return {one.alias or name: one.annotation for name, one in table.model_fields.items()}
    hints = get_type_hints(table, include_extras=True) if is_dataclass(cast("object", table)) else {}
    infos = {name: _info(hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return {one.alias or name: hints[name] for name, one in infos.items() if not one.exclude}


def _info(hint: Any) -> FieldInfo:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, FieldInfo)), FieldInfo())


def _short(key: str) -> str:
    return cut_short(key, LONGEST_KEY) or '""'


def cut_short(text: str, longest: int) -> str:
    """The text, with a mark where it is cut."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def _needed(item: ErrorDetails, place: _Place) -> str | None:
    """The words of a model about a field that is missing or empty."""
    if item["type"] not in ("missing", "too_short"):
        return None
    every: list[Mapping[str, str]] = [getattr(table, "NEEDED", {}) for table in place.tables]
    words = next((needed[str(item["loc"][-1])] for needed in every if item["loc"][-1] in needed), None)
    return f"is missing; {words}" if words and item["type"] == "missing" else words


def _reason(item: ErrorDetails, place: _Place, model: type, *, hints: bool) -> str:
    kind_of_fault, message, ctx = item["type"], item["msg"], item.get("ctx") or {}
    given: object = item["input"]
    match kind_of_fault:
        case _ if kind_of_fault in _PLAIN:
            return _PLAIN[kind_of_fault]
        case _ if kind_of_fault in _WANTED:
            return f"must be {_WANTED[kind_of_fault]}, not {kind(given)}"
        case _ if kind_of_fault in _NO_TABLE:
            other = issubclass(model, InputModel) and not issubclass(model, TableModel)
            table = _A_DICTIONARY if other else "must be a table"
            return f"{table}, not {kind(given)}"
        case "list_type" | "tuple_type" | "frozen_set_type":
            return _no_list(given, place)
        case _ if kind_of_fault in _UNKNOWN_KEY:
            return f"is not a known key{_known_keys(str(item['loc'][-1]), place.tables) if hints else ''}"
        case "union_tag_invalid":
            expected, tag = str(ctx.get("expected_tags", "")), str(ctx.get("tag", ""))
            known = [word.strip(" '") for word in expected.split(",")]
            said = cast("Mapping[str, Any]", given).get("kind") if isinstance(given, Mapping) else tag
            begin = f"kind {cut_short(tag, LONGEST_KEY)!r} is not" if isinstance(said, str) else "kind must be"
            return f"{begin} one of {expected}{nearest(tag, known, most=1)}"
        case "literal_error":
            known = str(ctx["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            return f"input should be {ctx['expected']}{nearest(str(given), known, most=1)}"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return (message[:1].lower() + message[1:]).replace(" after validation", "")


def _no_list(given: object, place: _Place) -> str:
    inner = [one for wanted in place.wanted for one in _inside(wanted, 0)]
    if any(isinstance(one, type) and _fields(one) for one in inner):
        return f"must be a list of tables ([[{place.path}]]), not {kind(given)}"
    hint = f'; write ["{given}"]' if isinstance(given, str) else ""
    return f"must be a list{' of texts' if str in inner else ''}, not {kind(given)}{hint}"


def _known_keys(key: str, tables: Sequence[type]) -> str:
    keys = sorted({name for table in tables for name in _fields(table)})
    return nearest(key, keys, most=1) or f"; known: {', '.join(keys)}"


def _tag(table: Any) -> str | None:
    tag = table.model_fields.get("kind") if isinstance(table, type) and issubclass(table, BaseModel) else None
    return cast("str | None", tag.default) if tag is not None else None


class Broken(NamedTuple):
    """A rule between fields that does not hold; `field` is the place to fix it, if it is one place."""

    reason: str
    field: str | tuple[str | int, ...] | None = None


class InputModel(BaseModel):
    """A frozen input model that refuses unknown keys and reports everything that is wrong."""

    # Built when first used: starting a server, or listing missions, reads no input.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    NEEDED: ClassVar[Mapping[str, str]] = {}
    """What is said of a field that is missing or empty, instead of the usual words."""

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ValidationFailed(faults_of(error, type(self))) from None

    # A model inside another is built without this constructor, so that its faults join those of the whole.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:  # noqa: ARG003 - for the models that have rules
        """The rules between fields that raw input breaks; its values may be of any type."""
        return ()

    @classmethod
    def chosen(cls, tag: str) -> type[InputModel] | None:  # noqa: ARG003 - for models that are chosen by a tag
        """The model that a tag in the place of a fault stands for; None if it is a key."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = cast("Mapping[str, Any]", data)
        return _with_rules(cls._rules(given) if isinstance(data, Mapping) else (), data, handler)

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        return cls.between(given)


class TableModel(InputModel):
    """A table of a file that people write: TOML, or JSON without null."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset()
    """The keys that may be null."""

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        absent = [key for key, value in given.items() if value is None and key not in cls.NULLABLE]
        return [*cls.between(given), *(Broken("must not be null", key) for key in absent)]


Rules = Callable[[Any, ValidationInfo], Iterable[Broken]]


def rules(between: Rules, *, of: type[Any] = Mapping) -> WrapValidator:
    """The rules between the fields of a dataclass, or the entries of a table or a list, as those of an `InputModel`."""

    def validate(data: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        return _with_rules(between(data, info) if isinstance(data, of) else (), data, handler)

    return WrapValidator(validate)


def refuse(broken: Iterable[Broken], given: object = None) -> None:
    """Raises pydantic's `ValidationError` with these faults, if there are any: for validators of several values."""
    if lines := [_line(rule, given) for rule in broken]:
        raise ValidationError.from_exception_data("input", lines)


def read_inside(model: type[M], value: object, info: ValidationInfo) -> M:
    """A model in place of another value, for validators: its faults are told as those of a field with this model."""
    try:
        return model.model_validate(value, context=info.context)
    except ValidationError as error:
        faults = faults_of(error, model)
        refuse(Broken(fault.reason, None if fault.field == WHOLE else fault.field) for fault in faults)
        raise


def _with_rules(broken: Iterable[Broken], data: Any, handler: Callable[[Any], Any]) -> Any:
    lines = [_line(rule, data) for rule in broken]
    try:
        made = handler(data)
    except ValidationError as error:
        if not lines:
            raise
        lines = [*_lines(error), *lines]
    else:
        if not lines:
            return made
    raise ValidationError.from_exception_data("input", lines)


def _line(rule: Broken, data: object) -> InitErrorDetails:
    loc = () if rule.field is None else (rule.field,) if isinstance(rule.field, str) else rule.field
    return InitErrorDetails(type="value_error", loc=loc, input=data, ctx={"error": ValueError(rule.reason)})


def _lines(error: ValidationError) -> list[InitErrorDetails]:
    return [
        InitErrorDetails(type=item["type"], loc=item["loc"], input=item["input"], ctx=item.get("ctx") or {})
        for item in error.errors(include_url=False)
    ]


def _a_number(value: object) -> object:
    """Refuses what pydantic would take for a number: `true` is not 1 and "5" is not 5."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return value


def plain_text(value: str) -> str:
    """The text itself if every storage and every system accepts it."""
    if "\x00" in value:
        raise ValueError("must not contain a null byte")
    if not value.isascii() and _HALF.search(value):
        raise ValueError(HALF_A_CHARACTER)
    return value


def _json_only(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments themselves if they are JSON; what JSON cannot hold would be stored as something else."""
    level: Sequence[Any] = [value]
    for _ in range(MAX_ARGS_DEPTH):
        if not level:
            return value
        level = [inner for item in level for inner in _children(item)]
    raise ValueError(f"nests more than {MAX_ARGS_DEPTH} levels")


def _children(item: object) -> Iterable[Any]:
    match item:
        case None | bool():
            return ()
        case int():
            if item.bit_length() > MAX_ARGS_BITS:
                raise ValueError("contains a number of more than 3,000 digits")
            return ()
        case str():
            if not item.isascii() and _HALF.search(item):
                raise ValueError(HALF_A_CHARACTER)
            return ()
        case float():
            if not math.isfinite(item):
                raise ValueError(f"must be JSON; {item} is not a JSON number")
            return ()
        case list() | tuple():
            return cast("Sequence[Any]", item)
        case Mapping():
            pairs = cast("Mapping[Any, Any]", item)
            return [part for pair in pairs.items() for part in (_key(pair[0]), pair[1])]
        case _:
            raise ValueError(f"must be JSON; it contains a {type(item).__name__}")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"must be JSON; the key {key!r} is not text")
    return key


Text = Annotated[str, AfterValidator(plain_text)]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True), AfterValidator(plain_text)
]
Whole = Annotated[int, BeforeValidator(_a_number), Field(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, BeforeValidator(_a_number), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Args = Annotated[Mapping[str, Any], AfterValidator(_json_only)]


def filled(value: object) -> str:
    """The text itself if it is one, and not empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {kind(value)}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def must(test: Callable[[str], object], reason: str) -> AfterValidator:
    """A text that passes this test; of any other the reason is told."""

    def check(value: str) -> str:
        if not test(value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


def _in_quotes(value: object) -> str:
    """A fault never shows the value, which may be a secret."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {kind(value)}; put it in quotes")
    return value


def number(value: Any, *, whole: bool = False, zero: bool = False, negative: bool = False) -> float:
    """A finite number above zero, or zero, or any number if `negative` ones are allowed; whole if asked."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {kind(value)}")
    if negative and isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be a finite number, not {value}")
    if not (negative or value > 0 or (zero and value == 0)):
        raise ValueError(f"must be {'zero or more' if zero else 'above zero'}, not {value}")
    if abs(value) > sys.float_info.max:
        raise ValueError("is too large")
    if whole and value != int(value):
        raise ValueError(f"must be a whole number, not {value}")
    return int(value) if whole else value


def _reads(**how: bool) -> PlainValidator:
    bounds = Field() if how.get("negative") else Field(ge=0) if how.get("zero") else Field(gt=0)
    given = Annotated[int if how.get("whole") else float, bounds]
    return PlainValidator(partial(number, **how), json_schema_input_type=given)


Filled = Annotated[str, BeforeValidator(filled)]
TextMap = Mapping[str, Annotated[str, BeforeValidator(_in_quotes)]]
Positive = Annotated[float, _reads()]
PositiveWhole = Annotated[int, _reads(whole=True)]
NotNegative = Annotated[float, _reads(zero=True)]
NotNegativeWhole = Annotated[int, _reads(whole=True, zero=True)]
AnyNumber = Annotated[float, _reads(negative=True)]


def value_in(value: object, name: str) -> object:
    """A value of raw input, which may be a table or an object."""
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)
