"""Checks a call's arguments against the JSON Schema that the tool declares.

Only this module imports the JSON Schema library, and it is imported when the first arguments are checked, so starting
up does without. Invariant: nothing is ever fetched to resolve a schema, and each check has a bounded time, whatever the
schema and the value are; what is not known by then is `Unfinished`.
"""

from __future__ import annotations

import re
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
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY, specification_with

from pursuit.core.patterns import ProcessorTime, Unfinished, checked_pattern, find, to_the_end

SECONDS = 1.0
"""For the check of one value."""
READING_SECONDS = 3.0
"""For the check of a schema itself, once for each: enough for half a megabyte."""
_STEPS = 8
"""Between two looks at the clock; each may take as long as the schema or the value is large."""

Faults = Iterator[jsonschema.ValidationError]


class _Clock:
    """The processor time of one check."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._patience = ProcessorTime(seconds)
        self._steps = _STEPS

    def step(self) -> None:
        """Checks the time every few steps."""
        self._steps -= 1
        if not self._steps:
            self._steps = _STEPS
            self.look()

    def look(self) -> None:
        """Raises `Unfinished` if the time is over."""
        if self._patience.over:
            raise Unfinished(f"the check took more than {self._seconds:g} s")


_clock: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def bounded(seconds: float) -> Generator[None]:
    """One check, whose steps and patterns share this processor time."""
    mark = _clock.set(_Clock(seconds))
    try:
        yield
    finally:
        _clock.reset(mark)


def _found(pattern: str, text: str) -> bool:
    clock = _clock.get()
    if clock is not None:
        clock.look()
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
    if len({_canonical(one) for one in instance}) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _canonical(value: Any) -> bytes:
    """The same bytes for values that JSON Schema takes to be equal: 1 is 1.0, and neither is true."""
    return msgspec.json.encode(_plain(value), order="deterministic")


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
    """The library's validator of a dialect, at a bounded cost."""
    made = cast("Any", jsonschema.validators).extend(kind, _BOUNDED)
    parts = [(field.name, field.alias) for field in made.__attrs_attrs__ if field.init]

    def stepped(self: Any, **changes: Any) -> Any:
        clock = _clock.get()
        if clock is not None:
            clock.step()
        for name, alias in parts:
            if alias not in changes:
                changes[alias] = getattr(self, name)
        # The library's own `evolve` would return an unbounded validator where a part names its dialect.
        return made(**changes)

    # Every step to another part of a schema or of a value goes through `evolve`; the library forbids subclasses.
    made.evolve = stepped
    return made


def is_bounded(body: object) -> bool:
    """Whether no keyword of a schema makes the library search with patterns by itself."""
    return not (_has(body, "unevaluatedProperties") and _has(body, "patternProperties"))


def _has(body: object, key: str) -> bool:
    if isinstance(body, Mapping):
        table = cast("Mapping[str, object]", body)
        return key in table or any(_has(value, key) for value in table.values())
    return isinstance(body, list) and any(_has(one, key) for one in cast("list[object]", body))


_DATA = frozenset({"const", "default", "enum", "examples"})
_SAME_VALUE = ("if", "then", "else", "not")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_TABLES = ("dependentSchemas", "dependencies")
"""Keywords whose schemas apply to the same value, not to a part of it."""

_OPEN, _DONE = 1, 2
Table = dict[str, object]


def patterns(body: object) -> Iterator[tuple[str, str]]:
    """The patterns of a schema, each with its place."""
    for place, table in _tables(body, ""):
        pattern, named = table.get("pattern"), table.get("patternProperties")
        if isinstance(pattern, str):
            yield _joined(place, "pattern"), pattern
        if isinstance(named, dict):
            at = _joined(place, "patternProperties")
            yield from ((f"{at}.{one}", one) for one in cast("Table", named))


