"""Missions whose proposer is a coding agent, from the front door, with a stand-in that speaks the protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_stage import AGENT, CHECK, AgentPlace, library

from pursuit.config.mission_file import load_mission_file
from pursuit.config.trust import of_mission
from pursuit.errors import ValidationFailed
from pursuit.server.missions.mission_tools import StartArguments
from pursuit.server.missions.server import shipped_tools


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
def test_an_agent_works_in_a_worktree_until_the_checks_pass(tmp_path: Path) -> None:
    cheat = {**library(3), "tests/check.py": "print('all is well')\n"}
    place = AgentPlace(
        tmp_path,
        [
            [{"write": cheat}, {"write": {"ignored/x": "x"}}, {"say": "I am done."}],
            [{"write": {**library(2), "new.txt": "new\n"}}, {"say": "Now I am done."}],
        ],
        stray=True,
    )
    (place.repository / "notes.txt").write_text("not committed\n", encoding="utf-8")
    place.mission()
    done = place.json("run", "fix.toml")
    assert (done["status"], done["verdict_reason"], done["iteration_count"]) == ("completed", "criteria_met", 2)
    mission = done["session_id"]
    assert any("uncommitted changes" in warning for warning in done["warnings"])

    # The user's own files are as they were; the result is a branch, with protected files as they were.
    assert place.git("status", "--porcelain") == "?? notes.txt"
    assert place.git("log", "-1", "--format=%s", "main") == "First"
    branch = done["workspace"]["branch"]
    assert place.git("diff", "--name-only", f"{branch}~1", branch).split() == ["lib.py", "new.txt"]
    assert "return 2" in place.git("show", f"{branch}:lib.py")

    # Each turn with the diff that we computed; protected files are told, and counted.
    first, second = place.turns()
    assert (first["text"], first["protected"], first["files"]) == ("I am done.", ["tests/check.py"], 2)
    assert "+    return 3" in first["diff"] and "+print('all is well')" in first["diff"]
    assert "+    return 2" in second["diff"] and "new file" in second["diff"]
    assert done["workspace"]["protected_turns"] == 2
    assert "return 3" in place.ask("workspace", "diff", mission, "--turn", 0)[0]
    changes = place.ask("report", mission, "--format", "md")[0].partition("## Changes of each turn")[2]
    assert [row.split("|")[1].strip() for row in changes.strip().splitlines()[2:4]] == ["1", "2"]
    assert place.json("verify")["ok"]

    # The prompt has the evidence of the check that the runtime itself ran, and says what does not count.
    assert "Make value() return 2." in place.prompts[0] and "# Criteria" in place.prompts[0]
    assert "value is 3" in place.prompts[1] and "protected files" in place.prompts[1]
    assert "Used so far: max_iterations 1 of 4" in place.prompts[1]
    assert "Warning: " in place.prompts[1] and "uncommitted changes" in place.prompts[1]
    assert [one["method"] for one in place.heard][:3] == ["initialize", "session/new", "session/prompt"]

    # What was not committed is not in the branch, so that it can be merged.
    assert "notes.txt" not in place.git("ls-tree", "--name-only", branch)
    place.git("merge", "--quiet", branch)
    assert place.git("status", "--porcelain") == "?? notes.txt"


SLOW_GIT = """#!/bin/sh
if [ -e "{mark}" ]; then case "$*" in *write-tree*) rm "{mark}"; sleep 4 ;; esac; fi
exec "{git}" "$@"
"""


def test_a_turn_that_was_over_in_time_keeps_its_diff_if_the_snapshot_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    place = AgentPlace(tmp_path, [[{"write": {**library(2), str(mark): ""}}]])
    (tmp_path / "bin").mkdir()
    slow = place.write("bin/git", SLOW_GIT.format(mark=mark, git=shutil.which("git")))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    place.mission(proposer="turn_seconds = 3")
    done = place.json("run", "fix.toml")
    assert (done["status"], done["iteration_count"]) == ("completed", 1)
    (turn,) = place.turns()
    assert (turn["outcome"], turn.get("error")) == ("ok", None) and "+    return 2" in turn["diff"]


def test_a_result_is_taken_over_or_removed(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(2)}]])
    place.mission()
    mission = place.json("run", "fix.toml")["session_id"]
    assert "+    return 2" in place.ask("workspace", "diff", mission)[0]

    (place.repository / "lib.py").write_text("mine\n", encoding="utf-8")
    assert "nothing was changed" in place.ask("workspace", "apply", mission, code=2)[1]
    assert (place.repository / "lib.py").read_text(encoding="utf-8") == "mine\n"
    place.git("checkout", "--", "lib.py")
    assert place.json("workspace", "apply", mission)["applied"] == ["lib.py"]
    assert "return 2" in (place.repository / "lib.py").read_text(encoding="utf-8")

    place.ask("workspace", "drop", mission)
    assert not list((place.folder / ".pursuit" / "workspaces").iterdir())
    assert place.git("for-each-ref", "--format=%(refname)", "refs/pursuit") == ""
    assert place.git("worktree", "list").count("\n") == 0
    assert place.git("branch", "--list", "pursuit/*") != ""
    assert "was removed" in place.ask("workspace", "diff", mission, code=2)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workspace": 'in_place = true\nlink = ["../x"]'}, "workspace.link"),
        ({"proposer": 'on_cut = "rollback"', "workspace": "in_place = true"}, "would overwrite your own files"),
        ({"proposer": 'headless = ["cat"]'}, "unattended"),
        ({"rest": "allow_all_tools = true\ntool_allowlist = ['x']"}, "exactly one of tool_allowlist"),
    ],
)
def test_a_mission_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.mission(**change)
    assert said in place.ask("run", "fix.toml", code=2)[1]


def test_what_is_missing_is_told_before_anything_is_spent(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    path = place.mission()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('path = "repo"', 'path = "."'), encoding="utf-8")
    assert "is not in a git repository" in place.ask("run", "fix.toml", code=2)[1]
    path.write_text(text.replace(sys.executable, "no-such-agent"), encoding="utf-8")
    assert "'no-such-agent', was not found" in place.ask("run", "fix.toml", code=None)[1]


def ended(place: AgentPlace, turn: int = 0) -> dict[str, object]:
    """How the turn of an iteration ended."""
    return place.turns()[turn]


@pytest.mark.guarantee("a-turn-that-was-cut-is-unknown-and-never-repeated")
@pytest.mark.parametrize("on_cut", ["keep", "rollback"])
def test_an_agent_that_dies_in_a_turn_leaves_no_process_and_is_not_asked_again(tmp_path: Path, on_cut: str) -> None:
    late = tmp_path / "late.txt"
    dies = [{"write": {**library(2), "half.txt": "x"}}, {"child": {"file": str(late), "after": 3600}}, {"exit": 3}]
    # What was kept already meets the check; what was rolled back does not, and needs another turn.
    place = AgentPlace(tmp_path, [dies, [{"write": library(2)}]])
    place.mission(proposer=f'on_cut = "{on_cut}"')
    done = place.json("run", "fix.toml")
    assert (done["status"], done["iteration_count"]) == ("completed", 1 if on_cut == "keep" else 2)
    first = ended(place)
    assert first["outcome"] == "unknown" and "exit code 3: the agent dies" in str(first["error"])
    assert "half.txt" in str(first["diff"])
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(late) in (one.info["cmdline"] or [])]
    files = place.git("ls-tree", "--name-only", done["workspace"]["branch"]).split()
    assert ("half.txt" in files) == (on_cut == "keep")
    methods = [one.get("method") for one in place.heard]
    assert "session/load" not in methods  # kept: there was no further turn; rolled back: a new session
    if on_cut == "rollback":
        assert "was cut off" in place.prompts[1] and "rolled back" in place.prompts[1]


GONE = """
import os, pathlib, signal, time
agent = pathlib.Path("/proc", pathlib.Path({pid!r}).read_text().strip())
if agent.exists():
    above = pathlib.Path("/proc", (agent / "stat").read_text().split()[3])
    os.kill(int(agent.name), signal.SIGKILL)
    while above.exists():
        time.sleep(0.01)
