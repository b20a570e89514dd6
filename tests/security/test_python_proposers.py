"""Attacks on `kind = "python"`: whoever is not the operator names code, and the code runs.

Each attempt leaves a mark if the code is so much as imported.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import until
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from postgres_server import NewDatabase
from workspace import COMMAND, Victim

from pursuit import Budget, Mission, PythonProposer, Runtime, metric
from pursuit.config.configuration import Configuration
from pursuit.errors import ProposerNotHere
from pursuit.service.queries import requirements_of

CODE = """
import pursuit
open({mark!r}, "w").close()

def propose(view):
    return pursuit.call("own")
"""
FILE = """
directive = "d"
tool_allowlist = ["commands.own"]
proposer = { kind = "python", callable = "evil.py:propose" }
[[criteria]]
criterion_id = "c"
kind = "event"
event_name = "e"
[budget]
max_iterations = 2
"""
OWN = '[commands.own]\nargv = ["true"]\n'
NEVER: dict[str, Any] = {"criterion_id": "c", "kind": "event", "event_name": "e"}
PROBLEM = """
problem_id = "evil"
title = "T"
summary = "S"
kind = "optimization"
statement = "Find x."
[submission]
type = "object"
properties = { x = { type = "number" } }
[scorer]
kind = "command"
command = ["true"]
metrics = [{ metric = "cost", direction = "minimize", target = 0 }]
[baseline]
proposer = { kind = "python", callable = "evil.py:propose" }
"""


class Attacked(Victim):
    """A person beside whose files lies code that leaves a mark, and whose ledger has a mission that names it."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(tmp_path, patch)
        self.code = self.write("evil.py", CODE.format(mark=str(self.mark)))
        self.named = f"{self.code}:propose"
        self.write("pursuit.toml", OWN)
        patch.setenv("PURSUIT_TRUST", "1")  # all else is trusted
        self.state = self.folder / ".pursuit" / "ledger.db"
        self.state.parent.mkdir(exist_ok=True)

    def stored(self, **proposer: Any) -> str:
        """A mission in the ledger that names the code, as a program elsewhere may have stored it."""

        async def store() -> str:
            config = Configuration()
            async with Runtime(state=self.state, config=config, tools=[own]) as runtime:
                settings = PythonProposer(callable=self.named, **proposer)
                return (await runtime.runner.start(mission(settings))).session_id

        return anyio.run(store)


def own() -> None:
    """Nothing."""


def mission(proposer: Any) -> Mission:
    criteria = [metric("mass") <= 1]
    return Mission(
        directive="d",
        criteria=criteria,
        budget=Budget(max_iterations=1),
        proposer=proposer,
        tool_allowlist=["python.own"],
    )


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attacked:
    return Attacked(tmp_path, monkeypatch)


def by_client(attacked: Attacked) -> str:
    """A client names it in `mission_start`."""
    answers: list[str] = []

    async def main() -> None:
        words = {"command": COMMAND[0], "args": [*COMMAND[1:], "serve", "--mode", "auto"]}
        server = StdioServerParameters(**words, cwd=attacked.folder, env=dict(os.environ))
        async with Client(stdio_client(server)) as client:
            for proposer in ({"kind": "python", "callable": attacked.named}, "python"):
                given = {"directive": "d", "criteria": [NEVER], "budget": {"max_iterations": 1}, "proposer": proposer}
                answer = await client.call_tool("mission_start", {**given, "tool_allowlist": ["commands.own"]})
                assert answer.is_error
                answers.append(str(answer.content))

    anyio.run(main)
    assert all("a client cannot name Python code" in one for one in answers), answers
    return answers[0]


def by_client_that_drives(attacked: Attacked) -> str:
    """A client drives a mission of the ledger that names it."""
    mission_id, said = attacked.stored(), list[str]()

    async def main() -> None:
        words = {"command": COMMAND[0], "args": [*COMMAND[1:], "serve", "--mode", "auto"]}
        server = StdioServerParameters(**words, cwd=attacked.folder, env=dict(os.environ))
        async with Client(stdio_client(server)) as client:
            for verb in ("mission_iterate", "mission_status", "mission_history"):
                answer = await client.call_tool(verb, {"session_id": mission_id})
                said.append(str(answer.content))

    anyio.run(main)
    return said[0]


