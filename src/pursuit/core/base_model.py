"""The base of every input model: frozen, no unknown keys; reports all faults together, each with its remedy.

Invariant: a fault in one field never hides a broken rule between fields, nor vice versa. No fault is lost (past a
limit they are only counted) or reported twice, and the report is short however long the input is.
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

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails

from pursuit.core.truncate import cut_text
from pursuit.errors import Fault, ValidationFailed

M = TypeVar("M", bound=pydantic.BaseModel)
WHOLE = "(input)"
HALF_A_CHARACTER = "must be valid Unicode text; it contains an unpaired surrogate"
MAX_FAULTS = 500
MAX_KEY = 100
MAX_REASON = 1_000
MAX_NUMBER = 2**53
MAX_JSON_DEPTH = 100
MAX_ARGS_BITS = 10_000
"""Python does not convert numbers of more than 4,300 digits from or to text."""
_HALF = re.compile("[\ud800-\udfff]")
_A_DICTIONARY = "must be a dictionary (an object in JSON, a table in TOML)"
_MEANT = {"=>": ">=", "=<": "<=", "=!": "!=", "notifications": "notify", "notification": "notify"}
"""Frequent mistakes that are not spelled like the correct word."""


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`; did you mean …?` with the closest known words, or an empty string; a unique prefix wins."""
    if len(word) > MAX_KEY:
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
    (str, "a string"),
    ((list, tuple), "a list"),
    (Mapping, "a table"),
)


def kind(value: object) -> str:
    """The type of a value as a person would call it."""
    return next((word for types, word in _KINDS if isinstance(value, types)), type(value).__name__)


_NO_TABLE = ("model_type", "model_attributes_type", "mapping_type", "dict_type", "dataclass_type")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_PLAIN = {
    "string_unicode": HALF_A_CHARACTER,
    "union_tag_not_found": "needs a `kind`",
    "missing": "is missing; it must be given",
}
_WANTED = {"string_type": "a string", "bool_type": "true or false"}


class _Place(NamedTuple):
    """The place of a fault: the path as the user wrote it, the tables around its last key, and the expected types."""

    path: str
    tables: Sequence[type]
    wanted: Sequence[Any]


def faults_of(error: pydantic.ValidationError, model: type, *, source: str | None = None) -> list[Fault]:
    """Every fault in a pydantic error, with the path as the user wrote it; past a limit only their number."""
    found: dict[tuple[str, str], Fault] = {}
    items = error.errors(include_url=False)
    for item in items[:MAX_FAULTS]:
        place = _walk(model, item["loc"])
        reason = _needed(item, place) or _reason(item, place, model)
        cause = (item.get("ctx") or {}).get("error")
        line, column = getattr(cause, "line", None), getattr(cause, "column", None)
        fault = Fault(
            field=place.path, reason=cut_text(reason, MAX_REASON + 1), source=source, line=line, column=column
        )
        found.setdefault((fault.field, fault.reason), fault)
    if len(items) > MAX_FAULTS:
        more = f"there are {len(items) - MAX_FAULTS} more faults; fix these first"
        found["", more] = Fault(field=WHOLE, reason=more, source=source)
    return list(found.values())


def _walk(model: type, loc: Sequence[int | str]) -> _Place:
    """`('criteria', 0, 'metric_threshold', 'op')` is `criteria[0].op`: the user did not write the union tags."""
    path, tables = "", cast("Sequence[type]", [model])
    here: Sequence[Any] = [model]
    for item in loc:
        models = [one for one in here if isinstance(one, type) and issubclass(one, pydantic.BaseModel)]
        tagged = [one for one in models if "kind" in one.model_fields and one.model_fields["kind"].default == item]
        if item == "[key]" or (len(here) > 1 and tagged):
            here = tagged or here
            continue
        chosen = [one.chosen(str(item)) for one in models if issubclass(one, InputModel)]
        if any(chosen):
            here = [one for one in chosen if one is not None]
            continue
        tables = [one for one in here if isinstance(one, type)]
        here = [inner for one in here for inner in _inside(one, item)]
        key = f"[{item}]" if isinstance(item, int) else cut_text(item, MAX_KEY + 1) or '""'
        path += key if isinstance(item, int) or not path else f".{key}"
    return _Place(path or WHOLE, tables, here)


