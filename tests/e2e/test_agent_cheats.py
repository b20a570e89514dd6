"""What a coding agent may try against its own checks, the operator and the user's repository, from the front door."""

from __future__ import annotations

import json
import re
import secrets
import sys
from pathlib import Path

import pytest
from agent_stage import AgentPlace, library, quick_beam
from cli_stage import DESIGN

CHEAT = "raise SystemExit(0)"
WHO = "git -c user.name=a -c user.email=a@localhost"
REPLACE = f"git replace $(git rev-parse HEAD:tests/check.py) $(echo '{CHEAT}' | git hash-object -w --stdin)"
FILTER = f"git config filter.cheat.smudge 'echo \"{CHEAT}\"' && echo 'tests/** filter=cheat' > "


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
@pytest.mark.parametrize(
    "trick", [REPLACE, f"{FILTER}.gitattributes", f"{FILTER}$(git rev-parse --git-common-dir)/info/attributes"]
)
def test_no_setting_of_git_swaps_a_protected_file(tmp_path: Path, trick: str) -> None:
    place = AgentPlace(tmp_path, [[{"run": trick}, {"write": library(3)}]])
    place.mission(budget="max_iterations = 1")
    done = place.json("run", "fix.toml", code=3)
    assert done["criteria"][0]["evidence"]["exit_code"]["value"] == 1


FORGE = (
    "h=$(git rev-parse HEAD:tests/check.py); f={objects}/$(echo $h | cut -c1-2)/$(echo $h | cut -c3-);"
    f" mkdir -p $(dirname $f); rm -f $f; {sys.executable} -c \"import zlib; d = b'{CHEAT}';"
    " open('$f', 'wb').write(zlib.compress(b'blob %d\\0' % len(d) + d))\""
)
PRIVATE = {
    "attributes": f"{FILTER}../git/info/attributes && cat $(git rev-parse --git-common-dir)/config >> ../git/config",
    "settings of the home": f"{FILTER}../git/info/attributes && git config --file ../git/.gitconfig"
    f" filter.cheat.smudge 'echo \"{CHEAT}\"'",
    "an object of the mission": FORGE.replace("{objects}", "../git/objects"),
    "an object of the user": FORGE.replace("{objects}", "$(git rev-parse --git-common-dir)/objects"),
}


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
@pytest.mark.parametrize("trick", PRIVATE.values(), ids=PRIVATE)
def test_nothing_in_the_missions_own_git_directory_swaps_a_protected_file(tmp_path: Path, trick: str) -> None:
    place = AgentPlace(tmp_path, [[{"run": trick}, {"write": library(3)}]], isolated=False)
    place.mission(budget="max_iterations = 1")
    evidence = place.json("run", "fix.toml", code=3)["criteria"][0]["evidence"]
    if "exit_code" in evidence:
        assert evidence["exit_code"]["value"] == 1
    else:
        assert "protected files differ: tests/check.py" in evidence["error"]


MOVE_START = f"""
export GIT_DIR=../git GIT_INDEX_FILE=../own-index
start=$(git for-each-ref --format='%(refname)' | grep /start$)
git read-tree $start
git update-index --cacheinfo 100644,$(echo '{CHEAT}' | git hash-object -w --stdin),tests/check.py
git update-ref $start $({WHO} commit-tree $(git write-tree) -p $start^ -m x)
"""


def test_a_start_that_the_agent_has_moved_does_not_count_for_another_process(tmp_path: Path) -> None:
    turns = [[{"run": MOVE_START}, {"write": library(3)}], [{"write": library(4)}]]
    place = AgentPlace(tmp_path, turns, isolated=False)
    place.mission(budget="max_iterations = 1")
    mission = place.json("run", "fix.toml", code=3)["session_id"]
    place.ask("extend", mission, "--max-iterations", "2", code=None)
    done = place.json("resume", mission, code=None)
    assert (done["status"], done["criteria"][0]["status"]) != ("completed", "met")
    assert "the start of the workspace was changed" in "".join(place.ask("logs", mission))


