"""`pursuit doctor` finds what is wrong with an installation and says how to mend it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_stage import SERVERS, Place, mission

from pursuit.config.servers import ServerConfig
from pursuit.policy.rules import NetworkRules
from pursuit.service.doctor import server_findings

WORKSHOP = f"""
[servers.shop]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "workshop.py"))}]
env = {{ LOGS = "." }}
"""
KNOWN = "[servers.shop.tools.step]\nidempotent = true\n"


def findings(place: Place, *, code: int = 0) -> list[dict[str, str]]:
    found = place.json("doctor", code=code)
    assert found["ok"] is (code == 0)
    assert all(row.get("mend") for row in found["findings"] if row["level"] != "ok"), "each finding says how to mend it"
    return found["findings"]


def levels(rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(row["level"], row["about"]) for row in rows]


def one(rows: list[dict[str, str]], level: str, words: str) -> dict[str, str]:
    (row,) = [row for row in rows if row["level"] == level and words in row["what"]]
    return row


def test_a_sound_installation(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", WORKSHOP + KNOWN)
    rows = findings(place)
    assert rows.pop()["about"] == "isolation"  # which the machine has or has not
    assert levels(rows) == [("ok", "configuration"), ("ok", "server shop"), ("ok", "models"), ("ok", "ledger")]
    assert rows[1]["what"].startswith("1 tools, MCP 2025-11-25, ")
    assert "not there yet" in rows[3]["what"]
    assert not place.ledger.exists()
    out, _ = place.ask("doctor")
    assert out.splitlines()[0].startswith("ok\tconfiguration\t")


def test_keys_of_language_models_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", WORKSHOP + KNOWN)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "needs ANTHROPIC_API_KEY or OPENAI_API_KEY" in findings(place)[2]["what"]
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    assert findings(place)[2]["what"] == "keys in the environment: anthropic"
    place.write("pursuit.toml", 'model = "openai:gpt-5-mini"\n' + WORKSHOP + KNOWN)
    assert "OPENAI_API_KEY" in one(findings(place, code=1), "broken", "openai:gpt-5-mini")["what"]
    place.write("pursuit.toml", 'model = "anthropic:claude-haiku-4-5"\n' + WORKSHOP + KNOWN)
    assert "can be asked" in findings(place)[2]["what"]


def test_without_a_configuration_there_is_a_word_on_how_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURSUIT_STATE", str(tmp_path / "ledger.db"))
    rows = findings(Place(tmp_path))
    assert "pursuit init" in one(rows, "warning", "no pursuit.toml")["mend"]


def test_all_faults_of_a_configuration_are_found(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", '[servers.a]\ncomand = "x"\n[settings]\ncall_timeout = -1\n[policy]\nmode = "off"\n')
    rows = [row for row in findings(place, code=1) if row["level"] == "broken"]
    assert len(rows) == 4
    assert all(row["about"] == "configuration" for row in rows)


def test_servers_that_cannot_be_reached_say_why(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(
        "pursuit.toml",
        WORKSHOP
        + KNOWN
        + """
[servers.unset]
command = "__python_executable__"
env = { TOKEN = "${NOT_SET_ANYWHERE}" }
[servers.npx]
command = "npx"
env = { PATH = "/nowhere" }
[servers.dies]
command = "__python_executable__"
args = ["-c", "import sys; sys.exit('no licence')"]
[servers.off]
command = "__python_executable__"
enabled = false
""",
    )
    rows = findings(place, code=1)
    assert "${NAME:-default}" in one(rows, "broken", "${NOT_SET_ANYWHERE} in env.TOKEN")["mend"]
    assert "Node.js" in one(rows, "broken", "'npx' was not found")["mend"]
    assert one(rows, "broken", "no licence")["about"] == "server dies"
    assert one(rows, "note", "is disabled")["about"] == "server off"
    assert ("ok", "server shop") in levels(rows)


def test_what_may_surprise_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(
        "pursuit.toml",
        WORKSHOP
        + """
[servers.shop.tools.stpe]
read_only = true
[policy]
mode = "auto"
[[policy.rules]]
decision = "deny"
tool = "stepp"
""",
    ).chmod(0o600)
    entry: dict[str, Any] = {"command": "__python_executable__", "args": ["-c", ""], "disabled": True}
    secret = {**entry, "env": {"API_TOKEN": "hunter2-in-plain"}, "alwaysAllow": ["x"]}
    place.write("mcp.json", json.dumps({"mcpServers": {"other": secret}})).chmod(0o644)
    rows = findings(place)
    assert one(rows, "warning", "servers.shop.tools.stpe")["what"].endswith("did you mean 'step'?")
    assert "says nothing about step" in one(rows, "warning", "says nothing")["what"]
    assert "rule 1" in one(rows, "warning", "is about no tool")["what"]
    assert one(rows, "note", "mode auto")["about"] == "policy"
    assert "policy" in one(rows, "note", "mcpServers.other.alwaysAllow")["mend"]
    told = one(rows, "warning", "holds a secret (servers.other.env.API_TOKEN)")
    assert "mcp.json" in told["mend"]
    assert "hunter2" not in json.dumps(rows)
    place.folder.joinpath("mcp.json").chmod(0o600)
    assert not [row for row in findings(place) if "holds a secret" in row["what"]]


def test_annotations_that_are_not_believed_are_a_note(tmp_path: Path) -> None:
    place = Place(tmp_path)
    beam = '[servers.beam]\ncommand = "__python_executable__"\nargs = ["-m", "pursuit.demo.welded_beam"]\n'
    place.write("pursuit.toml", beam)
    rows = findings(place)
    assert "trust_annotations = true" in one(rows, "note", "is not believed")["mend"]
    place.write("pursuit.toml", beam + "trust_annotations = true\n")
    assert {row["level"] for row in findings(place)} <= {"ok", "warning"}  # a slow machine earns a warning


@pytest.mark.damaged_ledger("edits the database")
def test_a_ledger_that_was_changed_is_broken(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    place.write("m.toml", mission(target=100))
    place.ask("run", "m.toml")
    assert "intact" in one(findings(place), "ok", "ledger.db")["what"]
    with closing(sqlite3.connect(place.ledger)) as connection, connection:
        connection.execute("UPDATE events SET body = replace(body, 'beam', 'bean') WHERE seq = 1")
    connection.close()
    rows = [row for row in findings(place, code=1) if row["level"] == "broken"]
    assert rows
    assert all(row["about"] == "ledger" for row in rows)


@pytest.mark.parametrize(
    ("url", "level", "words"),
    [
        ("http://198.51.100.7/mcp", "warning", "plain http"),
        ("http://files.example.com/mcp", "warning", "plain http"),
        ("http://denied.example.org/mcp", "broken", "deny denied.example.org"),
        ("ftp://files.example.com", "broken", "malformed"),
        ("http://[", "broken", "malformed"),
        ("http://127.0.0.1:8000/mcp", None, ""),
        ("http://localhost/mcp", None, ""),
        ("https://files.example.com/mcp", None, ""),
    ],
)
def test_addresses_are_looked_at_before_they_are_spoken_to(url: str, level: str | None, words: str) -> None:
    server = ServerConfig(name="web", transport="http", url=url)
    found = server_findings("web", server, NetworkRules(deny=[".example.org"]), {})
    assert [(one.level, words in one.what) for one in found] == ([] if level is None else [(level, True)])
