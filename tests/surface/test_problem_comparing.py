"""`pursuit problem compare`: attempts side by side, on terminals of any width, in a pipe, as JSON and as a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from problem_stage import SCHEMA, problem

from pursuit import Problem
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt

LONG = "a model with a very long name that somebody gave it, from somewhere"
TINY = {"metric": "error", "direction": "minimize", "target": 2.7009e-12, "best_known": 2.700857e-12}
BARELY = 2.7008999e-12
"""It meets the target, and in four or seven digits seems not to."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    here = Place(tmp_path).configured()
    here.ledger.parent.mkdir()
    return here


def mine(place: Place, name: str = "mine", metric: dict[str, Any] = TINY, **fields: Any) -> Problem:
    """A problem whose score is the submission; `x` above 1 is infeasible."""
    rules = [{"metric": metric["metric"], "expression": "submission['x']"}]
    rules.append({"metric": "over", "expression": "submission['x'] - 1"})
    scorer = {"kind": "predicates", "predicates": rules, "metrics": [metric], "constraints": ["over"]}
    given = {"problem_id": name, "title": f"The {name}", "submission": SCHEMA, "scorer": scorer, **fields}
    return problem(place.folder / name, **given)


def made(place: Place, one: Problem, attempt_id: str, x: float | None = None, *, calls: int = 0, **more: Any) -> None:
    """An attempt in the ledger, opened 100 s ago, at work since 40 s; without `x` nothing is submitted."""
    now = time.time()

    async def main() -> None:
        ledger = SqliteLedger.open(place.ledger)
        await Attempt(ledger, lambda: now - 100, one.manifest, attempt_id, **more).open()
        attempt = Attempt(ledger, lambda: now - 40, one.manifest, attempt_id)
        for _ in range(calls):
            await attempt.called("probe", {})
        if x is not None:
            await attempt.submit({"x": x})
        await ledger.close()

    anyio.run(main)
    if x is not None:
        place.ask("problem", "replay", attempt_id, "--problem", one.manifest.path)


def test_on_a_terminal_no_number_and_no_id_is_broken(place: Place) -> None:
    one = mine(place)
    made(place, one, "attempt-0123456789abcdef", BARELY, label=LONG, calls=12)
    made(place, one, "attempt-fedcba9876543210", 7.25, label="short")
    made(place, one, "attempt-0000000000000000", label="nobody")
    for columns in (60, 100):
        lines = place.seen(columns, "problem", "compare", one.manifest.path)
        assert max(map(len, lines)) <= max(columns, 81)
        text = " ".join(" ".join(lines).split())
        assert "target 2.7009e-12; best known 2.700857e-12" in text
        rows = {words.split()[0]: words.split() for words in lines if words.startswith("attempt-")}
        assert {"solved", "2.7008999e-12", "60.0"} <= set(rows["attempt-0123456789abcdef"]), rows
        assert {"infeasible", "7.25"} <= set(rows["attempt-fedcba9876543210"])
        assert "open" in rows["attempt-0000000000000000"]
        assert "12" in rows["attempt-0123456789abcdef"] and "attempt-0123456789abcdef: from first call" in text


def test_pipe_json_and_page_tell_the_best_known_the_spent_and_how_it_ended(place: Place) -> None:
    one = mine(place, budget={"calls": 1, "wall_seconds": 30})
    made(place, one, "attempt-1", 0.5)
    made(place, one, "attempt-2", 7.25)
    made(place, one, "attempt-3")
    made(place, one, "attempt-4", calls=1)
    made(place, one, "attempt-5", mission="mission-0000000000000000")
    (found,) = place.json("problem", "compare", one.manifest.path, "-o", "page.html")["problems"]
    assert (found["best_known"], found["target"], found["unit"]) == (TINY["best_known"], TINY["target"], "")
    told = [(row["attempt_id"], row["status"], row["feasible"], row["spent_budgets"]) for row in found["attempts"]]
    assert told == [
        ("attempt-1", "scored", True, []),
        ("attempt-2", "scored", False, []),
        ("attempt-3", "open", None, []),
        ("attempt-4", "ended", None, ["calls", "wall_seconds"]),
        ("attempt-5", "ended", None, []),
    ]
    best = found["attempts"][0]
    assert (round(best["seconds"]), best["seconds_from_first_call"]) == (60, 0)
    head, *rows = [row.split("\t") for row in place.ask("problem", "compare", one.manifest.path)[0].splitlines()]
    assert {len(row) for row in rows} == {len(head)} and head[-2:] == ["target", "best known"]
    assert [row[:4] for row in rows] == [["mine", name, "operator", status] for name, status, _, _ in told]
    assert (
        rows[3][head.index("notes")] == "spent: calls, wall_seconds"
        and rows[1][4] == "7.25 (infeasible)"
        and all(row[-2:] == ["2.7009e-12", "2.700857e-12"] for row in rows)
    )
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    assert "best known 2.700857e-12" in page and "7.25 (infeasible)" in page and page.count("<tr>") == 6 + 2
    assert "spent: calls, wall_seconds" in page
    (told_below,) = [words for words in place.seen(80, "problem", "compare", one.manifest.path) if "spent" in words]
    assert told_below == "  attempt-4: spent: calls, wall_seconds"


