"""The command line looks at missions and proves them: every command answers in words and in JSON."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_stage import Place, mission

from pursuit.cli.main import COMMANDS

pytestmark = pytest.mark.usefixtures("quick_python")

# They share a mission that has ended, so one worker runs them all.


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str]:
    """A ledger with one mission that was completed; tests that change it take a copy."""
    place = Place(tmp_path_factory.mktemp("ended")).configured()
    place.write("m.toml", mission(target=100))
    return place, place.json("run", "m.toml")["session_id"]


@pytest.fixture
def ours(ended: tuple[Place, str], tmp_path: Path) -> tuple[Place, str]:
    """A copy of that folder."""
    place, mission_id = ended
    shutil.copytree(place.folder, tmp_path / "copy")
    return Place(tmp_path / "copy"), mission_id


def test_every_command_has_help_with_the_common_options(tmp_path: Path) -> None:
    place = Place(tmp_path)
    listed = "".join(place.ask("--help")[0].split())
    for name, entry in COMMANDS.items():
        assert name + "".join(entry.help.split())[:40] in listed
        text, _ = place.ask(name, "--help")
        for word in ("--config", "--state", "--json", "Common"):
            assert word in text, (name, word)


def test_every_looking_command_answers_in_words_and_in_json(ours: tuple[Place, str]) -> None:
    place, mission_id = ours
    for words, key in [
        (("status", mission_id), "criteria"),
        (("list",), "sessions"),
        (("list", "--status", "completed", "--limit", 1), "sessions"),
        (("history", mission_id), "iterations"),
        (("history", mission_id, "--full"), "iterations"),
        (("report", mission_id), "timeline"),
        (("report", mission_id, "--format", "json"), "timeline"),
        (("report", mission_id, "--format", "html"), "text"),
        (("report", mission_id, "--format", "csv"), "trials"),
        (("report", mission_id, "-o", place.folder / "r.md", "--force"), "file"),
        (("lessons", "beams", "polled"), "missions"),
        (("lessons", "zebra", "--limit", 3), "missions"),
        (("verify", "--expect", place.json("verify")["root"]), "root"),
        (("export", mission_id, "-o", place.folder / "x.jsonl", "--force"), "file"),
        (("verify", place.folder / "x.jsonl"), "root"),
        (("resume", "--all"), "missions"),
    ]:
        out, _ = place.ask(*words)
        assert "\x1b" not in out
        assert key in place.json(*words), words
    for words in (("export", mission_id, "-o", "x.jsonl"), ("report", mission_id, "-o", "r.md")):
        assert "--force" in place.ask(*words, code=2)[1]
    rows = [json.loads(line) for line in place.ask("watch", mission_id, "--json")[0].splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert all({"seq", "type", "at"} <= set(row) for row in rows)
    assert "completed (criteria_met)" in place.ask("watch", mission_id)[0]
    assert place.ask("--version")[0].startswith("pursuit ")


def test_common_options_stand_before_or_after_the_command(
    ours: tuple[Place, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mission_id = ours
    elsewhere = Place(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    ledger, config = place.ledger, place.folder / "pursuit.toml"
    for words in [
        ("--state", ledger, "--json", "list"),
        ("list", "--state", ledger, "--json"),
        ("--config", config, "list", "--json"),
        ("--json", "list", "--config", config),
        ("--state", "nowhere.db", "list", "--json", "--state", ledger),
    ]:
        assert json.loads(elsewhere.ask(*words)[0])["sessions"][0]["session_id"] == mission_id, words
    monkeypatch.setenv("PURSUIT_STATE", str(ledger))
    assert mission_id in elsewhere.ask("list")[0]
    assert not list(elsewhere.folder.iterdir())


def test_looking_needs_no_sound_configuration_and_makes_no_ledger(ours: tuple[Place, str], tmp_path: Path) -> None:
    place, mission_id = ours
    (place.folder / "pursuit.toml").write_text("servers = 3", encoding="utf-8")
    assert place.json("status", mission_id)["status"] == "completed"
    assert "servers" in place.ask("run", "m.toml", code=2)[1]

    (tmp_path / "empty").mkdir()
    empty = Place(tmp_path / "empty").configured()
    assert empty.json("list") == {"sessions": []}
    assert "nowhere.db" in empty.ask("list", "--state", "nowhere.db")[1], "one that was named and is not there is told"
    for words in (["status", mission_id], ["verify"], ["lessons", "beam"], ["resume", "--all"], ["abort", mission_id]):
        refused = empty.json(*words, code=2)
        assert (refused["code"], "pursuit run FILE" in refused["message"]) == ("no_ledger", True)
    assert [path.name for path in empty.folder.iterdir()] == ["pursuit.toml"]


def test_no_output_replaces_the_ledger(ours: tuple[Place, str]) -> None:
    place, mission_id = ours
    (place.folder / "soft.db").symlink_to(place.ledger)
    (place.folder / "hard.db").hardlink_to(place.ledger)
    beside = [place.ledger.with_name(f"{place.ledger.name}{suffix}") for suffix in ("", "-wal", "-shm", "-gate")]
    before = place.ledger.read_bytes()
    for command in (("export",), ("report", "--format", "md")):
        for target in (*beside, "soft.db", "hard.db", ".pursuit/../.pursuit/ledger.db"):
            told = place.json(*command, mission_id, "-o", target, "--force", code=2)
            assert (told["code"], "belongs to the ledger" in told["details"]["faults"][0]["reason"]) == (
                "validation_error",
                True,
            )
    assert place.ledger.read_bytes() == before
    for target in (".", "x" * 300):
        assert place.json("export", mission_id, "-o", target, "--force", code=2)["code"] == "validation_error"
    assert place.json("verify")["ok"]


@pytest.mark.damaged_ledger("edits the database")
def test_tampering_is_exit_code_1(ours: tuple[Place, str]) -> None:
    place, mission_id = ours
    root = place.json("verify")["root"]
    place.ask("verify", "--expect", root)
    place.ask("export", mission_id, "-o", "x.jsonl")
    archive = place.folder / "x.jsonl"
    archive.write_bytes(archive.read_bytes().replace(b"Poll the beam", b"Pull the beam"))
    faults = place.json("verify", archive, code=1)["faults"]
    assert faults
    connection = sqlite3.connect(place.ledger)
    connection.execute("UPDATE events SET body = replace(body, 'Poll', 'Pull') WHERE seq = 1")
    connection.commit()
    connection.close()
    assert "broken\tledger" in place.ask("doctor", code=1)[0]
    out, _ = place.ask("verify", code=1)
    assert "intact: no" in out
    assert mission_id in out


def test_forget_asks_first_and_leaves_nothing_to_see(ours: tuple[Place, str]) -> None:
    place, mission_id = ours
    assert "--yes" in place.ask("forget", mission_id, code=2)[1]
    assert place.json("status", mission_id)["status"] == "completed"
    assert list((place.ledger.parent / "reports").iterdir())
    assert place.json("forget", mission_id, "--yes") == {"session_id": mission_id, "status": "forgotten"}
    assert place.json("status", mission_id, code=2)["code"] == "session_not_found"
    assert not list((place.ledger.parent / "reports").iterdir())
    assert place.json("verify")["ok"]


def test_operators_words_on_an_undriven_mission(ours: tuple[Place, str]) -> None:
    place, _ = ours
    place.write("c.toml", mission(proposer='kind = "client"'))
    one, other = (place.json("start", "c.toml")["session_id"] for _ in range(2))
    assert place.json("pause", one)["status"] == "paused"
    assert place.json("iterate", one, code=4)["code"] == "session_paused"
    assert place.json("complete", one, "--reason", "good enough")["status"] == "completed"
    assert place.json("report", one)["reason_text"] == "good enough"
    assert place.json("abort", other)["verdict_reason"] == "user_abort"
    assert place.json("abort", other, code=2)["code"] == "session_terminal"
    pages = place.json("list", "--limit", 2)
    rest = place.json("list", "--cursor", pages["next_cursor"])
    assert [len(pages["sessions"]), len(rest["sessions"])] == [2, 1]


READS = """\
import json, sys
from pursuit.cli.main import answer
sys.exit(max(answer(words) for words in json.loads(sys.argv[1])))
"""
FULL = """\
mount -t tmpfs -o size=2m tmpfs "$0" && cp -r "$1/.pursuit" "$1/pursuit.toml" "$1/m.toml" "$0" && cd "$0" || exit 9
dd if=/dev/zero of=fill bs=1k 2> /dev/null
shift
exec "$@"
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'


