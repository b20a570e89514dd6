"""How a name finds its tool, and how arguments are checked."""

from __future__ import annotations

from typing import Any

import pytest

from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import Tool


def catalogue(*names: str, **schemas: Any) -> Catalogue:
    tools = {}
    for name in (*names, *(f"s.{key}" for key in schemas)):
        server, _, bare = name.partition(".")
        schema = schemas.get(bare, {"type": "object"})
        tools[name] = Tool(server=server, name=bare, input_schema=schema, definition={})
    return Catalogue(tools=tools, failures={"down": "it does not answer"})


ALL = catalogue("git.log", "git.push", "files.read", "files.read_all", "mem.read", "mem.a.b", "jobs.task_get")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["git.log"], ["git.log"]),
        (["log", "git.log", "push"], ["git.log", "git.push"]),
        (["git.*"], ["git.log", "git.push"]),
        (["*read*"], ["files.read", "files.read_all", "mem.read"]),
        (["read_*"], ["files.read_all"]),
        (["a.b"], ["mem.a.b"]),
        (["mem.a.b"], ["mem.a.b"]),
        (["*"], ["git.log", "git.push", "files.read", "files.read_all", "mem.read", "mem.a.b"]),
    ],
)
def test_names_and_globs(words: list[str], expected: list[str]) -> None:
    assert ALL.resolve(words) == (expected, [])


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("read", "offered by several servers; say which: files.read, mem.read"),
        ("git.lgo", "did you mean 'git.log'"),
        ("nothing.like.it", "no server offers a tool"),
        ("zzz*", "no tool matches 'zzz*'; there are git.log, git.push, "),
        ("gti.*", "no tool matches 'gti.*'; did you mean 'git'?"),
        ("git.lgo*", "no tool matches 'git.lgo*'; did you mean 'git.log'"),
        ("*.raed_all", "did you mean 'read_all'"),
        ("down.thing", "server 'down': it does not answer"),
        ("task_get", "control tool"),
        ("jobs.task_get", "control tool"),
        ("jobs.*", "control tools only"),
        ("mission_start", "control tool"),
        ("x.approvals_list", "control tool"),
    ],
)
def test_what_is_not_found_says_why(word: str, reason: str) -> None:
    names, faults = ALL.resolve(["git.log", word])
    assert names == ["git.log"]
    assert [fault.field for fault in faults] == ["tools[1]"]
    assert reason in faults[0].reason


SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "items": {"type": "array", "items": {"type": "object", "required": ["id"]}},
    },
    "required": ["count"],
    "additionalProperties": False,
}


def test_all_faults_of_the_arguments_with_their_places() -> None:
    tools = catalogue(t=SCHEMA)
    assert tools.check("s.t", {"count": 1, "items": [{"id": 1}]}) == []
    faults = tools.check("s.t", {"count": 0, "items": [{"id": 1}, {}], "extra": 1})
    assert faults == [
        "Additional properties are not allowed ('extra' was unexpected)",
        "count: 0 is less than the minimum of 1",
        "items[1]: 'id' is a required property",
    ]
    assert tools.check("s.t", {}) == ["'count' is a required property"]
    assert tools.check("s.absent", {}) == ["unknown tool 's.absent'"]
    assert tools.warnings == []


def test_older_drafts_are_read_as_such() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "number"}},
        "properties": {"a": {"$ref": "#/definitions/n"}},
    }
    assert catalogue(t=schema).check("s.t", {"a": "x"}) == ["a: 'x' is not of type 'number'"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": 7},
        {"properties": {"a": {"type": "strnig"}}},
        {"properties": {"a": {"$ref": "#/$defs/absent"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/never-fetched"}}},
        {"$ref": "#"},
        {"properties": {"a": {"pattern": "(?<name>x)"}}},
    ],
)
def test_an_unusable_schema_means_no_check_and_one_warning(schema: dict[str, Any]) -> None:
    tools = catalogue(t=schema)
    for _ in range(2):
        assert tools.check("s.t", {"a": "x"}) == []
    assert len(tools.warnings) == 1
    assert "s.t: arguments are not checked" in tools.warnings[0]
