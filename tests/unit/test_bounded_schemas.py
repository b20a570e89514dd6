"""Values against JSON Schemas: the same word as the library's, and never much time, whatever the value is."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from pursuit.core import validation
from pursuit.core.catalogue import Catalogue
from pursuit.core.patterns import Unfinished
from pursuit.core.tools import Tool
from pursuit.core.validation import UnusableSchema, compiled, schema_faults

HARD = "^(a|aa)+$"
TRAP = "a" * 60 + "!"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TWICE: dict[str, Any] = {
    f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(24)
}
LAUGHS = {"$defs": {**TWICE, "a24": {"properties": {"x": {}}}}, "$ref": "#/$defs/a0"}
"""A schema of a few lines that asks the same sixteen million times."""

BRANCH = {"properties": {"c": {"$ref": "#/$defs/node"}}, "required": ["z"]}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"c": value}
    return value


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


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LAUGHS, {}),
        ({"$schema": DIALECT, **LAUGHS}, {}),
        ({**LAUGHS, "unevaluatedProperties": False}, {"x": 1}),
        ({"$defs": {"node": {"anyOf": [BRANCH, BRANCH]}}, "$ref": "#/$defs/node"}, nested(40)),
        (of(a={"items": {"allOf": [{"minimum": 0}] * 500}}), {"a": [1] * 20_000}),
    ],
    ids=["references", "with a dialect", "unevaluated", "a tree", "wide"],
)
def test_a_schema_that_multiplies_is_given_up(schema: dict[str, Any], value: dict[str, Any]) -> None:
    with pytest.raises(Unfinished, match="the check took more than"):
        compiled(schema).faults(value, seconds=0.05)


def test_what_takes_too_long_is_left_to_the_server_of_the_tool() -> None:
    tool = Tool(server="s", name="t", input_schema=of(a={"pattern": HARD}), definition={})
    tools = Catalogue(tools={"s.t": tool})
    assert tools.check("s.t", {"a": TRAP}) == [] and tools.warnings == []


def test_a_part_with_a_dialect_of_its_own_has_no_more_time() -> None:
    within = of(a={"$schema": DIALECT, "pattern": HARD})
    back = {"$schema": DIALECT, "anyOf": [{"type": "object"}, {"pattern": HARD}], **of(a={"$ref": "#"})}
    for schema in (within, back):
        with pytest.raises(Unfinished, match="took more than"):
            compiled(schema).faults({"a": TRAP})
        assert compiled(schema).faults({"a": {}}) == []


def test_a_schema_that_is_too_large_is_unusable_and_read_once() -> None:
    schema = of(**{f"p{n}": {"type": "string", "maxLength": n} for n in range(2_000)})
    assert "the check took more than 0.02 s" in dict(schema_faults(schema, seconds=0.02))[""]
    before = validation._read.cache_info()
    for _ in range(2):
        with pytest.raises(UnusableSchema, match=r"took more than 0\.02 s"):
            compiled(schema, seconds=0.02)
    after = validation._read.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (0, 2)


@pytest.mark.parametrize(
    "part", [{"minimum": "a"}, {"type": "nope"}, {"multipleOf": 0}, {"allOf": 5}, [1], {"$schema": {}, "$ref": 5}]
)
def test_a_part_that_only_a_reference_finds_may_be_no_schema(part: Any) -> None:
    with pytest.raises(UnusableSchema):
        compiled({**of(a={"$ref": "#/x-part"}), "x-part": part}).faults({"a": 1})


def test_a_number_beyond_all_is_compared_with_none() -> None:
    with pytest.raises(Unfinished, match="too large"):
        compiled(of(a={"multipleOf": 0.1})).faults({"a": 10**400})


def test_a_dialect_that_is_no_text_is_told() -> None:
    assert "$schema" in dict(schema_faults({"$schema": 5, "type": "object"}))
    with pytest.raises(UnusableSchema, match="5 is not of type"):
        compiled({"$schema": 5, "type": "object"})


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


def test_a_schema_may_refer_to_itself_for_a_part_of_the_value() -> None:
    tree = {**of(left={"$ref": "#"}, **{"if": {"$ref": "#"}}), "items": {"$ref": "#"}}
    twice = {"$defs": {"n": {"type": "number"}}, "allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}
    assert schema_faults(tree) == [] and schema_faults({**twice, "type": "object"}) == []
    for endless in ({"allOf": [{"$ref": "#"}]}, {"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}):
        assert "circular" in dict(schema_faults({"type": "object", **endless}))[""]


def test_keywords_that_nobody_can_bound_are_refused() -> None:
    schema = {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^x": {}}}]}
    assert "bounded cost" in dict(schema_faults(schema))["unevaluatedProperties"]
    with pytest.raises(UnusableSchema, match="patternProperties"):
        compiled(schema)
