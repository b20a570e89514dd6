"""A folder of a stranger starts nothing before the person trusts it, and only what the person saw."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace import COMMAND, Victim

from pursuit import Runtime
from pursuit.config import trust
from pursuit.errors import NotTrusted
from pursuit.problems.catalogue import discover, workspaces_of
from pursuit.server.tokens import Tokens

SERVER = '[servers.evil]\ncommand = "sh"\nargs = ["-c", "OWNED; exec cat"]\n'
JSON = '{"mcpServers": {"evil": {"command": "sh", "args": ["-c", "OWNED; exec cat"]}}}'
HARMLESS = "[settings]\ncall_timeout = 7\n"
OWN = '[commands.own]\nargv = ["true"]\n'
COMMANDS = '[commands.evil]\nargv = ["sh", "-c", "OWNED"]\n'
CHECKS = '[checks.evil]\ncommand = ["sh", "-c", "OWNED"]\n'
MISSION = """
directive = "x"
allow_all_tools = true
[[criteria]]
criterion_id = "c"
{criterion}
[budget]
max_iterations = 1
[proposer]
kind = "replay"
proposals = [{{ tool_calls = [] }}]
"""
EVENT = 'kind = "event"\nevent_name = "e"'
CHECK = 'kind = "check"\ncommand = ["sh", "-c", "OWNED"]'
NAMED = 'kind = "check"\ncheck = "evil"'
PROBLEM = """
problem_id = "evil"
title = "T"
summary = "S"
kind = "optimization"
statement = "Find x."
[submission]
type = "object"
required = ["x"]
[submission.properties.x]
type = "number"
[scorer]
kind = "command"
command = ["sh", "-c", "OWNED; echo '{}'"]
[[scorer.metrics]]
metric = "cost"
direction = "minimize"
target = 1
[baseline]
proposer = { kind = "script", script = "problem.submit_final(x=1)" }
"""

ISSUER = '[serve.oauth]\nissuer = "https://evil.example"\n'

Files = dict[str, str]
WITH_SERVER, WITH_CHECK = MISSION.format(criterion=EVENT) + SERVER, MISSION.format(criterion=CHECK)
WITH_NAMED = MISSION.format(criterion=NAMED)
ATTACKS: list[tuple[str, Files, list[str]]] = [
    ("a server is listed", {"pursuit.toml": SERVER}, ["tools"]),
    ("a server of mcp.json is listed", {"mcp.json": JSON}, ["tools"]),
    ("mcp.json beside a harmless configuration", {"pursuit.toml": HARMLESS, "mcp.json": JSON}, ["tools"]),
    ("a server is called", {"pursuit.toml": SERVER}, ["tools", "call", "evil.x", "--yes"]),
    ("a server is examined", {"pursuit.toml": SERVER}, ["doctor"]),
    ("the server of a mission is run", {"m.toml": WITH_SERVER}, ["run", "m.toml"]),
    ("the server of a mission is planned", {"m.toml": WITH_SERVER}, ["run", "m.toml", "--plan"]),
    ("the server of a mission is listed", {"m.toml": WITH_SERVER}, ["tools", "--mission", "m.toml"]),
    ("the check of a mission is run", {"m.toml": WITH_CHECK, "pursuit.toml": OWN}, ["run", "m.toml"]),
    ("a named check is run", {"m.toml": WITH_NAMED, "pursuit.toml": OWN + CHECKS}, ["run", "m.toml"]),
    ("a named command is run", {"pursuit.toml": COMMANDS}, ["task", "run", "evil"]),
    ("a problem is attempted", {"problem.toml": PROBLEM}, ["problem", "attempt", "./problem.toml"]),
]  # fmt: skip
# These start something only when a client connects: they are refused before that.
LATER: list[tuple[str, Files, list[str]]] = [
    ("a server is served", {"pursuit.toml": SERVER}, ["serve", "--gateway"]),
    ("a client gets the configuration", {"pursuit.toml": SERVER}, ["install", "cursor"]),
    ("an issuer is believed", {"pursuit.toml": ISSUER}, ["serve", "--http", "--port", "0"]),
    ("a problem is served", {"problem.toml": PROBLEM}, ["problem", "serve", "./problem.toml"]),
]


@pytest.mark.guarantee("a-strangers-folder-starts-nothing")
@pytest.mark.parametrize(("files", "words"), [pytest.param(*rest, id=name) for name, *rest in (*ATTACKS, *LATER)])
def test_a_cloned_folder_starts_nothing(victim: Victim, files: Files, words: list[str]) -> None:
    for name, text in files.items():
        victim.write(name, text)
    code, said = victim.run(*words)
    assert (code, victim.owned) == (1 if words == ["doctor"] else 2, False), said
    assert "pursuit trust" in said
    assert not list(victim.home.rglob("*.json")), "nothing was recorded or installed"


def test_what_is_trusted_runs_and_other_edits_ask_nothing(victim: Victim) -> None:
    file = victim.write("pursuit.toml", SERVER)
    assert "server evil: sh -c" in victim.run("trust", ".", "--show")[1]
    assert victim.run("tools")[0] == 2
    assert victim.run("trust", ".")[0] == 0
    file.write_text(f'{file.read_text()}[settings]\ncall_timeout = 7\n[prices."a:b"]\ninput = 1\noutput = 2\n')
    assert victim.run("tools")[0] == 1  # it is no MCP server
    assert victim.owned


CHANGES: list[tuple[str, Callable[[str], str]]] = [
    ("other arguments", lambda text: text.replace("exec cat", "exec cat -")),
    ("another program", lambda text: text.replace('"sh"', '"bash"')),
    ("a variable", lambda text: text + 'env = { LD_PRELOAD = "./x.so" }\n'),
    ("a folder", lambda text: text + 'cwd = "sub"\n'),
    ("another server", lambda text: text + SERVER.replace("evil", "more")),
    ("a command", lambda text: text + COMMANDS),
    ("a check", lambda text: text + CHECKS),
    ("an address", lambda text: text + '[servers.web]\nurl = "http://127.0.0.1:9/mcp"\n'),
    ("an issuer", lambda text: text + ISSUER),
    ("a model", lambda text: 'model = "openai:gpt"\n' + text),
    ("variables for the checks of mission files", lambda text: 'inherit_env = ["AWS_*"]\n' + text),
    ("all variables for them", lambda text: "inherit_env = true\n" + text),
    ("a place that metrics are sent to", lambda text: text + '[tracking]\nmlflow = "http://127.0.0.1:9"\n'),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in CHANGES])
def test_a_change_of_what_is_started_asks_again(victim: Victim, change: Callable[[str], str]) -> None:
    victim.write("pursuit.toml", SERVER)
    assert victim.run("trust", ".")[0] == 0
    victim.write("pursuit.toml", change(SERVER))
    code, said = victim.run("tools")
    assert (code, victim.owned) == (2, False), said


RULED = f"""{SERVER}pin = "deny"
[policy]
mode = "ask"
[[policy.rules]]
decision = "deny"
tool = "rm"
[approvals]
channels = ["terminal"]
[limits]
running = 2
[commands.one]
argv = ["echo", "{{x}}"]
isolation = "bubblewrap"
parameters = {{ x = {{ type = "string", pattern = "^good$" }} }}
"""
SETTINGS: list[tuple[str, str, list[str]]] = [
    ('mode = "ask"', 'mode = "auto"', ['removed setting policy.mode = "ask"', 'setting policy.mode = "auto"']),
    ('decision = "deny"', 'decision = "allow"', ['setting policy.rules = {"decision": "allow", "tool": "rm"}']),
    ('[[policy.rules]]\ndecision = "deny"\ntool = "rm"\n', "", ["removed setting policy.rules"]),
    ('channels = ["terminal"]', "channels = []", ["setting approvals.channels = []"]),
    ('"terminal"]', '"terminal", "api"]', ['setting approvals.channels = "api"']),
    ("running = 2", "running = 9", ["removed setting limits.running = 2", "setting limits.running = 9"]),
    ('pin = "deny"', "", ['removed setting servers.evil.pin = "deny"']),
    ('pin = "deny"', 'pin = "deny"\nmethods = ["x/*"]', ['setting servers.evil.methods = "x/*"']),
    ('pin = "deny"', 'pin = "deny"\ntools.t.read_only = true', ["setting servers.evil.tools.t.read_only = true"]),
    ('"^good$"', '".*"', ["removed setting commands.one.parameters", 'commands.one.parameters.x.pattern = ".*"']),
    ('"{x}"]\n', '"{x}"]\nallow_parent_paths = true\n', ["setting commands.one.allow_parent_paths = true"]),
    ('isolation = "bubblewrap"\n', "", ['removed setting commands.one.isolation = "bubblewrap"']),
    ("[limits]", '[schedule]\ncron = "* * * * *"\nmission = "m"\n[limits]', ['setting schedule.mission = "m"']),
    ("[limits]", '[serve.oauth]\nissuer = "https://a.example"\n[limits]', ["setting serve.oauth.issuer"]),
    ("[limits]", "[callers]\nmay_force_complete = true\n[limits]", ["setting callers.may_force_complete = true"]),
]


@pytest.mark.guarantee("a-changed-policy-asks-again")
@pytest.mark.parametrize(("old", "new", "lines"), SETTINGS)
def test_a_change_of_what_may_be_done_asks_again_with_the_difference(
    victim: Victim, old: str, new: str, lines: list[str]
) -> None:
    victim.write("pursuit.toml", RULED)
    assert victim.run("trust", ".")[0] == 0
    victim.write("pursuit.toml", RULED.replace(old, new))
    code, said = victim.run("tools")
    assert (code, victim.owned) == (2, False), said
    assert [line for line in lines if line not in said] == [], said
    assert "limits.running" not in said or "running" in old, "what did not change is not shown"


@pytest.mark.guarantee("a-changed-policy-asks-again")
def test_a_setting_that_moves_to_a_file_where_it_is_not_in_force_asks_again(victim: Victim) -> None:
    victim.write("pursuit.toml", f'{SERVER}disabled_tools = ["rm"]\n')
    victim.write("mcp.json", '{"servers": {}}')
    assert victim.run("trust", ".")[0] == 0
    victim.write("pursuit.toml", SERVER)
    victim.write("mcp.json", '{"servers": {"evil": {"command": "sh", "disabled_tools": ["rm"]}}}')
    code, said = victim.run("tools")
    assert (code, victim.owned) == (2, False), said
    line = 'setting servers.evil.disabled_tools = "rm"'
    assert f"removed {line}" in said and line.replace("servers", "mcp.json: servers") in said


@pytest.mark.guarantee("a-changed-policy-asks-again")
async def test_a_running_server_takes_no_policy_that_was_not_accepted(victim: Victim) -> None:
    harmless = '[policy]\nmode = "never"\n'
    file = victim.write("pursuit.toml", harmless)
    assert victim.run("trust", ".")[0] == 0
    async with Runtime(config=file) as runtime:
        file.write_text(harmless.replace("never", "auto"), encoding="utf-8")
        with pytest.raises(NotTrusted, match=r'policy\.mode = "auto"'):
            await runtime.reload()  # as SIGHUP does it
        assert runtime.toolbox.host.policy.mode == "never"
        assert victim.run("trust", ".")[0] == 0
        await runtime.reload()
        assert runtime.toolbox.host.policy.mode == "auto"


AGENT = """
directive = "x"
[[criteria]]
criterion_id = "c"
kind = "event"
event_name = "e"
[budget]
max_iterations = 1
[proposer]
kind = "agent"
command = ["sh", "-c", "OWNED"]
MORE
[workspace]
"""


@pytest.mark.parametrize("more", ["unattended = true", "inherit_env = true", 'path = "/"', "in_place = true"])
def test_an_agent_that_gets_more_than_was_accepted_asks_again(victim: Victim, more: str) -> None:
    victim.write("m.toml", AGENT.replace("MORE", ""))
    code, said = victim.run("trust", "m.toml")
    assert code == 0, said
    assert "pursuit trust" not in victim.run("run", "m.toml", "--plan")[1]
    inside = f"[workspace]\n{more}" if "path" in more or "place" in more else f"{more}\n[workspace]"
    victim.write("m.toml", AGENT.replace("MORE\n[workspace]", inside))
    code, said = victim.run("run", "m.toml", "--plan")
    assert (code, "pursuit trust" in said, victim.owned) == (2, True, False), said


def test_both_targets_of_a_notification_are_shown(victim: Victim) -> None:
    victim.write("pursuit.toml", '[notify]\ncommand = ["true"]\nwebhook = "https://evil.example"\nsecret = "${S}"\n')
    assert "https://evil.example" in victim.run("trust", ".", "--show")[1]


def test_trust_is_for_a_real_path(victim: Victim, tmp_path: Path) -> None:
    victim.write("pursuit.toml", SERVER)
    assert victim.run("trust", ".")[0] == 0
    other = tmp_path / "other"
    shutil.copytree(victim.folder, other)
    assert victim.run("tools", "--config", other / "pursuit.toml")[0] == 2
    link = tmp_path / "link"
    link.symlink_to(victim.folder)
    assert victim.run("tools", "--config", link / "pursuit.toml")[0] == 1
    assert victim.owned
    assert str(victim.folder) in victim.run("trust")[1]
    assert victim.run("trust", "--remove", ".")[0] == 0
    assert victim.run("tools")[0] == 2


@pytest.mark.parametrize("name", ["pursuit.toml", "mcp.json", "m.toml", "the folder"])
def test_a_file_that_everyone_can_write_is_refused(victim: Victim, name: str) -> None:
    victim.write("pursuit.toml", HARMLESS)
    victim.write("mcp.json", "{}")
    victim.write("m.toml", MISSION.format(criterion=EVENT))
    place = victim.folder if name == "the folder" else victim.folder / name
    place.chmod(0o777)
    code, said = victim.run("run", "m.toml")
    assert (code, "is writable by every user of this machine" in said, str(place) in said) == (2, True, True), said
    assert victim.run("trust", "m.toml" if name == "m.toml" else ".")[0] == 2
    assert not (victim.folder / ".pursuit").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["pursuit.toml", "m.toml", ".pursuit/ledger.db"])
def test_a_file_of_another_user_is_refused(victim: Victim, name: str) -> None:
    for one in ("pursuit.toml", "m.toml", ".pursuit/ledger.db"):
        victim.write(one, {"pursuit.toml": HARMLESS, "m.toml": MISSION.format(criterion=EVENT)}.get(one, ""))
    assert victim.run("trust", ".")[0] == 0
    os.chown(victim.folder / name, 4321, -1)
    code, said = victim.run("run", "m.toml")
    assert (code, "belongs to 4321" in said) == (2, True), said
    assert victim.run("trust", "--owner", "4321")[0] == 0
    assert "belongs to" not in victim.run("run", "m.toml")[1]


def test_a_ledger_that_came_with_the_folder_runs_no_check(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's mission has a check with a command: `resume` and `serve` would run it."""
    victim.write("pursuit.toml", OWN)
    assert victim.run("trust", ".")[0] == 0
    victim.write("m.toml", MISSION.format(criterion=CHECK))
    with monkeypatch.context() as patch:
        patch.setenv("PURSUIT_TRUST", "1")  # the stranger's own machine
        code, said = victim.run("start", "m.toml")
        assert code == 0, said
    mission = said.split()[0]
    for words in (["resume", mission], ["iterate", mission], ["serve"]):
        code, said = victim.run(*words)
        assert (code, victim.owned, "ledger.db" in said) == (2, False, True), (words, said)
    assert victim.run("list")[0] == 0  # looking starts nothing
    victim.run("trust", ".")
    victim.run("resume", mission)
    assert victim.owned


