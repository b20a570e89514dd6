"""The documentation is true: its code runs, its files load, and it names everything that a user can write."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer.main
from pydantic import BaseModel
from quick_start import quick

from pursuit.cli.main import COMMANDS, app, loaded
from pursuit.config.commands import KINDS, CommandParameter, CommandTable
from pursuit.config.configuration import (
    USUAL_CHANNELS,
    CallerTable,
    Notice,
    NotifyTable,
    Overlap,
    PolicyTable,
    RuleTable,
    ScheduleTable,
    SettingsTable,
    load_configuration,
)
from pursuit.config.mission_file import load_mission_file
from pursuit.config.servers import ServerTable, Timeouts
from pursuit.core import criteria, decision, mission, proposing
from pursuit.core.caps import BY_REASON
from pursuit.core.events import Outcome, WaitingFor
from pursuit.core.mission import parse_mission, parse_proposal
from pursuit.core.state import StoredStatus
from pursuit.core.tools import ToolOverride
from pursuit.errors import PursuitError, ValidationFailed
from pursuit.policy.rules import MODES, SEVERITY
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.manifest import KINDS as KINDS_OF_PROBLEMS
from pursuit.problems.manifest import Baseline, Citation, CitationMode, Limits, Manifest, Visibility
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.missions import MACHINES
from pursuit.problems.scorer import SCORER_KINDS, Direction, Metric, Scorer, ScoringRule
from pursuit.sandbox.sandbox import Sandbox
from pursuit.sandbox.values import Calls, ScriptSpec
from pursuit.service.doctor import Level
from pursuit.upstream.known_servers import known_servers

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md"])
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[a-z]+) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BASE = {"directive": "x", "budget": {"max_iterations": 1}, "allow_all_tools": True}
CRITERION = {"criterion_id": "c", "kind": "event", "event_name": "e"}
MARKS = {None, "continues", "fragment", "output", "refused", "script", "tutorial"}


class Block(NamedTuple):
    page: str
    line: int
    mark: str | None
    kind: str
    text: str


class Program(NamedTuple):
    """Blocks that run as one file, and what they are said to print."""

    name: str
    source: str
    printed: str | None


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("kind")) + 1
            yield Block(str(page.relative_to(ROOT)), line, found["mark"], found["kind"], found["text"])


def of(kind: str, *marks: str | None) -> list[Any]:
    wanted = [block for block in blocks() if block.kind == kind and (block.mark in marks or not marks)]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in wanted]


def programs() -> list[Any]:
    found: list[Program] = []
    for block in blocks():
        match (block.kind, block.mark):
            case ("python", None):
                found.append(Program(f"{block.page}:{block.line}", block.text, None))
            case ("python", "continues"):
                last = found.pop()
                found.append(Program(last.name, last.source + block.text, last.printed))
            case ("text", "output") if found and found[-1].name.startswith(block.page):
                last = found.pop()
                found.append(last._replace(printed=(last.printed or "") + block.text))
            case _:
                pass
    return [pytest.param(program, id=program.name) for program in found]


def test_every_mark_is_one_that_is_looked_at() -> None:
    assert {block.mark for block in blocks()} <= MARKS


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
def test_python_runs_and_prints_what_the_page_says(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "block.py"
    file.write_text(program.source, encoding="utf-8")
    done = subprocess.run([sys.executable, quick(str(file))], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if program.printed is not None:
        assert done.stdout == program.printed


@pytest.mark.parametrize("block", of("python", "script"))
async def test_scripts_run_in_the_sandbox_to_their_end(block: Block) -> None:
    tools = {"beam": {"evaluate": ["h", "l"]}, "plant": {"start_batch": ["number"]}}
    state = {"iteration": 0, "metrics": {}, "best": {}, "results": [], "errors": [], "advice": None, "memory": {}}
    spec = ScriptSpec(source=block.text, tools=tools, state=state, seed=1, now=datetime.datetime.now(tz=datetime.UTC))
    async with Sandbox() as sandbox, sandbox.script(spec) as script:
        step = await script.start()
        calls = 0
        while isinstance(step, Calls):
            calls += len(step.calls)
            step = await script.answer({call.index: {"metrics": {"cost": 1.0}} for call in step.calls})
        assert step.error is None
        assert calls > 0


@pytest.mark.parametrize("block", of("toml", None, "fragment"))
def test_toml_is_what_our_loaders_take(block: Block, tmp_path: Path) -> None:
    data = tomllib.loads(block.text)
    if block.mark == "fragment":
        allow_all = "tool_allowlist" not in data
        parse_mission({**BASE, "criteria": [CRITERION], "allow_all_tools": allow_all, **data})
    elif "directive" in data:
        (tmp_path / "strategy.py").write_text("pass", encoding="utf-8")
        (tmp_path / "mission.toml").write_text(block.text, encoding="utf-8")
        load_mission_file(tmp_path / "mission.toml")
    elif "problem_id" in data:
        (tmp_path / "problem.toml").write_text(block.text, encoding="utf-8")
        read_manifest(tmp_path / "problem.toml")
    else:
        (tmp_path / "pursuit.toml").write_text(block.text, encoding="utf-8")
        configuration = load_configuration(tmp_path / "pursuit.toml")
        given = (configuration.servers, configuration.commands, configuration.notify, configuration.schedule)
        ruled = configuration.policy.rules or configuration.limits.callers or configuration.serve.oauth
        ruled = ruled or configuration.agents.read
        assert any(given) or ruled or configuration.approvals.channels != USUAL_CHANNELS


@pytest.mark.parametrize("block", of("json"))
def test_json_is_what_our_loaders_take(block: Block, tmp_path: Path) -> None:
    data = json.loads(block.text)
    if "mcpServers" in data:
        (tmp_path / "mcp.json").write_text(block.text, encoding="utf-8")
        assert load_configuration(tmp_path / "mcp.json").servers
    else:
        parse_proposal(data)


def test_the_wrong_mission_is_refused_in_the_words_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(blocks())
    (place,) = [place for place, block in enumerate(found) if block.mark == "refused"]
    monkeypatch.chdir(tmp_path)
    Path("mission.toml").write_text(found[place].text, encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_mission_file(Path("mission.toml"))
    said = [f"error: {refused.value.message}", *(f"  {fault}" for fault in refused.value.faults)]
    assert found[place + 1].text.splitlines() == said


def written(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def keys_of(module: Any) -> set[str]:
    shapes = [s for s in vars(module).values() if isinstance(s, type) and issubclass(s, BaseModel)]
    return {name for shape in shapes for name in shape.model_fields}


def kinds_of(union: Any) -> set[str]:
    shapes = get_args(get_args(union)[0])
    return {shape.model_fields["kind"].default for shape in shapes}


def verdict_reasons() -> set[str]:
    tree = ast.parse(Path(decision.__file__).read_text(encoding="utf-8"))
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Decision"]
    return {*BY_REASON, *(str(call.args[1].value) for call in made if isinstance(call.args[1], ast.Constant))}


def codes_of(error: type[PursuitError]) -> set[str]:
    return {error.code}.union(*(codes_of(inner) for inner in error.__subclasses__()))


def names_of(shape: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(shape)}


PROMISED = {
    "missions.md": {
        "keys of a mission": keys_of(mission) | keys_of(criteria),
        "kinds of criteria": kinds_of(criteria.AnyCriterion),
        "kinds of proposers": set(proposing.kinds()),
        "kinds of cadence": kinds_of(mission.Cadence),
        "verdict reasons": verdict_reasons(),
    },
    "configuration.md": {
        "settings": set(SettingsTable.model_fields),
        "keys of a server": set(ServerTable.model_fields) - {"type"},
        "keys of a tool": names_of(ToolOverride),
        "timeouts": set(Timeouts.model_fields),
        "keys of a command": set(CommandTable.model_fields),
        "keys of a parameter": {*CommandParameter.model_fields, *KINDS},
        "policy": {
            *PolicyTable.model_fields,
            *RuleTable.model_fields,
            *CallerTable.model_fields,
            *SEVERITY,
            *MODES,
        },
    },
    "unattended.md": {
        "notifications": {*NotifyTable.model_fields, *get_args(Notice)},
        "schedules": {*ScheduleTable.model_fields, *get_args(Overlap)},
    },
    "problems.md": {
        "keys of a manifest": {
            *(names_of(Manifest) - {"path", "digest"}),
            *names_of(Citation),
            *names_of(Limits),
            *names_of(Visibility),
        },
        "keys of a baseline": {*names_of(Baseline), *MACHINES},
        "keys of a scorer": {*names_of(Scorer), *(names_of(Metric) - {"name"}), *names_of(ScoringRule)},
        "words": {*KINDS_OF_PROBLEMS, *get_args(CitationMode), *SCORER_KINDS, *get_args(Direction)},
        "shipped problems": {one.problem_id for one in ProblemCatalogue.load()},
    },
    "tools.md": {
        "well-known servers": set(known_servers()),
        "answers": names_of(ToolOverride) - {"timeout"},
        "levels of a finding": set(get_args(Level)),
    },
    "glossary.md": {
        "outcomes": set(get_args(Outcome)),
        "statuses": set(get_args(StoredStatus)),
        "waits": set(get_args(WaitingFor)),
    },
}


@pytest.mark.parametrize(
    ("page", "what", "names"),
    [(page, what, names) for page, rows in PROMISED.items() for what, names in rows.items()],
    ids=[f"{page}: {what}" for page, rows in PROMISED.items() for what in rows],
)
def test_everything_that_a_user_can_write_is_documented(page: str, what: str, names: set[str]) -> None:
    text = written(page)
    assert len(names) > 1, what
    # As code: between backticks, as a quoted value, or as a key that is set.
    assert sorted(name for name in names if not re.search(rf'`{re.escape(name)}`|"{name}"|\b{name} = ', text)) == []


def test_every_error_code_is_documented() -> None:
    text = written("python.md") + written("cli.md")
    assert sorted(code for code in codes_of(PursuitError) if f"`{code}`" not in text) == []


def test_every_command_and_option_is_documented() -> None:
    group: Any = typer.main.get_command(app)
    text = written("cli.md")
    missing: list[str] = []
    for name, command in ((name, loaded(name)) for name in COMMANDS):
        if f"\n### {name}\n" not in text:
            missing.append(name)
        for inner in (command, *getattr(command, "commands", {}).values()):
            missing += [f"{name} {option}" for p in inner.params for option in p.opts if not _said(option, text)]
    missing += [option for p in group.params for option in p.opts if not _said(option, text)]
    assert missing == []


def _said(option: str, text: str) -> bool:
    return not option.startswith("-") or re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None


def test_every_link_leads_somewhere() -> None:
    broken: list[str] = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists() or (anchor and anchor not in _anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """The anchors that a Markdown page has, by the rule that GitHub uses."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
