"""The command line drives missions: to success, to an end, into a wait, through a crash and past an operator."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import anyio
import pytest
from cli_stage import REPEAT, Place, marks, mission, recorded, until, until_marked
from hands import Hands
from mcp import Client
from quick_start import pursuit

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.server.missions.server import mission_server

pytestmark = pytest.mark.usefixtures("quick_python")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


def test_the_example_runs_to_success_and_leaves_reports(tmp_path: Path) -> None:
    outside = Place(tmp_path)
    assert "pursuit run mission.toml" in outside.ask("init", "demo")[0]
    outside.ask("init", "demo", code=2)
    assert set(outside.json("init", "demo", "--force")) == {"files", "next"}
    demo = Place(tmp_path / "demo")
    for name in ("mission.toml", "strategy.py"):
        # An easier target: the way is the same, and shorter.
        text = (demo.folder / name).read_text(encoding="utf-8")
        demo.write(name, text.replace("1.76", "15.0"))
    done = demo.run("run", "mission.toml", fresh=True)
    assert "status: completed" in done.stdout
    assert "criterion cheap: met" in done.stdout
    assert "iteration 1/200" in done.stderr
    mission_id = done.stdout.splitlines()[0].removeprefix("mission: ")
    assert f"show the report: pursuit report {mission_id}" in done.stderr
    for form in ("json", "md", "html"):
        path = demo.ledger.parent / "reports" / f"{mission_id}.{form}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert mission_id in path.read_text(encoding="utf-8")
    assert mission_id in demo.ask("report", mission_id)[0]
    demo.ask("report", mission_id, "-o", "mine.html")
    assert (demo.folder / "mine.html").read_text(encoding="utf-8").startswith("<!")


def test_a_budget_that_is_spent_is_exit_code_3_and_can_be_extended(place: Place) -> None:
    place.write("m.toml", mission(iterations=2))
    ended = json.loads(place.run("--json", "run", "m.toml", code=3).stdout)
    assert (ended["status"], ended["verdict_reason"], ended["iteration_count"]) == ("terminated", "max_iterations", 2)
    mission_id = ended["session_id"]
    assert json.loads(Path(ended["report_files"]["json"]).read_text())["session_id"] == mission_id
    place.ask("resume", mission_id, code=2)
    assert "can only be raised" in place.ask("extend", mission_id, "--max-iterations", 1, code=2)[1]
    assert place.json("extend", mission_id, "--max-iterations", 3)["budget"]["max_iterations"] == 3
    assert place.json("resume", mission_id, code=3)["iteration_count"] == 3
    assert len(place.json("history", mission_id)["iterations"]) == 3
    wait = 'max_iterations = 9\nmax_tool_calls = 1\non_exhausted = "wait"'
    place.write("m.toml", mission(iterations=2).replace("max_iterations = 2", wait))
    waiting = place.run("run", "m.toml", code=4)
    assert re.search(r"raise a cap: pursuit extend \S+ --max-tool-calls N, then pursuit resume", waiting.stderr)


@pytest.mark.guarantee("no-progress-can-be-resumed")
def test_a_mission_without_progress_goes_on_with_its_counter_at_zero(place: Place) -> None:
    same = 'kind = "script"\nscript = "beam.evaluate(h=0.5, l=3.0, t=5.0, b=0.6)"'
    place.write("m.toml", mission(iterations=9, proposer=same))
    ended = place.run("run", "m.toml", code=3)
    mission_id = ended.stdout.splitlines()[0].removeprefix("mission: ")
    assert f"continue it with: pursuit resume {mission_id}" in ended.stderr
    assert place.json("resume", "--all") == {"missions": []}
    again = place.json("resume", mission_id, code=3)
    assert (again["verdict_reason"], again["iteration_count"], again["no_progress_counter"]) == ("no_progress", 7, 3)
    last = place.json("resume", mission_id, code=3)
    assert (last["verdict_reason"], last["iteration_count"]) == ("max_iterations", 9), "the caps hold"
    assert "raise its cap" in place.ask("resume", mission_id, code=2)[1]
    assert "intact" in place.ask("verify")[0]


def test_start_then_resume_all_leaves_what_nobody_drove(place: Place) -> None:
    place.write("m.toml", mission(target=100))
    mission_id = place.ask("start", "m.toml")[0].strip()
    assert place.json("status", mission_id)["status"] == "pending"
    assert place.json("resume", "--all") == {"missions": []}
    assert "status: completed" in place.ask("resume", mission_id)[0]


def test_a_client_mission_waits_with_exit_code_4_and_takes_proposals(place: Place) -> None:
    place.write("m.toml", mission(target=2.5, iterations=5, proposer='kind = "client"'))
    waiting = place.json("run", "m.toml", code=4)
    assert (waiting["status"], waiting["waiting_for"]) == ("waiting", "proposal")
    mission_id = waiting["session_id"]

    wrong = {"tool_calls": [{"tool_name": "certify"}, {"tool_name": "evaluate", "args": {"h": "high"}}]}
    place.write("p.json", json.dumps(wrong))
    refused = place.ask("iterate", mission_id, "--proposal", "p.json", code=2)[1]
    assert "proposal.tool_calls[0].tool_name" in refused
    assert "proposal.tool_calls[1].args" in refused

    dear = {"tool_calls": [{"tool_name": "evaluate", "args": {"h": 1, "l": 5, "t": 5, "b": 1}}]}
    place.write("p.json", json.dumps(dear))
    out, notes = place.ask("iterate", mission_id, "--proposal", "p.json", code=4)
    assert "status: waiting" in out
    assert f"pursuit iterate {mission_id} --proposal FILE" in notes

    cheap = {"tool_calls": [{"tool_name": "evaluate", "args": {"h": 0.2, "l": 2, "t": 5, "b": 0.2}}]}
    done = json.loads(place.run("iterate", mission_id, "--json", "--proposal", "-", text=json.dumps(cheap)).stdout)
    assert done["status"] == "completed"
    (row,) = done["iterations"]
    assert (row["iteration_index"], row["verdict"], row["verdict_reason"]) == (1, "complete", "criteria_met")
    assert row["calls"][0]["result"]["metrics"]["cost"] == row["metrics"]["cost"]


@pytest.mark.guarantee("a-dead-driver-is-shown")
def test_a_mission_whose_driver_was_killed_is_interrupted_everywhere(place: Place, tmp_path: Path) -> None:
    record = tmp_path / "record"
    place.write("m.toml", recorded(record, steps=3, needed=3, ms=1).replace('"k1", ms = 1', '"k1", ms = 30000'))
    driver = place.begin("run", "m.toml")
    driver.until("iteration 1/3")
    until_marked(record, "k1")
    (row,) = place.json("list")["sessions"]
    mission_id, resume = row["session_id"], f"pursuit resume {row['session_id']}"
    assert (row["status"], "resume" in row) == ("running", False), "another process drives it"
    assert place.json("list", "--status", "interrupted")["sessions"] == []
    assert place.json("status", mission_id)["status"] == place.json("report", mission_id)["status"] == "running"
    following = [place.begin("watch", mission_id, *form, fresh=False) for form in ((), ("--json",))]
    for each in following:
        assert each.answer.get(timeout=60)

    driver.end(signal.SIGKILL)
    lines, rows = (each.end() for each in following)
    assert lines[0] == rows[0] == 0
    assert lines[1].splitlines()[-1] == f"interrupted: no process drives it; resume it with: {resume}"
    last = {"session_id": mission_id, "status": "interrupted", "resume": resume}
    assert json.loads(rows[1].splitlines()[-1]) == last
    assert resume in place.ask("watch", mission_id)[0], "also where it was interrupted long ago"

    answer, note = place.ask("list")
    assert "\tinterrupted\t" in answer and "pursuit resume ID" in note
    for listed in (place.json("list"), place.json("list", "--status", "interrupted")):
        assert [(each["status"], each["resume"]) for each in listed["sessions"]] == [("interrupted", resume)]
    assert place.json("list", "--status", "running")["sessions"] == []
    assert f"status: interrupted\nwhy: no process drives it\nresume: {resume}\n" in place.ask("status", mission_id)[0]
    assert any(resume in text for text in place.seen(100, "status", mission_id))
    report = place.json("report", mission_id)
    assert report["status"] == "interrupted" and resume in report["reason_text"]
    text = place.ask("report", mission_id)[0].replace("\\", "")
    assert "**interrupted**" in text and f"No process drives this mission; resume it with: {resume}" in text
    anyio.run(_interrupted_over_mcp, place.ledger, mission_id)
    assert [each["status"] for each in place.json("resume", "--all", code=3)["missions"]] == ["terminated"]
    assert "resume" not in place.json("status", mission_id)


async def _interrupted_over_mcp(ledger: Path, mission_id: str) -> None:
    runtime = Runtime(state=ledger, config=Configuration())
    async with runtime, mission_server(runtime) as server, Client(server, cache=None) as client:
        known = {"status": "interrupted", "resume": f"pursuit resume {mission_id}"}
        status = await client.call_tool("mission_status", {"session_id": mission_id})
        assert status.structured_content is not None and status.structured_content.items() >= known.items()
        assert known["resume"] in getattr(status.content[0], "text", "")
        for asked in ({}, {"status": "interrupted"}):
            listed = (await client.call_tool("mission_list", asked)).structured_content
            assert listed is not None and [row.items() >= known.items() for row in listed["sessions"]] == [True]
        running = (await client.call_tool("mission_list", {"status": "running"})).structured_content
        assert running == {"sessions": []}
        (content,) = (await client.read_resource(f"mission://{mission_id}")).contents
        assert json.loads(getattr(content, "text", "")).items() >= known.items()
        resources = (await client.list_resources()).resources
        assert any("interrupted" in (resource.description or "") for resource in resources)


def test_a_signal_records_what_was_under_way_and_says_how_to_go_on(place: Place, tmp_path: Path) -> None:
    record = tmp_path / "record"
    place.write("m.toml", recorded(record, steps=3, needed=3, ms=1).replace('"k1", ms = 1', '"k1", ms = 30000'))
    running = place.begin("run", "m.toml", fresh=False)
    running.until("iteration 1/3")
    until_marked(record, "k1")
    returned, out, notes = running.end(signal.SIGTERM)
    assert (returned, out) == (143, "")
    mission_id = place.ask("list")[0].split("\t")[0]
    assert f"pursuit resume {mission_id}" in notes
    stopped = place.json("status", mission_id)
    assert (stopped["status"], stopped["resume"]) == ("interrupted", f"pursuit resume {mission_id}")
    assert place.json("resume", mission_id, code=3)["status"] == "terminated"
    calls = [call for row in place.json("history", mission_id, "--full")["iterations"] for call in row["calls"]]
    assert [call["outcome"] for call in calls] == ["ok", "cancelled", "ok"]
    assert marks(record) == ["k0", "k1", "k2"]


def test_a_mission_that_takes_a_clients_model_says_who_must_drive_it(place: Place) -> None:
    place.write("m.toml", mission(proposer='kind = "sampling"'))
    out, notes = place.ask("start", "m.toml")
    way = "mission_iterate from an MCP client that declares sampling, connected to pursuit serve"
    assert f"run it with: {way}" in notes
    mission_id = out.split()[0]
    out, notes = place.ask("resume", mission_id, code=4)
    assert "waiting for input" in out
    assert f"continue with: {way}" in notes
    assert f"next: {way}" in place.ask("pause", mission_id)[1]


def test_the_operator_is_heard_from_another_process(place: Place, tmp_path: Path) -> None:
    place.write("m.toml", recorded(tmp_path / "record", steps=300, needed=300, ms=100))
    running = place.begin("run", "m.toml", fresh=False)
    running.until("iteration 1/300")
    mission_id = place.ask("list")[0].split("\t")[0]
    conflict = place.json("resume", mission_id, code=2)
    assert conflict["code"] == "conflict"
    assert place.json("pause", mission_id, "--reason", "lunch")["status"] == "paused"
    code, out, notes = running.end()
    assert (code, f"continue with: pursuit resume {mission_id}" in notes) == (4, True)
    assert "status: paused" in out

    running = place.begin("resume", mission_id, fresh=False)
    running.until("iteration")
    watching = place.begin("watch", mission_id, "--json", fresh=False)
    first = json.loads(watching.answer.get(timeout=60))
    assert (first["seq"], first["type"]) == (1, "MissionCreated")
    place.ask("abort", mission_id, "--reason", "enough")
    assert running.end()[0] == 3
    code, rest, _notes = watching.end()
    rows = [json.loads(line) for line in rest.splitlines()]
    assert (code, [row["seq"] for row in rows]) == (0, list(range(2, len(rows) + 2)))
    assert "MissionEnded" in {row["type"] for row in rows[-2:]}
    assert "enough" in place.ask("report", mission_id)[0]


def test_a_reader_that_leaves_changes_nothing(place: Place) -> None:
    place.write("m.toml", mission(target=100))
    done = subprocess.run(
        f"{shlex.join(pursuit())} run m.toml 2>notes | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable=shutil.which("bash"),
        cwd=place.folder,
        env=place.environment,
        timeout=60,
        check=False,
    )
    notes = (place.folder / "notes").read_text(encoding="utf-8")
    assert (done.returncode, "Broken" in notes, "Traceback" in notes) == (0, False, False)


def test_a_terminal_gets_a_panel_while_it_runs_and_a_table_at_the_end(place: Place) -> None:
    place.write("m.toml", mission(target=100, proposer=REPEAT).replace("Poll the beam", "Poll [b]the[/b] beam"))
    code, seen = place.at_terminal("run", "m.toml")
    assert code == 0
    assert "\x1b[32m" not in seen  # NO_COLOR
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    for text in ("asking the servers", "iteration    1 of 2", "budget left", "\u2713 cheap", "Poll [b]the[/b] beam"):
        assert text in seen, text
    assert "why: Every required criterion is met." in seen


def test_several_questions_are_answered_at_once(place: Place, tmp_path: Path) -> None:
    place.write("pursuit.toml", '[policy]\nmode = "ask"\n')
    calls = ", ".join(f'{{ tool_name = "step", args = {{ key = "{key}", ms = 1 }} }}' for key in "abc")
    one = recorded(tmp_path / "record", steps=1, needed=1, ms=1)
    place.write("m.toml", re.sub(r"proposals = .*", f"proposals = [{{ tool_calls = [{calls}] }}]", one))
    assert "raise a cap" not in place.ask("run", "m.toml", code=4)[1]
    first, *_rest = (row["approval_id"] for row in place.json("approvals")["approvals"])
    out, notes = place.ask("approve", first, "approval-0000000000000000", code=2)
    assert "approved: world.step" in out and "approval-0000000000000000" in notes
    assert "was already answered: once" in place.ask("deny", first, code=2)[1]
    denied = place.json("deny", "--mission", "last", "--reason", "enough")["approvals"]
    assert [row["answer"] for row in denied] == ["denied", "denied"]
    assert place.json("approve", "--all") == {"approvals": []}
    assert place.json("resume", "last")["status"] == "completed"
    assert marks(tmp_path / "record") == ["a"]
    answers = [(row["answer"], row.get("why")) for row in place.json("report", "last")["approvals"]]
    assert sorted(answers, key=str) == [("denied", "enough"), ("denied", "enough"), ("once", None)]


def test_resume_all_keeps_the_mode_of_each_mission(place: Place, tmp_path: Path) -> None:
    place.write("pursuit.toml", '[policy]\nmode = "ask"\n')
    record = tmp_path / "record"
    place.write("m.toml", recorded(record, steps=3, needed=2, ms=1).replace('"k1", ms = 1', '"k1", ms = 30000'))
    driver = place.begin("run", "m.toml", "--mode", "auto", fresh=False)
    until_marked(record, "k1")
    driver.end(signal.SIGTERM)
    told, notes = place.ask("resume", "--all")
    assert re.search(r"^mission-\w+: policy mode auto, as at the start; --mode changes it$", notes, re.MULTILINE)
    assert ("completed" in told, marks(record)) == (True, ["k0", "k1", "k2"])


NAPPING = """
directive = "Sleep well"
tool_allowlist = ["commands.nap"]
criteria = [{ criterion_id = "slept", kind = "tool_call_succeeded", tool_name = "commands.nap", min_count = 2 }]
budget = { max_iterations = 2, max_wall_clock_seconds = 1.2 }
proposer = { kind = "repeat", tool_name = "commands.nap" }
"""


@pytest.mark.guarantee("the-wall-clock-counts-commands")
def test_the_wall_clock_counts_a_command_and_cancels_it_at_the_cap(place: Place) -> None:
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n[commands.nap]\nargv = ["sleep", "5"]\n')
    place.write("m.toml", NAPPING)
    ended = place.json("run", "m.toml", code=3)
    assert (ended["verdict_reason"], ended["iteration_count"]) == ("max_wall_clock", 1)
    assert 1.2 <= ended["budget"]["used"]["wall_clock_seconds"] < 5
    (row,) = place.json("history", ended["session_id"], "--full")["iterations"]
    assert [(call["outcome"], call["error"]) for call in row["calls"]] == [
        ("cancelled", "max_wall_clock_seconds is used up")
    ]
    assert [task["status"] for task in place.json("task", "list")["tasks"]] == ["cancelled"]
    report = place.json("report", ended["session_id"])
    assert report["budget"] == ended["budget"], "the report and the screen show one number"


@pytest.mark.guarantee("the-wall-clock-counts-commands")
@pytest.mark.parametrize("more", ["", "timeout = 60\n"], ids=["mission", "command"])
def test_a_command_that_ended_while_nobody_looked_ended_in_time(
    more: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n[commands.nap]\nargv = {json.dumps(argv)}\n{more}')
    limit = "" if more else ", max_wall_clock_seconds = 60"
    place.write(
        "m.toml", NAPPING.replace("min_count = 2", "min_count = 1").replace(", max_wall_clock_seconds = 1.2", limit)
    )
    driver = place.begin("run", "m.toml")
    until(lambda: [row["status"] for row in place.json("list")["sessions"]] == ["waiting"])
    driver.end(signal.SIGKILL)
    place.write("go", "")
    until(lambda: any(place.folder.glob(".pursuit/tasks/task-*/exit")))
    Hands(monkeypatch).forward(600)
    used = place.json("status", "last")["budget"]["used"]["wall_clock_seconds"]
    ended = place.json("resume", "last")
    assert ended["status"] == "completed" and 0 < used < 60
    assert ended["budget"]["used"]["wall_clock_seconds"] < 60
    (row,) = place.json("history", "last", "--full")["iterations"]
    assert [(call["outcome"], call["seconds"] < 60) for call in row["calls"]] == [("ok", True)]
    assert place.json("verify")["ok"]


def test_a_run_that_reached_its_goal_is_running_in_every_tool(place: Place) -> None:
    place.write("m.toml", mission(iterations=3))
    mission_id = place.json("start", "m.toml")["session_id"]
    place.json("iterate", mission_id)
    (row,) = place.json("list")["sessions"]
    status = place.json("status", mission_id)
    for shown in (row, status):
        assert (shown["status"], shown["next"], "resume" in shown) == ("running", "mission_iterate", False)
    assert place.json("list", "--status", "interrupted")["sessions"] == []
    goal = f"why: its last run reached its goal\nresume: pursuit resume {mission_id}\n"
    assert goal in place.ask("status", mission_id)[0]