def wrong_references(body: object) -> dict[str, str]:
    """The references that lead nowhere or in a circle; a schema whose parts have `$id`s of their own is not checked."""
    parts = list(_tables(body, ""))
    if any(place and "$id" in table for place, table in parts):
        return {}
    found: dict[str, str] = {}
    leads: dict[int, tuple[str, object]] = {}
    lookup = _lookup(body)
    for place, table in parts:
        target, at = table.get("$ref"), _joined(place, "$ref")
        if not isinstance(target, str):
            continue
        try:
            leads[id(table)] = at, lookup(target).contents
        except referencing.exceptions.Unresolvable:
            found[at] = f"leads nowhere: {target[:100]!r}"
        except (ValueError, TypeError, KeyError) as error:  # not an address at all
            found[at] = f"cannot be followed: {target[:100]!r}: {error}"
    return found | dict.fromkeys(_circles([table for _, table in parts], leads), "leads back to itself, without an end")


def _lookup(body: object) -> Any:
    said = cast("Table", body).get("$schema") if isinstance(body, dict) else None
    dialect: Any = specification_with(said, default=DRAFT202012) if isinstance(said, str) else DRAFT202012
    whole = dialect.create_resource(body)
    resolver: Any = EMPTY_REGISTRY.with_resource(whole.id() or "", whole).crawl().resolver(whole.id() or "")
    return resolver.lookup


def _circles(parts: list[Table], leads: dict[int, tuple[str, object]]) -> Iterator[str]:
    """The places of references by which a schema applies itself to the same value again."""
    state: dict[int, int] = {}
    for part in parts:
        stack: list[tuple[str, object]] = [("", part)]
        while stack:
            at, one = stack[-1]
            if id(one) in state or not isinstance(one, dict):
                state[id(one)] = _DONE
                stack.pop()
                continue
            table = cast("Table", one)
            state[id(table)] = _OPEN
            for reference, target in _asked(table, leads):
                if state.get(id(target)) == _OPEN:
                    yield reference or at
                else:
                    stack.append((reference or at, target))


