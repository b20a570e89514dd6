"""The check of a call's arguments against the JSON Schema that the tool declares.

Owns: compiled schemas, and how a fault in the arguments is told. Does not know: tools or servers. Only this module and
`keywords` import the JSON Schema library, and they when the first arguments are checked: starting up does without.
Invariant: nothing is ever fetched to resolve a schema; whatever is checked, the time for it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import jsonschema
import jsonschema.validators
import msgspec
import referencing.exceptions
from jsonschema.protocols import Validator as SchemaValidator
from jsonschema.validators import validator_for
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY, specification_with

from pursuit.model.patterns import checked_pattern
from pursuit.tools.keywords import BOUNDED, bounded, is_bounded

_MOST_FAULTS = 20
_DATA = frozenset({"const", "default", "enum", "examples"})


class UnusableSchema(Exception):
    """A schema that nothing can be checked against; the message says why."""


class Validator:
    """One compiled schema."""

    def __init__(self, compiled: SchemaValidator) -> None:
        self._compiled = compiled

    def faults(self, arguments: Mapping[str, Any]) -> list[str]:
        """Everything that is wrong with the arguments, with its place; or `UnusableSchema`, or `Unfinished`."""
        try:
            with bounded():
                if self._compiled.is_valid(arguments):
                    return []
                errors = self._compiled.iter_errors(arguments)
                ordered = sorted(errors, key=lambda error: list(map(str, error.absolute_path)))
        except (referencing.exceptions.Unresolvable, RecursionError, re.error, ValueError) as error:
            # The meta-schema cannot see a dangling or circular `$ref`, or a pattern that is no Python pattern.
            raise UnusableSchema(str(error)) from error
        return [_sentence(error) for error in ordered[:_MOST_FAULTS]]


def compiled(schema: Mapping[str, Any]) -> Validator:
    """The validator of a schema, or `UnusableSchema`."""
    try:
        return _compiled(msgspec.json.encode(schema))
    except jsonschema.SchemaError as error:
        raise UnusableSchema(error.message) from error
    except (referencing.exceptions.Unresolvable, RecursionError, re.error, TypeError) as error:
        raise UnusableSchema(str(error)) from error


def schema_faults(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that makes a schema unusable, each with its place in it; nothing if it can be used."""
    body: Any = msgspec.json.decode(msgspec.json.encode(schema))
    chosen: Any = validator_for(body, default=jsonschema.Draft202012Validator)
    errors: list[jsonschema.ValidationError] = list(chosen(chosen.META_SCHEMA).iter_errors(body))
    found = {_place(error.absolute_path): _shortened(error.message) for error in reversed(errors)}
    for place, pattern in _patterns(cast("object", body)):
        try:
            checked_pattern(pattern)
        except ValueError as error:
            found.setdefault(place, f"{pattern[:60]!r} {error}")
    if not is_bounded(body):
        found.setdefault("unevaluatedProperties", "cannot be checked beside patternProperties at a bounded cost")
    found |= {} if found else dict(_dangling(body))
    if not found:
        try:
            _made(chosen, body).faults({})
        except UnusableSchema as error:  # a `$ref` that leads nowhere or goes round in a circle
            found[""] = f"cannot be used: {_shortened(str(error))}"
    return sorted(found.items())[:_MOST_FAULTS]


def _patterns(body: object) -> Iterator[tuple[str, str]]:
    """The patterns of a schema."""
    for place, table in _tables(body, ""):
        pattern, named = table.get("pattern"), table.get("patternProperties")
        if isinstance(pattern, str):
            yield f"{place}.pattern".removeprefix("."), pattern
        if isinstance(named, dict):
            at = f"{place}.patternProperties".removeprefix(".")
            yield from ((f"{at}.{one}", one) for one in cast("dict[str, object]", named))


def _tables(body: object, at: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The tables of a schema, each with its place; its examples and defaults are data and may look as they like."""
    if isinstance(body, dict):
        table = cast("dict[str, object]", body)
        yield at, table
        for key, value in table.items():
            if key not in _DATA:
                yield from _tables(value, f"{at}.{key}".removeprefix("."))
    elif isinstance(body, list):
        for index, value in enumerate(cast("list[object]", body)):
            yield from _tables(value, f"{at}[{index}]")


@lru_cache(maxsize=1_024)
def _compiled(schema: bytes) -> Validator:
    """Made once for a process: checking a schema costs hundreds of times what using it does."""
    body = msgspec.json.decode(schema)
    kind = cast("Any", validator_for(body, default=jsonschema.Draft202012Validator))
    kind.check_schema(body)
    if not is_bounded(body):
        raise UnusableSchema("it has patternProperties and unevaluatedProperties, whose cost nobody can bound")
    return _made(kind, body)


def _made(kind: Any, body: Any) -> Validator:
    # An explicit registry: the default one would fetch a remote `$ref` over the network.
    library = cast("Any", jsonschema.validators)
    made = library.extend(kind, BOUNDED)(body, registry=EMPTY_REGISTRY)
    return Validator(cast("SchemaValidator", made))


def _dangling(body: Any) -> Iterator[tuple[str, str]]:
    """The references of a schema that lead nowhere; where parts have addresses of their own, nobody looks."""
    if any(place and "$id" in table for place, table in _tables(cast("object", body), "")):
        return
    said = cast("dict[str, Any]", body).get("$schema") if isinstance(body, dict) else None
    dialect: Any = specification_with(said, default=DRAFT202012) if isinstance(said, str) else DRAFT202012
    whole = dialect.create_resource(body)
    resolver: Any = EMPTY_REGISTRY.with_resource(whole.id() or "", whole).crawl().resolver(whole.id() or "")
    for place, target in _references(cast("object", body)):
        try:
            resolver.lookup(target)
        except referencing.exceptions.Unresolvable:
            yield place, f"leads nowhere: {target[:100]!r}"
        except (ValueError, TypeError, KeyError) as error:  # what is no address at all
            yield place, f"cannot be followed: {target[:100]!r}: {error}"


def _references(body: object) -> Iterator[tuple[str, str]]:
    for place, table in _tables(body, ""):
        target = table.get("$ref")
        if isinstance(target, str):
            yield f"{place}.$ref".removeprefix("."), target


def _sentence(error: jsonschema.ValidationError) -> str:
    place, text = _place(error.absolute_path), _shortened(error.message)
    return f"{place}: {text}" if place else text


def _place(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