def test_no_filter_of_the_agent_makes_the_branch(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    theirs = f"{tmp_path}/repo/.git"
    attributes = f"mkdir -p {theirs}/info && echo 'lib.py filter=x' > {theirs}/info/attributes"
    trick = f"git --git-dir={theirs} config filter.x.clean 'touch {mark}; sed s/2/666/' && {attributes}"
    place = AgentPlace(tmp_path, [[{"run": trick}, {"write": library(2)}]])
    place.mission()
    done = place.json("run", "fix.toml")
    (told,) = [one for one in done["warnings"] if "the branch of the result was not made: filters or" in one]
    assert not mark.exists() and place.git("branch", "--list", "pursuit/*") == "", told
    assert place.json("workspace", "apply", done["session_id"])["applied"] == ["lib.py"]
    assert "return 2" in (place.repository / "lib.py").read_text(encoding="utf-8")


def test_a_turn_without_a_snapshot_is_not_checked_on_an_older_tree(tmp_path: Path) -> None:
    go = tmp_path / "go"
    breaks = {"run": f"touch {go}; rm .gitignore lib.py; mkfifo lib.py"}  # git adds no such file
    place = AgentPlace(tmp_path, [[{"write": library(2)}], [breaks]])
    late = f'[[criteria]]\ncriterion_id = "late"\nkind = "check"\ncommand = ["test", "-e", "{go}"]'
    place.mission(rest=f'{late}\nwhen = "checkpoint"', budget="max_iterations = 2")
    done = place.json("run", "fix.toml", code=3)
    assert "lib.py" in done["criteria"][1]["evidence"]["error"]


STATE = """
import pathlib
from lib import value
mark = b"sleep\\0" + {mark!r}.encode()
found = [one.parent for one in pathlib.Path("/proc").glob("[0-9]*/cmdline") if one.read_bytes().startswith(mark)]
stopped = (found[0] / "stat").read_text().split()[2]
print("the agent's process is", stopped)
raise SystemExit(value() != 2 or stopped != "T")
"""


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_of_the_agent_runs_while_the_checks_do(tmp_path: Path) -> None:
    mark = f"3600.{secrets.randbelow(10**9)}"
    # In a session of its own, without the environment of the agent, and no child of it any more.
    start = f"env -i setsid sh -c 'sleep {mark} &'"
    turns = [[{"run": start}, {"write": library(3)}], [{"write": library(2)}]]
    place = AgentPlace(tmp_path, turns, isolated=False)  # an isolated check does not see it
    (place.repository / "tests" / "check.py").write_text(STATE.format(mark=mark), encoding="utf-8")
    place.mission()
    assert place.json("run", "fix.toml")["iteration_count"] == 2
    assert "the agent's process is T" in place.prompts[1]


def test_a_check_by_a_configured_command_looks_at_the_agents_files(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(2)}]])
    argv = json.dumps([sys.executable, "-B", "-m", "tests.check"])
    settings = '[settings]\ntask_patience = 0.01\n[policy]\nmode = "auto"\n'
    place.write("pursuit.toml", f'{settings}[commands.look]\nargv = {argv}\ncwd = "repo"\n')
    path = place.mission(rest='tool_allowlist = ["commands.look"]')
    text = re.sub(r'command = .*tests.check"\]\ncwd = "repo"', 'tool_name = "commands.look"', path.read_text())
    path.write_text(text, encoding="utf-8")
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert "return 1" in (place.repository / "lib.py").read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".pursuit/workspaces/*/check"))


@pytest.mark.parametrize("agents", [True, False])
def test_the_expected_file_of_a_configured_command_is_one_of_the_agent(tmp_path: Path, agents: bool) -> None:
    place = AgentPlace(tmp_path, [[{"write": {"done.txt": "x"} if agents else library(3)}]])
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n[commands.look]\nargv = ["true"]\ncwd = "repo"\n')
    path = place.mission(rest='tool_allowlist = ["commands.look"]', budget="max_iterations = 1")
    expects = 'tool_name = "commands.look"\nexpect = { file = "done.txt" }'
    path.write_text(re.sub(r'command = .*tests.check"\]\ncwd = "repo"', expects, path.read_text()), encoding="utf-8")
    if not agents:
        place.write("done.txt", "of the folder in which pursuit runs")
    done = place.json("run", "fix.toml", code=0 if agents else 3)
    assert done["criteria"][0]["evidence"]["file"]["met"] == agents


