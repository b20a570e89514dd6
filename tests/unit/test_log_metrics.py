"""Metrics in the output of a command and in its files, and what is said where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_stage import history, mission, repeat, script
from process_stage import on_stage, python

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import load_configuration
from pursuit.core.log_metrics import MAX_VALUES, LogMetrics, MetricRule, Take
from pursuit.core.observe import lift
from pursuit.errors import ValidationFailed

LOG = """epoch 1 loss=0.9 val_loss=0.50
epoch 2 loss=0.7 val_loss=1e-1
{"step": 3, "eval": {"loss": 0.25}}
epoch 3 loss=0.8 val_loss=0.30
not json {"eval": {"loss": 9}}
{"step": 4, "eval": {"loss": "0.125"}}
"""


def found(text: str, **rule: Any) -> Any:
    metrics = LogMetrics([MetricRule(name="m", **rule)])
    for line in text.splitlines(keepends=True):
        metrics.look(metrics.rules[0], line)
    return metrics.found.get("m")


@pytest.mark.parametrize(
    ("take", "value"), [("last", 0.3), ("first", 0.5), ("min", 0.1), ("max", 0.5), ("all", [0.5, 0.1, 0.3])]
)
def test_which_match_counts(take: Take, value: Any) -> None:
    assert found(LOG, pattern=r"val_loss=([0-9.eE+-]+)", take=take) == value
    json_value = {"last": 0.125, "first": 0.25, "min": 0.125, "max": 0.25, "all": [0.25, 0.125]}[take]
    assert found(LOG, json="eval.loss", take=take) == json_value


def test_the_group_that_took_part_counts_and_the_list_of_all_is_bounded() -> None:
    assert found("a=1\nb=2\n", pattern=r"a=(\d)|b=(\d)", take="all") == [1, 2]
    many = "".join(f"x={n}\n" for n in range(MAX_VALUES + 5))
    assert found(many, pattern=r"x=(\d+)", take="all") == list(range(5, MAX_VALUES + 5))


def test_a_file_is_one_document_or_lines() -> None:
    rule = MetricRule(name="m", json="best.loss", file="f")
    for text in (json.dumps({"best": {"loss": 3}}, indent=2), '{"best": {"loss": 5}}\n{"best": {"loss": 3}}\n'):
        metrics = LogMetrics([rule])
        metrics.look_in_file(rule, text)
        assert metrics.found == {"m": 3}


FAULTS = """
[commands.train]
argv = ["train"]
[commands.train.parameters]
out = { required = false }
many = { type = "array", required = false }
[commands.train.metrics]
open = 'loss=([0-9'
plain = 'loss=[0-9]+'
number = 5
both = { pattern = '(x)', json = "y" }
neither = { take = "last" }
path = { json = "[[" }
take = { json = "x", take = "best" }
typo = { pattrn = '(x)' }
file = { json = "x", file = "{oot}.json" }
list = { json = "x", file = "{many}.json" }
"""


@pytest.mark.guarantee("a-metric-pattern-without-a-number-is-a-fault")
def test_every_fault_is_found_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "pursuit.toml").write_text(FAULTS, encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_configuration(tmp_path / "pursuit.toml")
    at = "commands.train.metrics"
    reasons = {fault.field.removeprefix(f"{at}."): fault.reason for fault in refused.value.faults}
    assert reasons.pop("open").startswith("is not a regular expression: ")
    assert reasons.pop("plain").startswith("'loss=[0-9]+' has no group; put the number in parentheses, as in ")
    assert reasons.pop("path.json").startswith("jmespath does not parse: ")
    assert reasons.pop("typo.pattrn").startswith("is not a known key; did you mean 'pattern'?")
    one = "give exactly one of pattern and json (a path into a JSON line)"
    for name in ("both", "neither", "typo"):
        assert reasons.pop(f"{name}.pattern") == one
    assert {
        name: reason for name, reason in reasons.items() if name.startswith(("number", "take", "file", "list"))
    } == {
        "number": 'must be a regular expression, or a table such as { json = "loss" }, not a number',
        "take.take": "input should be 'last', 'first', 'min', 'max' or 'all'",
        "file.file": "there is no parameter 'oot'; did you mean 'out'?",
        "list.file": "the parameter 'many' must be a string or a number",
    }


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"regex": r"val_loss=([0-9.eE+-]+)"}, 0.3),
        ({"regex": r"val_loss=([0-9.eE+-]+)", "take": "min"}, 0.1),
        ({"regex": r"val_loss=([0-9.eE+-]+)", "take": "all"}, [0.5, 0.1, 0.3]),
        ({"jmespath": "eval.loss"}, 0.125),
        ({"jmespath": "duration_seconds"}, 4.5),
        ({"regex": r"after ([0-9.]+)s"}, 4.5),
        ({"regex": r"nothing ([0-9.]+)"}, None),
    ],
)
def test_observe_rules_see_the_log_and_then_the_result(rule: dict[str, Any], value: Any) -> None:
    told = {"content": [{"type": "text", "text": "train: exit code 0 after 4.5s"}]}
    result = {**told, "structuredContent": {"status": "completed", "duration_seconds": 4.5}}
    rules = mission(observe=[{"tool": "commands.*", "metric": "m", **rule}]).observe
    assert lift("commands.train", result, rules, LOG)[0].get("m") == value
    assert lift("commands.train", {**result, "isError": True}, rules, LOG) == ({}, [])


def test_which_match_of_a_result_counts() -> None:
    rules = mission(observe=[{"tool": "*", "metric": "m", "regex": r"x=(\d)"}]).observe
    last = mission(observe=[{"tool": "*", "metric": "m", "regex": r"x=(\d)", "take": "last"}]).observe
    path = mission(observe=[{"tool": "*", "metric": "m", "jmespath": "x", "take": "max"}]).observe
    result = {"content": [{"type": "text", "text": "x=1 x=2"}]}
    assert [lift("a.b", result, each)[0] for each in (rules, last)] == [{"m": 1}, {"m": 2}]
    assert lift("a.b", {"structuredContent": {"x": [1, 5, 2]}}, path)[0] == {"m": 5}


CONFIG = """
[commands.train]
argv = ["sh", "-c", "echo val_loss=9; echo val_loss=$0; echo '{{\\"acc\\": 0.5}}'; echo loss=1 | tee out-$0.txt", "{x}"]
[commands.train.parameters]
x = { type = "number", minimum = 0, maximum = 1 }
[commands.train.metrics]
val_loss = 'val_loss=([0-9.eE+-]+)'
worst = { pattern = 'val_loss=([0-9.eE+-]+)', take = "max" }
acc = { json = "acc" }
loss = { pattern = 'loss=([0-9]+)', file = "out-{x}.txt" }
[policy]
mode = "auto"
"""


def runtime(folder: Path) -> Runtime:
    (folder / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    return Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml")


PROPOSERS: dict[str, dict[str, Any]] = {
    "search": {"kind": "search", "tool_name": "commands.train"},
    "script": script("found = commands.train(x=0.25)\nmission.observe('seen', found['metrics']['val_loss'])"),
}


@pytest.mark.slow
@pytest.mark.guarantee("a-commands-output-gives-metrics")
@pytest.mark.parametrize("kind", PROPOSERS)
async def test_a_mission_is_decided_by_what_a_command_printed(kind: str, tmp_path: Path) -> None:
    rules = [{"tool": "commands.train", "metric": "first", "regex": r"val_loss=(\d+)", "take": "first"}]
    async with runtime(tmp_path) as opened:
        wanted = mission(
            criteria=[metric("val_loss") <= 1, metric("worst") == 9, metric("first") == 9],
            budget=Budget(max_iterations=3),
            proposer=PROPOSERS[kind],
            observe=rules,
        )
        mission_id = (await opened.runner.start(wanted)).session_id
        await opened.runner.run(mission_id)
        (row, *_) = await history(opened, mission_id)
        assert (await opened.runner.status(mission_id)).status == "completed"
        (call,) = row["calls"]
        x = call["args"]["x"]
        assert call["metrics"] == {"val_loss": x, "worst": 9, "acc": 0.5, "loss": 1, "first": 9}
        assert f"val_loss = {x}" in call["result"]["content"][0]["text"]
        if kind == "script":
            assert row["observation"]["metrics"]["seen"] == 0.25


async def test_a_metric_that_no_command_gives_is_a_fault_before_the_start(tmp_path: Path) -> None:
    async with runtime(tmp_path) as opened:
        wanted = mission(
            criteria=[metric("val_los") <= 1, metric("loss") <= 1, metric("late") <= 1],
            proposer=repeat("commands.train", x=0.5),
            observe=[{"tool": "train", "metric": "late", "regex": "x"}],
        )
        with pytest.raises(ValidationFailed) as refused:
            await opened.runner.start(wanted)
        (fault,) = refused.value.faults
        assert fault.field == "criteria[0].metric"
        assert fault.reason.startswith(
            "no command of this mission reports 'val_los'; they report acc, late, loss, val_loss, worst; "
            "did you mean 'val_loss'"
        )
        assert "`[commands.NAME.metrics]`" in fault.reason


@pytest.mark.slow
async def test_a_file_of_an_earlier_run_does_not_count_and_a_run_says_why_it_has_no_value(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text('{"loss": 1}', encoding="utf-8")
    rules = [
        MetricRule(name="old", json="loss", file=str(old)),
        MetricRule(name="new", json="loss", file=str(new)),
        MetricRule(name="gone", json="loss", file=str(tmp_path / "gone.json")),
        MetricRule(name="none", pattern="none=(.)"),
    ]
    async with on_stage(tmp_path) as stage:
        source = f"import pathlib; pathlib.Path({str(new)!r}).write_text('{{\"loss\": 2}}')"
        structured = await stage.structured(await stage.run(python(source, metrics=rules)))
        assert structured["metrics"] == {"new": 2}
        assert structured["notes"] == [
            f"metric old: {old} was not written by this run",
            f"metric gone: {tmp_path / 'gone.json'} does not exist, or is not a file",
            "metric none: pattern 'none=(.)' finds nothing in the output",
        ]
        failed = await stage.structured(await stage.run(python("print('x=1'); exit(3)", metrics=rules)))
        assert "metrics" not in failed
