"""Manifests beyond every measure: deep, wide and doubled ones are told in little time, and hide no other."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cli_stage import Place
from test_problem_manifests import HEAD, JUDGE

from pursuit.problems.manifest import MAX_SCHEMA, MAX_STATEMENT, MAX_SUMMARY, MAX_TITLE, TAG
from pursuit.problems.manifest_reading import parse_manifest
from pursuit.problems.scorer import MAX_METRICS, MAX_RULES

DEEP = ".".join(["x"] * 1_100) + " = 1\n"


def told(folder: Path, **more: Any) -> dict[str, str]:
    """The faults of a manifest that is sound but for these keys."""
    found, faults = parse_manifest({**tomllib.loads(HEAD + JUDGE), **more}, folder / "problem.toml")
    assert (found is None) == bool(faults)
    return {fault.field: fault.reason for fault in faults}


def test_keys_without_end_are_faults_of_their_file_and_hide_no_other(tmp_path: Path) -> None:
    for name, end in {
        "sound": "",
        "schema": f'[submission]\ntype = "object"\n[submission.properties]\n{DEEP}',
        "judge": f"[scorer.arguments]\n{DEEP}",
        "server": f"[server.env]\n{DEEP}",
        "baseline": f'[baseline.proposer]\nkind = "search"\ntool = "t"\n{DEEP}',
        "nobody": f"[else]\n{DEEP}",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "problem.toml").write_text(
            f"{HEAD}{JUDGE}".replace('"sum"', f'"{name}"') + end, encoding="utf-8"
        )
    place = Place(tmp_path)
    faults = place.json("problem", "validate", code=2)["details"]["faults"]
    deep = {Path(one["source"]).parent.name: one["field"] for one in faults if "nested more than 64" in one["reason"]}
    fields = {"schema": "submission", "judge": "scorer", "server": "server", "baseline": "baseline", "nobody": "else"}
    assert deep == fields
    assert "sound\t" in place.ask("problem", "list", "--dir", ".")[0]
    assert "# A sum" in place.ask("problem", "show", "sound", "--dir", ".")[0]


def test_what_is_too_much_to_be_looked_through_is_a_fault(tmp_path: Path) -> None:
    metrics = [{"metric": f"m{n}", "direction": "minimize", "target": n + 1000.123} for n in range(2_000)]
    rules = [{"metric": f"m{n}", "expression": "1"} for n in range(2_000)]
    scorer = {"kind": "predicates", "metrics": metrics, "predicates": rules}
    schema = {"type": "object", "properties": {"x": {"examples": [[n + 0.5 for n in range(100_000)]]}}}
    found = told(tmp_path, scorer=scorer, submission=schema, statement="the best is 12345 " * 30)
    assert found == {
        "scorer.metrics": "should have at most 32 items, not 2000",
        "scorer.predicates": "should have at most 64 items, not 2000",
        "submission": "has 888947 bytes as JSON; at most 131072",
    }


def test_the_limits_of_a_manifest_are_documented() -> None:
    pages = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
    assert f"of at most {MAX_TITLE} and {MAX_SUMMARY} characters" in pages
    assert f"at most {MAX_STATEMENT:,} characters" in pages and f"at most {MAX_SCHEMA:,} bytes" in pages
    assert f"at most {MAX_METRICS}, from at most {MAX_RULES} `predicates`" in pages
    assert "each of at most 40 lower-case letters" in pages and TAG.fullmatch("x" * 40) and not TAG.fullmatch("x" * 41)
