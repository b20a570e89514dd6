"""What no agent may see: the judge's files are never assets, and exact values in texts for agents are warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_stage import Place

from pursuit.errors import ValidationFailed
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.secrecy import warnings_of

FRAME = """problem_id = "x"
title = "T"
summary = "S."
kind = "decision"
statement = "{statement}"
{top}
[scorer]
{scorer}
[[scorer.metrics]]
metric = "m"
direction = "minimize"
target = {target}
{tail}
"""
ANYTHING = 'kind = "predicates"\n[[scorer.predicates]]\nmetric = "m"\nexpression = "1"'
FUNCTION = 'kind = "function"\nfunction = "score.py:score"'
COMMAND = 'kind = "command"\ncommand = ["__python_executable__", "score.py", "items.csv"]'
BASELINE = "[baseline.proposer]\nkind = \"script\"\nscript = '''{}'''"
PUBLIC = '[visibility]\npublic = ["items.csv", "gone.csv", "scorer.arguments.x"]'


def staged(
    folder: Path,
    statement: str = "Do it.",
    *,
    top: str = "",
    scorer: str = ANYTHING,
    target: float = 263.8958,
    tail: str = "",
) -> Path:
    for name, text in {"score.py": "def score(submission): ...\n", "items.csv": "a,2\n", "key.csv": "a,7\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "problem.toml"
    path.write_text(FRAME.format(statement=statement, top=top, scorer=scorer, target=target, tail=tail), "utf-8")
    return path


def warned(path: Path) -> dict[str, str]:
    return {warning.field: warning.reason for warning in warnings_of(read_manifest(path))}


@pytest.mark.guarantee("what-the-judge-reads-is-no-asset")
@pytest.mark.parametrize(
    ("asset", "scorer", "tail"),
    [
        ("score.py", FUNCTION, ""),
        ("score.py", COMMAND, ""),
        ("problem.toml", FUNCTION, ""),
        ("key.csv", f'{FUNCTION}\nfiles = ["key.csv"]', ""),
        ("key.csv", f'{FUNCTION}\nfiles = ["k*.csv"]', '[visibility]\npublic = ["key.csv"]'),
        ("base.script", ANYTHING, '[baseline.proposer]\nkind = "script"\nfile = "base.script"'),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_of_the_judge_or_the_baseline_is_never_an_asset(
    tmp_path: Path, asset: str, scorer: str, tail: str, linked: bool
) -> None:
    (tmp_path / "base.script").write_text("pass\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(asset)
    name = "link" if linked else asset
    with pytest.raises(ValidationFailed) as failed:
        read_manifest(staged(tmp_path, top=f'assets = ["{name}"]', scorer=scorer, tail=tail))
    (fault,) = failed.value.faults
    assert fault.field == "assets[0]" and "which agents may not see" in fault.reason


@pytest.mark.parametrize(("scorer", "tail"), [(FUNCTION, ""), (COMMAND, ""), (COMMAND, PUBLIC)])
def test_data_that_judge_and_agents_share_is_an_asset(tmp_path: Path, scorer: str, tail: str) -> None:
    path = staged(tmp_path, top='assets = ["items.csv"]', scorer=scorer, tail=tail)
    assert read_manifest(path).assets == ("items.csv",)
    assert warned(path) == ({} if not tail else {"visibility.public": "is ignored; remove it"})


@pytest.mark.guarantee("an-exact-secret-is-a-warning")
@pytest.mark.parametrize(
    ("statement", "target", "tail", "reason"),
    [
        ("It is 263.8958.", 263.8958, "", "contains 263.8958, the value of scorer.metrics[0].target"),
        ("Three of 12 (26) items.", 26, "", "scorer.metrics[0].target"),
        ("Reach 2.7009e-12 or -3.", 2.7009e-12, "", "scorer.metrics[0].target"),
        ("Beat 77.", 80, "best_known = 77", "contains 77, the value of scorer.metrics[0].best_known"),
        ("Beat 77.", 80, "best_known = 77\n[visibility]\ntarget = true", "scorer.metrics[0].best_known"),
        ("x is 16, y 19.", 3, BASELINE.format('call("problem.submit_final", {"x": 16, "y": 19})'), "16, 19"),
        ("x is 16.5", 3, BASELINE.format("problem.submit_final(x=16.5)"), "numbers of the baseline's answer: 16.5"),
        ("Say open sesame now", 3, BASELINE.format('problem.submit_final(answer="open sesame")'), "'open sesame'"),
    ],
)
def test_an_exact_value_in_a_text_for_agents_is_a_warning(
    tmp_path: Path, statement: str, target: float, tail: str, reason: str
) -> None:
    found = warned(staged(tmp_path, statement, target=target, tail=tail))
    assert list(found) == ["statement"] and reason in found["statement"]


@pytest.mark.parametrize(
    ("statement", "target", "tail"),
    [
        ("It is 263.896, 1263.8958, 263.89580001, v263.8958 or 263.8958e1.", 263.8958, ""),
        ("Either 0 or 1.", 1, ""),
        ("The target is 26.", 26, "best_known = 26\n[visibility]\ntarget = true"),
        ("x is 19, y 16.", 3, BASELINE.format('call("problem.submit_final", {"x": 16, "y": 19})')),
        ("Go north, it is so.", 3, BASELINE.format('problem.submit_final(way="north", justification="it is so")')),
        ("x is 16.", 3, BASELINE.format("x = 16\nproblem.submit_final(x=x)")),
    ],
)
def test_anything_but_the_exact_value_is_none(tmp_path: Path, statement: str, target: float, tail: str) -> None:
    assert warned(staged(tmp_path, statement, target=target, tail=tail)) == {}


def test_every_text_for_agents_is_looked_through_and_choices_are_not(tmp_path: Path) -> None:
    top = 'assets = ["items.csv", "bytes"]\n[[citations]]\nsummary = "They found 2."\nraw = "7"'
    schema = '[submission]\ntype = "object"\n[submission.properties.x]\nenum = [7]\ndefault = 2'
    (tmp_path / "bytes").write_bytes(b"\xff2")
    assert set(warned(staged(tmp_path, top=top, target=2, tail=schema))) == {"citations[0]", "submission", "assets[0]"}
    assert warned(staged(tmp_path, top=top, target=7, tail=schema)) == {}


def test_validate_tells_warnings_and_finds_no_fault(tmp_path: Path) -> None:
    path, place = staged(tmp_path, "It is 263.8958."), Place(tmp_path)
    told, notes = place.ask("problem", "validate")
    assert "1 problem, no fault: x" in told
    assert notes.startswith(f"warning: {path} statement: contains 263.8958, the value of scorer.metrics[0].target")
    (warning,) = place.json("problem", "validate")["warnings"]
    assert warning["field"] == "statement" and warning["source"] == str(path)


def test_nothing_shipped_has_a_warning() -> None:
    assert [str(warning) for one in ProblemCatalogue.load() for warning in warnings_of(one)] == []