def _asked(table: Table, leads: dict[int, tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """The schemas that a schema applies to the same value, each with the place of its reference, if it has one."""
    if id(table) in leads:
        yield leads[id(table)]
    found = [table.get(key) for key in _SAME_VALUE]
    for key in _SAME_VALUE_LISTS:
        listed = table.get(key)
        found += cast("list[object]", listed) if isinstance(listed, list) else []
    for key in _SAME_VALUE_TABLES:
        named = table.get(key)
        found += cast("Table", named).values() if isinstance(named, dict) else []
    yield from (("", one) for one in found)


def _tables(body: object, at: str) -> Iterator[tuple[str, Table]]:
    """The tables of a schema, each with its place; examples and defaults are data and left out."""
    if isinstance(body, dict):
        table = cast("Table", body)
        yield at, table
        for key, value in table.items():
            if key not in _DATA:
                yield from _tables(value, f"{at}.{key}".removeprefix("."))
    elif isinstance(body, list):
        for index, value in enumerate(cast("list[object]", body)):
            yield from _tables(value, f"{at}[{index}]")


def _joined(place: str, key: str) -> str:
    return f"{place}.{key}".removeprefix(".")


_MOST_FAULTS = 20
_MOST_ERRORS = 1_000
_UNUSABLE = (
    *(referencing.exceptions.Unresolvable, jsonschema.exceptions.UnknownType, re.error),
    *(ValueError, TypeError, AttributeError, LookupError, ZeroDivisionError),
)
"""What the library raises for faults that its meta-schemas cannot see: a part behind a `$ref`, or no part."""


class UnusableSchema(Exception):
    """A schema that cannot be used; the message says why."""


class Validator:
    """One compiled schema."""

    def __init__(self, compiled: SchemaValidator) -> None:
        self._compiled = compiled

    def faults(self, arguments: Mapping[str, Any], seconds: float = SECONDS) -> list[str]:
        """Everything that is wrong with the arguments, with its place; or `UnusableSchema`, or `Unfinished`."""
        try:
            with bounded(seconds):
                if self._compiled.is_valid(arguments):
                    return []
                errors = islice(self._compiled.iter_errors(arguments), _MOST_ERRORS)
                ordered = sorted(errors, key=lambda error: list(map(str, error.absolute_path)))
        except RecursionError as error:
            raise UnusableSchema("it leads back to itself, or is nested too deeply") from error
        except OverflowError as error:
            raise Unfinished("a number is too large to be compared with those of the schema") from error
        except _UNUSABLE as error:
            raise UnusableSchema(_shortened(str(error))) from error
        return [_sentence(error) for error in ordered[:_MOST_FAULTS]]


def compiled(schema: Mapping[str, Any], seconds: float = READING_SECONDS) -> Validator:
    """The validator of a schema, or `UnusableSchema`."""
    try:
        found = _compiled(msgspec.json.encode(schema), seconds)
    except (*_UNUSABLE, RecursionError) as error:
        raise UnusableSchema(str(error)) from error
    if isinstance(found, str):
        raise UnusableSchema(found)
    return found


def schema_faults(schema: Mapping[str, Any], seconds: float = READING_SECONDS) -> list[tuple[str, str]]:
    """Everything that makes a schema unusable, each with its place in it; nothing if it can be used."""
    body: Any = msgspec.json.decode(msgspec.json.encode(schema))
    chosen = _dialect(body)
    try:
        with bounded(seconds):
            wrong = islice(bounded_kind(chosen)(chosen.META_SCHEMA).iter_errors(body), _MOST_ERRORS)
            errors: list[jsonschema.ValidationError] = list(wrong)
    except Unfinished as error:
        return [("", f"cannot be checked: {error}")]
    found = {_place(error.absolute_path): _shortened(error.message) for error in reversed(errors)}
    for place, pattern in patterns(body):
        try:
            checked_pattern(pattern)
        except ValueError as error:
            found.setdefault(place, f"{pattern[:60]!r} {error}")
    if not is_bounded(body):
        found.setdefault("unevaluatedProperties", "cannot be checked beside patternProperties at a bounded cost")
    found |= {} if found else wrong_references(body)
    if not found:
        try:
            _made(chosen, body).faults({})
        except (UnusableSchema, Unfinished) as error:  # only the check of a value can find it
            found[""] = f"cannot be used: {_shortened(str(error))}"
    return sorted(found.items())[:_MOST_FAULTS]


@lru_cache(maxsize=1_024)
def _compiled(schema: bytes, seconds: float) -> Validator | str:
    """The validator, or why there is none; cached, because reading a schema costs as much as hundreds of checks."""
    body = msgspec.json.decode(schema)
    kind = _dialect(body)
    try:
        with bounded(seconds):
            checker = bounded_kind(kind)(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER)
            wrong: jsonschema.ValidationError | None = next(checker.iter_errors(body), None)
    except Unfinished as error:
        return f"it cannot be checked: {error}"
    if wrong is not None:
        return wrong.message
    if not is_bounded(body):
        return "it has patternProperties and unevaluatedProperties, whose cost cannot be bounded"
    return _made(kind, body)


def _dialect(body: Any) -> Any:
    """The library's validator of the dialect that a schema names, if it names one."""
    latest: Any = jsonschema.Draft202012Validator
    table = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    return validator_for(table, default=latest) if isinstance(table.get("$schema"), str) else latest


def _made(kind: Any, body: Any) -> Validator:
    # An explicit registry: the default one would fetch a remote `$ref` over the network.
    return Validator(cast("SchemaValidator", bounded_kind(kind)(body, registry=EMPTY_REGISTRY)))


def _sentence(error: jsonschema.ValidationError) -> str:
    place, text = _place(error.absolute_path), _shortened(error.message)
    return f"{place}: {text}" if place else text


def _place(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
