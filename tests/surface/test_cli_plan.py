"""`pursuit run --plan`: the first proposal and what policy would say to it, with nothing run and nothing stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_endpoint import ModelEndpoint, Reply, calls
from test_cli_tools import MISSION, RULES, Shop

MODEL = MISSION[: MISSION.index("[proposer]")].replace("[[criteria]]", 'proposer = "openai:gpt-4o-mini"\n[[criteria]]')


@pytest.mark.guarantee("plan-runs-nothing")
def test_a_models_first_proposal_is_shown_with_policys_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, RULES)
    shop.write("mission.toml", MODEL)
    bad, good = (
        calls(("shop__step", {"no": 1})),
        calls(("shop__step", {"log": "a"}), ("shop__step", {"log": "closed-1"})),
    )
    with ModelEndpoint(bad, good, bad, good) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        found = shop.json("run", "--plan", "mission.toml")
        out, notes = shop.ask("run", "mission.toml", "--plan", "--mode", "auto")
    assert [(row["args"]["log"], row["decision"]) for row in found["calls"]] == [("a", "ask"), ("closed-1", "deny")]
    assert found["calls"][1]["reason"] == "that log is closed"
    assert found["used"]["tokens"] == 240, "a bad proposal is mended, as in a mission"
    assert out.splitlines()[0].startswith('shop.step {"log": "a"}: allowed')
    assert out.splitlines()[1].startswith('shop.step {"log": "closed-1"}: denied (that log is closed)')
    assert "nothing was run or stored; asking for it used 240 tokens" in notes
    assert not shop.ledger.exists()
    assert shop.log("a") == []


@pytest.mark.guarantee("plan-runs-nothing")
def test_plans_of_proposers_that_need_no_model(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.write("mission.toml", MISSION)
    (call,) = shop.json("run", "--plan", "mission.toml")["calls"]
    assert (call["name"], call["decision"]) == ("shop.step", "ask")
    shop.write("client.toml", MISSION[: MISSION.index("[proposer]")])
    assert shop.json("run", "--plan", "client.toml")["waiting_for"] == "proposal"
    shop.write("script.toml", MISSION[: MISSION.index('kind = "repeat"')] + 'kind = "script"\nscript = "shop.step()"\n')
    out, _notes = shop.ask("run", "--plan", "script.toml")
    assert out.splitlines()[0] == "shop.step()"
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
    assert "no proposal: no tool was called" in out
    assert len(endpoint.seen) == 3
