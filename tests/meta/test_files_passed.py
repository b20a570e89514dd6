"""Cost is counted: a command is set up once, and no operation passes more files of the source than recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_stage import BEAM, Place, mission
from files_passed import OPERATIONS, SOURCE, passed, recorded, recording

pytestmark = pytest.mark.usefixtures("quick_python")

SET_UP = (
    "config/configuration.py:find_configuration",
    "config/configuration.py:load_configuration",
    "config/files.py:locate_state",
    "config/trust.py:untrusted",
)
COMMANDS = [
    ("run", "m.toml"),
    ("run", "--plan", "m.toml"),
    ("resume", "last"),
    ("tools", "call", "beam.evaluate", "--args-json", '{"h": 0.5, "l": 3, "t": 5, "b": 0.6}'),
    ("problem", "attempt", "spring", "--max-iterations", "1"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_finds_and_reads_its_configuration_locates_its_ledger_and_asks_for_trust_once(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place = Place(tmp_path)
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{BEAM}')
    place.write("m.toml", mission().replace(BEAM, ""))
    if words[-1] == "last":
        place.ask("start", "m.toml")
    with recording() as passage:
        place.ask(*words, code=None)
    assert {name: passage.calls[name] for name in SET_UP} == dict.fromkeys(SET_UP, 1)


ONCE_IN_ITERATE = (
    "engine/journal.py:States.look",
    "ledger/sqlite.py:SqliteLedger.row",
    "upstream/host.py:ToolHost.tools_for",
    "core/catalogue.py:Catalogue.check",
)


def test_an_iterate_of_a_client_looks_its_mission_up_makes_its_tools_and_checks_its_proposal_once(
    tmp_path: Path,
) -> None:
    made = passed("mission_iterate", tmp_path).calls
    assert {name: made[name] for name in ONCE_IN_ITERATE} == dict.fromkeys(ONCE_IN_ITERATE, 1)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_passes_no_more_files_than_recorded(operation: str, tmp_path: Path) -> None:
    files = passed(operation, tmp_path).files
    most = recorded()[operation]["files"]
    assert len(files) <= most, f"{operation} passes {len(files)} files and may pass {most}: {sorted(files)}"


FORMS = re.compile(r"\bscreen\.(?:json|rich|answer)\b")
MAX_FORMS = 8
"""What streams or asks at a terminal; every other command returns an `Answer`."""


def test_only_the_console_decides_between_json_a_terminal_and_a_pipe() -> None:
    commands = [path for path in (Path(SOURCE) / "cli").glob("*.py") if path.name != "console.py"]
    found = {path.name: len(FORMS.findall(path.read_text(encoding="utf-8"))) for path in commands}
    assert sum(found.values()) <= MAX_FORMS, {name: count for name, count in found.items() if count}
