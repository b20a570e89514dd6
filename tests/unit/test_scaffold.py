"""Missions drafted from a template or by a model: what is written, what is refused, and what a model may draft."""

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
from pursuit.config.mission_file import load_mission_file
from pursuit.core.criteria import AnyCriterion, MetricThreshold, Predicate, describe
from pursuit.core.events import ModelAnswer, WantedCall
from pursuit.core.mission import parse_mission
from pursuit.drafting import TEMPLATES, Draft, Trial, conflict, draft_by_model
from pursuit.errors import ModelUnavailable, ValidationFailed
from pursuit.proposers.language import ModelRequest, NoAnswer
from pursuit.sandbox import Sandbox


def drafted(directive: str, model: Any = None, *, template: str | None = None) -> Draft:
    async def ask() -> Draft:
        return await pursuit.scaffold(directive, model=model, template=template)

    return anyio.run(ask)


@pytest.mark.guarantee("drafts-are-missions")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_a_mission_file_that_lists_at_its_top_what_to_fill_in(name: str, tmp_path: Path) -> None:
    draft = drafted("Make the shop fast", template=name)
    (tmp_path / "mission.toml").write_text(draft.toml, encoding="utf-8")
    loaded = load_mission_file(tmp_path / "mission.toml").mission
    assert (loaded.directive, draft.by) == ("Make the shop fast", f"template {name}")
    top, _, body = draft.toml.partition("\ndirective = ")
    marked = [line for line in body.splitlines() if "# FILL IN: " in line]
    assert [line.split(" = ")[0] for line in marked] == list(draft.fill_in) != []
    assert all(f"#   {key}: {what}" in top for key, what in draft.fill_in.items())
    # No placeholder hides in a line that is not marked.
    values = [line for line in body.splitlines() if not line.startswith("#") and line not in marked]
    assert not [line for line in values if "SERVER" in line or "METRIC" in line or "EVENT" in line]


def test_without_a_name_the_template_is_metric_and_a_wrong_name_is_told_with_all_names() -> None:
    assert drafted("Make it nice") == drafted("Make it nice", template="metric")
    with pytest.raises(ValidationFailed) as refused:
        drafted("Make it nice", template="metrik")
    (fault,) = refused.value.faults
    assert all(name in fault.reason for name in TEMPLATES)
    with pytest.raises(ValidationFailed) as both:
        drafted("Make it nice", Client(), template="metric")
    assert [fault.field for fault in both.value.faults] == ["template"]
    with pytest.raises(ValidationFailed) as empty:
        drafted("   ")
    assert [fault.field for fault in empty.value.faults] == ["directive"]


@pytest.mark.guarantee("drafts-are-missions")
@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200).map(lambda text: f"{text} # FILL IN: {text}"), st.booleans())
def test_whatever_stands_in_a_directive_its_draft_is_read_back_as_the_same_mission(directive: str, asks: bool) -> None:
    draft = drafted(directive, Client(handed_in(GOOD)) if asks else None)
    assert parse_mission(tomllib.loads(draft.toml)) == draft.mission
    assert draft.mission.directive in directive and draft.mission.directive.strip() == directive.strip()


EXPRESSIONS = [
    ("True", "does not look at `obs`"),
    ("1 > 2", "does not look at `obs`"),
    ("obs['iteration'] >= 0", "before anything has happened"),
    ("len(obs['errors']) == 0", "before anything has happened"),
    ("obs['iteration'] > 10", "by waiting alone"),
    ("obs['iteration'] == 3", "by waiting alone"),
    ("obs['iteration'] % 7 == 6", "by waiting alone"),
    ("obs['iteration'] == 777 or obs['metrics']['x'] > 5", "by waiting alone"),
    ("obs.get('iteration', 0) * 2 == 34", "by waiting alone"),
    ("len(obs['tool_results']) >= 3", "by calling tools alone"),
    ("[x for x in obs['metrics']]", "never gives True or False"),
    ("len(obs['errors'])", "never gives True or False"),
    ("obs['metrics']['cost']", "never gives True or False"),
    ("obs['metrics']['x'] >= 5 or obs['metrics']['x'] < 5", "whatever the values are"),
    ("obs['metrics']['x'] > 5 and obs['metrics']['x'] < 5", "no value of 'x'"),
    ("obs.metrics.x > 5", "can never be decided"),
    ("nothing['x'] > obs['metrics']['x']", "can never be decided"),
    ("obs['metrics']['x'] > 5", None),
    ("obs['metrics']['x'] == 7.3", None),
    ("obs['metrics']['profit'] >= 0", None),
    ("obs['metrics']['x'] >= obs['metrics']['y']", None),
    ("obs['metrics']['x'] > 5 or obs['metrics']['y'] < 5", None),
    ("obs['metrics']['x'] > 5 and obs['metrics']['y'] < 5", None),
    ("obs['metrics']['x'] > -5 and obs['metrics']['x'] < 5", None),
    ("obs['iteration'] > 3 and obs['metrics']['loss'] < 0.1", None),
    ("obs['events'].get('certified', 0) > 0", None),
    ("obs['tool_results'][-1]['result']['ok']", None),
    ("any(row['outcome'] == 'failed' for row in obs['tool_results'])", None),
    ("any(row['result'] == {'x': 1} for row in obs['tool_results'])", None),
]