@pytest.mark.guarantee("a-ledger-can-be-read-where-it-cannot-be-written")
@pytest.mark.parametrize("log_left", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_ledger_on_a_read_only_file_system_is_read(ours: tuple[Place, str], tmp_path: Path, log_left: bool) -> None:
    place, _mission_id = ours
    if log_left:  # as a process that was killed leaves it: the end of the ledger is in SQLite's log
        with contextlib.closing(sqlite3.connect(place.ledger)) as keeping:
            keeping.execute("UPDATE streams SET summary = summary || ' '")
            keeping.commit()
            shutil.copytree(place.folder, tmp_path / "killed")
        place = Place(tmp_path / "killed")
        assert Path(f"{place.ledger}-wal").stat().st_size
    words = [["list"], ["status", "last"], ["report", "last"], ["verify"], ["logs", "last"], ["doctor"]]
    words.append(["export", "last", "-o", str(tmp_path / "out.jsonl")])
    done = _mounted(place, READ_ONLY, str(place.folder), words=words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "status: completed" in done.stdout and "intact: yes" in done.stdout and "call beam.evaluate" in done.stdout
    assert "is read-only" in done.stdout
    assert (tmp_path / "out.jsonl").exists()


def _mounted(place: Place, script: str, *given: str, words: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """Runs commands after a script has mounted something, in a namespace of mounts of their own."""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, *given, sys.executable, "-c", READS, json.dumps(words)],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine lets no test mount: {done.stderr}")
    return done


def test_a_full_disk_is_called_so(ours: tuple[Place, str], tmp_path: Path) -> None:
    place, _mission_id = ours
    (tmp_path / "full").mkdir()
    words = [["start", "m.toml"], ["list"], ["task", "run", "--", "true"], ["init", "demo"], ["token"], ["doctor"]]
    done = _mounted(place, FULL, str(tmp_path / "full"), str(place.folder), words=words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("the disk is full") == len(words) - 1, done.stderr
    assert "No space left" not in done.stderr + done.stdout
    assert "broken\tdisk\tthe disk of " in done.stdout


def test_people_read_local_times_and_programs_iso_times(
    ended: tuple[Place, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mission_id = ended
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert place.json("status", mission_id)["created_at"].endswith("+00:00")
        assert "+09:00\t" in place.ask("list")[0]
        assert any(" JST" in line for line in place.seen(120, "list"))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_list_on_a_narrow_terminal_never_cuts_an_id(ended: tuple[Place, str]) -> None:
    place, mission_id = ended
    assert any(mission_id in line for line in place.seen(40, "list"))


def test_missions_are_compared_side_by_side(ours: tuple[Place, str]) -> None:
    place, first = ours
    place.write("other.toml", mission(target=1, iterations=1))
    second = place.json("run", "other.toml", code=3)["session_id"]
    found = place.json("compare", first, "last")["missions"]
    assert [one["session_id"] for one in found] == [first, second]
    rows = [line.split("\t") for line in place.ask("compare", first, second)[0].splitlines()]
    table = {name: values for name, *values in rows}
    assert table["status"] == ["completed (criteria_met)", "terminated (max_iterations)"]
    assert all(len(values) == 2 for values in table.values())
    for wrong in ((first,), (first, first)):
        assert "2 to 10 different missions" in place.ask("compare", *wrong, code=2)[1]
    assert "is not the id of a mission" in place.ask("compare", first, "!", code=2)[1]
