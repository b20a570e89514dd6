"""Each row of `ADVICE` and each command that `Context.command` builds is followed: run, or written and loaded."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place
from mission_files import mission_file, threshold

from pursuit.config.configuration import Configuration, load_configuration
from pursuit.errors import ADVICE, ValidationFailed, advice

TESTS = Path(__file__).parents[1]
LOOK = [sys.executable, "-c", "print('score=1')"]
CONFIGURATION = f"""
[commands.look]
argv = {json.dumps(LOOK)}
read_only = true
[commands.write]
argv = {json.dumps(LOOK)}
[commands.train]
argv = {json.dumps([*LOOK, "{rate}"])}
parameters = {{ rate = {{ type = "number", minimum = 0, maximum = 1 }} }}
metrics = {{ score = 'score=([0-9]+)' }}
"""
MISSION = """
directive = "Look"
tool_allowlist = ["commands.{tool}"]
budget = {{ max_iterations = 2, max_tokens = 1000 }}
[proposer]
kind = "repeat"
tool_name = "{tool}"
args = {{}}
[[criteria]]
criterion_id = "looked"
kind = "tool_call_succeeded"
tool_name = "commands.{tool}"
min_count = {count}
"""
SEARCH = mission_file(
    "commands.train",
    threshold("score", "<=", 0),
    iterations=2,
    proposer={"kind": "search", "tool": "train", "batch": 4},
)


@dataclass
class Stage:
    """A folder with a mission that waits for an approval, and values for the rows."""

    place: Place
    mission: str
    approval: str

    def follow(self, row: str, *values: object, code: int | None = 0) -> str:
        """Runs the command of a row as a person copies it; what it prints."""
        command = advice(row, *values) if row in ADVICE else row.format(*values)
        program, *words = shlex.split(command)
        assert program == "pursuit"
        return "".join(self.place.ask(*words, code=code))


def begun(folder: Path) -> Stage:
    place = Place(folder)
    place.write("pursuit.toml", CONFIGURATION)
    place.write("m.toml", MISSION.format(tool="write", count=1))
    status = place.json("run", "m.toml", code=4)
    return Stage(place, status["session_id"], status["pending_approvals"][0]["approval_id"])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("advice")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HOME": folder, "XDG_CONFIG_HOME": folder, "PURSUIT_TRUST": 1, "NO_COLOR": 1}.items():
            patch.setenv(name, str(value))
        yield begun(folder)


def shows(row: str, words: str, *values: str, code: int | None = 0) -> Callable[[Stage], None]:
    """The command runs and prints these words; a value may name a field of the stage."""

    def act(stage: Stage) -> None:
        assert re.search(words, stage.follow(row, *(getattr(stage, one, one) for one in values), code=code)), row

    return act


def answered(answer: str, words: str) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        (stage.place.folder / answer).mkdir()
        other = begun(stage.place.folder / answer)
        assert words in other.follow(f"pursuit {answer} {{}}", other.approval)
        assert "status: completed\n" in other.follow("pursuit resume {}", other.mission, code=None) or answer == "deny"

    return act


def task(row: str, words: str) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        made = stage.place.json("task", "run", "look")["task_id"]
        assert words in stage.follow(row, made, code=None)

    return act


def exported(stage: Stage) -> None:
    stage.place.ask("export", stage.mission, "-o", "a b.jsonl")
    assert "intact" in stage.follow("pursuit verify {}", shlex.quote("a b.jsonl"))


def revoked(stage: Stage) -> None:
    stage.place.ask("token", "--name", "gone")
    assert "gone" in stage.follow("pursuit token revoke {}", "gone")


def made(row: str, *values: str) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        folder = stage.place.folder / "_".join(("new", *values))
        folder.mkdir()
        Place(folder).ask(*shlex.split(advice(row, *values))[1:])
        load_configuration(folder / "pursuit.toml")

    return act


def proposed(stage: Stage) -> None:
    text = MISSION.replace('kind = "repeat"\ntool_name = "{tool}"\nargs = {{}}', 'kind = "client"')
    stage.place.write("client.toml", text.format(tool="look", count=1))
    mission = stage.place.json("start", "client.toml")["session_id"]
    stage.place.write("p.json", '{"tool_calls": [{"tool_name": "look", "args": {}}]}')
    assert "criteria_met" in stage.follow("pursuit iterate {} --proposal {}", mission, "p.json")


def elsewhere(file: str, *words: str) -> Callable[[Stage], None]:
    """Another test follows it: it needs a database, a repository or a server, and has them."""

    def act(stage: Stage) -> None:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert [word for word in words if word not in text] == []

    return act


def written(text: str, said: str) -> str:
    """The configuration after a person did what a row says, in a table that is there."""
    place = re.fullmatch(r"`(.+)` in (?:`(\w+)` of )?`(\[.+\])`", said)
    if place is None:
        return f"{said}\n{text}"
    setting, listed, header = place.groups()
    before, found, after = text.partition(f"{header}\n")
    assert found, f"no {header} in {text}"
    inside, following, rest = after.partition("\n[")
    if listed:
        inside = inside.replace(f"{listed} = [", f"{listed} = [{setting}, ")
    else:
        key = f"{setting.partition(' = ')[0]} = "
        inside = "".join(f"{line}\n" for line in [setting, *inside.splitlines()] if line == setting or key not in line)
    return before + found + inside + following + rest


def changed(
    row: str, values: tuple[object, ...], to: str, look: Callable[[Configuration], Any]
) -> Callable[[Stage], None]:
    """The configuration `to` is changed as a row says and loaded, and `look` sees that this has an effect."""

    def act(stage: Stage) -> None:
        path = stage.place.folder / "followed" / "pursuit.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(to, encoding="utf-8")
        assert not look(load_configuration(path)), to
        path.write_text(text := written(to, advice(row, *values)), encoding="utf-8")
        assert look(load_configuration(path)), text

    return act


def allowed_parents(stage: Stage) -> None:
    command = '[commands.x]\nargv = ["x", "../{a}"]\nparameters.a.type = "string"\n'
    path = stage.place.write("parents.toml", command)
    with pytest.raises(ValidationFailed, match="allow_parent_paths = true"):
        load_configuration(path)
    assert load_configuration(stage.place.write("parents.toml", command + advice("allow_parent_paths = true"))).commands


COMMAND = f"argv = {json.dumps(LOOK)}\n"
SERVER = 'command = "x"\n'
SETTINGS: list[tuple[str, tuple[object, ...], str, Callable[[Configuration], Any]]] = [
    (
        '`parallel_safe = true` in `[commands."{}"]`',
        ("a-b",),
        f"[commands.a-b]\n{COMMAND}[policy]\n",
        lambda it: it.commands["a-b"].traits.parallel_safe,
    ),
    (
        '`"{}" = \'{}=({})\'` in `[commands."{}".metrics]`',
        ("val.loss", "val.loss", "[0-9]+", "x"),
        f"[commands.x]\n{COMMAND}[commands.x.metrics]\nloss = 'loss=([0-9]+)'\n",
        lambda it: set(it.commands["x"].metrics) == {"loss", "val.loss"},
    ),
    (
        "`unbounded = true` in `[limits]`",
        (),
        "[limits]\nmissions_a_day = 3\nunbounded = false\n",
        lambda it: it.limits.unbounded,
    ),
    ('`mode = "ask"` in `[policy]`', (), '[policy]\nmode = "auto"\n', lambda it: it.policy.mode == "ask"),
    (
        '`{{ tool = "{}", decision = "allow" }}` in `rules` of `[policy]`',
        ("files.read",),
        '[policy]\nrules = [{ tool = "files.write", decision = "deny" }]\n',
        lambda it: ("files.read", "allow") in [(one.tool, one.decision) for one in it.policy.rules],
    ),
    (
        '`enabled = true` in `[servers."{}"]`',
        ("a-b",),
        f"[servers.a-b]\nenabled = false\n{SERVER}",
        lambda it: it.servers["a-b"].enabled,
    ),
    (
        '`trust_annotations = true` in `[servers."{}"]`',
        ("a",),
        f"[servers.a]\n{SERVER}",
        lambda it: it.servers["a"].trust_annotations,
    ),
    (
        '`parallel_safe = true` in `[servers."{}".tools."{}"]`',
        ("a", 'good."echo'),
        f'[servers.a]\n{SERVER}[servers.a.tools."good.\\"echo"]\nidempotent = true\n',
        lambda it: it.servers["a"].tools['good."echo'].parallel_safe,
    ),
    (
        '`read_only = true` in `[servers."{}".tools."{}"]`',
        ("a", "b"),
        f"[servers.a]\n{SERVER}[servers.a.tools.b]\nparallel_safe = true\n",
        lambda it: it.servers["a"].tools["b"].read_only,
    ),
    (
        '`network = ["{}"]` in `[agents]`',
        ("a:80",),
        '[agents]\nread = ["a"]\n',
        lambda it: it.agents.network == ("a:80",),
    ),
    ("`isolation = false` in `[agents]`", (), '[agents]\nread = ["a"]\n', lambda it: not it.agents.isolation),
    (
        "`tasks_at_once = {}` in `[settings]`",
        (9,),
        "[settings]\ntasks_at_once = 3\n",
        lambda it: it.settings.tasks_at_once == 9,
    ),
    (
        "`tasks_each = {}` in `[settings]`",
        (9,),
        "[settings]\ntasks_at_once = 3\n",
        lambda it: it.settings.tasks_each == 9,
    ),
    (
        '`clients = ["{}"]` in `[proposers]`',
        ("halving",),
        '[proposers]\ncallables = ["a.b:c"]\n',
        lambda it: it.proposers.clients == ("halving",) and it.proposers.callables == ("a.b:c",),
    ),
    (
        '`callables = ["{}"]` in `[proposers]`',
        ("a.b:c",),
        '[proposers]\nclients = ["halving"]\n',
        lambda it: it.proposers.clients == ("halving",) and it.proposers.callables == ("a.b:c",),
    ),
    ('client_models = ["{}"]', ("a:b",), "", lambda it: it.client_models == ("a:b",)),
    (
        '`"{}" = {{ input = {}, output = {} }}` in `[prices]`',
        ("a:b", 1, 2),
        '[prices]\n"c:d" = { input = 3, output = 4 }\n',
        lambda it: [(one.input, one.output) for one in it.prices.values()] == [(1, 2), (3, 4)],
    ),
    (
        'schedule."{}" = {{ cron = "{}", mission = "{}" }}',
        ("nightly", "0 6 * * *", "mission.toml"),
        "",
        lambda it: "nightly" in it.schedule and it.schedule["nightly"].cron == "0 6 * * *",
    ),
]
"""Rows that name a setting: their values, a configuration to change, and where the change is seen."""
FOLLOWERS: dict[str, Callable[[Stage], None]] = {
    "pursuit agents": shows("pursuit agents", ""),
    "pursuit approvals": shows("pursuit approvals", "question: approval-"),
    "pursuit approvals show {}": shows("pursuit approvals show {}", "write of server commands", "approval"),
    "pursuit approvals {}": shows("pursuit approvals {}", "question: approval-", "mission"),
    "pursuit approve {}": answered("approve", "approved: commands.write"),
    "pursuit deny {}": answered("deny", "denied: commands.write"),
    "pursuit extend {} {} -1": shows("pursuit extend {} {} -1", "status: waiting", "mission", "--max-tokens"),
    "pursuit extend {} {} {}": shows("pursuit extend {} {} {}", "waiting", "mission", "--max-iterations", "9"),
    "pursuit history {} --cursor {}": shows("pursuit history {} --cursor {}", "", "mission", "1"),
    "pursuit history {} --full": shows("pursuit history {} --full", "", "mission"),
    "pursuit demo": elsewhere("surface/test_cli_first_minute.py", '"demo", "--json"'),
    "pursuit init": made("pursuit init"),
    "pursuit init --template {}": made("pursuit init --template {}", "fix-tests"),
    "pursuit install --help": shows("pursuit install --help", "--dry-run"),
    "pursuit install claude-code --dry-run": shows("pursuit install claude-code --dry-run", "serve"),
    "pursuit install {} --http": elsewhere("surface/test_cli_install.py", '"--http"'),
    "pursuit iterate {}": shows("pursuit iterate {}", "waiting for approval", "mission", code=4),
    "pursuit iterate {} --proposal {}": proposed,
    "pursuit list": shows("pursuit list", "mission-"),
    "pursuit list --cursor {}": elsewhere("surface/test_cli_looks.py", '"list", "--cursor"'),
    "pursuit migrate up": elsewhere("surface/test_cli_postgres.py", '"migrate", "up", "--state"'),
    "pursuit migrate up --role {}": elsewhere("surface/test_cli_postgres.py", '"migrate", "up", "--role"'),
    "pursuit page": elsewhere("page/test_live.py", '"page", "--no-browser"'),
    "pursuit problem compare {}": shows("pursuit problem compare {}", "", "welded-beam"),
    "pursuit problem list": shows("pursuit problem list", "welded-beam"),
    "pursuit problem replay {}": elsewhere("e2e/test_problems.py", '"problem", "replay", "attempt-1"'),
    "pursuit problem serve {}": elsewhere("surface/test_problem_http.py", '"problem", "serve", "pangram"'),
    "pursuit problem serve {} --attempt {}": elsewhere("e2e/test_problem_front_door.py", '"--attempt", "attempt-1"'),
    "pursuit problem show {}": elsewhere("e2e/test_problems.py", '"problem", "show", "three-bar-truss"'),
    "pursuit report {}": shows("pursuit report {}", "Look", "mission"),
    "pursuit resume": shows("pursuit resume {}", "waiting for approval", "mission", code=4),
    "pursuit resume {}": shows("pursuit resume {}", "waiting for approval", "mission", code=4),
    "pursuit run {}": shows("pursuit run {}", "waiting for approval", "m.toml", code=4),
    "pursuit scaffold {}": shows("pursuit scaffold {}", 'directive = "a goal"', "a goal"),
    "pursuit serve": elsewhere("surface/test_problem_http.py", '("serve",)'),
    "pursuit serve --mission {}": elsewhere("surface/test_mcp_one_mission.py", "--mission"),
    "pursuit serve --mission {} --mode {}": elsewhere("surface/test_mcp_one_mission.py", "--mission"),
    "pursuit task cancel {}": task("pursuit task cancel {}", "has ended"),
    "pursuit task list": shows("pursuit task list", ""),
    "pursuit task run {}": shows("pursuit task run {}", "completed", "look"),
    "pursuit task run -- {}": shows("pursuit task run -- {}", "completed", "true"),
    "pursuit task tail -f {}": task("pursuit task tail -f {}", "score=1"),
    "pursuit task tail {}": task("pursuit task tail {}", "score=1"),
    "pursuit token": shows("pursuit token", "token: pursuit_"),
    "pursuit token --operator": shows("pursuit token --operator", "role: operator"),
    "pursuit token new --may approve-own": shows("pursuit token new --may approve-own", "approve-own"),
    "pursuit token revoke {}": revoked,
    "pursuit tools": shows("pursuit tools", "commands.look"),
    "pursuit tools diff": shows("pursuit tools diff", "no tool has changed"),
    "pursuit tools pin": shows("pursuit tools pin", "no tool has changed"),
    "pursuit trust --owner {}": shows("pursuit trust --owner {}", "", pwd.getpwuid(os.getuid()).pw_name),
    "pursuit verify": shows("pursuit verify", "intact"),
    "pursuit verify {}": exported,
    "pursuit watch {}": elsewhere("surface/test_mistakes.py", '"watch"'),
    "pursuit worker": elsewhere("e2e/test_workers.py", '"worker", "--name"'),
    "pursuit workers": elsewhere("surface/test_cli_postgres.py", '"workers", "--state"'),
    "pursuit workspace apply {}": elsewhere("e2e/test_agents.py", '"workspace", "apply", mission'),
    "pursuit workspace diff last": elsewhere("e2e/test_agent_permissions.py", '"workspace", "diff", "last"'),
    "pursuit workspace diff {} --turn {}": elsewhere("e2e/test_agents.py", '"workspace", "diff", mission, "--turn"'),
    "allow_parent_paths = true": allowed_parents,
    **{row: changed(row, values, to, look) for row, values, to, look in SETTINGS},
}


def test_each_row_has_a_follower() -> None:
    assert sorted(ADVICE - FOLLOWERS.keys()) == []


@pytest.mark.guarantee("advice-works")
@pytest.mark.parametrize("row", FOLLOWERS)
def test_advice_works(row: str, stage: Stage) -> None:
    FOLLOWERS[row](stage)


def test_the_warning_about_a_batch_of_a_command_names_a_key_that_works(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", CONFIGURATION)
    place.write("m.toml", SEARCH)
    (warning,) = place.json("start", "m.toml")["warnings"]
    place.write("pursuit.toml", written(CONFIGURATION, warning.rpartition("write ")[2]))
    assert place.json("start", "m.toml")["warnings"] == []
