"""Values against JSON Schemas: the same word as the library's, and never much time, whatever the value is."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from pursuit.model.patterns import Unfinished
from pursuit.tools.validation import UnusableSchema, compiled, schema_faults

HARD = "^(a|aa)+$"
TRAP = "a" * 60 + "!"


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of(a={"pattern": HARD}), {"a": TRAP}),
        (of(a={"items": {"pattern": HARD}}), {"a": [TRAP] * 10_000}),
        ({"patternProperties": {HARD: {"type": "number"}}}, {TRAP: 1}),
        ({"patternProperties": {HARD: {}}, "additionalProperties": False}, {TRAP: 1}),
    ],
)
def test_a_pattern_that_takes_too_long_is_given_up(schema: dict[str, Any], value: dict[str, Any]) -> None:
    with pytest.raises(Unfinished, match="took more than"):
        compiled(schema).faults(value)


def test_ten_thousand_different_objects_are_compared_at_once() -> None:
    validator = compiled(of(a={"uniqueItems": True}))
    rows = [{"n": n} for n in range(10_000)]
    assert validator.faults({"a": rows}) == []
    assert validator.faults({"a": [*rows, {"n": 7.0}]}) != []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {"^x": {"type": "number"}}, "additionalProperties": False}, {"x1": 1, "y": 2}),
        (
            {"patternProperties": {"^x": {"type": "number"}}, "additionalProperties": {"type": "null"}},
            {"x": "", "y": 1},
        ),
        ({"properties": {"y": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False}, {"x": 1, "y": 1}),
        (of(a={"uniqueItems": True}), {"a": [1, True, 0, False, "1", None]}),
        (of(a={"uniqueItems": True}), {"a": [{"b": [1, 2.0]}, {"b": [1.0, 2]}]}),
        (of(a={"uniqueItems": False}), {"a": [1, 1]}),
        (of(a={"pattern": "b+"}), {"a": "abbc"}),
        (of(a={"pattern": "^b"}), {"a": "abbc"}),
        (of(a={"pattern": "^b"}), {"a": 3}),
    ],
)
def test_the_word_is_the_librarys(schema: dict[str, Any], value: dict[str, Any]) -> None:
    theirs = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (compiled(schema).faults(value) == []) is theirs


def test_references_that_lead_nowhere_are_told_with_their_place() -> None:
    schema = {
        "$defs": {"known": {"$anchor": "here"}},
        **of(
            a={"$ref": "#/$defs/known"}, b={"$ref": "#here"}, c={"$ref": "#/$defs/no"}, d={"$ref": "http://127.0.0.1/x"}
        ),
        "default": {"$ref": "#/only/data"},
    }
    told = dict(schema_faults(schema))
    assert set(told) == {"properties.c.$ref", "properties.d.$ref"} and "leads nowhere" in told["properties.c.$ref"]


def test_keywords_that_nobody_can_bound_are_refused() -> None:
    schema = {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^x": {}}}]}
    assert "bounded cost" in dict(schema_faults(schema))["unevaluatedProperties"]
    with pytest.raises(UnusableSchema, match="patternProperties"):
        compiled(schema)