def test_a_check_by_a_server_is_warned_about(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.write("pursuit.toml", quick_beam())
    path = place.mission(rest='tool_allowlist = ["beam.evaluate"]')
    text = re.sub(
        r'command = .*tests.check"\]\ncwd = "repo"', f'tool_name = "evaluate"\nargs = {DESIGN}', path.read_text()
    )
    path.write_text(text, encoding="utf-8")
    (warning,) = place.json("start", "fix.toml")["warnings"]
    assert "'check' calls beam.evaluate, which checks its server's files instead of the agent's worktree" in warning


NESTED = {
    "without a commit": "git init -q sub && echo x > sub/new.py",
    "with a filter": "git init -q sub && cd sub && echo x > new.py && git add . && {who} commit -qm x"
    " && git config filter.x.clean 'touch {mark}; cat' && echo '* filter=x' > .git/info/attributes && echo y > new.py",
}


@pytest.mark.guarantee("a-repository-in-a-workspace-is-told")
@pytest.mark.parametrize("script", NESTED.values(), ids=NESTED)
def test_files_of_a_nested_repository_do_not_count_and_that_is_told(tmp_path: Path, script: str) -> None:
    mark = tmp_path / "mark"
    nests = [{"run": script.format(who=WHO, mark=mark)}, {"write": library(3)}]
    place = AgentPlace(tmp_path, [nests, [{"write": library(4)}], [{"run": "rm -rf sub/.git"}, {"write": library(2)}]])
    place.mission()
    done = place.json("run", "fix.toml")
    assert (done["status"], [one["outcome"] for one in place.turns()]) == ("completed", ["ok"] * 3)
    assert "sub/new.py" not in place.turns()[0]["diff"] and "sub/new.py" in place.turns()[2]["diff"]
    told = "sub is a git repository inside the workspace; remove sub/.git, its files do not count"
    assert told in done["warnings"] and told in place.prompts[1]
    assert "sub/new.py" in place.git("ls-tree", "-r", "--name-only", done["workspace"]["branch"]).split()
    assert not mark.exists()  # no filter of the nested repository was run


REFUSED = {
    "git~1": "echo x > git~1",
    "sub/.GIT/a": "mkdir -p sub/.GIT && echo x > sub/.GIT/a",
    ".gitmodules": "ln -s /etc/passwd .gitmodules",
}


@pytest.mark.guarantee("a-repository-in-a-workspace-is-told")
@pytest.mark.parametrize(("name", "script"), REFUSED.items(), ids=REFUSED)
def test_a_file_that_git_refuses_does_not_count_and_that_is_told(tmp_path: Path, name: str, script: str) -> None:
    place = AgentPlace(tmp_path, [[{"run": script}, {"write": library(3)}], [{"write": library(2)}]])
    place.mission()
    done = place.json("run", "fix.toml")
    assert (done["iteration_count"], [one["outcome"] for one in place.turns()]) == (2, ["ok"] * 2)
    told = f"{name} is a file that git refuses; it does not count"
    assert told in done["warnings"] and told in place.prompts[1]


def test_files_in_a_submodule_do_not_count_and_that_is_told(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": {"sub/new.py": "x", **library(2)}}]])
    place.git("update-index", "--add", "--cacheinfo", f"160000,{place.git('rev-parse', 'HEAD')},sub")
    place.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--message=Submodule")
    place.mission()
    done = place.json("run", "fix.toml")
    assert done["status"] == "completed" and "sub is a submodule; its files do not count" in done["warnings"]
    assert place.git("diff", "--name-only", "main", done["workspace"]["branch"]) == "lib.py"


def test_a_result_that_is_not_finished_is_applied_only_if_asked_for(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(3)}]])
    place.mission(budget="max_iterations = 1")
    mission = place.json("run", "fix.toml", code=3)["session_id"]
    said = place.ask("workspace", "apply", mission, code=2)[1]
    assert "not completed (unmet: check)" in said and "--unfinished" in said
    assert "return 1" in (place.repository / "lib.py").read_text(encoding="utf-8")
    assert place.json("workspace", "apply", mission, "--unfinished")["applied"] == ["lib.py"]


OPERATOR = """
import json, sys
sys.path[:] = {path!r}
from pursuit.cli.main import answer
state = ["--state", {state!r}]
writes = ["extend last --max-iterations 99", "token new x", "serve", "run {mission}", "trust", "token --operator"]
rows = [["token", "new", "evil", "--operator", "--state", {state!r} + "-other"]]  # its tokens are in the same file
rows += [[*words.split(), *state] for words in [*writes, "status last"]] + [["list", "--state", "other.db"]]
json.dump([answer(words) for words in rows], open({out!r}, "w"))
"""


@pytest.mark.guarantee("an-agent-is-not-its-operator")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_agent_cannot_act_as_the_operator_of_its_mission(tmp_path: Path) -> None:
    out = tmp_path / "codes.json"
    script = tmp_path / "acts.py"
    # Without the environment of the agent, in a session of its own, and no child of it any more.
    run = f"(env -i HOME={tmp_path} PURSUIT_TRUST=1 setsid {sys.executable} {script} & wait)"
    place = AgentPlace(tmp_path, [[{"run": run}, {"write": library(2)}]], isolated=False)
    text = OPERATOR.format(path=sys.path, state=str(place.ledger), mission=str(place.mission()), out=str(out))
    script.write_text(text, encoding="utf-8")
    done = place.json("run", "fix.toml")
    *refused, reads, elsewhere = json.loads(out.read_text(encoding="utf-8"))
    assert (refused, reads, elsewhere != 1) == ([2] * 7, 0, True)
    assert (done["status"], len(place.json("list")["sessions"])) == ("completed", 1)
    assert place.json("token", "list")["tokens"] == []
