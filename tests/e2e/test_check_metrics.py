"""A check measures: its command reports metrics, which other criteria judge."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from agent_stage import AgentPlace, library
from cli_stage import Place

MISSION = """
directive = "Make it fast"
proposer = {{ kind = "tree", here = true }}
workspace = {{ path = "." }}
[[criteria]]
criterion_id = "bench"
kind = "check"
command = {command}
{metrics}
[[criteria]]
criterion_id = "fast"
kind = "metric_threshold"
metric = "seconds"
op = "<"
target = 1
source = "check:bench"
[budget]
max_iterations = 2
"""


def measured(folder: Path, program: str, metrics: str) -> tuple[Place, dict[str, object]]:
    place = Place(folder).configured()
    command = json.dumps([sys.executable, "-c", program])
    place.write("m.toml", MISSION.format(command=command, metrics=metrics))
    return place, place.json("run", "m.toml", code=None)


@pytest.mark.parametrize(
    ("program", "metrics"),
    [
        ("print('seconds=0.5')", "metrics.seconds = 'seconds=([0-9.]+)'"),
        ("import sys; print('seconds=0.5', file=sys.stderr)", "metrics.seconds = 'seconds=([0-9.]+)'"),
        ('print(\'{"time": {"s": 0.5}}\')', 'metrics.seconds = { json = "time.s" }'),
        ("open('r.json', 'w').write('{\"s\": 0.5}')", 'metrics.seconds = { json = "s", file = "r.json" }'),
        (
            "print('seconds=9\\nseconds=0.5\\nseconds=3')",
            "metrics.seconds = { pattern = 'seconds=(.*)', take = 'min' }",
        ),
    ],
    ids=["output", "stderr", "json", "file", "min"],
)
def test_a_metric_of_a_check_decides_another_criterion(tmp_path: Path, program: str, metrics: str) -> None:
    place, done = measured(tmp_path, program, metrics)
    assert (done["status"], done["iteration_count"]) == ("completed", 1), done
    assert place.json("report", "last")["metrics"]["seconds"]["last"] == 0.5


@pytest.mark.parametrize(
    ("program", "metrics", "why"),
    [
        ("print('seconds=0.5'); raise SystemExit(1)", "metrics.seconds = 'seconds=(.*)'", None),
        ("print('none')", "metrics.seconds = 'seconds=(.*)'", "finds nothing in the output"),
        ("print('x')", 'metrics.seconds = { json = "s", file = "old.json" }', "was not written by this run"),
        (
            "import os; open('x', 'w').write('{\"s\": 0.1}'); os.path.lexists('link') or os.symlink('x', 'link')",
            'metrics.seconds = { json = "s", file = "link" }',
            "is a link",
        ),
        (
            "import os; os.path.lexists('d') or os.symlink('.', 'd'); open('x', 'w').write('{\"s\": 0.1}')",
            'metrics.seconds = { json = "s", file = "d/x" }',
            "lies behind one",
        ),
    ],
    ids=["failed", "missing", "old file", "link", "folder that is a link"],
)
def test_a_check_without_its_metric_leaves_the_criterion_open(
    tmp_path: Path, program: str, metrics: str, why: str | None
) -> None:
    (tmp_path / "old.json").write_text('{"s": 0.1}', encoding="utf-8")
    place, done = measured(tmp_path, program, metrics)
    assert done["status"] == "terminated"
    (row, *_) = place.json("history", "last", "--full")["iterations"]
    (check,) = row["calls"]
    assert why is None or any(why in note for note in check["result"]["structuredContent"]["notes"]), check


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        ("metrics.seconds = 'seconds'", "has no group"),
        ("metrics.seconds = { take = 'min' }", "exactly one of pattern and json"),
        ("metrics.seconds = { json = '[' }", "metrics.seconds.json"),
        ("metrics.seconds = 3", "metrics.seconds"),
    ],
)
def test_a_wrong_metric_names_its_field(tmp_path: Path, metrics: str, fault: str) -> None:
    place = Place(tmp_path).configured()
    place.write("m.toml", MISSION.format(command='["true"]', metrics=metrics))
    assert fault in place.ask("run", "m.toml", code=2)[1]


def test_an_agent_is_measured_in_the_copy_that_counts(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(3)}], [{"write": library(2)}]])
    file = place.mission()
    metric = "metrics.value = 'value is (.*)'\nexpect = { exit_code = 0 }\n[workspace]"
    file.write_text(file.read_text(encoding="utf-8").replace("[workspace]", metric), encoding="utf-8")
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert place.json("report", "last")["metrics"]["value"]["last"] == 2