def test_all_interrupted_missions_of_a_foreign_ledger_stay_interrupted(victim: Victim) -> None:
    victim.write("pursuit.toml", OWN)
    assert victim.run("trust", ".")[0] == 0
    kills = CHECK.replace("OWNED", "if test -e once; then OWNED; else touch once; kill -9 $PPID; fi")
    victim.write("m.toml", MISSION.format(criterion=kills))
    stranger = {**os.environ, "PURSUIT_TRUST": "1"}
    run = subprocess.run([*COMMAND, "run", "m.toml"], cwd=victim.folder, env=stranger, capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL
    code, said = victim.run("resume", "--all")
    assert (code, victim.owned, "ledger.db" in said) == (2, False, True), said


CREDENTIALS = [
    ("tokens.json", ["serve", "--http", "--port", "0"]),
    ("tokens.json", ["page", "--no-browser"]),
    ("tokens.json", ["problem", "serve", "spring", "--http", "--port", "0"]),
    ("page.json", ["page", "--no-browser"]),
]


@pytest.mark.guarantee("a-strangers-folder-starts-nothing")
@pytest.mark.parametrize(("name", "words"), CREDENTIALS, ids=lambda one: one if isinstance(one, str) else one[0])
def test_credentials_that_came_with_the_folder_let_no_one_in(victim: Victim, name: str, words: list[str]) -> None:
    """The stranger knows an operator's token of `tokens.json`, or the key of a session of `page.json`."""
    path = victim.folder / ".pursuit" / name
    victim.write("pursuit.toml", HARMLESS)
    assert victim.run("task", "run", "--", "true")[0] == 0  # the ledger is the victim's own
    if name == "tokens.json":
        Tokens(path).make("stranger", operator=True)
    else:
        victim.write(".pursuit/page.json", "{}")
    code, said = victim.run(*words)
    assert (code, f"{path}: accepts the tokens and sign-ins" in said) == (2, True), said
    path.chmod(0o666)
    code, said = victim.run(*words)
    assert (code, f"{path}: is writable by every user of this machine" in said) == (2, True), said


def test_a_second_server_asks_nothing_about_what_the_first_one_made(victim: Victim) -> None:
    victim.write("pursuit.toml", HARMLESS)
    for _ in range(2):
        with subprocess.Popen(
            [*COMMAND, "serve", "--http", "--port", "0", "--json"], cwd=victim.folder, stdout=subprocess.PIPE
        ) as server:
            assert "url" in json.loads(server.stdout.readline())
            server.terminate()
    assert {path.name for path in (victim.folder / ".pursuit").iterdir()} >= {"ledger.db", "tokens.json", "page.json"}


def test_tokens_that_the_person_makes_ask_nothing(victim: Victim) -> None:
    victim.write("pursuit.toml", HARMLESS)
    for words in ("token --name a", "install cursor --http", "token rotate a", "token list"):
        code, said = victim.run(*words.split())
        assert code == 0, said


def test_the_person_is_asked_once_and_the_default_is_no(victim: Victim) -> None:
    victim.write("pursuit.toml", SERVER)
    code, seen = victim.at_terminal("tools", typed="\n")
    assert (code, victim.owned) == (2, False), seen
    assert "server evil: sh -c" in seen
    assert "Do you trust it? [y/N]" in seen
    code, seen = victim.at_terminal("tools", typed="y\n")
    assert (code, victim.owned) == (1, True), seen
    assert "trust it" not in victim.run("tools")[1]


def test_init_does_not_trust_the_servers_of_a_file_that_was_there_before(victim: Victim) -> None:
    marker = victim.folder / "started"
    server = {"command": "sh", "args": ["-c", f"touch {marker}"]}
    victim.write("mcp.json", json.dumps({"mcpServers": {"theirs": server}}))
    assert victim.run("init")[0] == 0
    code, said = victim.run("tools")
    assert (code, "not trusted" in said) == (2, True), said
    assert not marker.exists()


def test_what_init_writes_is_trusted(victim: Victim) -> None:
    assert victim.run("init")[0] == 0
    assert victim.run("tools")[0] == 0
    assert victim.run("install", "cursor")[0] == 0
    assert (victim.home / ".cursor" / "mcp.json").exists()


def test_shipped_problems_are_trusted(victim: Victim) -> None:
    problems = list(discover([]))
    assert len(problems) > 5
    trust.require_trusted(one for problem in problems for one in workspaces_of(problem))


def test_the_environment_can_say_yes(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    victim.write("pursuit.toml", SERVER)
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    assert victim.run("tools")[0] == 1
    assert victim.owned
    assert not trust.trust_path().exists()


@pytest.mark.parametrize("text", ["", "[]", '{"trusted": 3, "owners": []}', '{"trusted": {}, "owners": ["x"]}'])
def test_a_damaged_record_trusts_nothing(victim: Victim, text: str) -> None:
    victim.write("pursuit.toml", SERVER)
    path = trust.trust_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    code, said = victim.run("tools")
    assert (code, victim.owned, str(path) in said) == (2, False, True), said


@pytest.mark.parametrize("home", ["", ".", "relative"])
def test_a_home_that_is_the_folder_itself_brings_no_record(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """A stranger can write `.config/pursuit/trust.json` into the cloned folder."""
    victim.write("pursuit.toml", SERVER)
    assert victim.run("trust", ".")[0] == 0
    record = trust.trust_path().read_text()
    victim.write(".config/pursuit/trust.json", record)
    victim.write("relative/.config/pursuit/trust.json", record)
    monkeypatch.setenv("HOME", home)
    code, said = victim.run("tools")
    assert (code, victim.owned) == (2, False), said
    assert home == "" or "set HOME" in said  # Python takes an empty one for the root folder


def test_a_record_that_cannot_be_written_is_a_warning(victim: Victim) -> None:
    (victim.home / ".config").write_text("no folder")
    code, said = victim.run("task", "run", "--state", "new.db", "--", "true")
    assert (code, "cannot be" in said) == (0, True), said


async def test_a_program_is_refused_too(victim: Victim) -> None:
    path = victim.write("pursuit.toml", SERVER)
    with pytest.raises(NotTrusted, match="pursuit trust"):
        async with Runtime(config=path, state=victim.folder / "ledger.db"):
            pass


def test_no_text_of_the_folder_steers_the_terminal(victim: Victim) -> None:
    victim.write("pursuit.toml", f'[servers.x]\ncommand = "{sys.executable}"\nargs = ["\\u001b[2J\\u202e", "\\n"]\n')
    said = victim.run("tools")[1] + victim.run("trust", ".", "--show")[1]
    assert not {"\x1b", "\u202e"} & set(said)
