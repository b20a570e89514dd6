"""`pursuit doctor` finds what is wrong with an installation and says how to mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_stage import SERVERS, Place

from pursuit.config.servers import ServerConfig
from pursuit.policy.rules import NetworkRules
from pursuit.service.doctor import server_findings

pytestmark = pytest.mark.usefixtures("quick_python")

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
    assert "does not exist yet" in rows[3]["what"]
    assert not place.ledger.exists()
    out, _ = place.ask("doctor")
    assert out.splitlines()[0].startswith("ok\tconfiguration\t")


def test_keys_of_language_models_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PURSUIT_STATE", str(tmp_path / "ledger.db"))
        assert "pursuit init" in one(findings(place), "warning", "no pursuit.toml")["mend"]
    place.write("pursuit.toml", "")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert one(findings(place), "ok", "needs ANTHROPIC_API_KEY or OPENAI_API_KEY")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    assert one(findings(place), "ok", "keys in the environment: anthropic")
    place.write("pursuit.toml", 'model = "openai:gpt-5-mini"\n')
    assert "OPENAI_API_KEY" in one(findings(place, code=1), "broken", "openai:gpt-5-mini")["what"]
    place.write("pursuit.toml", 'model = "anthropic:claude-haiku-4-5"\n')
    assert one(findings(place), "ok", "can be used")


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
    secret = {**entry, "env": {"API_TOKEN": "hunter2-in-plain"}}
    place.write("mcp.json", json.dumps({"mcpServers": {"other": secret}})).chmod(0o644)
    rows = findings(place)
    assert one(rows, "warning", "servers.shop.tools.stpe")["what"].endswith("did you mean 'step'?")
    assert "does not annotate step" in one(rows, "warning", "does not annotate")["what"]
    assert "rule 1" in one(rows, "warning", "matches no tool")["what"]
    assert one(rows, "note", "mode auto")["about"] == "policy"
    told = one(rows, "warning", "holds a secret (servers.other.env.API_TOKEN)")
    assert "mcp.json" in told["mend"]
    assert "hunter2" not in json.dumps(rows)
    place.folder.joinpath("mcp.json").chmod(0o600)
    assert not [row for row in findings(place) if "holds a secret" in row["what"]]


def test_annotations_that_are_not_believed_are_a_note(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(
        "pursuit.toml",
        '[servers.beam]\ncommand = "__python_executable__"\nargs = ["-m", "pursuit.demo.welded_beam"]\n',
    )
    assert "trust_annotations = true" in one(findings(place), "note", "are not trusted")["mend"]


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
