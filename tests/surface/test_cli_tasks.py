"""`pursuit task`: commands run, left, found again, stopped, from any process on the same state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place, until
from process_ends import lives
from quick_start import pursuit

COMMANDS = """
[commands.count]
title = "Count"
argv = ["sh", "-c", 'for i in $(seq "$0"); do echo "unit $i"; done; echo oops >&2; exit "$1"', "{units}", "{code}"]
unit_pattern = 'unit (\\d+)'
failure_pattern = "oops"
total = "{units}"
disclaimer = "It is only counting."
env = { HUB_TOKEN = "${HUB_TOKEN:-sesame-street}" }
[commands.count.parameters]
units = { type = "integer", minimum = 1 }
code = { type = "integer", default = 0 }
[commands.late]
argv = ["sleep", "3600"]
timeout = 0.3
[commands.unset]
argv = ["true"]
env = { A = "${PURSUIT_TEST_NOT_SET}" }
"""
LINGER = 'echo "here $$"; sleep 3600'


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.write("pursuit.toml", COMMANDS)
    return place


def newest(place: Place) -> dict[str, Any]:
    return place.json("task", "list")["tasks"][0]


@pytest.mark.guarantee("the-commands-own-exit-code")
@pytest.mark.parametrize(("script", "code", "status"), [
    ("exit 0", 0, "completed"), ("exit 7", 7, "failed"), ("kill -9 $$", 137, "failed"), ("kill -15 $$", 143, "failed"),
])  # fmt: skip
def test_the_exit_code_is_the_commands_own(place: Place, script: str, code: int, status: str) -> None:
    told = place.json("task", "run", "--json", "--", "sh", "-c", f"echo out; echo err >&2; {script}", code=None)
    assert (told["status"], told["exit_code"]) == (status, code)
    out, _ = place.ask("task", "wait", told["task_id"], code=code)
    assert f"status: {status}" in out
    assert (code == 0) or "stderr: err" in out
    assert sorted(place.ask("task", "tail", told["task_id"])[0].split()) == ["err", "out"]


def test_a_configured_command_counts_and_tells_why_it_failed(place: Place) -> None:
    told = place.json("task", "run", "count", "--arg", "units=3", "--arg", "code=4", code=4)
    assert (told["title"], told["units_done"], told["units_total"]) == ("Count", 3, 3)
    found = told["result"]["structuredContent"]
    assert (found["failure_lines"], found["disclaimer"]) == (["oops"], "It is only counting.")
    out, _ = place.ask("task", "run", "count", "--args-json", '{"units": 2}')
    assert "units: 2/2" in out and "status: completed" in out


@pytest.mark.guarantee("wrong-tasks-start-nothing")
@pytest.mark.parametrize(("words", "code", "said"), [
    (["count"], "validation_error", ["units"]),
    (["count", "--arg", "units=x", "--arg", "cod=1"], "validation_error", ["units", "cod"]),
    (["count", "--title", "x", "--cwd", ".", "--arg", "units=1"], "validation_error", ["--title", "--cwd"]),
    (["cuont"], "invalid_argument", ["did you mean 'count'"]),
    (["unset"], "validation_error", ["commands.unset.env.A"]),
    (["count", "more"], "validation_error", ["put -- before"]),
    (["--", "no-such-program-here"], "validation_error", ["was not found in PATH"]),
    (["--", "cat", "../secret"], "path_traversal_detected", ["../secret"]),
    (["--", "cat", "--from=../secret"], "path_traversal_detected", ["--from=../secret"]),
    (["--units", "(", "--cwd", "nowhere", "--", "true"], "validation_error", ["--units", "cwd"]),
    (["--env", "A", "--", "true"], "validation_error", ["--env A"]),
    (["--arg", "a=1", "--", "true"], "validation_error", ["--arg"]),
    (["--total", "-3", "--", "true"], "validation_error", ["--total"]),
])  # fmt: skip
def test_what_is_wrong_starts_nothing(place: Place, words: list[str], code: str, said: list[str]) -> None:
    told = (
        place.json("task", "run", "--json", *words, code=2)
        if "--" in words
        else place.json("task", "run", *words, code=2)
    )
    assert told["code"] == code
    assert [word for word in said if word not in json.dumps(told)] == []
    assert place.json("task", "list")["tasks"] == []


def test_ids_that_are_wrong(place: Place) -> None:
    first, second = (place.json("task", "run", "--json", "--", "true")["task_id"] for _ in range(2))
    assert place.json("task", "show", first.removeprefix("task-"))["task_id"] == first
    shared = next(place for place in range(len(first)) if first[place] != second[place])
    assert place.json("task", "show", first[:shared], code=2)["code"] == "invalid_argument"
    assert place.json("task", "show", "f" * 32, code=2)["code"] == "task_not_found"
    assert place.json("task", "show", "../x", code=2)["code"] == "invalid_argument"
    assert place.json("task", "cancel", first, code=2)["code"] == "task_terminal"
    assert place.json("task", "list", "--status", "workin", code=2)["code"] == "invalid_argument"
    assert place.json("task", "list", "--cursor", "bogus", code=2)["code"] == "invalid_argument"
    assert place.json("task", "prune", "--older-than", "soon", code=2)["code"] == "invalid_argument"


@pytest.mark.guarantee("a-task-goes-on-alone")
def test_a_detached_command_is_found_again_with_its_real_exit_code(place: Place) -> None:
    os.mkfifo(place.folder / "gate")
    done = place.run(
        "task", "run", "--detach", "--", "sh", "-c", "echo one; read x < gate; echo two; exit 5", fresh=True
    )
    task_id = done.stdout.strip()
    told = place.json("task", "wait", "--timeout", "0.2", task_id, code=4)
    assert (told["task_id"], told["status"]) == (task_id, "working")
    (place.folder / "gate").write_text("go\n", encoding="utf-8")
    ended = place.json("task", "wait", task_id, code=5)
    assert (ended["status"], ended["exit_code"]) == ("failed", 5)
    assert place.json("task", "tail", task_id)["lines"] == ["one", "two"]


@pytest.mark.guarantee("a-task-goes-on-alone")
def test_killed_the_command_goes_on_and_ends_as_it_ends(place: Place) -> None:
    os.mkfifo(place.folder / "gate")
    running = place.begin("task", "run", "--", "sh", "-c", 'echo "here $$"; read x < gate; echo two; exit 5')
    running.until("here")
    running.end(signal.SIGKILL)
    task_id = newest(place)["task_id"]
    waiting = place.begin("task", "tail", "-f", task_id, fresh=False)
    (place.folder / "gate").write_text("go\n", encoding="utf-8")
    code, out, _ = waiting.end()
    assert code == 0 and out.split()[-1] == "two"
    ended = place.json("task", "wait", task_id, code=5)
    assert (ended["status"], ended["exit_code"]) == ("failed", 5)


def test_ctrl_c_stops_it_with_all_its_processes(place: Place) -> None:
    running = place.begin("task", "run", "--", "sh", "-c", LINGER)
    pid = int(running.until("here").split()[-1])
    code, out, _ = running.end(signal.SIGINT)
    assert code == 130 and "status: cancelled" in out
    assert not lives(pid)
    assert newest(place)["status"] == "cancelled"


@pytest.mark.guarantee("cancel-ends-the-tree")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a daemon is not found: docs/tasks.md")
def test_cancel_ends_a_daemon_without_an_environment(place: Place) -> None:
    daemon = "env -i setsid sh -c 'echo $$ > new; mv new daemon; exec sleep 600' > /dev/null 2>&1 < /dev/null"
    script = f"({daemon} &); while [ ! -e daemon ]; do sleep 0.01; done; echo here; sleep 600"
    running = place.begin("task", "run", "--", "sh", "-c", script)
    running.until("here")
    pid = int((place.folder / "daemon").read_text())
    try:
        assert place.json("task", "cancel", newest(place)["task_id"])["status"] == "cancelled"
        assert not lives(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        running.end(None)


def test_whoever_reads_a_tail_may_leave(place: Place) -> None:
    script = "i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.02; done"
    task_id = place.ask("task", "run", "-d", "--", "sh", "-c", script)[0].strip()
    tail = subprocess.Popen(
        [*pursuit(), "task", "tail", "-f", task_id],
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout is not None and tail.stderr is not None
    try:
        with tail.stdout, tail.stderr:
            assert tail.stdout.readline().startswith(b"line ")
            tail.stdout.close()
            assert (tail.wait(timeout=60), tail.stderr.read()) == (0, b"")
        assert newest(place)["status"] == "working"
    finally:
        assert place.json("task", "cancel", task_id)["status"] == "cancelled"


def test_a_second_ctrl_c_leaves_and_says_how_to_end_what_does_not_stop(place: Place) -> None:
    deaf = place.write("deaf", "")
    script = "trap '' TERM; echo \"here $$\"; while [ -e deaf ]; do sleep 0.1; done"
    running = place.begin("task", "run", "--grace", "300", "--", "sh", "-c", script)
    pid = int(running.until("here").split()[-1])
    running.process.send_signal(signal.SIGINT)
    task_id = running.until("press again").split()[1].rstrip(";")
    code, _, notes = running.end(signal.SIGINT)
    assert code == 130 and f"pursuit task cancel {task_id}" in notes
    assert lives(pid)
    ending = place.begin("task", "cancel", task_id, "--reason", "enough", fresh=False)
    until(lambda: "enough" in json.dumps(place.json("audit")))
    assert lives(pid)
    deaf.unlink()
    code, out, _ = ending.end()
    assert code == 0 and "status: cancelled" in out
    assert not lives(pid)


def test_closing_the_terminal_leaves_it_and_cancel_ends_it_from_elsewhere(place: Place) -> None:
    running = place.begin("task", "run", "--", "sh", "-c", LINGER)
    pid = int(running.until("here").split()[-1])
    assert running.end(signal.SIGHUP)[0] == 129
    task = newest(place)
    assert task["status"] == "working" and lives(pid)
    assert place.json("task", "prune", "--keep", "0") == {"removed": []}
    ended = place.json("task", "cancel", task["task_id"], "--reason", "enough")
    assert ended["status"] == "cancelled" and not lives(pid)
    assert ended["message"].startswith("cancelled after") and ended["message"].endswith(": enough")
    assert place.json("task", "prune", "--keep", "0") == {"removed": [task["task_id"]]}
    assert place.json("task", "list") == {"tasks": []}
    assert list((place.ledger.parent / "tasks").glob("task-*")) == []


def test_a_timeout_of_its_own_fails_it(place: Place) -> None:
    told = place.json("task", "run", "late", code=None)
    assert told["status"] == "failed" and "timeout of 0.3 s" in told["message"]
    result = told["result"]
    assert result["isError"] is True and "cancelled" not in json.dumps(told)
    assert (result["structuredContent"]["status"], result["structuredContent"]["reason"]) == ("failed", told["message"])
    assert told["message"] in result["content"][0]["text"]


def test_secrets_of_the_environment_are_not_told(place: Place) -> None:
    words = ("--", "sh", "-c", 'echo "token $HUB_TOKEN" >&2; exit 1')
    told = place.json("task", "run", "--json", "--env", "HUB_TOKEN=sesame-street", *words, code=1)
    everything = json.dumps(told) + place.ask("task", "tail", told["task_id"])[0] + place.ask("audit")[0]
    assert "sesame-street" not in everything and "token ***" in everything


def test_on_a_terminal_it_shows_how_far_it_is(place: Place) -> None:
    os.mkfifo(place.folder / "gate")
    words = ("task", "run", "--title", "Try", "--units", "u(.)", "--total", "2", "--", "sh", "-c")
    script = "echo u1; read x < gate; echo u2; exit 3"
    code, seen = place.at_terminal(
        *words, script, once="1/2 50%", then=lambda: (place.folder / "gate").write_text("go\n", encoding="utf-8")
    )
    assert code == 3
    assert "1/2 50%" in seen and "━" in seen
    assert "Try" in seen and "exit code 3 after" in seen


def test_the_doctor_knows_which_commands_can_be_started(place: Place) -> None:
    rule = '[[policy.rules]]\ndecision = "deny"\ntool = "commands.count"\n'
    place.write("pursuit.toml", COMMANDS + '[commands.gone]\nargv = ["no-such-program-here"]\ncwd = "nowhere"\n' + rule)
    found = place.json("doctor", code=1)["findings"]
    rows = {(row["about"], row["level"]) for row in found}
    assert {("command count", "ok"), ("command gone", "broken"), ("command unset", "broken")} <= rows
    assert sum(row["about"] == "command gone" for row in found) == 2
    assert not [row for row in found if row["about"] == "policy"]  # the rule is about a tool that is there


def test_the_example_that_init_writes_has_a_command_that_works(place: Place) -> None:
    place.ask("init", "demo")
    text = (place.folder / "demo" / "pursuit.toml").read_text(encoding="utf-8")
    marked = [line for line in text.splitlines() if line.startswith("# ") and ("=" in line or "[" in line)]
    command = "\n".join(line.removeprefix("# ") for line in marked[marked.index("# [commands.count]") :])
    place.write("pursuit.toml", command.replace("sleep 1", "true"))
    assert place.json("task", "run", "count", "--arg", "to=3")["units_done"] == 3


def test_a_program_that_the_system_refuses_fails_and_leaves_nothing(place: Place) -> None:
    place.write("garbage", "\x00\x01").chmod(0o755)
    told = place.json("task", "run", "--json", "--", "./garbage", code=1)
    assert told["status"] == "failed" and "was not started" in told["message"]
    assert place.ask("task", "tail", "-f", told["task_id"])[0] == ""
    assert place.json("task", "prune", "--keep", "0") == {"removed": [told["task_id"]]}
    assert list((place.ledger.parent / "tasks").glob("task-*")) == []
