"""Checks against JSON Schema at a bounded cost, whatever the schema and the value are.

Owns: the library's validators with a clock that runs at every step, and with `pattern`, `patternProperties`,
`additionalProperties` and `uniqueItems` of our own, which cost no more than they must. Does not know: whose value is
checked. Invariant: one check has so many seconds of processor time as `bounded` says; what is not known by then is
`Unfinished`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, cast

import jsonschema
import jsonschema.validators
import msgspec

from pursuit.model.patterns import Patience, Unfinished, find

SECONDS = 1.0
_STEPS = 8
"""Between two looks at the clock; each may take as long as the schema or the value is large."""

Faults = Iterator[jsonschema.ValidationError]


class _Clock:
    """The time of one check."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._patience = Patience(seconds)
        self._steps = _STEPS

    def step(self) -> None:
        """Looks at the time now and then."""
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
def bounded(seconds: float | None = None) -> Generator[None]:
    """One check: all of its steps and patterns share their time, `SECONDS` unless told."""
    mark = _clock.set(_Clock(SECONDS if seconds is None else seconds))
    try:
        yield
    finally:
        _clock.reset(mark)


def _found(pattern: str, text: str) -> bool:
    clock = _clock.get()
    if clock is not None:
        clock.look()
    return find(pattern, text) is not None


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
    """The same bytes for what JSON Schema takes to be the same: 1 is 1.0, and neither is true."""
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
        # The library's own would go on with a validator that nobody bounds where a part names its dialect.
        return made(**changes)

    # Every way to another part of a schema or of a value leads through it; the library wants no subclasses.
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
