"""Wrong arguments made from what a tool declares: each place of a good example, wrong in every way a schema knows.

A case is wrong by the declared schema itself (jsonschema says so), or in one of the few ways that no schema can tell.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

Schema = Mapping[str, Any]
Place = tuple[str | int, ...]

HUGE = "x" * 1_000_000
LARGE_NUMBER = 2**53 + 1
BEYOND_FLOAT = 10**400
MAX_KEY = 100
"""Of an unknown key no more is said."""


def nested(levels: int) -> Any:
    """Lists in lists."""
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


DEEP = nested(150)
ANY_TYPE: list[Any] = [None, True, False, 0, -1, -2, 1.5, "", "no such word", [], HUGE]
LISTS: list[Any] = [[None], DEEP]
OBJECTS: list[Any] = [{}, {"zzz": 1}]


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One wrong call: `field` is where the fault must be found, `word` what its reason says."""

    tool: str
    how: str
    arguments: dict[str, Any]
    field: str
    word: str = ""


def written(place: Place) -> str:
    """A place as faults write it."""
    path = ""
    for step in place:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def wrong_variants(tool: str, schema: Schema, examples: list[dict[str, Any]]) -> list[Wrong]:
    """Every wrong variant of these examples; a place that is the same in two of them is made wrong once."""
    seen: set[tuple[Place, int]] = set()
    found: list[Wrong] = []
    for example in examples:
        assert Draft202012Validator(schema).is_valid(example), f"the example for {tool} is good"
        found += _Corpus(tool, schema, example, seen).at((), schema, example)
    return found


class _Corpus:
    def __init__(self, tool: str, schema: Schema, example: dict[str, Any], seen: set[tuple[Place, int]]) -> None:
        self._tool, self._root, self._example, self._seen = tool, schema, example, seen
        self._validator = cache(self._validator_of)

    def at(self, place: Place, declared: Schema, value: Any) -> Iterator[Wrong]:
        """The wrong variants at this place and below."""
        schema = self._branch(declared, value)
        if place:
            yield from self._values(place, declared, schema)
        if schema.get("type") == "object" and not schema.get("additionalProperties", True):
            if self._is_new((*place, "keys"), schema):
                yield from self._keys(place, schema, value)
            for name, inner in schema["properties"].items():
                yield from self._property((*place, name), inner, value.get(name))
        if schema.get("type") == "array":
            for index, item in enumerate(value):
                yield from self.at((*place, index), schema["items"], item)

    def _property(self, place: Place, declared: Schema, value: Any) -> Iterator[Wrong]:
        if value is not None:
            yield from self.at(place, declared, value)
            return
        for schema in self._branches(declared):
            yield from self._values(place, declared, schema)

    def _values(self, place: Place, declared: Schema, schema: Schema) -> Iterator[Wrong]:
        """Wrong values for one place, whatever it holds in the example; what is wrong inside a list is not here."""
        if not self._is_new(place, schema):
            return
        is_kind = place[-1] == "kind"
        types = {branch.get("type") for branch in self._branches(declared)}
        pool = [*ANY_TYPE, *_beside(schema)]
        pool += [] if "object" in types else OBJECTS
        pool += [] if "array" in types else LISTS
        field = written(place[:-1] if is_kind else place)
        for value in pool:
            if not self._fits(declared, value):
                yield self._case(place, _told(value), value, _field(field, value), is_kind)
        for how, value in _beyond_the_schema(schema):
            yield self._case(place, how, value, _field(field, value), is_kind)

    def _keys(self, place: Place, schema: Schema, value: Mapping[str, Any]) -> Iterator[Wrong]:
        """Keys that are missing, and keys that nobody knows."""
        for name in schema.get("required", ()):
            at = place if name == "kind" else (*place, name)
            kept = {key: inner for key, inner in value.items() if key != name}
            word = "kind" if name == "kind" else "must be"
            yield self._case(place, f"without {name}", kept, written(at), word=word)
        for name in schema["properties"]:
            extra = {**value, f"{name}{name[-1]}": 1}
            hint = f"is not a known key; did you mean '{name}'?"
            yield self._case(place, f"misspelt {name}", extra, written((*place, f"{name}{name[-1]}")), word=hint)
        for key, shown in (("zzz", "zzz"), ("a b.c[0]", "a b.c[0]"), ("", '""'), (HUGE, f"{HUGE[:MAX_KEY]}…")):
            extra = {**value, key: HUGE}
            yield self._case(place, f"unknown {key[:9]!r}", extra, written((*place, shown)), word="is not a known key")

    def _case(self, place: Place, how: str, value: Any, field: str, is_kind: bool = False, *, word: str = "") -> Wrong:
        arguments = copy.deepcopy(self._example)
        if not place:
            arguments = value
        else:
            holder: Any = arguments
            for step in place[:-1]:
                holder = holder[step]
            holder[place[-1]] = value
        word = "kind" if is_kind else word
        return Wrong(tool=self._tool, how=f"{written(place)}: {how}", arguments=arguments, field=field, word=word)

    def _is_new(self, place: Place, schema: Schema) -> bool:
        known = (place, id(schema))
        if known in self._seen:
            return False
        self._seen.add(known)
        return True

    def _branches(self, declared: Schema) -> list[Schema]:
        """The forms that a value may have."""
        if "$ref" in declared:
            found: Any = self._root
            for step in declared["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            return [found]
        forms = declared.get("oneOf") or declared.get("anyOf")
        return [branch for form in forms for branch in self._branches(form)] if forms else [declared]

    def _branch(self, declared: Schema, value: Any) -> Schema:
        return next(branch for branch in self._branches(declared) if self._fits(branch, value))

    def _fits(self, declared: Schema, value: Any) -> bool:
        return self._validator(json.dumps(declared)).is_valid(value)

    def _validator_of(self, declared: str) -> Draft202012Validator:
        return Draft202012Validator({**json.loads(declared), "$defs": self._root.get("$defs", {})})


def _field(field: str, value: Any) -> str:
    """Where a wrong value is told: a bare number is the seconds of a pace."""
    bare = field == "pace" and isinstance(value, int | float) and not isinstance(value, bool)
    return "pace.seconds" if bare else field


def _beside(schema: Schema) -> Iterator[Any]:
    """Values just outside of what is declared."""
    for key, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0), ("exclusiveMaximum", 0)):
        if key in schema:
            yield schema[key] + step
            yield schema[key] + step + (0.5 if step > 0 else -0.5)
    if schema.get("type") in ("integer", "number"):
        yield from ("5", "NaN", [5])
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    for word in schema.get("enum", ()):
        if isinstance(word, str):
            yield from (word.upper(), f"{word} ", [word])
    if "const" in schema:
        yield from (f"{schema['const']}x", [schema["const"]])
    if "pattern" in schema:
        good = "mission-0123456789abcdef"
        yield from (good[:-1], f"{good}0", good.upper(), f" {good}", f"{good}\n", f"{good[:-1]}g", "mission-../../x")
    if "maxItems" in schema and schema["maxItems"] <= 1_000:
        yield [{}] * (schema["maxItems"] + 1)


def _beyond_the_schema(schema: Schema) -> Iterator[tuple[str, Any]]:
    """What is wrong though no schema says so."""
    if schema.get("type") == "string":
        yield "half of a surrogate pair", "a\ud800"
        if schema.get("minLength"):
            yield "nothing but blanks", " \t\n"
    if schema.get("type") in ("integer", "number"):
        yield "beyond any float", BEYOND_FLOAT
    if schema.get("type") == "integer":
        yield "a whole number beyond 2**53", LARGE_NUMBER


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:40]}… ({len(text)})"