def _inside(annotation: Any, item: int | str) -> list[Any]:
    if isinstance(annotation, type):
        return _choices(_fields(annotation).get(str(item)))
    arguments = [one for one in get_args(annotation) if one is not ...]
    return _choices(arguments[-1]) if arguments else []


def _choices(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself, without `Annotated` metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if isinstance(annotation, type) or (isinstance(origin, type) and origin is not UnionType):
        return [annotation]
    return [one for inner in get_args(annotation) for one in _choices(inner)]


def _fields(table: type[Any]) -> Mapping[str, Any]:
    if issubclass(table, pydantic.BaseModel):
        return {one.alias or name: one.annotation for name, one in table.model_fields.items()}
    hints = get_type_hints(table, include_extras=True) if is_dataclass(cast("object", table)) else {}
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        info = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, FieldInfo)), FieldInfo())
        if get_origin(hint) is not ClassVar and not info.exclude:
            found[info.alias or name] = hint
    return found


def _needed(item: ErrorDetails, place: _Place) -> str | None:
    """The model's own message for a field that is missing or empty."""
    if item["type"] not in ("missing", "too_short"):
        return None
    every: list[Mapping[str, str]] = [getattr(table, "NEEDED", {}) for table in place.tables]
    words = next((needed[str(item["loc"][-1])] for needed in every if item["loc"][-1] in needed), None)
    return f"is missing; {words}" if words and item["type"] == "missing" else words


