"""What of Pursuit itself belongs to the version of a judge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pursuit.problems.catalogue import Catalogue
from pursuit.problems.manifest import Manifest, Metric, Scorer
from pursuit.problems.versions import PACKAGE, judging_digest

COST = (Metric(name="cost"),)


def test_the_formulas_of_a_shipped_design_are_of_its_version(tmp_path: Path) -> None:
    beam, copy = Catalogue.load().get("welded-beam"), tmp_path / "pursuit"
    shutil.copytree(PACKAGE / "demo", copy / "demo")
    before = judging_digest(beam)
    assert judging_digest(beam, package=copy) == before
    formulas = copy / "demo" / "designs.py"
    formulas.write_text(formulas.read_text(encoding="utf-8").replace("13_600", "13_601"), encoding="utf-8")
    assert judging_digest(beam, package=copy) != before


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("demo/a.py", True),
        ("demo/b.py", True),
        ("demo/__init__.py", True),
        ("demo/c.py", False),
        ("engine/d.py", False),
    ],
)
@pytest.mark.parametrize(
    "scorer",
    [
        Scorer(kind="function", function="score.py:score", metrics=COST),
        Scorer(kind="command", command=("python3", "-m", "pursuit.demo.a"), metrics=COST),
    ],
    ids=["function", "command"],
)
def test_modules_of_ours_count_as_far_as_they_lie_beside_each_other(
    tmp_path: Path, scorer: Scorer, changed: str, counts: bool
) -> None:
    folder, package = tmp_path / "mine", tmp_path / "pursuit"
    folder.mkdir()
    (folder / "score.py").write_text("from pursuit.demo.a import x\ndef score(submission): ...\n", encoding="utf-8")
    sources = {
        "__init__.py": "1",
        "demo/__init__.py": "",
        "demo/a.py": "raise SystemExit  # nobody runs this\nfrom pursuit.demo import b\nimport pursuit.engine.d\n",
        "demo/b.py": "import pursuit.demo.a\n",
        "demo/c.py": "",
        "engine/d.py": "",
    }
    for name, source in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source, encoding="utf-8")
    one = Manifest(
        path=folder / "problem.toml",
        problem_id="p",
        title="P",
        summary="p",
        kind="text",
        statement="p",
        scorer=scorer,
    )
    before = judging_digest(one, package=package)
    with (package / changed).open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    assert (judging_digest(one, package=package) != before) is counts


def test_a_command_with_odd_words_has_a_version_all_the_same(tmp_path: Path) -> None:
    scorer = Scorer(kind="command", command=("python3", "-m", "pursuit./etc/passwd", "-m", "pursuit."), metrics=COST)
    path = tmp_path / "problem.toml"
    one = Manifest(path=path, problem_id="p", title="P", summary="p", kind="text", statement="p", scorer=scorer)
    assert len(judging_digest(one)) == 64