"""


def test_an_agent_that_ends_between_two_turns_is_started_again(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    plan = [[{"write": library(3)}, {"run": f"echo $PPID > {pid}"}], [{"write": library(2)}]]
    place = AgentPlace(tmp_path, plan, isolated=False)  # else it has another number inside
    check = GONE.format(pid=str(pid)) + CHECK
    (place.repository / "tests" / "check.py").write_text(check, encoding="utf-8")
    place.mission()
    assert place.json("run", "fix.toml")["iteration_count"] == 2
    assert [one["outcome"] for one in place.turns()] == ["ok", "ok"]
    assert [one["method"] for one in place.heard if one.get("method") == "session/load"] == ["session/load"]


@pytest.mark.parametrize(("options", "again"), [({}, "session/load"), ({"no_load": True}, "session/new")])
def test_a_session_goes_on_in_another_process_where_the_agent_can(
    tmp_path: Path, options: dict[str, bool], again: str
) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(3)}, {"exit": 1}], [{"write": library(2)}]], **options)
    place.mission()
    assert place.json("run", "fix.toml")["status"] == "completed"
    methods = [one["method"] for one in place.heard if "method" in one]
    begun = [one for one in methods if one.startswith("session/") and one != "session/prompt"]
    assert begun == ["session/new", again]


def test_silence_and_limits_cut_a_turn(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(3)}, {"wait": ""}], [{"write": library(2)}]])
    place.mission(proposer="turn_idle_seconds = 0.3")
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert "did not respond for 0.3 s" in str(ended(place)["error"]) and "+    return 3" in str(ended(place)["diff"])
    assert [one for one in place.heard if one.get("method") == "session/cancel"] == []  # it was busy, and did not read

    second = AgentPlace(tmp_path / "two", [[{"write": library(3)}, {"wait": ""}]])
    second.mission(proposer="turn_seconds = 3", budget="max_iterations = 1")  # with its start
    assert second.json("run", "fix.toml", code=3)["verdict_reason"] == "max_iterations"
    assert "no answer within 3 s" in str(ended(second)["error"])


def test_a_flood_of_updates_and_stray_lines_change_nothing(tmp_path: Path) -> None:
    flood = [{"flood": 3_000_000}, {"write": library(2)}, {"say": "done"}]
    place = AgentPlace(tmp_path, [flood], stray=True, noise=1_000_000)
    place.mission()
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert ended(place)["text"] == "done"


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(3)}, {"line": 20_000_000}], [{"write": library(2)}]])
    place.mission()
    assert place.json("run", "fix.toml")["status"] == "completed"
    first, second = place.turns()
    assert (first["outcome"], second["outcome"]) == ("unknown", "ok") and "a line of more than" in str(first["error"])


def test_a_question_after_the_end_of_a_turn_is_answered_in_the_next(tmp_path: Path) -> None:
    late = {"late": {"kind": "execute", "title": "rm -rf x", "rawInput": {}}}
    place = AgentPlace(tmp_path, [[{"write": library(3)}, late], [{"write": library(2)}]])
    rule = '[[policy.rules]]\ndecision = "deny"\ntool = "agent.execute"\n'
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{rule}')
    place.mission()
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert [one["outcome"] for one in place.turns()] == ["ok", "ok"]
    (said,) = [one["result"]["outcome"] for one in place.heard if "result" in one]
    assert said == {"outcome": "selected", "optionId": "no"}


@pytest.mark.parametrize(
    ("options", "said"),
    [({"version": 2}, "speaks version 2 of the Agent Client Protocol"), ({"auth": True}, "wants you to log in")],
)
def test_an_agent_that_cannot_be_used_says_why(tmp_path: Path, options: dict[str, object], said: str) -> None:
    place = AgentPlace(tmp_path, [[]], **options)
    place.mission()
    failed = place.json("run", "fix.toml", code=1)
    assert said in failed["failure"] and failed["iteration_count"] == 1

    # Once that is repaired, the mission goes on.
    place.plan([[{"write": library(2)}]])
    assert place.json("resume", "last")["status"] == "completed"


def test_what_an_agent_does_not_report_is_unknown_and_no_cap_pretends_otherwise(tmp_path: Path) -> None:
    wrong = [{"write": library(3)}]
    place = AgentPlace(tmp_path, [wrong, [{"write": library(2)}]])
    place.mission(budget="max_iterations = 4\nmax_cost_usd = 1")
    failed = place.json("run", "fix.toml", code=1)
    assert failed["status"] == "failed" and "max_cost_usd cannot be enforced" in failed["failure"]
    assert failed["budget"]["used"]["cost_usd"] is None
    place.ask("extend", "last", "--max-cost-usd", "-1")
    assert place.json("resume", "last")["status"] == "completed"

    reports = AgentPlace(
        tmp_path / "two",
        [
            [*wrong, {"usage": {"totalTokens": 700}, "cost": 0.25}, {"cost": -1}],
            [{"write": library(4)}, {"usage": {"inputTokens": 300, "outputTokens": 50}, "cost": 0.75}],
        ],
    )
    reports.mission(budget="max_iterations = 4\nmax_tokens = 1000\nmax_cost_usd = 5")
    ended_by = reports.json("run", "fix.toml", code=3)
    assert ended_by["verdict_reason"] == "max_tokens"
    assert (ended_by["budget"]["used"]["tokens"], ended_by["budget"]["used"]["cost_usd"]) == (1_050, 0.75)


def test_an_agent_that_is_stuck_ends_with_the_reason(tmp_path: Path) -> None:
    place = AgentPlace(
        tmp_path, [[{"write": library(3)}, {"say": "anew"}], [{"write": library(4)}], [{"say": "nothing"}]]
    )
    place.mission(budget="max_iterations = 9", rest="stagnation_threshold = 2")
    done = place.json("run", "fix.toml", code=3)
    assert (done["verdict_reason"], done["iteration_count"]) == ("no_progress", 3)
    assert "the workspace is as it was after an earlier turn" in done["rationale"]


def test_in_place_the_agent_works_in_the_users_own_files(tmp_path: Path) -> None:
    cheat = {**library(2), "tests/check.py": "raise SystemExit(0)\n"}
    place = AgentPlace(tmp_path, [[{"write": cheat}]])
    place.mission(workspace="in_place = true")
    done = place.json("run", "fix.toml")
    assert done["status"] == "completed" and ended(place)["protected"] == ["tests/check.py"]
    assert "return 2" in (place.repository / "lib.py").read_text(encoding="utf-8")
    assert "value()" in place.git("show", f"{done['workspace']['branch']}:tests/check.py")
    place.ask("workspace", "drop", "last")
    assert (place.repository / "lib.py").exists() and place.git("log", "-1", "--format=%s", "main") == "First"


def test_a_headless_command_gets_the_prompt_and_its_json_lines_are_counted(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    body = (
        "import json, pathlib, sys\n"
        "prompt = sys.stdin.read()\n"
        f"pathlib.Path({str(tmp_path / 'prompt')!r}).write_text(prompt)\n"
        f"pathlib.Path('lib.py').write_text({library(2)['lib.py']!r})\n"
        "print('thinking')\n"
        "usage = {'input_tokens': 5, 'output_tokens': 2}\n"
        "print(json.dumps({'type': 'result', 'usage': usage, 'total_cost_usd': 0.5}))\n"
    )
    place.write("headless.py", body)
    words = f'["{sys.executable}", "{tmp_path / "headless.py"}"]'
    place.mission(proposer=f"headless = {words}\nunattended = true", budget="max_iterations = 2\nmax_cost_usd = 3")
    done = place.json("run", "fix.toml")
    assert done["status"] == "completed" and (done["budget"]["used"]["tokens"], done["budget"]["used"]["cost_usd"]) == (
        7,
        0.5,
    )
    assert "Make value() return 2." in (tmp_path / "prompt").read_text(encoding="utf-8")
    assert str(ended(place)["text"]).startswith("thinking")


def test_agents_on_this_machine_are_listed_with_what_they_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = AgentPlace(tmp_path, [[]])
    folder = tmp_path / "bin"
    folder.mkdir()
    words = f'exec "{sys.executable}" "{AGENT}" "{tmp_path}/plan.json" "{tmp_path}/heard.jsonl"'
    known = {"opencode": words, "gemini": f'[ "$*" = --acp ] && {words}', "goose": "echo broken >&2; exit 1"}
    for name, body in known.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    good, gemini, bad = place.json("agents")["agents"]
    assert gemini["name"] == "standin"
    assert (good["name"], good["loads_sessions"], good["mcp"]) == ("standin", True, ["stdio"])
    assert good["configuration"] == 'proposer = { kind = "agent", command = ["opencode", "acp"] }'
    assert "broken" in bad["problem"]
    told = place.ask("doctor", code=None)[0]
    assert "standin 1 (opencode acp) works" in told and "goose acp: " in told


TESTED = "from lib import value\n\ndef test_value():\n    assert value() == 2\n\ndef test_type():\n    assert value()\n"
ENDS = "import os\n\ndef value():\n    os._exit(0)\n"
LEAVES = "import pytest\n\ndef value():\n    pytest.exit('', returncode=0)\n"
SKIPS = "import pytest\n\ndef value():\n    pytest.skip()\n"


def coded(place: AgentPlace, head: str = "") -> Any:
    """How the mission of the template ends."""
    place.ask("init", "repo", "--template", "coding")
    path = place.repository / "fix.toml"
    words = [sys.executable, str(AGENT), str(place.folder / "plan.json"), str(place.heard_file)]
    text = path.read_text(encoding="utf-8").replace('["opencode", "acp"]', json.dumps(words))
    path.write_text(head + text, encoding="utf-8")
    return place.json("run", path)


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
def test_the_template_for_coding_believes_each_test_and_not_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # for pytest
    listed = {".pytest.ini": "[pytest]\naddopts = --co\n", "pytest.toml": '[pytest]\naddopts = ["--co"]\n'}
    tricks = [{"lib.py": ENDS}, {"lib.py": LEAVES}, {"lib.py": SKIPS}, {**library(3), **listed}]
    place = AgentPlace(tmp_path, [[{"write": one}] for one in (*tricks, library(2))])
    (place.repository / "tests" / "test_lib.py").write_text(TESTED, encoding="utf-8")
    (place.repository / "conftest.py").touch()
    done = coded(place, 'stagnation_threshold = "off"\n')
    assert (done["status"], done["iteration_count"]) == ("completed", len(tricks) + 1)
    assert ended(place, 3)["protected"] == [".pytest.ini", "pytest.toml"]
    assert "ended with 0, but without its report" in place.prompts[1]
    assert "0 of 2 tests passed; 2 skipped, 0 allowed" in place.prompts[3]


def test_an_agent_that_repairs_a_test_in_each_turn_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    honest = [{"lib.py": f"def value(n):\n    return n < {done}\n"} for done in (1, 2, 3, 4)]
    place = AgentPlace(tmp_path, [[{"write": one}] for one in honest])
    tests = "".join(f"def test_{n}():\n    assert value({n})\n\n" for n in range(4))
    (place.repository / "tests" / "test_lib.py").write_text(f"from lib import value\n\n{tests}", encoding="utf-8")
    (place.repository / "conftest.py").touch()
    done = coded(place)
    assert (done["status"], done["iteration_count"]) == ("completed", len(honest))


def test_the_command_of_an_agent_is_trusted_first_and_no_client_can_name_one(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    file = load_mission_file(place.mission())
    assert any(str(AGENT) in line for line in of_mission(file).starts.values())
    given = file.mission.model_dump(mode="json", include={"directive", "criteria", "budget", "proposer", "workspace"})
    with pytest.raises(ValidationFailed, match="a client cannot run an agent"):
        StartArguments(**given)
    assert "headless" not in str([tool.input_schema for tool in shipped_tools()])


def test_an_agent_of_the_official_sdk_understands_all_that_we_send(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    heard = tmp_path / "sdk.jsonl"
    rule = '[[policy.rules]]\ndecision = "deny"\ntool = "agent.execute"\n'
    shop = json.dumps(["-S", str(AGENT.with_name("workshop.py"))])
    server = f'[servers.shop]\ncommand = "__python_executable__"\nargs = {shop}\nenv = {{ LOGS = "{tmp_path}" }}\n'
    place.write("pursuit.toml", f'{server}[policy]\nmode = "ask"\n{rule}')
    path = place.mission(budget="max_iterations = 4\nmax_tokens = 1000", rest='tool_allowlist = ["shop.step"]')
    words = json.dumps([sys.executable, str(AGENT.with_name("sdk_agent.py")), str(heard)])
    text = re.sub(r"^command = .*standin.*$", lambda _: f"command = {words}", path.read_text(), flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    place.ask("start", "fix.toml")
    place.ask("iterate", "last")
    done = place.json("resume", "last")  # another process of the agent, with the same session
    assert (done["status"], done["iteration_count"], done["budget"]["used"]["tokens"]) == ("completed", 2, 140)
    rows = [json.loads(line) for line in heard.read_text(encoding="utf-8").splitlines()]
    assert [row[0] for row in rows if row[0] != "answer"] == [
        "initialize",
        "new",
        "prompt",
        "initialize",
        "load",
        "prompt",
    ]
    assert [row[1] for row in rows if row[0] == "answer"] == ["y", "n", "y", "n"]
    assert rows[0][1:] == [1, "pursuit"] and rows[1][2] == ["pursuit"]
    assert [one["text"] for one in place.turns()] == ["Done.", "Done."]
