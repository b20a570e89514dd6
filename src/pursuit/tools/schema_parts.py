"""The parts of a JSON Schema that somebody else wrote: its patterns and its references.

Owns: where they stand, which references lead nowhere, and which come back to where they began. Does not know: values
that are checked. Pure. Invariant: what is data (`default`, `examples`) is no part; nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import referencing.exceptions
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY, specification_with

_DATA = frozenset({"const", "default", "enum", "examples"})
_SAME_VALUE = ("if", "then", "else", "not")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_TABLES = ("dependentSchemas", "dependencies")
"""Keywords whose schemas are asked about the same value, not about a part of it."""

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
    """The references that lead nowhere or round in a circle; where parts have addresses of their own, nobody looks."""
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
        except (ValueError, TypeError, KeyError) as error:  # what is no address at all
            found[at] = f"cannot be followed: {target[:100]!r}: {error}"
    return found | dict.fromkeys(_circles([table for _, table in parts], leads), "leads back to itself, without an end")


def _lookup(body: object) -> Any:
    said = cast("Table", body).get("$schema") if isinstance(body, dict) else None
    dialect: Any = specification_with(said, default=DRAFT202012) if isinstance(said, str) else DRAFT202012
    whole = dialect.create_resource(body)
    resolver: Any = EMPTY_REGISTRY.with_resource(whole.id() or "", whole).crawl().resolver(whole.id() or "")
    return resolver.lookup


def _circles(parts: list[Table], leads: dict[int, tuple[str, object]]) -> Iterator[str]:
    """The places of references by which a schema asks itself about the same value again."""
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
    """The schemas that a schema asks about the same value, each with the place of the reference to it, if it is one."""
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
    """The tables of a schema, each with its place; its examples and defaults are data and may look as they like."""
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
