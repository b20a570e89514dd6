"""Checks a call's arguments against the JSON Schema that the tool declares.

Only this module imports the JSON Schema library; it is imported when the first arguments are checked, so that start-up
does not pay for it. Invariant: resolving a schema never fetches anything, and each check has limited time, whatever the
schema and the value; a check that takes longer raises `Unfinished`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import msgspec
import referencing.exceptions
from jsonschema.protocols import Validator as SchemaValidator
from jsonschema.validators import validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pursuit.core.patterns import Unfinished, find, to_the_end
from pursuit.core.truncate import cut_text

SECONDS = 1.0
"""Time limit for the check of one value."""
READING_SECONDS = 3.0
"""Time limit for reading a schema, once for each: enough for half a megabyte."""

Faults = Iterator[jsonschema.ValidationError]


_time: ContextVar[tuple[float, float] | None] = ContextVar("time", default=None)
"""The processor time that a check may take, and when it is used up."""


@contextmanager
def bounded(seconds: float) -> Generator[None]:
    """Limits one check to this processor time, which its steps and patterns share."""
    mark = _time.set((seconds, time.thread_time() + seconds))
    try:
        yield
    finally:
        _time.reset(mark)


def _look() -> None:
    """Raises `Unfinished` if the time of the check is used up."""
    limit = _time.get()
    if limit is not None and time.thread_time() >= limit[1]:
        raise Unfinished(f"the check took more than {limit[0]:g} s")


def _found(pattern: str, text: str) -> bool:
    _look()
    return find(to_the_end(pattern), text) is not None


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Faults:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Faults:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in patterns.items():
        for key, value in cast("Mapping[str, Any]", instance).items():
            if _found(pattern, key):
                yield from validator.descend(value, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]) -> Faults:
    if not validator.is_type(instance, "object"):
        return
    patterns: Mapping[str, Any] = schema.get("patternProperties", {})
    known: Mapping[str, Any] = schema.get("properties", {})
    more = [key for key in instance if key not in known and not any(_found(one, key) for one in patterns)]
    if validator.is_type(wanted, "object"):
        for key in more:
            yield from validator.descend(instance[key], wanted, path=key)
    elif not wanted and more:
        verb = "was" if len(more) == 1 else "were"
        named = ", ".join(map(repr, more))
        yield jsonschema.ValidationError(f"Additional properties are not allowed ({named} {verb} unexpected)")


def _unique_items(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Faults:
    if not wanted or not validator.is_type(instance, "array"):
        return
    # Equal bytes for values that are equal in JSON Schema: 1 equals 1.0, and neither equals true.
    if len({msgspec.json.encode(_plain(one), order="deterministic") for one in instance}) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _plain(one) for key, one in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [_plain(one) for one in cast("list[Any]", value)]
        case _:
            return value


_BOUNDED: Mapping[str, Any] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}


@lru_cache(maxsize=32)
def bounded_kind(kind: Any) -> Any:
    """The library's validator of a dialect, with bounded cost."""
    made = cast("Any", jsonschema.validators).extend(kind, _BOUNDED)
    parts = [(field.name, field.alias) for field in made.__attrs_attrs__ if field.init]

    def stepped(self: Any, **changes: Any) -> Any:
        _look()
        for name, alias in parts:
            if alias not in changes:
                changes[alias] = getattr(self, name)
        # The library's own `evolve` would return an unbounded validator for a part that names its dialect.
        return made(**changes)

    # Every step to another part of a schema or of a value goes through `evolve`; the library forbids subclasses.
    made.evolve = stepped
    return made


def _has(body: object, key: str) -> bool:
    if isinstance(body, Mapping):
        table = cast("Mapping[str, object]", body)
        return key in table or any(_has(value, key) for value in table.values())
    return isinstance(body, list) and any(_has(one, key) for one in cast("list[object]", body))


_MAX_FAULTS = 20
_MAX_ERRORS = 1_000
_MAX_TEXT = 300
_UNUSABLE = (
    *(referencing.exceptions.Unresolvable, jsonschema.exceptions.UnknownType, re.error),
    *(ValueError, TypeError, AttributeError, LookupError, ZeroDivisionError),
)
"""The library's errors for faults that its meta-schemas cannot detect: in or behind a `$ref`."""


class UnusableSchema(Exception):
    """The schema cannot be used; the message says why."""


_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$comment", "deprecated"})
_FLAT = _NOTES | {"type", "properties", "required", "additionalProperties"}


