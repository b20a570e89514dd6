"""`pursuit scaffold` and `pursuit lessons` as people run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_stage import Place, mission

from pursuit.config.mission_file import load_mission_file
from pursuit.demo.mission_templates import TEMPLATES

GOAL = "get p95 latency under 200 ms"


@pytest.mark.guarantee("scaffold-starts-nothing")
def test_a_draft_is_printed_written_and_told_in_json_and_nothing_is_started(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    out, notes = place.ask("scaffold", GOAL)
    assert 'metric = "METRIC"  # FILL IN' in out
    assert "this is the template metric" in notes
    assert "fill in before you run it: tool_allowlist, metric, op, target, source" in notes
    assert "nothing was started" in notes
    assert place.ask("scaffold", GOAL, "-o", "m.toml")[0] == "wrote: m.toml\n"
    assert load_mission_file(tmp_path / "m.toml").mission.directive == GOAL
    assert place.json("scaffold", GOAL, code=0)["toml"] == (tmp_path / "m.toml").read_text(encoding="utf-8")
    assert "--force" in place.ask("scaffold", GOAL, "-o", "m.toml", code=2)[1]
    assert place.json("scaffold", GOAL, "-o", "m.toml", "--force")["file"] == "m.toml"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.toml", "pursuit.toml"]


def test_a_model_is_no_longer_asked_and_the_error_says_what_to_use(tmp_path: Path) -> None:
    place = Place(tmp_path)
    refused = place.json("scaffold", GOAL, "--model", "openai:gpt-4o-mini", code=2)
    (fault,) = refused["details"]["faults"]
    assert fault["field"] == "--model"
    assert "`pursuit init --template NAME`" in fault["reason"]
    assert "prompt `write_criteria`" in fault["reason"]
    assert "--model" not in place.ask("scaffold", "--help")[0]


def test_words_need_no_quotes_and_what_is_wrong_with_them_is_said_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    out, notes = place.ask("scaffold", "make", "the", "tests", "pass", "--template", "tests")
    assert 'directive = "make the tests pass"' in out
    assert "this is the template" not in notes
    assert "give a goal" in place.ask("scaffold", " ", code=2)[1]
    assert "did you mean 'tests'" in place.ask("scaffold", GOAL, "--template", "test", code=2)[1]
    assert place.json("scaffold", GOAL, "-o", "no/folder.toml", code=2)["code"] == "validation_error"
    shown = " ".join(place.ask("scaffold", "--help")[0].split())
    assert all(name in shown for name in TEMPLATES)


@pytest.mark.usefixtures("quick_python")
def test_lessons_are_found_by_words(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    place.write("m.toml", mission(target=0.1))
    mission_id = place.json("run", "m.toml", code=3)["session_id"]
    out, _ = place.ask("lessons", "polling", "beams")
    first, *lessons = out.splitlines()
    assert first == f"{mission_id}  terminated: max_iterations  Poll the beam"
    assert lessons[0].startswith("\tcost <= 0.1 was never met: the best cost was ")
    (row,) = place.json("lessons", "cost")["missions"]
    assert [f"\t{lesson}" for lesson in row["lessons"]] == lessons
    out, notes = place.ask("lessons", "zebra")
    assert (out, "no ended mission" in notes) == ("", True)
    assert place.json("lessons", code=2)["code"] == "usage_error"
