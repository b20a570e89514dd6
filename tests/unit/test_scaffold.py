"""Criteria drafted from a directive: what the templates read, what is refused, and what a model may draft."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_model_input import Client

import pursuit
from pursuit.drafting.draft import Draft, draft_by_model
from pursuit.drafting.objections import clashes, objection
from pursuit.drafting.page import comment, key, value
from pursuit.drafting.templates import read
from pursuit.drafting.trials import trial
from pursuit.errors import ModelUnavailable, ValidationFailed
from pursuit.mission_file import load_mission_file
from pursuit.model.criteria import AnyCriterion, MetricThreshold, describe
from pursuit.model.events import ModelAnswer, WantedCall
from pursuit.model.mission import parse_mission
from pursuit.proposers.language import ModelRequest, NoAnswer
from pursuit.sandbox import Sandbox


def drafted(directive: str, model: Any = None) -> Draft:
    async def ask() -> Draft:
        return await pursuit.scaffold(directive, model=model)

    return anyio.run(ask)


def criterion(**row: Any) -> AnyCriterion:
    frame = {"directive": "x", "budget": {"max_iterations": 1}, "allow_all_tools": True}
    return parse_mission({**frame, "criteria": [{"criterion_id": "c", **row}]}).criteria[0]


@pytest.mark.parametrize(
    ("directive", "wanted"),
    [
        ("get p95 latency under 200 ms", ["p95_latency_ms < 200"]),
        ("Reach at least 90% test coverage", ["test_coverage_percent >= 90"]),
        ("keep the build time below 5 minutes", ["build_time_minutes < 5"]),
        ("reduce the cost to 1.76", ["cost <= 1.76"]),
        (
            "a welded beam that costs at most 1.76, and have the design certified",
            ["cost <= 1.76", "event design_certified"],
        ),
        ("increase accuracy to 0.95", ["accuracy >= 0.95"]),
        ("until accuracy exceeds 95 percent", ["accuracy_percent > 95"]),
        ("keep the temperature between 20 and 25", ["temperature >= 20", "temperature <= 25"]),
        ("fewer than 5 errors per hour", ["errors_per_hour < 5"]),
        ("throughput of 10k rps or more", ["throughput_rps >= 10000"]),
        ("bring the bundle down to 1,500 KB", ["bundle_kb <= 1500"]),
        ("number of failed jobs at most 3", ["failed_jobs <= 3"]),
        ("Get latency <200ms, and accuracy>=0.9", ["latency_ms < 200", "accuracy >= 0.9"]),
        ("score 100 points or more", ["score >= 100"]),
        ("100 points or more", ["points >= 100"]),
        ("make the API respond in 100ms or less", ["response_time_ms <= 100"]),
        ("finish within 30 minutes", ["duration_minutes <= 30"]),
        ("raise coverage from 60% to 80%", ["coverage_percent >= 80"]),
        ("spend less than $20", ["spend_usd < 20"]),
        ("deploy with no errors", ["errors == 0"]),
        ("work until all tests pass", ["check pytest -q"]),
        ("port it to Rust until the tests are green", ["check cargo test"]),
        ("make sure `npm run ci` passes", ["check npm run ci"]),
        ("write report.md", ["check test -s report.md"]),
        ("until the file out/data.csv exists", ["check test -s out/data.csv"]),
        ("train until the loss is decreasing", ["loss is decreasing over 10 points"]),
        ("wait for the deployment to be finished", ["event deployment_finished"]),
        (
            "get memory usage of the worker below 512 MB while p99 latency stays under 1.5 s",
            ["memory_usage_mb < 512", "p99_latency_s < 1.5"],
        ),
    ],
)
def test_templates_read_numbers_units_and_phrases(directive: str, wanted: list[str]) -> None:
    draft = drafted(directive)
    assert [describe(one).removeprefix("until ") for one in draft.mission.criteria] == wanted
    assert draft.refused == ()
    assert all(one.required for one in draft.mission.criteria)


@pytest.mark.guarantee("drafts-are-missions")
def test_a_draft_is_a_mission_file_that_says_where_each_criterion_comes_from(tmp_path: Path) -> None:
    draft = drafted("Get p95 latency under 200 ms, and write out/report.md")
    (tmp_path / "mission.toml").write_text(draft.toml, encoding="utf-8")
    loaded = load_mission_file(tmp_path / "mission.toml").mission
    assert [describe(one) for one in loaded.criteria] == [describe(one) for one in draft.mission.criteria]
    assert loaded.directive == "Get p95 latency under 200 ms, and write out/report.md"
    assert "# from: Get p95 latency under 200 ms" in draft.toml
    assert draft.as_json()["criteria"][0] == {
        "criterion_id": "p95-latency-ms",
        "kind": "metric_threshold",
        "description": "p95_latency_ms < 200",
    }


@pytest.mark.guarantee("drafts-are-missions")
@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200).map(lambda text: f"{text} get latency under 200 ms {text}"))
def test_whatever_stands_in_a_directive_its_draft_is_read_back_as_the_same_mission(directive: str) -> None:
    try:
        draft = drafted(directive)
    except ValidationFailed:
        return
    assert parse_mission(tomllib.loads(draft.toml)) == draft.mission
    assert draft.mission.directive.strip() == directive.strip()


PLAIN = st.booleans() | st.integers(-(2**53), 2**53) | st.text()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_values_come_back_from_toml_as_they_went_in(item: Any) -> None:
    assert tomllib.loads(f"{key('a b')} = {value(item)}") == {"a b": item}


@given(st.text())
def test_nothing_in_a_comment_is_anything_but_a_comment(text: str) -> None:
    assert tomllib.loads("\n".join(comment(text))) == {}


@given(st.text(max_size=2_000))
def test_templates_take_any_text(text: str) -> None:
    for sketch in read(text).sketches:
        assert sketch.row["criterion_id"]


def test_a_directive_that_says_nothing_checkable_is_told_what_to_say() -> None:
    with pytest.raises(ValidationFailed) as refused:
        drafted("make it nice")
    assert "say a number" in refused.value.faults[0].reason
    with pytest.raises(ValidationFailed) as empty:
        drafted("   ")
    assert [fault.field for fault in empty.value.faults] == ["directive"]


def test_a_change_by_so_much_is_refused_with_what_to_say_instead() -> None:
    draft = drafted("reduce latency by 20% and make the tests pass")
    assert [one.criterion_id for one in draft.mission.criteria] == ["tests-pass"]
    (refused,) = draft.refused
    assert "say the number that it should come to" in str(refused)


VACUOUS = [
    ({"kind": "metric_threshold", "metric": "latency_ms", "op": ">=", "target": 0}, "always true"),
    ({"kind": "metric_threshold", "metric": "coverage_percent", "op": "<=", "target": 100}, "always true"),
    ({"kind": "metric_threshold", "metric": "coverage_percent", "op": ">", "target": 100}, "never be true"),
    ({"kind": "metric_threshold", "metric": "errors", "op": "<", "target": 0}, "never be true"),
    ({"kind": "metric_threshold", "metric": "x", "op": "!=", "target": 3}, "any value but 3"),
    ({"kind": "check", "command": ["true"]}, "always ends with"),
    ({"kind": "check", "command": ["sh", "-c", "exit 0"]}, "always ends with"),
    ({"kind": "check", "command": ["/bin/false"]}, "never ends with"),
    ({"kind": "check", "command": ["env", "true"]}, "always ends with"),
    ({"kind": "check", "command": ["test", "1", "=", "1"]}, "always ends with"),
    ({"kind": "check", "command": ["sh", "-ec", "make || true"]}, "always ends with"),
    ({"kind": "metric_threshold", "metric": "cost", "op": ">=", "target": 0}, "always true"),
    ({"kind": "metric_threshold", "metric": "error_rate", "op": ">=", "target": 0}, "always true"),
    ({"kind": "metric_threshold", "metric": "widgets", "op": ">=", "target": 0}, "always true"),
    ({"kind": "metric_threshold", "metric": "error_count", "op": ">", "target": -1}, "always true"),
    ({"kind": "check", "command": ["make"], "expect": {"exit_code": 300}}, "no command ends with"),
    ({"kind": "check", "command": ["ls"], "expect": {"text": ".*"}}, "found in any text"),
    ({"kind": "check", "tool_name": "a.b", "expect": {"count": {"pattern": "x", "target": 0}}}, "always true"),
    ({"kind": "check", "check": "n", "expect": {"count": {"pattern": "x", "op": "<", "target": 0}}}, "never be true"),
]
SOUND = [
    {"kind": "metric_threshold", "metric": "latency_ms", "op": "<", "target": 200},
    {"kind": "metric_threshold", "metric": "errors", "op": "==", "target": 0},
    {"kind": "metric_threshold", "metric": "errors", "op": "<=", "target": 0},
    {"kind": "metric_threshold", "metric": "profit", "op": ">=", "target": 0},
    {"kind": "metric_threshold", "metric": "widgets", "op": ">", "target": -3},
    {"kind": "check", "command": ["sh", "-ec", "make test; echo done"]},
    {"kind": "metric_threshold", "metric": "revenue_growth_percent", "op": ">=", "target": 120},
    {"kind": "check", "command": ["pytest", "-q"]},
    {"kind": "check", "command": ["echo", "hi"], "expect": {"file": "out.txt"}},
    {"kind": "check", "tool_name": "a.b", "expect": {"count": {"pattern": "x", "op": "==", "target": 0}}},
    {"kind": "event", "event_name": "done"},
    {"kind": "tool_call_succeeded", "tool_name": "a.b"},
]


@pytest.mark.guarantee("vacuous-drafts-are-refused")
@pytest.mark.parametrize(("row", "why"), VACUOUS)
def test_a_criterion_that_is_always_or_never_true_is_refused_with_the_reason(row: dict[str, Any], why: str) -> None:
    assert why in (objection(criterion(**row)) or "")


@pytest.mark.parametrize("row", SOUND)
def test_a_criterion_that_can_come_out_both_ways_is_not_refused(row: dict[str, Any]) -> None:
    assert objection(criterion(**row)) is None


PREDICATES = [
    ("True", "does not look at `obs`"),
    ("1 > 2", "does not look at `obs`"),
    ("obs['iteration'] >= 0", "before anything has happened"),
    ("len(obs['errors']) == 0", "before anything has happened"),
    ("obs['iteration'] > 10", "by waiting alone"),
    ("obs['metrics']['x'] >= 5 or obs['metrics']['x'] < 5", "whatever the values are"),
    ("obs['metrics']['x'] > 5 and obs['metrics']['x'] < 5", "no value of 'x'"),
    ("obs.metrics.x > 5", "can never be decided"),
    ("obs['metrics']['x'] > 5", None),
    ("obs['metrics']['x'] == 7.3", None),
    ("obs['metrics']['x'] > 5 and obs['metrics']['y'] < 5", None),
    ("obs['events'].get('certified', 0) > 0", None),
    ("obs['tool_results'][-1]['result']['ok']", None),
]


@pytest.mark.guarantee("vacuous-drafts-are-refused")
def test_an_expression_that_decides_nothing_is_refused_with_the_reason() -> None:
    async def scene() -> None:
        async with Sandbox() as sandbox:
            for expression, why in PREDICATES:
                found = await trial(sandbox, expression)
                assert (found is None) if why is None else (why in (found or "")), (expression, found)

    anyio.run(scene)


def threshold(name: str, op: str, target: float) -> AnyCriterion:
    return criterion(kind="metric_threshold", metric="x", op=op, target=target).named(name)


def test_criteria_that_no_value_meets_together_are_refused() -> None:
    both = [threshold("a", ">", 0.9), threshold("b", "<", 0.5), threshold("c", "<=", 2), threshold("d", ">", 0.9)]
    assert clashes(both) == {
        "b": "no value meets it together with x > 0.9",
        "d": "it says the same as 'a'",
    }
    assert clashes([threshold("a", ">", 1), threshold("b", "<=", 1)]) == {"b": "no value meets it together with x > 1"}
    assert clashes([threshold("a", ">=", 1), threshold("b", "<=", 1)]) == {}


def test_a_directive_of_which_everything_is_vacuous_drafts_nothing() -> None:
    with pytest.raises(ValidationFailed) as refused:
        drafted("keep latency at least 0 ms")
    assert "always true" in refused.value.faults[0].reason
    draft = drafted("coverage at most 120 percent and latency under 10 ms")
    assert [one.criterion_id for one in draft.mission.criteria] == ["latency-ms"]
    assert "always true" in draft.refused[0].reason


def handed_in(*rows: Any, tokens: int = 10) -> ModelAnswer:
    return ModelAnswer(calls=[WantedCall(name="draft_criteria", args={"criteria": list(rows)})], input_tokens=tokens)


GOOD = {"criterion_id": "fast", "kind": "metric_threshold", "metric": "p95_latency_ms", "op": "<", "target": 200}


def test_a_model_drafts_and_mends_what_is_refused() -> None:
    always = {"criterion_id": "ok", "kind": "predicate", "expression": "obs['iteration'] >= 0"}
    client = Client(
        ModelAnswer(text="Here you are!"),
        handed_in(GOOD, always, {"criterion_id": "x", "kind": "nonsense"}),
        handed_in(GOOD),
    )
    draft = drafted("Make the shop\nfast", client)
    assert [describe(one) for one in draft.mission.criteria] == ["p95_latency_ms < 200"]
    assert (draft.by, draft.tokens, draft.refused) == ("client", 20, ())
    assert "| Make the shop\n| fast" in client.asked[0].prompt
    assert "draft_criteria was not called" in client.asked[1].prompt
    assert "before anything has happened" in client.asked[2].prompt
    assert isinstance(draft.mission.criteria[0], MetricThreshold)


@pytest.mark.guarantee("models-draft-no-commands")
def test_a_model_cannot_draft_a_command_or_a_mission_that_is_done_at_once() -> None:
    command = {"criterion_id": "own", "kind": "check", "command": ["curl", "example.org"]}
    optional = {**GOOD, "required": False}
    client = Client(handed_in(command, GOOD), handed_in(optional), handed_in(command, GOOD))
    draft = drafted("Make the shop fast", client)
    assert [one.criterion_id for one in draft.mission.criteria] == ["fast"]
    assert "curl" not in draft.toml
    assert "write it yourself" in draft.refused[0].reason
    assert "no criterion is required" in client.asked[2].prompt
    with pytest.raises(ValidationFailed) as refused:
        drafted("Make the shop fast", Client(*[handed_in(command)] * 3))
    assert "write it yourself" in refused.value.faults[0].reason


def test_a_model_that_does_not_answer_is_said() -> None:
    with pytest.raises(ModelUnavailable, match="out of order"):
        drafted("Make the shop fast", Client(NoAnswer("out of order")))


def test_a_model_that_never_answers_is_given_up() -> None:
    class Silent(Client):
        async def answer(self, request: ModelRequest) -> ModelAnswer:
            await anyio.sleep_forever()
            raise AssertionError

    async def scene() -> None:
        with anyio.fail_after(60):
            await draft_by_model("Make the shop fast", Silent(), timeout=0.01)

    with pytest.raises(ModelUnavailable, match=r"no answer within 0\.01 s"):
        anyio.run(scene)


def test_what_was_paid_for_is_kept_when_the_model_stops_answering() -> None:
    always = {"criterion_id": "ok", "kind": "predicate", "expression": "obs['iteration'] == 7"}
    draft = drafted("Make the shop fast", Client(handed_in(GOOD, always), NoAnswer("out of order")))
    assert [one.criterion_id for one in draft.mission.criteria] == ["fast"]
    assert (draft.tokens, "out of order" in (draft.trouble or "")) == (10, True)
    assert "by waiting alone" in str(draft.refused[0])
    with pytest.raises(ModelUnavailable, match=r"had used 10 tokens at a price that is not known.*by waiting alone"):
        drafted("Make the shop fast", Client(handed_in(always), NoAnswer("out of order")))


def test_a_price_that_is_not_known_is_not_nothing() -> None:
    assert drafted("Make the shop fast", Client(handed_in(GOOD))).cost_usd is None
    paid = [
        msgspec.structs.replace(handed_in(GOOD, 7), cost_usd=0.25),
        msgspec.structs.replace(handed_in(GOOD), cost_usd=0.5),
    ]
    assert drafted("Make the shop fast", Client(*paid)).cost_usd == 0.75
    assert drafted("Make the shop fast", Client(paid[0], handed_in(GOOD))).cost_usd is None


def test_the_criteria_of_all_calls_of_an_answer_are_read() -> None:
    cheap = {"criterion_id": "cheap", "kind": "metric_threshold", "metric": "cost_usd", "op": "<", "target": 5}
    calls = [*handed_in(GOOD).calls, WantedCall(name="other", args={}), *handed_in(cheap).calls]
    draft = drafted("Make the shop fast", Client(ModelAnswer(calls=calls)))
    assert [one.criterion_id for one in draft.mission.criteria] == ["fast", "cheap"]


def test_the_mission_of_a_draft_in_json_is_read_back_as_the_same() -> None:
    draft = drafted("get p95 latency under 200 ms", Client(handed_in(GOOD)))
    assert parse_mission(draft.as_json()["mission"]) == draft.mission
