"""Schedules and notifications through the front door: `pursuit serve` starts a mission, and a command is told."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path

from cli_stage import HTTP, SERVERS, Place, recorded, until, until_marked
from mission_files import mission_file

PRINT = "print('one line')"
TELL = "import sys, pathlib; pathlib.Path('told.json').write_text(sys.stdin.read())"
CONFIGURATION = f"""
[commands.look]
argv = [{json.dumps(sys.executable)}, "-c", {json.dumps(PRINT)}]
read_only = true
[notify]
command = [{json.dumps(sys.executable)}, "-c", {json.dumps(TELL)}]
events = ["ended"]
[schedule]
cron = "* * * * * *"
mission = "mission.toml"
"""
MISSION = mission_file("commands.look", iterations=5)


def test_serve_starts_what_is_due_and_tells_that_it_has_ended(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("mission.toml", MISSION)
    place.write("pursuit.toml", CONFIGURATION)
    (row,) = place.json("schedule", "list")["schedules"]
    assert (row["name"], row["overlap"], "last_run" in row) == ("default", "skip", False)
    served = place.begin("serve", *HTTP, fresh=False)
    until((tmp_path / "told.json").exists)
    assert served.end(signal.SIGTERM)[0] == 0
    (row,) = place.json("schedule", "list")["schedules"]
    assert row["last_run"]["session_id"] in {one["session_id"] for one in place.json("list")["sessions"]}
    assert "default\t* * * * * *\t" in place.run("schedule", "list").stdout
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert (told["type"], told["data"]["verdict_reason"]) == ("mission.ended", "criteria_met")


def test_serve_without_its_port_starts_neither_a_schedule_nor_a_server(tmp_path: Path) -> None:
    place, log = Place(tmp_path), tmp_path / "log"
    place.write("mission.toml", MISSION)
    args = json.dumps([str(SERVERS / "hostile_upstream.py"), f"log={log}"])
    required = f"[servers.h]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\nrequired = true\n"
    place.write("pursuit.toml", required + CONFIGURATION)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # The first run begins the schedule, the second one would find a due time.
        for kind in ((), (), ("--gateway",)):
            done = place.run("serve", *kind, "--http", "--port", taken.getsockname()[1], "--no-token", code=2)
            assert "in use" in done.stderr
    assert not log.exists()
    (row,) = place.json("schedule", "list")["schedules"]
    assert "last_run" not in row


def test_a_run_that_a_signal_stops_tells_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    record = tmp_path / "record"
    place.write("mission.toml", recorded(record, steps=2, needed=2, ms=30_000))
    tables = CONFIGURATION.partition("[schedule]")[0].replace('"ended"', '"interrupted"')
    place.write("pursuit.toml", f'{tables}[policy]\nmode = "auto"\n')
    ids: list[str] = []
    for place_in_file, words in enumerate((("run", "mission.toml"), ("resume", "--all"))):
        running = place.begin(*words, fresh=False)
        until_marked(record, f"k{place_in_file}")
        notes = running.end(signal.SIGTERM)[2]
        told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
        (row,) = place.json("list", "--status", "interrupted")["sessions"]
        resume = f"pursuit resume {row['session_id']}"
        assert f"continue with: {resume}" in notes
        assert (told["type"], told["data"]["next"]) == ("mission.interrupted", resume)
        ids.append(told["id"])
    assert len(set(ids)) == 2


def test_doctor_finds_what_cannot_be_sent_or_started(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(
        "pursuit.toml",
        '[notify]\ncommand = ["./tell.sh"]\nwebhook = "https://example.com"\nsecret = "${UNSET_SECRET}"\n'
        '[schedule.hourly]\ncron = "61 * * * *"\nmission = "none.toml"\n',
    )
    findings = place.json("doctor", code=1)["findings"]
    told = "\n".join(one["what"] for one in findings if one["level"] == "broken")
    assert "UNSET_SECRET" in told
    assert "program ./tell.sh was not found" in told
    assert "schedule.hourly.cron" in told
