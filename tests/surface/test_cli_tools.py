"""`pursuit tools`: what every tool may do and why, what a mission would be allowed, and a call by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_stage import SERVERS, Place
from mission_files import calls, mission_file, succeeded
from quick_start import quick

from pursuit.cli.options import read_arguments
from pursuit.cli.tools import spelled_out
from pursuit.errors import ValidationFailed

CONFIG = """
[servers.shop]
command = "__python_executable__"
args = [{workshop}]
env = {{ LOGS = {logs} }}
[servers.old]
command = "nothing-of-this-name"
enabled = false
"""
RULES = """
[[policy.rules]]
decision = "deny"
tool = "step"
arguments = { log = "closed*" }
reason = "that log is closed"
"""


def proposed_by(proposer: object) -> str:
    """A mission in the shop."""
    return mission_file("shop.*", succeeded("step"), proposer=proposer)


MISSION = proposed_by(calls("step", {"log": "closed-1"}))


class Shop(Place):
    """A folder with a quick server whose one tool writes into logs."""

    def __init__(self, folder: Path, more: str = "") -> None:
        super().__init__(folder)
        self.logs = folder / "logs"
        self.logs.mkdir()
        places = {"workshop": json.dumps(str(SERVERS / "workshop.py")), "logs": json.dumps(str(self.logs))}
        self.write("pursuit.toml", CONFIG.format(**places) + more)

    def log(self, name: str) -> list[str]:
        file = self.logs / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_every_tool_is_listed_with_what_it_may_do_and_no_ledger_is_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    found = shop.json("tools")
    (row,) = found["tools"]
    assert (row["name"], row["effect"], row["decision"]) == ("shop.step", "destroys", "ask")
    assert row["why"]["read_only"] == "nothing says otherwise"
    assert (found["mode"], found["failures"], found["disabled"]) == ("ask", {}, ["old"])
    out, notes = shop.ask("tools", "shop")
    assert out.split("\t")[:4] == ["shop.step", "destroys", "alone", "asks first: yes"]
    assert "old is disabled" not in notes
    out, _ = shop.ask("tools", "shop", "--why")
    assert "  destructive: yes (nothing says otherwise)" in out.splitlines()
    assert not shop.ledger.exists()


def test_the_mode_of_the_command_line_overrules_the_configurations(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[policy]\nmode = "never"\n')
    assert shop.json("tools")["tools"][0]["decision"] == "deny"
    found = shop.json("tools", "--mode", "auto")
    assert (found["mode"], found["tools"][0]["decision"]) == ("auto", "allow")


def test_the_operators_word_and_rules_that_look_at_arguments_are_shown(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "[servers.shop.tools.step]\nread_only = true\n" + RULES)
    (row,) = shop.json("tools")["tools"]
    assert (row["effect"], row["decision"], row["why"]["read_only"]) == ("reads", "allow", "your configuration")
    assert row["when"] == [{"decision": "deny", "arguments": {"log": "closed*"}, "reason": "that log is closed"}]
    out, _ = shop.ask("tools", "--why")
    assert "asks first: no*" in out
    assert "  deny when log = closed*: that log is closed" in out.splitlines()


def test_a_server_that_cannot_be_reached_is_listed_with_the_reason(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[servers.gone]\ncommand = "nothing-of-this-name"\nrequired = true\n')
    found = shop.json("tools", code=1)
    assert [row["name"] for row in found["tools"]] == ["shop.step"]
    assert "was not found" in found["failures"]["gone"]
    out, _ = shop.ask("tools", code=1)
    assert out.splitlines()[-1].startswith("gone\tcannot be reached\t")
    assert shop.json("tools", "gome", code=2)["message"] == "server 'gome' is not configured; did you mean 'gone'?"
    assert "is disabled" in shop.json("tools", "old", code=2)["message"]


def test_a_dry_run_shows_what_a_mission_would_be_allowed(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[policy]\nmode = "auto"\n' + RULES)
    shop.write("m.toml", MISSION)
    found = shop.json("tools", "--mission", "m.toml")
    assert [(row["name"], row["decision"]) for row in found["tools"]] == [("shop.step", "allow")]
    assert found["calls"] == [
        {"name": "shop.step", "args": {"log": "closed-1"}, "decision": "deny", "reason": "that log is closed"}
    ]
    shop.write("m.toml", MISSION + '[policy]\nmode = "ask"\n')
    assert shop.json("tools", "--mission", "m.toml")["tools"][0]["decision"] == "ask"
    shop.write("m.toml", MISSION + '[policy]\nask = ["step"]\n')
    out, _ = shop.ask("tools", "--mission", "m.toml")
    assert "the mission's policy says ask (step)" in out.splitlines()[0]
    assert out.splitlines()[1].startswith("call shop.step")
    shop.write("m.toml", MISSION + '[policy]\nask = ["stp"]\n')
    shop.write("taken.toml", MISSION + '[servers.shop]\ncommand = "x"\n')
    refused = shop.json("tools", "--mission", "taken.toml", code=2)
    assert refused["details"]["faults"][0]["field"] == "servers.shop", "a mission brings servers under other names only"
    refused = shop.json("tools", "--mission", "m.toml", code=2)
    assert [fault["field"] for fault in refused["details"]["faults"]] == ["policy.ask[0]"]
    assert shop.json("tools", "shop", "--mission", "m.toml", code=2)["code"] == "invalid_argument"
    assert not shop.ledger.exists()
    assert not list(shop.logs.iterdir())


def test_a_rule_that_allows_everything_does_not_mean_the_servers_of_a_mission_file(tmp_path: Path) -> None:
    server = f"""
