"""`pursuit run --plan`: the first proposal and what policy would say to it, with nothing run and nothing stored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from model_endpoint import ModelEndpoint, Reply, calls
from test_cli_tools import MISSION, RULES, Shop, proposed_by

MODEL = proposed_by("openai:gpt-4o-mini")


@pytest.mark.guarantee("plan-runs-nothing")
def test_a_models_first_proposal_is_shown_with_policys_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, RULES)
    shop.write("mission.toml", MODEL)
    wanted = [("shop__step", {"log": "a"}), ("shop__step", {"log": "closed-1"}), ("shop__step", {"no": 1})]
    with ModelEndpoint(calls(*wanted, tokens=(100, 20))) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        found = shop.json("run", "--plan", "mission.toml")
        out, notes = shop.ask("run", "mission.toml", "--plan", "--mode", "auto")
    assert [row["decision"] for row in found["calls"]] == ["ask", "deny", "deny"]
    assert found["calls"][1]["reason"] == "that log is closed"
    assert "no" in found["calls"][2]["reason"], "what is wrong with a call is why it would be refused"
    assert found["used"]["tokens"] == 120
    assert out.splitlines()[0].startswith('shop.step {"log": "a"}: allowed')
    assert out.splitlines()[1].startswith('shop.step {"log": "closed-1"}: denied (that log is closed)')
    assert "nothing was run or stored; the proposal used 120 tokens" in notes
    assert not shop.ledger.exists()
    assert shop.log("a") == []


@pytest.mark.guarantee("plan-runs-nothing")
def test_plans_of_proposers_that_need_no_model(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.write("mission.toml", MISSION)
    (call,) = shop.json("run", "--plan", "mission.toml")["calls"]
    assert (call["name"], call["decision"]) == ("shop.step", "ask")
    shop.write("client.toml", proposed_by("client"))
    assert shop.json("run", "--plan", "client.toml")["waiting_for"] == "proposal"
    shop.write("script.toml", proposed_by({"kind": "script", "script": "shop.step()"}))
    out, _notes = shop.ask("run", "--plan", "script.toml")
    assert out.splitlines()[0] == "shop.step()"
    shop.write("strategy.py", 'import pursuit\n\ndef propose(view):\n    return pursuit.call("shop.step", log="b")\n')
    shop.write("python.toml", proposed_by({"kind": "python", "callable": "strategy.py:propose"}))
    (call,) = shop.json("run", "--plan", "python.toml")["calls"]
    assert (call["name"], call["args"]) == ("shop.step", {"log": "b"})
    assert not shop.ledger.exists()


def test_a_model_that_proposes_nothing_that_can_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    shop.write("mission.toml", MODEL)
    with ModelEndpoint(Reply(text="Hm.")) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        out, _notes = shop.ask("run", "--plan", "mission.toml", code=1)
    assert "no proposal: the answer calls no tool" in out
    assert len(endpoint.seen) == 1


SILENT = Reply(fault="hang")


def test_a_model_that_never_answers_is_not_waited_for_longer_than_in_a_mission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    shop.write("mission.toml", MODEL.replace("max_iterations = 1", "max_iterations = 1, max_wall_clock_seconds = 0.1"))
    with ModelEndpoint(SILENT) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        out, _notes = shop.ask("run", "--plan", "mission.toml", code=1)
    assert "no proposal: openai:gpt-4o-mini: cut off by max_wall" in out


def test_a_signal_while_a_model_is_asked_ends_it_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("run", "--plan", "mission.toml")
    shop = Shop(tmp_path)
    shop.write("mission.toml", MODEL)

    def stop(_request: object) -> Reply:
        os.kill(os.getpid(), signal.SIGTERM)
        return SILENT

    with ModelEndpoint(stop) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        assert shop.ask(*command, code=143) == ("", "stopped by SIGTERM\n")
        assert shop.json(*command, code=143) == {"interrupted": "SIGTERM", "resume": None}
    assert not shop.ledger.exists()


def test_a_cost_that_nobody_knows_is_not_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, '[policy]\nmode = "auto"\n')
    shop.write("mission.toml", MODEL.replace("gpt-4o-mini", "nobody-knows-its-price"))
    with ModelEndpoint(calls(("shop__step", {"log": "a"}), tokens=(100, 20))) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        assert shop.json("run", "--plan", "mission.toml")["used"] == {"tokens": 120, "cost_usd": None}
        assert "used 120 tokens at an unknown price" in shop.ask("run", "--plan", "mission.toml")[1]
        told = shop.json("run", "mission.toml")
    mission_id = told["session_id"]
    assert (told["budget"]["used"]["tokens"], told["budget"]["used"]["cost_usd"]) == (120, None)
    assert "cost: unknown" in shop.ask("status", mission_id)[0]
    assert shop.json("report", mission_id)["budget"]["used"]["cost_usd"] is None
    assert "| Cost | unknown | no limit |" in shop.ask("report", mission_id)[0]
