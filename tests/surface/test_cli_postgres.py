"""The command line over a ledger on PostgreSQL: the same commands, with another `--state`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_stage import Place, mission
from postgres_server import NewDatabase


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Place(tmp_path).configured()


def test_a_mission_runs_and_is_proved_over_a_database(place: Place, new_database: NewDatabase) -> None:
    address = new_database()
    place.write("m.toml", mission(target=100))
    ran = json.loads(place.run("--json", "--state", address, "run", "m.toml").stdout)
    assert ran["status"] == "completed"
    listed = json.loads(place.run("--json", "list", "--state", address).stdout)
    assert [row["session_id"] for row in listed["sessions"]] == [ran["session_id"]]
    proved = json.loads(place.run("--json", "verify", "--state", address).stdout)
    assert proved["ok"], proved
    assert ran["session_id"] in place.ask("report", "last", "--state", address)[0]