def by_child(attacked: Attacked) -> str:
    """A mission that the operator trusts spawns a child that names it."""
    child = {"directive": "c", "criteria": [NEVER], "budget": {"max_iterations": 1}}
    child["proposer"] = {"kind": "python", "callable": attacked.named}
    text = FILE.replace(
        '{ kind = "python", callable = "evil.py:propose" }', "{ kind = \"script\", script = '''SCRIPT''' }"
    )
    script = f"await fleet.spawn(**{child!r})"
    attacked.write("parent.toml", text.replace("SCRIPT", script) + "[fleet]\nmax_children = 2\n")
    _, said = attacked.run("run", "parent.toml", "--mode", "auto")
    return said + attacked.run("report", "last", "--json")[1]


def by_ledger(attacked: Attacked) -> str:
    """A row of the ledger names it: resumed, listed, shown, replayed, verified and reported."""
    mission_id = attacked.stored()
    for verb in ("status", "history", "report", "replay", "logs", "prompt"):
        attacked.run(verb, mission_id)
    assert attacked.run("verify")[0] == 0
    assert attacked.run("list")[0] == 0
    code, said = attacked.run("resume", mission_id, "--json")
    assert code == 2
    assert json.loads(said.splitlines()[0])["code"] == "proposer_not_here"
    return said


def by_ledger_of_a_program(attacked: Attacked) -> str:
    """The same for code that was recorded as not importable: only the program that has it can go on."""
    code, said = attacked.run("resume", attacked.stored(importable=False))
    assert (code, "proposer_not_here" in said or "proposer=" in said) == (2, True)
    return said


def by_file(attacked: Attacked) -> str:
    """A mission file of a stranger names it."""
    del os.environ["PURSUIT_TRUST"]
    attacked.write("mission.toml", FILE)
    for verb in ("start", "check"):
        attacked.run(verb, "mission.toml")
    return attacked.run("run", "mission.toml")[1]


def by_file_with_a_digest(attacked: Attacked) -> str:
    """A mission file claims that the code is another one."""
    attacked.write("mission.toml", FILE.replace('propose" }', 'propose", digest = "0" }'))
    return attacked.run("run", "mission.toml")[1]


def by_problem(attacked: Attacked) -> str:
    """A problem pack has it as its baseline, or an attempt asks for it."""
    attacked.write("evil/problem.toml", PROBLEM)
    shutil.copy(attacked.code, attacked.folder / "evil")
    _, said = attacked.run("problem", "validate", "evil/problem.toml")
    attacked.write("evil/problem.toml", PROBLEM.partition("[baseline]")[0])
    _, attempt = attacked.run("problem", "attempt", "evil", "--dir", ".", "--proposer", "python")
    assert "'python' is not one of" in attempt, attempt
    return said


@pytest.mark.guarantee("code-is-never-taken-from-the-ledger")
@pytest.mark.parametrize(
    ("attack", "remedy"),
    [
        (by_client, "only mission files of the operator can"),
        (by_client_that_drives, "callables = ["),
        (by_child, "a child cannot name Python code"),
        (by_ledger, "callables = ["),
        (by_ledger_of_a_program, "give proposer= there"),
        (by_file, "pursuit trust"),
        (by_file_with_a_digest, "digest and importable are not allowed in mission files"),
        (by_problem, "'python' is not one of search, script"),
    ],
)
def test_nobody_but_the_operator_names_code(attacked: Attacked, attack: Callable[[Attacked], str], remedy: str) -> None:
    said = attack(attacked)
    assert remedy in said.replace('\\"', '"'), said
    assert not attacked.owned


@pytest.mark.guarantee("code-is-never-taken-from-the-ledger")
async def test_only_a_worker_whose_configuration_lists_the_code_drives_it(
    attacked: Attacked, new_database: NewDatabase
) -> None:
    address = new_database()
    listed = Configuration(proposers={"callables": [attacked.named]})
    async with Runtime(state=address, config=Configuration(), tools=[own]) as runtime:
        settings = PythonProposer(callable=attacked.named)
        mission_id = (await runtime.runner.start(mission(settings), for_workers=True)).session_id
        await runtime.runner.place(mission_id)
        worker = runtime.worker(name="w", version="0")
        assert not worker.serves(requirements_of(await runtime.runner.state(mission_id)))
        with pytest.raises(ProposerNotHere, match=r"callables = \["):
            await runtime.resume(mission_id)
        assert not attacked.owned
    async with Runtime(state=address, config=listed, tools=[own]) as runtime:
        worker = runtime.worker(name="v", version="0", sweep_seconds=0.2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await until(runtime, mission_id, lambda state: state.closed)
            worker.stop()
        assert attacked.owned
