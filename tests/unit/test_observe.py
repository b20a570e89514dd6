"""What is lifted out of a tool's result, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core.mission import ObserveRule
from pursuit.core.observe import MAX_EVENTS, MAX_LEAVES, leaves, lift, numbers_only, text_of, value_of

FOUND = {"metrics": {"mass": 2.5, "scores": [{"f1": 0.5}]}, "events": [{"event_name": "done", "by": "lab"}]}


def structured(body: Any, **more: Any) -> dict[str, Any]:
    return {"structuredContent": body, "content": [], **more}


def texts(*blocks: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": block} for block in blocks], **more}


@pytest.mark.parametrize(
    "result",
    [
        structured(FOUND),
        structured({**FOUND, "result": {"metrics": {"mass": 9}}}),
        structured({"result": FOUND}),
        structured({"result": json.dumps(FOUND)}),
        texts(json.dumps(FOUND)),
        texts("All went well:", "  \n" + json.dumps(FOUND, indent=2)),
        texts("{not json", json.dumps([FOUND]), json.dumps(FOUND)),
        {**texts(json.dumps({"metrics": {"mass": 9}})), "structuredContent": FOUND},
        {"content": [{"type": "image", "data": ""}, {"type": "text", "text": json.dumps(FOUND)}]},
    ],
)
def test_metrics_and_events_wherever_they_may_stand(result: dict[str, Any]) -> None:
    assert lift("lab.run", result) == (FOUND["metrics"], FOUND["events"])


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"content": None},
        texts(),
        texts("mass = 2.5"),
        texts("metrics: {}"),
        texts('{"metrics": '),
        texts("{" * 100_000),
        texts("[" * 100_000),
        texts('{"metrics": {"mass": ' + "9" * 5_000 + "}}"),
        texts('{"metrics": {"mass": 1' + "0" * 400 + "}}"),
        structured([FOUND]),
        structured({"data": FOUND}),
        structured({"metrics": [1, 2], "events": {"event_name": "done"}}),
        structured({"metrics": 3, "events": "done"}),
        structured({"metrics": None, "events": None}),
        structured({"result": {"result": FOUND}}),
        {**texts(json.dumps(FOUND)), "structuredContent": {"metrics": {"mass": None}}},
        {**texts(json.dumps(FOUND)), "structuredContent": {"metrics": {}}},
    ],
)
def test_nothing_to_lift(result: dict[str, Any]) -> None:
    assert lift("lab.run", result) == ({}, [])


@pytest.mark.parametrize("flag", [True, 1, "yes"])
def test_an_error_result_yields_nothing_whatever_its_shape(flag: Any) -> None:
    rules = [
        ObserveRule(tool="*", metric="m", regex=r"\d+"),
        ObserveRule(tool="*", metric="n", jmespath="metrics.mass"),
    ]
    for result in (structured(FOUND), texts(json.dumps(FOUND)), structured({"result": FOUND})):
        assert lift("lab.run", {**result, "isError": flag}, rules) == ({}, [])
        assert lift("lab.run", {**result, "isError": False})[0] == FOUND["metrics"]


def test_only_finite_numbers_stay() -> None:
    body = {
        "metrics": {
            "good": 1,
            "zero": 0,
            "flag": True,
            "off": False,
            "nan": float("nan"),
            "inf": float("-inf"),
            "text": "3",
            "none": None,
            "huge": 10**400,
            "empty": {},
            "void": [],
            "mixed": {"a": 1, "b": "x", "c": {"d": None}},
            "list": [1, "x", True, {"y": 2}],
            "dead": [True, "x", {}],
        }
    }
    metrics, _events = lift("lab.run", structured(body))
    assert metrics == {"good": 1, "zero": 0, "mixed": {"a": 1}, "list": [1, None, None, {"y": 2}]}
    assert leaves(metrics) == {"good": 1, "zero": 0, "mixed.a": 1, "list.0": 1, "list.3.y": 2}


def test_events_without_a_name_are_junk() -> None:
    junk: list[Any] = [None, 3, "done", [], {}, {"event_name": 3}, {"event_name": None}, {"name": "done"}]
    good = [{"event_name": "a"}, {"event_name": "b", "data": {"deep": [1]}}]
    assert lift("lab.run", structured({"events": [*junk, good[0], *junk, good[1]]})) == ({}, good)


def test_what_is_lifted_is_bounded() -> None:
    many = structured({"events": [{"event_name": "e"}] * 1_000, "metrics": {str(i): i for i in range(5_000)}})
    metrics, events = lift("lab.run", many)
    assert len(events) == MAX_EVENTS
    assert len(leaves(metrics)) == MAX_LEAVES
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    assert lift("lab.run", structured({"metrics": {"deep": deep, "flat": 1}}))[0] == {"flat": 1}


RESULT = structured({"result": {"fits": [{"loss": 0.5}, {"loss": 0.25}], "note": "0.75", "ok": True}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("fits[-1].loss", 0.25),
        ("min(fits[].loss)", 0.25),
        ("length(fits)", 2),
        ("note", 0.75),
        ("ok", None),
        ("fits", None),
        ("missing", None),
        ("sum(note)", None),
        ("length(ok)", None),
        ("no_such_function(fits)", None),
        ("sort(fits)", None),
        ("abs(note)", None),
    ],
)
def test_rules_by_jmespath(path: str, value: float | None) -> None:
    rule = ObserveRule(tool="lab.*", metric="m", jmespath=path)
    assert lift("lab.run", RESULT, [rule])[0] == ({} if value is None else {"m": value})


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"loss: ([\d.]+)", 0.5),
        (r"\d+ rows", None),
        (r"\d+", 12),
        (r"(missing)?rows", None),
        (r"loss: (.*) after", 0.5),
        (r"loss: (.*) s,", None),
        (r"width: (\S+)", None),
        (r"height: (\S+)", None),
        (r"never", None),
    ],
)
def test_rules_by_regular_expression(pattern: str, value: float | None) -> None:
    result = texts("12 rows", "loss: 0.5 after 3 s, width: nan height: 1e999")
    rule = ObserveRule(tool="lab.run", metric="m", regex=pattern)
    assert lift("lab.run", result, [rule])[0] == ({} if value is None else {"m": value})


def test_rules_are_for_their_tool_and_win_over_the_result() -> None:
    rule = ObserveRule(tool="lab.run", metric="m", regex=r'"loss": ([\d.]+)')
    assert lift("lab.run", structured({"loss": 0.5}), [rule])[0] == {"m": 0.5}, "it reads what has no text, too"
    rules = [
        ObserveRule(tool="other.*", metric="mass", jmespath="note"),
        ObserveRule(tool="lab.*", metric="mass", jmespath="note"),
    ]
    body = {"metrics": {"mass": 9, "length": 1}, "note": 4}
    assert lift("lab.run", structured(body), rules)[0] == {"mass": 4, "length": 1}
    assert lift("lab.run", structured(body), rules[:1])[0] == {"mass": 9, "length": 1}


def test_the_value_that_a_program_wants() -> None:
    assert value_of(structured({"result": [1]})) == [1]
    assert value_of(structured({"result": 1, "more": 2})) == {"result": 1, "more": 2}
    assert value_of(structured([1, 2])) == [1, 2]
    assert value_of(texts('{"a": 1}')) == {"a": 1}
    assert value_of(texts("a", "b")) == "a\nb"
    assert value_of(texts("5")) == "5"
    assert text_of({"content": [{"type": "image"}, {"type": "text", "text": "x"}]}) == "x"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["metrics", "events", "result", "x"]), json_values))
def test_whatever_a_tool_says_lifting_never_fails(body: dict[str, Any]) -> None:
    for result in (structured(body), texts(json.dumps(body))):
        metrics, events = lift("lab.run", result, [ObserveRule(tool="*", metric="m", jmespath="max(x)")])
        assert numbers_only(metrics) == (metrics or None)
        assert all(isinstance(event["event_name"], str) for event in events)
        json.dumps([leaves(metrics), events], allow_nan=True)
        assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in leaves(metrics).values())
