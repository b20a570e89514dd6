"""A command, a check and a judge get few of our variables, and what is stored of them holds no secret."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from mission_files import IDLE, mission_file
from workspace import Victim, judged, problem

SECRET = "hunter2-of-the-operator"
SHOW = ["sh", "-c", "echo GOT=${OPERATORS_KEY-nothing}"]
TEMPLATE = [word.replace("{", "{{").replace("}", "}}") for word in SHOW]
COMMAND = f"[commands.show]\nargv = {json.dumps(TEMPLATE)}\n"
CHECK = f"[checks.show]\ncommand = {json.dumps(SHOW)}\n"


@pytest.fixture
def operator(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """One who trusts the folder, and has a key in the environment."""
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    monkeypatch.setenv("OPERATORS_KEY", SECRET)
    return victim


def output_of(operator: Victim) -> str:
    """What the command `show` printed."""
    code, said = operator.run("task", "run", "show")
    assert code == 0, said
    return operator.run("task", "tail", re.findall("task-[0-9a-f]+", said)[0])[1]


def stored(folder: Path) -> bytes:
    """Everything that is kept of missions and tasks."""
    return b"".join(path.read_bytes() for path in (folder / ".pursuit").rglob("*") if path.is_file())


@pytest.mark.guarantee("a-command-gets-few-variables")
def test_a_command_does_not_get_our_key(operator: Victim) -> None:
    operator.write("pursuit.toml", COMMAND)
    assert "GOT=nothing" in output_of(operator)


def mission_with(**check: object) -> str:
    """A mission whose check sees no key."""
    unseen = {"criterion_id": "c", "kind": "check", "expect": {"text": "GOT=nothing"}, **check}
    return mission_file("commands.show", unseen, proposer=IDLE)


@pytest.mark.parametrize("check", [{"check": "show"}, {"command": SHOW}], ids=["named", "of the file"])
def test_a_check_does_not_get_our_key(operator: Victim, check: dict[str, object]) -> None:
    operator.write("pursuit.toml", COMMAND + CHECK)
    operator.write("m.toml", mission_with(**check))
    code, said = operator.run("run", "m.toml")
    assert code == 0, said
    assert SECRET.encode() not in stored(operator.folder)


GIVES = [
    ("by a glob", "", 'inherit_env = ["OPERATORS_*"]\n'),
    ("all", "", "inherit_env = true\n"),
    ("all, for each command", "inherit_env = true\n", ""),
    ("as a variable", "", 'env = { OPERATORS_KEY = "${OPERATORS_KEY}" }\n'),
    ("as env:", "", 'env = { OPERATORS_KEY = "${env:OPERATORS_KEY}" }\n'),
    ("as file:", "", 'env = { OPERATORS_KEY = "${file:~/key}" }\n'),
    ("as keyring:", "", 'env = { OPERATORS_KEY = "${keyring:pursuit-tests/me}" }\n'),
]


@pytest.mark.parametrize(("top", "own"), [pytest.param(*rest, id=name) for name, *rest in GIVES])
def test_a_command_gets_what_the_operator_says_and_its_output_is_redacted(
    operator: Victim, monkeypatch: pytest.MonkeyPatch, top: str, own: str
) -> None:
    (operator.home / "key").write_text(SECRET + "\n")
    if "keyring" in own:
        pytest.importorskip("keyring").set_keyring(_keyring())
    operator.write("pursuit.toml", top + COMMAND + own)
    assert "GOT=***" in output_of(operator)
    assert SECRET.encode() not in stored(operator.folder)


def _keyring() -> object:
    from keyring.backend import KeyringBackend

    class OfTheTest(KeyringBackend):
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            return SECRET if (service, username) == ("pursuit-tests", "me") else None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

        def delete_password(self, service: str, username: str) -> None:
            raise NotImplementedError

    return OfTheTest()


NOWHERE = [
    ("${UNSET_NAME}", "${UNSET_NAME}"),
    ("${env:UNSET_NAME}", "${UNSET_NAME}"),
    ("${file:/no/such/file}", "No such file"),
    ("${file:relative}", "absolute path"),
    ("${file:/}", "Is a directory"),
    ("${keyring:alone}", "keyring:SERVICE/NAME"),
]


@pytest.mark.parametrize(("reference", "reason"), NOWHERE)
def test_a_reference_that_leads_nowhere_is_a_fault(operator: Victim, reference: str, reason: str) -> None:
    operator.write("pursuit.toml", f"{COMMAND}env = {{ KEY = '{reference}' }}\n")
    code, said = operator.run("task", "run", "show")
    assert (code, "commands.show.env.KEY" in said, reason in said) == (2, True, True), said


def test_a_value_is_not_expanded_again(operator: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of a stranger cannot make us read a file."""
    (operator.home / "key").write_text(SECRET)
    monkeypatch.setenv("FROM_OUTSIDE", "${file:~/key}")
    operator.write("pursuit.toml", COMMAND + 'env = { OPERATORS_KEY = "${FROM_OUTSIDE}" }\n')
    assert "GOT=${file:~/key}" in output_of(operator).replace("***", "${file:~/key}")
    assert SECRET.encode() not in stored(operator.folder)


def test_a_command_that_fails_names_what_it_did_not_get(operator: Victim) -> None:
    operator.write("pursuit.toml", '[commands.show]\nargv = ["sh", "-c", "exit 3"]\n')
    code, said = operator.run("task", "run", "show")
    assert (code, "not in its environment:" in said, "OPERATORS_KEY" in said) == (3, True, True), said
    assert SECRET not in said


def test_a_check_that_fails_names_what_it_did_not_get(operator: Victim) -> None:
    operator.write("pursuit.toml", COMMAND)
    operator.write("m.toml", mission_with(command=["false"]))
    said = operator.run("run", "m.toml", "--json")[1]
    mission = json.loads(next(line for line in said.splitlines() if line.startswith("{")))["session_id"]
    assert operator.run("export", mission, "-o", "out")[0] == 0
    assert "not_inherited" in (operator.folder / "out").read_text()


def test_the_environment_of_a_judge_is_small(operator: Victim) -> None:
    path = operator.write("problem.toml", problem('echo "{\\"cost\\": ${#OPERATORS_KEY}}"'))
    assert judged(path) == 0


def test_a_running_command_is_stored_without_secrets(operator: Victim) -> None:
    """The record that another process reads it on with, after a crash."""
    ready = operator.folder / "ready"
    argv = ["sh", "-c", f"touch {ready}; exec sleep 60"]
    operator.write(
        "pursuit.toml", f"[commands.show]\nargv = {json.dumps(argv)}\nenv = {{ TOKEN = '${{OPERATORS_KEY}}' }}\n"
    )
    started = operator.process("task", "run", "show", "--detach", "--json")
    assert started.returncode == 0, started.stderr
    task = json.loads(started.stdout)["task_id"]
    try:
        kept = stored(operator.folder)
        assert b"OPERATORS_KEY" not in os.environb.get(b"PATH", b"")
        assert SECRET.encode() not in kept
    finally:
        operator.run("task", "cancel", task)
