"""What every input shape has in common: frozen, no unknown keys, and all faults at once.

Owns: the plain field types and how rules between fields are told. Knows no mission.
Invariant: a fault in one field never hides a broken rule between fields, nor the other way round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self, cast

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
from pydantic_core import InitErrorDetails

from pursuit.errors import ValidationFailed
from pursuit.model.faults import HALF_A_CHARACTER, faults_of

LARGEST = 2**53
_HALF = re.compile("[\ud800-\udfff]")
MAX_ARGS_DEPTH = 100
MAX_ARGS_BITS = 10_000
"""Python itself reads and writes no number of more than 4,300 digits."""


class Broken(NamedTuple):
    """A rule between fields that does not hold; `field` is where a person would mend it, if it is one place."""

    reason: str
    field: str | tuple[str | int, ...] | None = None


class Shape(BaseModel):
    """A frozen input shape that refuses keys it does not know and says everything that is wrong."""

    # Built when first used: who starts a server, or lists missions, reads no input yet.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ValidationFailed(faults_of(error, type(self))) from None

    # A shape inside another is built without this constructor, so that its faults join those of the whole.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:  # noqa: ARG003 - for the shapes that have rules
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
    """The text itself if any store and any system takes it."""
    if "\x00" in value:
        raise ValueError("must not hold a null byte")
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
                raise ValueError("holds a number of more than 3,000 digits")
            return ()
        case str():
            if not item.isascii() and _HALF.search(item):
                raise ValueError(HALF_A_CHARACTER)
            return ()
        case float():
            if not math.isfinite(item):
                raise ValueError(f"must be JSON; {item} is no JSON number")
            return ()
        case list() | tuple():
            return cast("Sequence[Any]", item)
        case Mapping():
            pairs = cast("Mapping[Any, Any]", item)
            return [part for pair in pairs.items() for part in (_key(pair[0]), pair[1])]
        case _:
            raise ValueError(f"must be JSON; it holds a {type(item).__name__}")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"must be JSON; the key {key!r} is no text")
    return key


Text = Annotated[str, AfterValidator(plain_text)]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True), AfterValidator(plain_text)
]
Whole = Annotated[int, BeforeValidator(_a_number), Field(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, BeforeValidator(_a_number), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Args = Annotated[Mapping[str, Any], AfterValidator(_json_only)]
