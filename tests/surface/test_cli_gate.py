"""`pursuit gate`: an agent's hooks ask whether it may stop, and only the checks of the mission file decide."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_stage import AgentPlace, library


class Gate:
    """The hooks of an agent that works in the repository of a place."""

    def __init__(self, place: AgentPlace, patch: pytest.MonkeyPatch) -> None:
        self.place, self._patch = place, patch

    def hook(self, event: str, *words: str, session: str = "s1", text: str | None = None, **more: Any) -> Any:
        said = json.dumps({"hook_event_name": event, "session_id": session, **more}) if text is None else text
        self._patch.setattr(sys, "stdin", io.StringIO(said))
        out, _ = self.place.ask("gate", "fix.toml", *words)
        return json.loads(out) if out.strip() else {}

    def work(self, number: int, **files: str) -> None:
        rows = {**library(number), **files}
        for name, text in rows.items():
            (self.place.repository / name.replace("__", "/")).write_text(text, encoding="utf-8")

    def missions(self) -> list[dict[str, Any]]:
        return self.place.json("list")["sessions"]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    place = AgentPlace(tmp_path, [])
    place.mission(budget="max_iterations = 4")
    return Gate(place, monkeypatch)


def test_the_agent_is_sent_back_until_the_checks_pass(gate: Gate) -> None:
    assert gate.hook("SessionStart") == {}
    gate.work(3)
    first = gate.hook("Stop")
    assert first["decision"] == "block"
    assert "Make value() return 2." in first["reason"] and "value is 3" in first["reason"]
    gate.work(2)
    done = gate.hook("Stop", stop_hook_active=True)
    assert "all required criteria are met" in done["systemMessage"] and "decision" not in done
    (mission,) = gate.missions()
    assert (mission["status"], mission["iteration_count"]) == ("completed", 2)
    diffs = [turn["diff"] for turn in gate.place.turns()]
    assert "+    return 3" in diffs[0] and "+    return 2" in diffs[1]
    assert gate.place.git("status", "--porcelain") == "M lib.py", "the files of the person are as the agent left them"
    assert gate.place.json("verify")["ok"]


def test_an_agent_that_changes_the_check_is_sent_back(gate: Gate) -> None:
    gate.hook("SessionStart")
    gate.work(3, **{"tests__check.py": "raise SystemExit(0)\n"})
    answer = gate.hook("Stop")
    assert answer["decision"] == "block" and "that does not count: tests/check.py" in answer["reason"]
    assert (gate.place.repository / "tests" / "check.py").read_text(encoding="utf-8") == "raise SystemExit(0)\n"


def test_an_agent_that_changes_the_mission_or_the_hooks_is_told(gate: Gate) -> None:
    place = gate.place
    text = (place.folder / "fix.toml").read_text(encoding="utf-8")
    (place.repository / ".claude").mkdir()
    (place.repository / ".claude" / "settings.json").write_text("{}", encoding="utf-8")
    gate.hook("SessionStart")
    gate.work(3, **{".claude__settings.json": '{"hooks": {}}'})
    place.write("fix.toml", text.replace("tests.check", "tests.none"))
    answer = gate.hook("Stop")
    assert answer["decision"] == "block" and ".claude/settings.json" in answer["reason"]
    assert "value is 3" in answer["reason"], "the check is that of the ledger, not of the changed file"


def test_the_budget_and_a_stuck_agent_end_the_gate(gate: Gate) -> None:
    gate.hook("SessionStart")
    answers = []
    for number in range(3, 9):
        gate.work(number)
        answers.append(gate.hook("Stop"))
    assert [one.get("decision") for one in answers] == ["block"] * 3 + [None] * 3
    assert "holds the agent no longer: max_iterations" in answers[3]["systemMessage"]


def test_a_new_session_continues_the_budget_and_another_at_the_same_time_has_its_own(gate: Gate) -> None:
    gate.hook("SessionStart")
    gate.work(3)
    gate.hook("Stop")
    gate.hook("SessionStart", session="s2")
    assert len(gate.missions()) == 2, "s1 still works"
    gate.hook("SessionEnd", session="s2")
    gate.hook("SessionStart", session="s3")
    assert len(gate.missions()) == 2, "s3 continues the mission of s2"
    gate.hook("SessionStart", "--fresh", session="s4")
    assert len(gate.missions()) == 3


@pytest.mark.parametrize(
    ("event", "more"),
    [
        ("Stop", {}),
        ("Stop", {"text": "no JSON"}),
        ("Stop", {"text": ""}),
        ("Stop", {"text": "[" * 100_000}),
        ("PreToolUse", {}),
    ],
)
def test_a_gate_that_cannot_decide_lets_the_agent_stop(gate: Gate, event: str, more: dict[str, Any]) -> None:
    answer = gate.hook(event, **more)
    assert "decision" not in answer
    assert not answer or "Pursuit checked nothing" in answer["systemMessage"]


def test_an_untrusted_or_broken_file_never_blocks(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.hook("SessionStart")
    gate.place.write("fix.toml", "directive = 1")
    assert "Pursuit checked nothing" in gate.hook("Stop")["systemMessage"]
    gate.place.mission(budget="max_iterations = 5")
    monkeypatch.delenv("PURSUIT_TRUST", raising=False)
    assert "have not trusted" in gate.hook("Stop")["systemMessage"]


def test_a_stop_while_background_tasks_run_checks_nothing(gate: Gate) -> None:
    gate.hook("SessionStart")
    assert gate.hook("Stop", background_tasks=[{"id": "b1"}]) == {}
    assert gate.missions()[0]["iteration_count"] == 0


@pytest.mark.parametrize(("client", "name"), [("claude-code", ".claude/settings.json"), ("codex", ".codex/hooks.json")])
def test_install_adds_the_hooks_beside_others_and_removes_them(gate: Gate, client: str, name: str) -> None:
    place = gate.place
    other = {"hooks": [{"type": "command", "command": "mine"}]}
    path = place.folder / name
    path.parent.mkdir()
    before = json.dumps({"model": "x", "hooks": {"Stop": [other]}}, indent=2)
    path.write_text(before, encoding="utf-8")
    place.ask("install", client, "--gate", "fix.toml", "--dry-run")
    assert path.read_text(encoding="utf-8") == before
    done = place.json("install", client, "--gate", "fix.toml")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["model"] == "x" and set(found["hooks"]) == {"SessionStart", "Stop", "SessionEnd"}
    mine, ours = found["hooks"]["Stop"]
    assert mine == other and ours["hooks"][0]["command"] == done["command"]
    assert shlex.split(done["command"])[-2:] == ["gate", str(place.folder / "fix.toml")]
    assert ours["hooks"][0]["timeout"] > 60
    assert place.json("install", client, "--gate", "fix.toml")["changed"] is False
    place.ask("install", client, "--gate", "fix.toml", "--remove")
    assert json.loads(path.read_text(encoding="utf-8"))["hooks"]["Stop"] == [other]


@pytest.mark.parametrize("text", ["[1]", "{", '{"hooks": 1}', '{"hooks": {"Stop": 1}}', '{"hooks": []}'])
def test_a_file_of_hooks_that_is_none_is_left_as_it_is(gate: Gate, text: str) -> None:
    path = gate.place.folder / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert "nothing was changed" in gate.place.ask("install", "claude-code", "--gate", "fix.toml", code=2)[1]
    assert path.read_text(encoding="utf-8") == text
    assert "known are claude-code, codex" in gate.place.ask("install", "cursor", "--gate", "fix.toml", code=2)[1]


def test_the_installed_line_is_a_hook_of_an_agent(gate: Gate) -> None:
    place = gate.place
    line = place.json("install", "claude-code", "--gate", "fix.toml")["command"]

    def hook(event: str) -> Any:
        said = json.dumps({"hook_event_name": event, "session_id": "real"})
        done = subprocess.run(
            line, shell=True, cwd=place.repository, env=place.environment, input=said, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else {}

    assert hook("SessionStart") == {}
    gate.work(3)
    assert hook("Stop")["decision"] == "block"
    gate.work(2)
    assert "all required criteria are met" in hook("Stop")["systemMessage"]