def _flat_kinds(body: Any) -> dict[str, tuple[type, ...]] | None:
    """The types of each property, if the schema consists only of these; None for any other schema."""
    if body.keys() - _FLAT or body.get("type") != "object" or body.get("additionalProperties") not in (None, False):
        return None
    kinds: dict[str, tuple[type, ...]] = {}
    for name, part in cast("dict[str, Any]", body.get("properties", {})).items():
        if not isinstance(part, dict) or cast("dict[str, Any]", part).keys() - _NOTES != {"type"}:
            return None
        said = cast("Any", part["type"])
        some = [said] if isinstance(said, str) else said
        if not all(one in _KINDS for one in some):
            return None
        kinds[name] = tuple(kind for one in some for kind in _KINDS[one])
    return kinds


class Validator:
    """A compiled schema. For a flat schema with types only, arguments that fit are checked without the library."""

    def __init__(self, compiled: SchemaValidator, body: Any) -> None:
        self._compiled = compiled
        self._kinds = _flat_kinds(body) if isinstance(body, dict) else None
        self._required = frozenset(
            cast("list[str]", [] if self._kinds is None else cast("dict[str, Any]", body).get("required", []))
        )

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """True if a quick check shows that the arguments fit; otherwise `faults` decides."""
        kinds = self._kinds
        if kinds is None:
            return False
        for name, value in arguments.items():
            if name not in kinds or type(value) not in kinds[name]:
                return False
        return not self._required or arguments.keys() >= self._required

    def faults(self, arguments: Mapping[str, Any], seconds: float = SECONDS) -> list[str]:
        """All faults in the arguments, with their places. Raises `UnusableSchema` or `Unfinished`."""
        try:
            with bounded(seconds):
                if self._compiled.is_valid(arguments):
                    return []
                errors = islice(self._compiled.iter_errors(arguments), _MAX_ERRORS)
                ordered = sorted(errors, key=lambda error: list(map(str, error.absolute_path)))
        except RecursionError as error:
            raise UnusableSchema("it is circular or nested too deeply") from error
        except OverflowError as error:
            raise Unfinished("a number is too large to compare with those of the schema") from error
        except _UNUSABLE as error:
            raise UnusableSchema(cut_text(str(error), _MAX_TEXT)) from error
        told = [(_place(error.absolute_path), cut_text(error.message, _MAX_TEXT)) for error in ordered[:_MAX_FAULTS]]
        return [f"{place}: {text}" if place else text for place, text in told]


def compiled(schema: Mapping[str, Any], seconds: float = READING_SECONDS) -> Validator:
    try:
        found = _read(msgspec.json.encode(schema), seconds)
    except (*_UNUSABLE, RecursionError) as error:
        raise UnusableSchema(str(error)) from error
    if isinstance(found, Validator):
        return found
    raise UnusableSchema(found[0][1])


def schema_faults(schema: Mapping[str, Any], seconds: float = READING_SECONDS) -> list[tuple[str, str]]:
    """All faults that make a schema unusable, each with its place; empty if it can be used."""
    found = _read(msgspec.json.encode(schema), seconds)
    if not isinstance(found, Validator):
        return found
    try:
        found.faults({})
    except (UnusableSchema, Unfinished) as error:  # only the check of a value finds these
        return [("", f"cannot be used: {cut_text(str(error), _MAX_TEXT)}")]
    return []


@lru_cache(maxsize=1_024)
def _read(schema: bytes, seconds: float) -> Validator | list[tuple[str, str]]:
    """The validator, or the faults; cached, because reading a schema costs as much as hundreds of checks."""
    body = msgspec.json.decode(schema)
    kind = _dialect(body)
    try:
        with bounded(seconds):
            checker = bounded_kind(kind)(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER)
            errors: list[jsonschema.ValidationError] = list(islice(checker.iter_errors(body), _MAX_ERRORS))
    except Unfinished as error:
        return [("", f"it cannot be checked: {error}")]
    if errors:
        found = {_place(error.absolute_path): cut_text(error.message, _MAX_TEXT) for error in reversed(errors)}
        return sorted(found.items())[:_MAX_FAULTS]
    # These make the library itself search with patterns.
    if _has(body, "unevaluatedProperties") and _has(body, "patternProperties"):
        return [("unevaluatedProperties", "cannot be checked at bounded cost together with patternProperties")]
    # An explicit registry: the default one would fetch a remote `$ref` over the network.
    return Validator(cast("SchemaValidator", bounded_kind(kind)(body, registry=EMPTY_REGISTRY)), body)


def _dialect(body: Any) -> Any:
    latest: Any = jsonschema.Draft202012Validator
    table = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    return validator_for(table, default=latest) if isinstance(table.get("$schema"), str) else latest


def _place(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
