"""The check of a call's arguments against the JSON Schema that the tool declares.

Owns: compiled schemas, and how a fault in the arguments is told. Does not know: tools or servers. Only this module,
`keywords` and `schema_parts` import the JSON Schema library, and they when the first arguments are checked: starting up
does without. Invariant: nothing is ever fetched to resolve a schema; whatever is checked against whatever, the time for
it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import jsonschema
import jsonschema.exceptions
import msgspec
import referencing.exceptions
from jsonschema.protocols import Validator as SchemaValidator
from jsonschema.validators import validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from pursuit.model.patterns import Unfinished, checked_pattern
from pursuit.tools.keywords import bounded, bounded_kind, is_bounded
from pursuit.tools.schema_parts import patterns, wrong_references

READING_SECONDS = 3.0
"""For a look at a schema itself, once for each: enough for half a megabyte."""

_MOST_FAULTS = 20
_MOST_ERRORS = 1_000
_UNUSABLE = (
    *(referencing.exceptions.Unresolvable, jsonschema.exceptions.UnknownType, re.error),
    *(ValueError, TypeError, AttributeError, LookupError, ZeroDivisionError),
)
"""What the library raises for what its meta-schemas cannot see: a part that only a `$ref` leads to, or to nothing."""


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
                errors = islice(self._compiled.iter_errors(arguments), _MOST_ERRORS)
                ordered = sorted(errors, key=lambda error: list(map(str, error.absolute_path)))
        except RecursionError as error:
            raise UnusableSchema("it leads back to itself, or is nested too deeply") from error
        except OverflowError as error:
            raise Unfinished("a number is too large to be compared with those of the schema") from error
        except _UNUSABLE as error:
            raise UnusableSchema(_shortened(str(error))) from error
        return [_sentence(error) for error in ordered[:_MOST_FAULTS]]


def compiled(schema: Mapping[str, Any]) -> Validator:
    """The validator of a schema, or `UnusableSchema`."""
    try:
        found = _compiled(msgspec.json.encode(schema))
    except (*_UNUSABLE, RecursionError) as error:
        raise UnusableSchema(str(error)) from error
    if isinstance(found, str):
        raise UnusableSchema(found)
    return found


def schema_faults(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that makes a schema unusable, each with its place in it; nothing if it can be used."""
    body: Any = msgspec.json.decode(msgspec.json.encode(schema))
    chosen = _dialect(body)
    try:
        with bounded(READING_SECONDS):
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
        except (UnusableSchema, Unfinished) as error:  # what only a look at a value can see
            found[""] = f"cannot be used: {_shortened(str(error))}"
    return sorted(found.items())[:_MOST_FAULTS]


@lru_cache(maxsize=1_024)
def _compiled(schema: bytes) -> Validator | str:
    """The validator, or why there is none; once for a process: reading a schema costs hundreds of uses of it."""
    body = msgspec.json.decode(schema)
    kind = _dialect(body)
    try:
        with bounded(READING_SECONDS):
            checker = bounded_kind(kind)(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER)
            wrong: jsonschema.ValidationError | None = next(checker.iter_errors(body), None)
    except Unfinished as error:
        return f"it cannot be checked: {error}"
    if wrong is not None:
        return wrong.message
    if not is_bounded(body):
        return "it has patternProperties and unevaluatedProperties, whose cost nobody can bound"
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
