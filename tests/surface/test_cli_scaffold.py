"""`pursuit scaffold` and `pursuit lessons` as people run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_stage import Place, mission
from model_endpoint import ModelEndpoint, calls

from pursuit.mission_file import load_mission_file

GOAL = "get p95 latency under 200 ms"
FAST = {"criterion_id": "fast", "kind": "metric_threshold", "metric": "p95_latency_ms", "op": "<", "target": 200}
ALWAYS = {"criterion_id": "ok", "kind": "metric_threshold", "metric": "errors", "op": ">=", "target": 0}


@pytest.mark.guarantee("scaffold-starts-nothing")
def test_a_draft_is_printed_written_and_told_in_json_and_nothing_is_started(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    out, notes = place.ask("scaffold", GOAL)
    assert 'metric = "p95_latency_ms"' in out
    assert "nothing was started" in notes
    assert place.ask("scaffold", GOAL, "-o", "m.toml")[0] == "wrote: m.toml\n"
    assert load_mission_file(tmp_path / "m.toml").mission.directive == GOAL
    assert place.json("scaffold", GOAL, code=0)["toml"] == (tmp_path / "m.toml").read_text(encoding="utf-8")
    assert "--force" in place.ask("scaffold", GOAL, "-o", "m.toml", code=2)[1]
    assert place.json("scaffold", GOAL, "-o", "m.toml", "--force")["file"] == "m.toml"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.toml", "pursuit.toml"]


def test_what_cannot_be_drafted_is_said_and_ends_with_two(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "say a number" in place.ask("scaffold", "make it nice", code=2)[1]
    told = place.json("scaffold", "keep latency at least 0 ms", code=2)
    assert (told["code"], "always true" in told["details"]["faults"][0]["reason"]) == ("validation_error", True)
    out, notes = place.ask("scaffold", "keep latency at least 0 ms, and write a.txt")
    assert "latency" not in out.partition("[[criteria]]")[2]
    assert "refused: latency-ms" in notes
    assert place.json("scaffold", "x", "-o", tmp_path / "no" / "folder.toml", code=2)["code"] == "validation_error"
    assert place.json("scaffold", GOAL, "-o", "no/folder.toml", code=2)["code"] == "validation_error"


def test_a_named_model_drafts_and_proposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    bad, good = calls(("draft_criteria", {"criteria": [FAST, ALWAYS]})), calls(("draft_criteria", {"criteria": [FAST]}))
    with ModelEndpoint(bad, good, good, good) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        told = place.json("scaffold", GOAL, "--model", "openai:gpt-4o-mini", "-o", "m.toml")
        assert len(endpoint.seen) == 2
        # A draft that was paid for is shown also where it cannot be written.
        unpriced = ("scaffold", GOAL, "--model", "openai:nobody-knows-its-price", "-o", "no/m.toml")
        out, notes = place.ask(*unpriced, code=2)
        lost = place.json(*unpriced, code=2)["details"]["draft"]
    assert 'metric = "p95_latency_ms"' in out
    assert "tokens at a price that is not known" in notes
    assert "cannot be written" in notes
    assert (lost["used"]["cost_usd"], lost["mission"]["criteria"]) == (None, [FAST])
    assert (told["by"], told["used"]["tokens"]) == ("openai:gpt-4o-mini", 240)
    assert [row["description"] for row in told["criteria"]] == ["p95_latency_ms < 200"]
    assert 'proposer = "openai:gpt-4o-mini"' in (tmp_path / "m.toml").read_text(encoding="utf-8")
    refused = place.json("scaffold", GOAL, "--model", "nobody:nothing", code=None)
    assert refused["code"] == "model_unavailable"
    assert not place.ledger.exists()


def test_words_need_no_quotes_and_what_is_wrong_with_them_is_said_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert 'directive = "make the tests pass"' in place.ask("scaffold", "make", "the", "tests", "pass")[0]
    assert "say the goal" in place.ask("scaffold", " ", code=2)[1]
    assert "PROVIDER:NAME" in place.ask("scaffold", GOAL, "--model", "gpt", code=2)[1]
    notes = place.ask("scaffold", "latency under 200 ms at 1000 rps, and the thing under 5m")[1]
    assert "5m can mean minutes, metres or million" in notes
    assert "“at 1000 rps” is a condition" in notes


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