@pytest.mark.guarantee("vacuous-drafts-are-refused")
def test_an_expression_that_decides_nothing_is_refused_with_the_reason() -> None:
    async def scene() -> None:
        async with Sandbox() as sandbox:
            for expression, why in EXPRESSIONS:
                found = await Trial(sandbox, Predicate(criterion_id="c", expression=expression)).objection()
                assert (found is None) if why is None else (why in (found or "")), (expression, found)

    anyio.run(scene)


def threshold(name: str, op: Any, target: float) -> AnyCriterion:
    return MetricThreshold(criterion_id=name, metric="x", op=op, target=target)


def test_criteria_that_no_value_meets_together_are_refused() -> None:
    above = threshold("a", ">", 0.9)
    assert conflict(threshold("b", "<", 0.5), [above]) == "no value meets it together with x > 0.9"
    assert conflict(threshold("b", "<=", 2), [above]) is None
    assert conflict(threshold("b", ">", 0.9), [above]) == "it says the same as 'a'"
    assert conflict(threshold("a", ">", 0.7), [above]) == "the same criterion_id is given twice"
    assert conflict(threshold("b", "<=", 1), [threshold("a", ">", 1)]) == "no value meets it together with x > 1"
    assert conflict(threshold("b", "<=", 1), [threshold("a", ">=", 1)]) is None
    assert conflict(threshold("b", "==", 3), [threshold("a", "<", 2)]) == "no value meets it together with x < 2"
    elsewhere = MetricThreshold(criterion_id="b", metric="x", op="<", target=0, source="other.tool")
    assert conflict(elsewhere, [above]) is None


def handed_in(*rows: Any, tokens: int = 10) -> ModelAnswer:
    return ModelAnswer(calls=[WantedCall(name="draft_criteria", args={"criteria": list(rows)})], input_tokens=tokens)


GOOD = {"criterion_id": "fast", "kind": "metric_threshold", "metric": "p95_latency_ms", "op": "<", "target": 200}


def test_a_model_drafts_and_repairs_once_what_is_refused() -> None:
    always = {"criterion_id": "ok", "kind": "predicate", "expression": "obs['iteration'] >= 0"}
    never = {**GOOD, "criterion_id": "slow", "op": ">"}
    client = Client(handed_in(GOOD, always, never, {"criterion_id": "x", "kind": "nonsense"}), handed_in(GOOD))
    draft = drafted("Make the shop\nfast", client)
    assert [describe(one) for one in draft.mission.criteria] == ["p95_latency_ms < 200"]
    assert (draft.by, draft.tokens, draft.refused) == ("client", 20, ())
    assert "| Make the shop\n| fast" in client.asked[0].messages[0].text
    assert "before anything has happened" in client.asked[1].messages[0].text
    assert "no value meets it together with p95_latency_ms < 200" in client.asked[1].messages[0].text
    assert "x: kind" in client.asked[1].messages[0].text
    assert len(client.asked) == 2


def test_an_answer_without_criteria_is_asked_for_again_once() -> None:
    client = Client(ModelAnswer(text="Here you are!"), handed_in("none"))
    with pytest.raises(ValidationFailed, match="client drafted no criterion that can be used") as refused:
        drafted("Make the shop fast", client)
    assert "draft_criteria was not called" in client.asked[1].messages[0].text
    assert [fault.reason for fault in refused.value.faults] == ["criteria[0] is not an object"]


@pytest.mark.guarantee("models-draft-no-commands")
def test_a_model_cannot_draft_a_command_or_a_mission_that_is_done_at_once() -> None:
    command = {"criterion_id": "own", "kind": "check", "command": ["curl", "example.org"]}
    optional = {**GOOD, "required": False}
    client = Client(handed_in(command, GOOD), handed_in(optional))
    draft = drafted("Make the shop fast", client)
    assert [one.criterion_id for one in draft.mission.criteria] == ["fast"]
    assert "curl" not in draft.toml
    assert "write it yourself" in draft.refused[0].reason
    with pytest.raises(ValidationFailed) as refused:
        drafted("Make the shop fast", Client(handed_in(optional), handed_in(command)))
    assert "write it yourself" in refused.value.faults[0].reason
    client = Client(handed_in(optional), handed_in(GOOD))
    assert drafted("Make the shop fast", client).mission.criteria[0].required
    assert "no criterion is required" in client.asked[1].messages[0].text


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
    with pytest.raises(ModelUnavailable, match=r"used 10 tokens at an unknown price.*by waiting alone"):
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
