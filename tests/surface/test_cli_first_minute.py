"""The first minute: `pursuit` alone, `pursuit demo`, and what a bug report needs."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_stage import Place

from pursuit.cli.main import COMMANDS

pytestmark = pytest.mark.usefixtures("quick_python")


def test_the_command_alone_says_in_five_lines_what_to_type_next(tmp_path: Path) -> None:
    place = Place(tmp_path)
    out, err = place.ask()
    assert len(out.splitlines()) == 5
    assert all(len(line) <= 90 for line in out.splitlines())
    assert err == ""
    steps = place.json()["next"]
    assert all(f"  {step} " in out for step in steps)
    assert {shlex.split(step)[1] for step in steps} - set(COMMANDS) == {"--help"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.guarantee("templates-run-at-once")
def test_the_demo_runs_at_once_in_a_folder_of_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path)
    own = tmp_path / ".pursuit" / "demo" / ".pursuit" / "ledger.db"
    place.environment |= {"PURSUIT_DEMO_DELAY_MS": "0", "PURSUIT_STATE": str(tmp_path / "mine.db")}
    place.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    del place.environment["PURSUIT_TRUST"]  # nothing is asked
    done = place.run("demo", "--json")
    assert json.loads(done.stdout)["status"] == "completed"
    assert "pursuit page --config .pursuit/demo/pursuit.toml" in done.stderr
    assert own.exists()
    assert not (tmp_path / "mine.db").exists()


def test_a_bug_report_has_versions_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    shown = json.loads(place.run("--version", "--json").stdout)
    assert shown["version"] == version("pursuit")
    assert shown["packages"]["mcp"] == version("mcp")
    assert {"pytest", "ruff"}.isdisjoint(shown["packages"])
    report = place.json("doctor", "--report")
    assert report["installation"]["packages"] == shown["packages"]
    assert "ANTHROPIC_API_KEY" in report["installation"]["environment"]
    text, _ = place.ask("doctor", "--report")
    assert f"'mcp': '{version('mcp')}'" in text
    assert "~/pursuit.toml" in text
    assert not any(secret in text + json.dumps(report) for secret in ("sk-ant-secret", str(tmp_path)))
