"""An engineer tunes a training script by its log: the tutorial as it is written, and the mistakes on the way."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest
from cli_stage import Place

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
BLOCK = re.compile(r"^<!-- tutorial -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAIN, CONFIG, MISSION, COMMANDS = (text for _kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def journey(folder: Path, **files: str) -> Place:
    """The files of the tutorial, some of them with a mistake; the script runs with this Python."""
    place = Place(folder)
    written = {"train": TRAIN, "pursuit": CONFIG, "mission": MISSION, **files}
    place.write("train.py", written.pop("train"))
    for name, text in written.items():
        place.write(f"{name}.toml", text.replace('"python3"', f'"{sys.executable}", "-S"'))
    return place


@pytest.mark.guarantee("from-nothing-to-a-tuned-command")
def test_the_tutorial_leads_to_a_tuned_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURSUIT_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    install, once, run, *reports = [shlex.split(line) for line in COMMANDS.splitlines()]
    assert len(COMMANDS.splitlines()) <= 5
    assert len([line for line in (CONFIG + MISSION).splitlines() if line.strip()]) <= 12
    assert install == ["pip", "install", "pursuit[search]"]
    place = journey(tmp_path)
    assert "pursuit trust" in place.ask(*once[1:], code=2)[1]
    (trust,) = re.findall(r"`pursuit (trust \.)`", PAGE.read_text(encoding="utf-8"))
    place.ask(*trust.split())
    assert "metric val_loss: 8.356" in place.ask(*once[1:])[0]
    told, notes = place.ask(*run[1:])
    assert "status: completed" in told and re.search(r"^best: val_loss 0\.1\d+ with {\"lr\": 0\.", told, re.MULTILINE)
    assert "warning" not in notes
    (mission_id,) = re.findall(r"^mission: (\S+)", told, re.MULTILINE)
    for words in reports:
        place.ask(*(mission_id if word == "ID" else word for word in words[1:]))
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text(encoding="utf-8").splitlines()))
    (best,) = [row for row in rows if row["best"] == "True"]
    assert float(best["val_loss"]) <= 0.15 and f'"lr": {best["lr"]}, "width": {best["width"]}' in told
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="trace"' in page and "<h2>Trials</h2>" in page and "Importance of the parameters" in page
    assert f"best: val_loss {float(best['val_loss'])} with " in place.ask("status", mission_id)[0]
    known = ".json, .md, .html, .csv, .parquet"
    assert f"known: {known}" in place.ask("report", mission_id, "-o", "r.xlsx", code=2)[1]


SCRIPT = MISSION.replace(
    re.findall("proposer = {.*}", MISSION)[0],
    'proposer = { kind = "script", script = "import numpy\\ncommands.train(lr=1)" }',
)
FEW = MISSION.replace("60", "4")

MISTAKES: dict[str, tuple[dict[str, str], int, str]] = {
    "pattern that matches nothing": (
        {"pursuit": CONFIG.replace("val_loss=(", "validation=("), "mission": FEW},
        3,
        "warning: no value for `val_loss` after 3 iterations; commands.train: pattern "
        "'validation=([0-9.eE+-]+|(?i:nan|inf))' finds nothing in the output",
    ),
    "program that imports what is not installed": (
        {"train": "import torch_of_nowhere\n"},
        3,
        "The proposer failed three times in a row: commands.train ended with exit code 1: ModuleNotFoundError: No "
        "module named 'torch_of_nowhere'; none of the 6 trials succeeded",
    ),
    "script that imports a package that the sandbox lacks": (
        {"mission": SCRIPT},
        2,
        "proposer.script: the sandbox has no module 'numpy'; packages cannot be installed in it",
    ),
    "script that keeps failing": (
        {"mission": SCRIPT.replace("import numpy", "x = y")},
        3,
        "The proposer failed three times in a row: script: line 1: NameError: name 'y' is not defined",
    ),
    "no criteria": (
        {"mission": re.sub("criteria = .*", "", MISSION)},
        2,
        "criteria: is missing; a mission needs at least one criterion, such as { criterion_id = ",
    ),
    "invalid TOML": (
        {"mission": MISSION.replace("budget = {", "budget = = {")},
        2,
        "mission.toml:3:10: is not valid TOML: Invalid value\n    budget = = { max_iterations = 60 }\n             ^\n",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_an_answer_that_helps(mistake: str, tmp_path: Path) -> None:
    files, code, wanted = MISTAKES[mistake]
    place = journey(tmp_path, **files)
    told, notes = place.ask("run", "mission.toml", "--mode", "auto", code=code)
    assert wanted in told + notes
    if wanted.startswith("warning"):
        assert wanted in place.ask("logs", "last")[0]
    if "three times" in wanted:
        assert f"iterations: {6 if 'trials' in wanted else 3} of 60" in told
    if code == 2:
        assert not (tmp_path / ".pursuit" / "reports").exists()
