"""What a person sees of a language model that does not answer, and how a mission gets another one."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from cli_stage import Place
from model_endpoint import ModelEndpoint, calls, failing
from model_stage import scripted

LOOK = f"[commands.look]\nargv = {json.dumps([sys.executable, '-c', 'print(1)'])}\n"
MISSION = """
directive = "Look"
tool_allowlist = ["commands.look"]
proposer = "openai:gone"
budget = {{ {budget} }}
[[criteria]]
criterion_id = "looked"
kind = "tool_call_succeeded"
tool_name = "commands.look"
"""


def placed(folder: Path, *, budget: str = "max_iterations = 3", asks: bool = False) -> Place:
    place = Place(folder)
    place.write("pursuit.toml", LOOK + ("" if asks else "read_only = true\n"))
    place.write("m.toml", MISSION.format(budget=budget))
    return place


def models(endpoint: ModelEndpoint) -> list[str]:
    return [request["body"]["model"] for request in endpoint.seen]


def test_a_mission_whose_model_is_unknown_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = placed(tmp_path)
    with scripted(monkeypatch, failing(404), calls(("commands__look", {}))) as endpoint:
        status = place.json("run", "m.toml", code=None)
        assert "HTTP 404: " in status["failure"] and "{'" not in status["failure"]
        refused = place.ask("resume", "last", "--model", "opnai:other", code=2)[1]
        assert "model: opnai:other: unknown provider 'opnai'; did you mean 'openai'?" in refused
        assert place.json("resume", "last", "--model", "openai:other")["status"] == "completed"
    assert models(endpoint) == ["gone", "other"]
    assert "--model goes with one mission's ID" in place.ask("resume", "--all", "--model", "a:b", code=2)[1]
    place.write("m.toml", MISSION.format(budget="max_iterations = 1").replace("openai:gone", "client"))
    place.ask("start", "m.toml")
    assert "the proposer is client, not a model" in place.ask("resume", "last", "--model", "openai:other", code=2)[1]


def test_a_pipe_is_told_when_a_model_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = placed(tmp_path)
    with scripted(monkeypatch, failing(503, Retry_After="60"), calls(("commands__look", {}))) as endpoint:
        place.environment |= endpoint.environment
        running = place.begin("run", "m.toml", fresh=False)
        assert "openai:gone: HTTP 503" in running.until("continues at")
        assert "a process drives mission-" in place.ask("resume", "last", "--model", "openai:other", code=2)[1]
        running.end(signal.SIGTERM)
        assert place.json("resume", "last", "--model", "openai:other")["status"] == "completed"
    assert models(endpoint) == ["gone", "other"], "another model need not wait for the first one"


def test_tokens_that_are_too_few_are_not_called_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch):
        text = placed(tmp_path, budget="max_iterations = 3, max_tokens = 100").ask("run", "m.toml", code=3)[0]
    assert "tokens: 0 of 100" in text and "used up" not in text and "too few to continue" in text


def test_an_answered_mission_is_not_interrupted(tmp_path: Path) -> None:
    place = placed(tmp_path, asks=True)
    text = MISSION.format(budget="max_iterations = 1")
    place.write("m.toml", text.replace('"openai:gone"', '{ kind = "repeat", tool_name = "look", args = {} }'))
    mission = place.json("run", "m.toml", code=4)["session_id"]
    place.ask("deny", "--all", "--reason", "no")
    status = place.json("status", "last")
    assert (status["status"], status["resume"]) == ("running", f"pursuit resume {mission}")
    assert f"resume: pursuit resume {mission}" in place.ask("status", "last")[0]
    assert place.json("list")["sessions"][0]["status"] == "running"
    logged = place.ask("logs", "last")[0]
    assert place.ask("watch", "last")[0].splitlines()[-1].startswith("running: no process drives it; resume it with:")
    assert "(terminal): no" in logged and "(terminal) (terminal)" not in logged


@pytest.mark.parametrize(("secret", "broken"), [("plain", True), ("${HOOK}", True), ("whsec_c2VjcmV0", False)])
def test_the_doctor_sees_a_secret_that_signs_nothing(
    secret: str, broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "whsec_=")
    place = Place(tmp_path)
    place.write("pursuit.toml", f'[notify]\nwebhook = "https://127.0.0.1/x"\nsecret = "{secret}"\n')
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    found = place.json("doctor", code=None)["findings"]
    assert any("notify.secret must be whsec_ and Base64" in row["what"] for row in found) is broken
