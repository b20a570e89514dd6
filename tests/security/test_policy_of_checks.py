"""Checks and judges are under policy: a rule, a mission and mode `never` keep them from running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from callers_stage import serving
from mission_files import IDLE, mission_file
from test_callers import OPEN, WIPES
from workspace import Victim, problem

OWN = '[commands.own]\nargv = ["true"]\n[commands.looked]\nargv = ["true"]\n'
NAMED = '[checks.evil]\ncommand = ["sh", "-c", "OWNED"]\n'
OF_FILE: dict[str, object] = {"command": ["sh", "-c", "OWNED"]}
BY_NAME: dict[str, object] = {"check": "evil"}
TOOLS = ["commands.own", "commands.looked"]


def rule(decision: str, **more: object) -> str:
    rows = "".join(f"{key} = {value if key == 'arguments' else json.dumps(value)}\n" for key, value in more.items())
    return f'[[policy.rules]]\ndecision = "{decision}"\n{rows}'


NEVER = '[policy]\nmode = "never"\n'
ROWS: dict[str, tuple[dict[str, object], str, str, bool]] = {
    "without a rule": (OF_FILE, "", "", True),
    "in mode auto": (OF_FILE, '[policy]\nmode = "auto"\n', "", True),
    "in mode never": (OF_FILE, NEVER, "", False),
    "by name, in mode never": (BY_NAME, NEVER, "", False),
    "in mode never, with a rule": (OF_FILE, NEVER + rule("allow", server="check"), "", True),
    "in mode never, with a rule for another": (OF_FILE, NEVER + rule("allow", tool="check.other"), "", False),
    "in mode never, with a rule that asks": (OF_FILE, NEVER + rule("ask", server="check"), "", False),
    "a rule denies checks": (OF_FILE, rule("deny", server="check"), "", False),
    "a rule denies everything": (OF_FILE, rule("deny", tool="*"), "", False),
    "a rule denies this one": (BY_NAME, rule("deny", tool="check.evil"), "", False),
    "a rule denies its criterion": (OF_FILE, rule("deny", tool="check.looked"), "", False),
    "a rule denies its program": (OF_FILE, rule("deny", arguments='{ argv = "sh" }'), "", False),
    "a rule asks": (OF_FILE, rule("ask", server="check"), "", False),
    "a rule asks in mode auto": (OF_FILE, '[policy]\nmode = "auto"\n' + rule("ask", server="check"), "", True),
    "the mission denies it": (OF_FILE, "", 'policy = { deny = ["*.looked"] }', False),
    "the mission asks": (OF_FILE, "", 'policy = { ask = ["*.looked"] }', False),
    "the mission is in mode never": (OF_FILE, "", 'policy = { mode = "never" }', False),
}


@pytest.fixture
def operator(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> Victim:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    return victim


@pytest.mark.guarantee("checks-are-under-policy")
@pytest.mark.parametrize(("check", "policy", "own", "runs"), ROWS.values(), ids=ROWS)
def test_a_check_runs_only_if_policy_lets_it(
    operator: Victim, check: dict[str, object], policy: str, own: str, runs: bool
) -> None:
    operator.write("pursuit.toml", OWN + NAMED + policy)
    looked = {"criterion_id": "looked", "kind": "check", **check}
    operator.write("m.toml", mission_file(TOOLS, looked, proposer=IDLE) + own)
    code, said = operator.run("run", "m.toml")
    assert (code == 2, operator.owned) == (False, runs), said  # 2: the mission was not even accepted


@pytest.mark.parametrize("policy", [NEVER, rule("deny", server="judge")], ids=["mode never", "a rule"])
def test_a_judge_that_policy_denies_serves_nothing(operator: Victim, policy: str) -> None:
    operator.write("pursuit.toml", policy)
    operator.write("problem.toml", problem("OWNED; echo 0"))
    words = ["--mode", "never"] if policy == NEVER else []
    code, said = operator.run("problem", "serve", "./problem.toml", *words)
    assert (code, "judge.judged" in said, operator.owned) == (2, True, False), said


@pytest.mark.guarantee("checks-are-under-policy")
@pytest.mark.parametrize("written", [{}, {"check": None}], ids=["left out", "null"])
async def test_a_client_asks_whether_a_file_of_the_operator_exists(tmp_path: Path, written: dict[str, None]) -> None:
    check = {**written, "kind": "check", "tool_name": "world.wipe", "expect": {"file": str(tmp_path / "ledger.db")}}
    mission = {**WIPES, "criteria": [{"criterion_id": "c", "required": True, **check}]}
    async with serving(tmp_path, OPEN) as served:
        refused = await served.call("guest", "mission_start", mission)
        assert refused["isError"] and "criteria[0].expect.file" in refused["content"][0]["text"]
        assert (await served.call("guest", "mission_list"))["structuredContent"]["sessions"] == []
