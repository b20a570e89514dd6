"""The base of every input model: frozen, no unknown keys, all faults at once, each with what to do.

Invariant: a fault in one field never hides a broken rule between fields, nor the other way round. No fault is lost
(past a bound it is counted), none is reported twice, and the report is short however long the input was.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from pursuit.errors import Fault, ValidationFailed

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


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`; did you mean …?` with the closest known words, or an empty string; a unique beginning wins."""
    if len(word) > LONGEST_KEY:
        return ""
    words = list(known)
    begun = [other for other in words if len(word) > 2 and other.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, words, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


_A_DICTIONARY = "must be a dictionary (an object in JSON, a table in TOML)"
_PLAIN = {
    "model_type": _A_DICTIONARY,
    "model_attributes_type": _A_DICTIONARY,
    "mapping_type": _A_DICTIONARY,
    "dict_type": _A_DICTIONARY,
    "string_unicode": HALF_A_CHARACTER,
    "union_tag_not_found": "needs a `kind`",
    "missing": "is missing; it must be given",
}


def faults_of(error: ValidationError, model: type[BaseModel], *, source: str | None = None) -> list[Fault]:
    """Every fault in a pydantic error, with the path as the user wrote it; past a bound only how many more."""
    found: dict[tuple[str, str], Fault] = {}
    items = error.errors(include_url=False)
    for place, item in enumerate(items[:MOST_FAULTS]):
        field, keys = _walk(model, item["loc"])
        reason = _reason(item, keys if place < MOST_HINTS else ())
        if item["type"] in ("missing", "too_short") and issubclass(model, InputModel) and field in model.NEEDED:
            reason = f"{'is missing; ' if item['type'] == 'missing' else ''}{model.NEEDED[field]}"
        cause = (item.get("ctx") or {}).get("error")
        line, column = getattr(cause, "line", None), getattr(cause, "column", None)
        found.setdefault((field, reason), Fault(field=field, reason=reason, source=source, line=line, column=column))
    if len(items) > MOST_FAULTS:
        more = f"there are {len(items) - MOST_FAULTS} more faults; fix these first"
        found["", more] = Fault(field=WHOLE, reason=more, source=source)
    return list(found.values())


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[str, list[str]]:
    """The path as the user wrote it, and the keys that are known where it ends.

    `('criteria', 0, 'metric_threshold', 'op')` is `criteria[0].op`: union tags are not the user's words.
    """
    path = ""
    here, keys = [model], list(model.model_fields)
    for item in loc:
        if isinstance(item, int):
            path += f"[{item}]"
            continue
        tagged = [candidate for candidate in here if _tag(candidate) == item]
        if len(here) > 1 and tagged:
            here = tagged
            continue
        path += f".{_short(item)}" if path else _short(item)
        keys = [key for candidate in here for key in candidate.model_fields]
        fields = [candidate.model_fields.get(item) for candidate in here]
        here = [inner for field in fields if field is not None for inner in _models_in(field.annotation)]
    return path or WHOLE, keys


def _short(key: str) -> str:
    return _cut(key, LONGEST_KEY) or '""'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _reason(item: ErrorDetails, keys: Sequence[str]) -> str:
    kind, message, ctx = item["type"], item["msg"], item.get("ctx") or {}
    match kind:
        case _ if kind in _PLAIN:
            reason = _PLAIN[kind]
        case "extra_forbidden":
            reason = f"is not a known key{nearest(str(item['loc'][-1]), keys, most=1)}"
        case "union_tag_invalid":
            expected, tag = str(ctx.get("expected_tags", "")), str(ctx.get("tag", ""))
            known = [word.strip(" '") for word in expected.split(",")]
            whole = item["input"]
            kind = cast("Mapping[str, Any]", whole).get("kind") if isinstance(whole, Mapping) else tag
            given = f"kind {_cut(tag, LONGEST_KEY)!r} is not" if isinstance(kind, str) else "kind must be"
            reason = f"{given} one of {expected}{nearest(tag, known, most=1)}"
        case "value_error":
            reason = message.removeprefix("Value error, ")
        case _:
            reason = (message[:1].lower() + message[1:]).replace(" after validation", "")
    return _cut(reason, LONGEST_REASON)


def _tag(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return cast("str | None", kind.default) if kind is not None else None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


class Broken(NamedTuple):
    """A rule between fields that does not hold; `field` is the place to fix it, if it is one place."""

    reason: str
    field: str | tuple[str | int, ...] | None = None


class InputModel(BaseModel):
    """A frozen input model that refuses unknown keys and reports everything that is wrong."""

    # Built when first used: starting a server, or listing missions, reads no input.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
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

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        broken = list(cls.between(cast("Mapping[str, Any]", data))) if isinstance(data, Mapping) else []
        lines = [_line(rule, cast("object", data)) for rule in broken]
        try:
            made = handler(data)
        except ValidationError as error:
            if not lines:
                raise
            lines = [*_lines(error), *lines]
        else:
            if not lines:
                return made
        raise ValidationError.from_exception_data(cls.__name__, lines)


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
