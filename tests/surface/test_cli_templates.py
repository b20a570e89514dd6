"""`pursuit init --template NAME`: each example runs as it is written, and editors find its schema."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_stage import Place
from quick_start import python

from pursuit.demo.example import TEMPLATES


@pytest.mark.guarantee("templates-run-at-once")
@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize("template", [name for name in TEMPLATES if name not in ("beam", "client", "coding")])
def test_a_template_runs_at_once(template: str, tmp_path: Path) -> None:
    Place(tmp_path).ask("init", "here", "--template", template)
    place = Place(tmp_path / "here")
    assert place.json("run", "mission.toml", "--mode", "auto")["status"] == "completed"


@pytest.mark.soak
def test_the_client_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURSUIT_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = Place(tmp_path)
    place.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")  # where `init` noted that it wrote the files
    del place.environment["PURSUIT_TRUST"]
    steps = place.json("init", "--template", "client")["next"]
    assert steps[0].endswith(" client.py")
    words = [python(), "client.py"]
    done = subprocess.run(words, cwd=tmp_path, env=place.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (one,) = place.json("list")["sessions"]
    assert one["status"] == "completed"
    assert f"pursuit status {one['session_id']}" in done.stdout


def test_editors_find_the_schema_of_each_file(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.ask("init")
    for file, name in (("mission.toml", "mission"), ("pursuit.toml", "config")):
        first = (tmp_path / file).read_text(encoding="utf-8").splitlines()[0]
        path = first.removeprefix("#:schema ")
        assert (tmp_path / path).read_text(encoding="utf-8") == place.ask("schema", name)[0]
        assert json.loads((tmp_path / path).read_text(encoding="utf-8"))["$schema"].startswith("http://json-schema.org")


def test_an_unknown_name_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "did you mean 'tune'" in place.ask("init", "--template", "tun", code=2)[1]
    assert "mission, config" in place.ask("schema", "problem", code=2)[1]
    assert list(tmp_path.iterdir()) == []