[servers.shop]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "workshop.py"))}]
env = {{ LOGS = {json.dumps(str(tmp_path))} }}
"""
    place = Place(tmp_path)
    place.write("m.toml", MISSION + server)
    for rule, brought, decision in (("", "", "ask"), ('server = "shop"\n', "", "allow"), ("", server, "allow")):
        place.write("pursuit.toml", f'[[policy.rules]]\ndecision = "allow"\n{rule}{brought}')
        (row,) = place.json("tools", "--mission", "m.toml")["tools"]
        assert (row["name"], row["decision"]) == ("shop.step", decision)
    place.write("pursuit.toml", '[[policy.rules]]\ndecision = "allow"\n')
    assert place.json("run", "m.toml", code=None)["waiting_for"] == "approval"


def test_a_mission_file_does_not_vouch_for_its_own_server(tmp_path: Path) -> None:
    kind = "trust_annotations = true\n[servers.shop.tools.step]\nread_only = true\n"
    server = f"""
[servers.shop]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "workshop.py"))}]
env = {{ LOGS = {json.dumps(str(tmp_path))} }}
{kind}"""
    place = Place(tmp_path)
    place.write("pursuit.toml", "")
    place.write("m.toml", MISSION + server)
    (row,) = place.json("tools", "--mission", "m.toml")["tools"]
    assert (row["effect"], row["decision"]) == ("destroys", "ask")
    assert row["why"]["read_only"] == "the mission file cannot loosen this"
    assert place.json("run", "m.toml", code=None)["waiting_for"] == "approval"
    # The same server in the configuration is the operator's word.
    place.write("pursuit.toml", server)
    (row,) = place.json("tools", "--mission", "m.toml")["tools"]
    assert (row["effect"], row["decision"]) == ("reads", "allow")
    assert place.json("run", "m.toml")["status"] == "completed"


def test_a_call_obeys_schema_and_policy_and_is_in_the_audit(tmp_path: Path) -> None:
    shop = Shop(tmp_path, RULES)
    wrong = shop.json("tools", "call", "shop.step", "--arg", "log=NO", "--arg", "ms=x", code=2)
    assert len(wrong["details"]["faults"]) == 2
    asked = shop.json("tools", "call", "shop.step", "--arg", "log=a", code=4)
    assert asked["code"] == "approval_needed"
    assert asked["message"].endswith("--yes (-y) approves it")
    assert "step of server shop" in asked["details"]["question"]
    denied = shop.json("tools", "call", "shop.step", "--arg", "log=closed-1", "-y", code=2)
    assert (denied["code"], "that log is closed" in denied["message"]) == ("policy_denied", True)
    assert (
        shop.json("tools", "call", "shop.step", "--arg", "log=a", "--mode", "never", "-y", code=2)["code"]
        == "policy_denied"
    )
    assert not shop.log("a")
    done = shop.json("tools", "call", "shop.step", "--arg", "log=a", "--arg", "key=k1", "--yes")
    assert done["content"] or done["structuredContent"]
    assert shop.log("a") == ["begun k1", "done k1"]
    shop.ask("tools", "call", "step", "--args-json", '{"log": "a", "key": "k2"}', "--mode", "auto")
    assert shop.log("a")[2:] == ["begun k2", "done k2"]
    lines = shop.json("audit")["audit"]
    assert [line["verb"] for line in lines] == ["tools call"] * 6
    assert [line.get("refused", {}).get("code") for line in lines] == [
        "validation_error", "approval_needed", "policy_denied", "policy_denied", None, None
    ]  # fmt: skip
    assert lines[4]["arguments"] == {"tool": "shop.step"}


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    shop = Shop(tmp_path, '[servers.gone]\ncommand = "nothing-of-this-name"\n')
    assert "did you mean 'shop.step'" in shop.json("tools", "call", "shop.stp", code=2)["message"]
    assert shop.json("tools", "call", "gone.x", code=1)["code"] == "upstream_unavailable"


def test_an_error_of_the_tool_is_exit_code_1(tmp_path: Path) -> None:
    fixture = json.dumps(quick(str(SERVERS / "fixture.py")))
    place = Place(tmp_path).configured()
    place.write("pursuit.toml", f'[servers.f]\ncommand = "__python_executable__"\nargs = [{fixture}]\n')
    out, notes = place.ask("tools", "call", "f.fail", "-y", code=1)
    assert out == "it did not work\n"
    assert "returned an error" in notes
    assert place.json("tools", "call", "f.fail", "-y", code=1)["isError"] is True


def test_a_person_at_the_terminal_is_asked(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for typed, code in (("n\n", 2), ("y\n", 0)):
        got, seen = shop.at_terminal("tools", "call", "shop.step", "--arg", "log=a", typed=typed)
        assert got == code, seen
        assert "step of server shop (may destroy things)" in seen
        assert bool(shop.log("a")) is (code == 0)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], ["list"]),
        (["git"], ["list", "git"]),
        (["--why", "git"], ["list", "--why", "git"]),
        (["--mode", "auto"], ["list", "--mode", "auto"]),
        (["call", "x"], ["call", "x"]),
        (["--json", "call", "x"], ["--json", "call", "x"]),
        (["--config", "call", "git"], ["list", "--config", "call", "git"]),
        (["--config=a", "--state", "b", "list"], ["--config=a", "--state", "b", "list"]),
        (["--help"], ["--help"]),
    ],
)
def test_the_command_that_is_meant(words: list[str], meant: list[str]) -> None:
    assert spelled_out(words, ("list", "call")) == meant


def test_arguments_are_json_where_that_parses() -> None:
    pairs = ["a=1", "b=true", "c=text", 'd={"x": [null]}', "e=", "f=a=b", 'g="1"', "h=1 2", "i=NaN"]
    expected: dict[str, Any] = {
        "a": 1, "b": True, "c": "text", "d": {"x": [None]}, "e": "", "f": "a=b", "g": "1", "h": "1 2", "i": "NaN"
    }  # fmt: skip
    assert read_arguments(pairs, '{"a": 0, "z": 9}') == {**expected, "z": 9}
    with pytest.raises(ValidationFailed) as caught:
        read_arguments(["a", "=1", "b=1", "b=2"], "[]")
    assert len(caught.value.faults) == 4
