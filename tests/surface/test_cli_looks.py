"""The command line looks at missions and proves them: every command answers in words and in JSON."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place, mission

from pursuit.surfaces.cli.main import answer, app

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str]:
    """A ledger with one mission that was completed; tests that change it take a copy."""
    place = Place(tmp_path_factory.mktemp("ended")).configured()
    place.write("m.toml", mission(target=100))
    return place, place.json("run", "m.toml")["session_id"]


@pytest.fixture
def ours(ended: tuple[Place, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A copy of that folder, which is where we are."""
    place, mission_id = ended
    folder = tmp_path / "copy"
    shutil.copytree(place.folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PURSUIT_STATE", raising=False)
    return folder, mission_id


def ask(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    got = answer([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert got == code, (words, out, err)
    return out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    return json.loads(ask(capsys, *words, "--json", code=code)[0])


def test_every_command_has_help_with_the_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == 17
    for name in COMMANDS:
        text, _ = ask(capsys, name, "--help")
        for word in ("--config", "--state", "--json", "Common"):
            assert word in text, (name, word)


def test_every_looking_command_answers_in_words_and_in_json(
    ours: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mission_id = ours
    for words, key in [
        (("status", mission_id), "criteria"),
        (("list",), "sessions"),
        (("list", "--status", "completed", "--limit", 1), "sessions"),
        (("history", mission_id), "iterations"),
        (("history", mission_id, "--full"), "iterations"),
        (("report", mission_id), "timeline"),
        (("report", mission_id, "--format", "json"), "timeline"),
        (("report", mission_id, "--format", "html"), "text"),
        (("report", mission_id, "-o", folder / "r.md"), "file"),
        (("verify",), "root"),
        (("export", mission_id, "-o", folder / "x.jsonl"), "file"),
        (("verify", folder / "x.jsonl"), "root"),
        (("resume", "--all"), "missions"),
    ]:
        out, _ = ask(capsys, *words)
        assert "\x1b" not in out
        assert key in ask_json(capsys, *words), words
    rows = [json.loads(line) for line in ask(capsys, "watch", mission_id, "--json")[0].splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert all({"seq", "type", "at"} <= set(row) for row in rows)
    assert "completed (criteria_met)" in ask(capsys, "watch", mission_id)[0]
    assert ask(capsys, "--version")[0].startswith("pursuit ")


def test_common_options_stand_before_or_after_the_command(
    ours: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mission_id = ours
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ledger, config = folder / ".pursuit" / "ledger.db", folder / "pursuit.toml"
    for words in [
        ("--state", ledger, "--json", "list"),
        ("list", "--state", ledger, "--json"),
        ("--config", config, "list", "--json"),
        ("--json", "list", "--config", config),
        ("--state", "nowhere.db", "list", "--json", "--state", ledger),
    ]:
        assert json.loads(ask(capsys, *words)[0])["sessions"][0]["session_id"] == mission_id, words
    monkeypatch.setenv("PURSUIT_STATE", str(ledger))
    assert mission_id in ask(capsys, "list")[0]
    assert not list(elsewhere.iterdir())


def test_looking_needs_no_sound_configuration_and_makes_no_ledger(
    ours: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mission_id = ours
    (folder / "pursuit.toml").write_text("servers = 3", encoding="utf-8")
    assert ask_json(capsys, "status", mission_id)["status"] == "completed"
    assert "servers" in ask(capsys, "run", "m.toml", code=2)[1]

    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    (empty / "pursuit.toml").touch()
    assert ask_json(capsys, "list") == {"sessions": []}
    for words in (["status", mission_id], ["verify"], ["resume", "--all"], ["abort", mission_id]):
        refused = ask_json(capsys, *words, code=2)
        assert (refused["code"], "pursuit run FILE" in refused["message"]) == ("no_ledger", True)
    assert [path.name for path in empty.iterdir()] == ["pursuit.toml"]


def test_tampering_is_exit_code_1(ours: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, mission_id = ours
    root = ask_json(capsys, "verify")["root"]
    ask(capsys, "verify", "--expect", root)
    ask(capsys, "export", mission_id, "-o", "x.jsonl")
    archive = folder / "x.jsonl"
    archive.write_bytes(archive.read_bytes().replace(b"Poll the beam", b"Pull the beam"))
    faults = ask_json(capsys, "verify", archive, code=1)["faults"]
    assert faults
    connection = sqlite3.connect(folder / ".pursuit" / "ledger.db")
    connection.execute("UPDATE events SET body = replace(body, 'Poll', 'Pull') WHERE seq = 1")
    connection.commit()
    connection.close()
    out, _ = ask(capsys, "verify", code=1)
    assert "intact: no" in out
    assert mission_id in out


def test_forget_asks_first_and_leaves_nothing_to_see(
    ours: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mission_id = ours
    assert "--yes" in ask(capsys, "forget", mission_id, code=2)[1]
    assert ask_json(capsys, "status", mission_id)["status"] == "completed"
    assert list((folder / ".pursuit" / "reports").iterdir())
    assert ask_json(capsys, "forget", mission_id, "--yes") == {"session_id": mission_id, "status": "forgotten"}
    assert ask_json(capsys, "status", mission_id, code=2)["code"] == "session_not_found"
    assert not list((folder / ".pursuit" / "reports").iterdir())
    assert ask_json(capsys, "verify")["ok"]


def test_operators_words_on_an_undriven_mission(ours: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = ours
    (folder / "c.toml").write_text(mission(proposer='kind = "client"'), encoding="utf-8")
    one, other = (ask_json(capsys, "start", "c.toml")["session_id"] for _ in range(2))
    assert ask_json(capsys, "pause", one)["status"] == "paused"
    assert ask_json(capsys, "iterate", one, code=4)["code"] == "session_paused"
    assert ask_json(capsys, "complete", one, "--reason", "good enough")["status"] == "completed"
    assert ask_json(capsys, "report", one)["reason_text"] == "good enough"
    assert ask_json(capsys, "abort", other)["verdict_reason"] == "user_abort"
    assert ask_json(capsys, "abort", other, code=2)["code"] == "session_terminal"
    pages = ask_json(capsys, "list", "--limit", 2)
    rest = ask_json(capsys, "list", "--cursor", pages["next_cursor"])
    assert [len(pages["sessions"]), len(rest["sessions"])] == [2, 1]