def _reason(item: ErrorDetails, place: _Place, model: type) -> str:
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
            keys = sorted({name for table in place.tables for name in _fields(table)})
            near = nearest(str(item["loc"][-1]), keys, most=1)
            return f"is not a known key{near or '; known: ' + ', '.join(keys)}"
        case "union_tag_invalid":
            expected, tag = str(ctx.get("expected_tags", "")), str(ctx.get("tag", ""))
            known = [word.strip(" '") for word in expected.split(",")]
            said = cast("Mapping[str, Any]", given).get("kind") if isinstance(given, Mapping) else tag
            begin = f"kind {cut_text(tag, MAX_KEY + 1)!r} is not" if isinstance(said, str) else "kind must be"
            return f"{begin} one of {expected}{nearest(tag, known, most=1)}"
        case "literal_error":
            known = str(ctx["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            return f"input should be {ctx['expected']}{nearest(str(given), known, most=1)}"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return (message[:1].lower() + message[1:]).replace(" after validation", "").removeprefix("tuple ")


def _no_list(given: object, place: _Place) -> str:
    inner = [one for wanted in place.wanted for one in _inside(wanted, 0)]
    if any(isinstance(one, type) and _fields(one) for one in inner):
        return f"must be a list of tables ([[{place.path}]]), not {kind(given)}"
    hint = f'; write ["{given}"]' if isinstance(given, str) else ""
    return f"must be a list{' of strings' if str in inner else ''}, not {kind(given)}{hint}"


class Broken(NamedTuple):
    """A broken rule between fields; `field` is the place to fix it, if there is a single place."""

    reason: str
    field: str | tuple[str | int, ...] | None = None


class InputModel(pydantic.BaseModel):
    """A frozen input model that refuses unknown keys and reports all faults."""

    # Built on first use: starting a server or listing missions reads no input.
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", frozen=True, defer_build=True)
    NEEDED: ClassVar[Mapping[str, str]] = {}
    """The messages for fields that are missing or empty, instead of the usual ones."""

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except pydantic.ValidationError as error:
            raise ValidationFailed(faults_of(error, type(self))) from None

    # A model inside another is built without this constructor, so that its faults join those of the whole.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:  # noqa: ARG003 - for the models that have rules
        """Yields the rules between fields that raw input breaks; its values may have any type."""
        return ()

    @classmethod
    def chosen(cls, tag: str) -> type[InputModel] | None:  # noqa: ARG003 - for models that are chosen by a tag
        """The model for a tag in a fault's location; None if it is a key."""
        return None

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, data: Any, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        given = cast("Mapping[str, Any]", data)
        return _with_rules(cls._rules(given) if isinstance(data, Mapping) else (), data, handler)

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        return cls.between(given)


class TableModel(InputModel):
    """A table in a file that people write: TOML, or JSON without null."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset()
    """The keys that may be null."""

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        absent = [key for key, value in given.items() if value is None and key not in cls.NULLABLE]
        return [*cls.between(given), *(Broken("must not be null", key) for key in absent)]


Rules = Callable[[Any, pydantic.ValidationInfo], Iterable[Broken]]


def rules(between: Rules, *, of: type[Any] = Mapping) -> pydantic.WrapValidator:
    """Checks rules between the fields of a dataclass, or the entries of a table or list, as an `InputModel` does."""

    def validate(data: Any, handler: pydantic.ValidatorFunctionWrapHandler, info: pydantic.ValidationInfo) -> Any:
        return _with_rules(between(data, info) if isinstance(data, of) else (), data, handler)

    return pydantic.WrapValidator(validate)


def refuse(broken: Iterable[Broken], given: object = None) -> None:
    """Raises pydantic's `ValidationError` with these faults, if any: for validators of several values."""
    if lines := [_line(rule, given) for rule in broken]:
        raise pydantic.ValidationError.from_exception_data("input", lines)


def refusing(wrong: Callable[[Any], Iterable[Broken]]) -> pydantic.AfterValidator:
    """Accepts a value for which `wrong` yields nothing."""

    def check(value: Any) -> Any:
        refuse(wrong(value))
        return value

    return pydantic.AfterValidator(check)


def read_inside(model: type[M], value: object, info: pydantic.ValidationInfo) -> M:
    """Reads a value as this model, for validators: reports its faults as for a field of the model's type."""
    try:
        return model.model_validate(value, context=info.context)
    except pydantic.ValidationError as error:
        faults = faults_of(error, model)
        refuse(Broken(fault.reason, None if fault.field == WHOLE else fault.field) for fault in faults)
        raise


def _with_rules(broken: Iterable[Broken], data: Any, handler: Callable[[Any], Any]) -> Any:
    lines = [_line(rule, data) for rule in broken]
    try:
        made = handler(data)
    except pydantic.ValidationError as error:
        if not lines:
            raise
        lines = [*lines_of(error), *lines]
    else:
        if not lines:
            return made
    raise pydantic.ValidationError.from_exception_data("input", lines)


def lines_of(error: pydantic.ValidationError, *at: str | int) -> list[InitErrorDetails]:
    """The faults of an error, moved below a place, for another error."""
    found = error.errors(include_url=False)
    return [
        InitErrorDetails(type=one["type"], loc=(*at, *one["loc"]), input=one["input"], ctx=one.get("ctx") or {})
        for one in found
    ]


def _line(rule: Broken, data: object) -> InitErrorDetails:
    loc = () if rule.field is None else (rule.field,) if isinstance(rule.field, str) else rule.field
    return InitErrorDetails(type="value_error", loc=loc, input=data, ctx={"error": ValueError(rule.reason)})


def plain_text(value: str) -> str:
    """Returns the text if every storage and system accepts it."""
    if "\x00" in value:
        raise ValueError("must not contain a null byte")
    if not value.isascii() and _HALF.search(value):
        raise ValueError(HALF_A_CHARACTER)
    return value


class NotJsonError(ValueError):
    """The value is not JSON; the message names the part that is not."""


def as_json(value: Any, depth: int = 0, *, bits: int = 63) -> Any:
    """A copy of the value in plain JSON types (a tuple becomes a list); integers may have at most `bits` bits."""
    if depth > MAX_JSON_DEPTH:
        raise NotJsonError(f"nested more than {MAX_JSON_DEPTH} levels deep")
    match value:
        case None | bool():
            wrong = ""
        case str():
            wrong = "" if value.isascii() or not _HALF.search(value) else "a string with an unpaired surrogate"
        case int():
            wrong = "" if value.bit_length() <= bits else f"an integer of about {value.bit_length() * 3 // 10} digits"
        case float():
            wrong = "" if math.isfinite(value) else str(value)
        case list() | tuple():
            return [as_json(item, depth + 1, bits=bits) for item in cast("list[object]", value)]
        case dict() | Mapping():  # a dict comes first: the check against `Mapping` is slower
            pairs = cast("Mapping[object, object]", value).items()
            if all(isinstance(key, str) for key, _ in pairs):
                return {as_json(key): as_json(item, depth + 1, bits=bits) for key, item in pairs}
            wrong = "a dict with a key that is not a string"
        case _:
            wrong = f"a {type(value).__name__}"
    if wrong:
        raise NotJsonError(f"{wrong} is not JSON")
    return cast("Any", value)


def _arguments(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the arguments if they are JSON: other values would change when stored."""
    try:
        as_json(value, bits=MAX_ARGS_BITS)
    except NotJsonError as error:
        raise ValueError(f"must be JSON: {error}") from None
    return value


def number(value: Any, *, whole: bool = False, zero: bool = False, negative: bool = False) -> float:
    """Returns a finite number above zero; `zero`, `negative` and `whole` change what is allowed."""
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


Text = Annotated[str, pydantic.AfterValidator(plain_text)]
Name = Annotated[
    str,
    pydantic.StringConstraints(min_length=1, max_length=256, strip_whitespace=True),
    pydantic.AfterValidator(plain_text),
]
Whole = Annotated[
    int, pydantic.BeforeValidator(partial(number, negative=True)), pydantic.Field(ge=-MAX_NUMBER, le=MAX_NUMBER)
]
Number = Annotated[float, pydantic.BeforeValidator(partial(number, negative=True)), pydantic.Field(allow_inf_nan=False)]
Flag = Annotated[bool, pydantic.Strict()]
Args = Annotated[Mapping[str, Any], pydantic.AfterValidator(_arguments)]


def filled(value: object) -> str:
    """Returns the value if it is a string that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {kind(value)}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def must(test: Callable[[Any], object], reason: str) -> pydantic.AfterValidator:
    """Accepts values that pass this test; others are refused with the reason, which shows them in place of `{!r}`."""

    def check(value: Any) -> Any:
        if not test(value):
            raise ValueError(reason.replace("{!r}", repr(value[:80])) if isinstance(value, str) else reason)
        return value

    return pydantic.AfterValidator(check)


def _in_quotes(value: object) -> str:
    """The fault never shows the value, which may be a secret."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {kind(value)}; put it in quotes")
    return value


def _reads(**how: bool) -> pydantic.PlainValidator:
    bounds = (
        pydantic.Field() if how.get("negative") else pydantic.Field(ge=0) if how.get("zero") else pydantic.Field(gt=0)
    )
    given = Annotated[int if how.get("whole") else float, bounds]
    return pydantic.PlainValidator(partial(number, **how), json_schema_input_type=given)


Filled = Annotated[str, pydantic.BeforeValidator(filled)]
TextMap = Mapping[str, Annotated[str, pydantic.BeforeValidator(_in_quotes)]]
Positive = Annotated[float, _reads()]
PositiveWhole = Annotated[int, _reads(whole=True)]
NotNegative = Annotated[float, _reads(zero=True)]
NotNegativeWhole = Annotated[int, _reads(whole=True, zero=True)]
AnyNumber = Annotated[float, _reads(negative=True)]


def value_in(value: object, name: str) -> object:
    """A value in raw input, which may be a mapping or an object."""
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)
