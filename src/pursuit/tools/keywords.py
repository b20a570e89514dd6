"""Keywords of JSON Schema whose cost the checked value decides, at a bounded cost.

Owns: `pattern`, `patternProperties`, `additionalProperties` and `uniqueItems` as the library has them, with patterns
that are given up when they take too long. Does not know: whose value is checked. Invariant: whatever the value is, all
patterns of one check together have `SECONDS`; what is not known by then is `Unfinished`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import jsonschema
import msgspec

from pursuit.model.patterns import Patience, Unfinished, find

SECONDS = 1.0
_patience: ContextVar[Patience | None] = ContextVar("patience", default=None)
Faults = Iterator[jsonschema.ValidationError]


@contextmanager
def bounded() -> Generator[None]:
    """One check: all of its patterns share their time."""
    mark = _patience.set(Patience(SECONDS))
    try:
        yield
    finally:
        _patience.reset(mark)


def _found(pattern: str, text: str) -> bool:
    patience = _patience.get()
    if patience is not None and patience.over:
        raise Unfinished(f"its patterns took more than {SECONDS:g} s together")
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


BOUNDED: Mapping[str, Any] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}


def is_bounded(body: object) -> bool:
    """Whether no keyword of a schema makes the library search with patterns by itself."""
    return not (_has(body, "unevaluatedProperties") and _has(body, "patternProperties"))


def _has(body: object, key: str) -> bool:
    if isinstance(body, Mapping):
        table = cast("Mapping[str, object]", body)
        return key in table or any(_has(value, key) for value in table.values())
    return isinstance(body, list) and any(_has(one, key) for one in cast("list[object]", body))