def test_several_problems_are_compared_at_once_or_every_wrong_name_is_told(place: Place) -> None:
    heavy = {"metric": "weight", "direction": "maximize", "unit": "kg", "target": 0.5}
    one, other, none = mine(place), mine(place, "other", heavy), mine(place, "none")
    made(place, one, "attempt-1")
    for number, x in ((2, 0.25), (3, 0.75), (4, 8.0)):
        made(place, other, f"attempt-{number}", x)
    names = ("mine", "other", "none", "other")
    found = place.json("problem", "compare", *names, "--dir", ".", "-o", "page.html")["problems"]
    assert [(one["problem_id"], len(one["attempts"])) for one in found] == [("mine", 1), ("other", 3), ("none", 0)]
    assert [row["attempt_id"] for row in found[1]["attempts"]] == ["attempt-3", "attempt-2", "attempt-4"]
    assert (found[1]["unit"], found[1]["best_known"]) == ("kg", None)
    out, notes = place.ask("problem", "compare", *names, "--dir", ".")
    assert "0.75 kg\tyes" in out and "8 kg (infeasible)\tno" in out and notes == "no attempts at none yet\n"
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    assert page.count("<h2>") == 3 and page.count("No attempt yet.") == 1 and page.count("<tr>") == 2 + 4 + 2
    assert "weight in kg, higher is better; target 0.5</p>" in page
    assert page.count("<svg") == 1, "no attempt made a call: there is a plot over seconds, and none over calls"
    assert page.count("<circle") == 2, "what is infeasible or has no score is in no plot"
    assert none.manifest.problem_id == "none"
    told = place.ask("problem", "compare", "mine", "otter", "nobody", "--dir", ".", code=2)[1]
    assert "2 of these are not problems" in told and "did you mean 'other'" in told and "'nobody'" in told
    told = place.json("problem", "compare", "mine", "otter", "--dir", ".", code=2)
    assert told["code"] == "problem_not_found" and "did you mean 'other'" in told["message"]


def test_repeats_of_an_agent_are_taken_together_and_other_metrics_are_there(place: Place) -> None:
    heavy = {"metric": "weight", "direction": "maximize", "unit": "kg", "target": 0.6}
    rules = [
        {"metric": "weight", "expression": "submission['x']"},
        {"metric": "price", "expression": "10 * submission['x']"},
    ]
    rules.append({"metric": "over", "expression": "submission['x'] - 1"})
    metrics = [heavy, {"metric": "price", "direction": "minimize", "unit": "EUR"}]
    scorer = {"kind": "predicates", "predicates": rules, "metrics": metrics, "constraints": ["over"]}
    one = mine(place, "repeats", heavy, scorer=scorer)
    for number, (who, x) in enumerate((("a", 0.5), ("a", 0.7), ("a", 0.9), ("a", 7.0), ("b", 0.4), ("a", None))):
        made(place, one, f"attempt-{number}", x, label=who)
    (found,) = place.json("problem", "compare", one.manifest.path, "-o", "page.html")["problems"]
    first, second = found["agents"]
    assert (first["label"], first["attempts"], first["feasible"], first["solved"]) == ("a", 4, 3, 2)
    assert (first["mean"], first["best"]) == (pytest.approx(0.7), 0.9)
    assert first["standard_error"] == pytest.approx(0.2 / 3**0.5)
    assert first["pass_at"] == {"1": pytest.approx(0.5), "2": pytest.approx(5 / 6), "3": 1}
    assert (second["label"], second["standard_error"], second["pass_at"]) == ("b", None, {"1": 0})
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    assert "Repeats of each agent" in page and "1: 50%, 2: 83%, 3: 100%" in page and "price 5 EUR" in page
    assert "overflow-wrap: normal" in page
    seen = " ".join(" ".join(place.seen(100, "problem", "compare", one.manifest.path)).split())
    assert "a: attempts 4, feasible 3, solved 2, mean 0.7, standard error 0.115, best 0.9" in seen
    assert "price 5 EUR" in seen
