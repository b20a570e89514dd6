"""What the tests of agents share: a repository with a failing check, a stand-in agent with a plan, and the mission."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli_stage import BEAM, SERVERS, Place
from quick_start import python

from pursuit.config.process_environment import no_isolation

AGENT = SERVERS / "standin_agent.py"
LIBRARY = "def value():\n    return {}\n"
CHECK = 'from lib import value\nprint("value is", value())\nraise SystemExit(value() != 2)\n'
Plan = list[list[dict[str, Any]]]


def quick_beam() -> str:
    """`BEAM` with a server that starts quickly; an isolated agent sees no Python but the real one."""
    return BEAM.replace("__python_executable__", python())


def library(number: int) -> dict[str, str]:
    """The file that the check looks at; only 2 is right."""
    return {"lib.py": LIBRARY.format(number)}


def agents_table(*, isolated: bool = not no_isolation()) -> str:
    """Lets the stand-in read its program, and write down what it was sent beside the repository."""
    return f'\n[agents]\nisolation = {json.dumps(isolated)}\nread = ["{SERVERS}"]\nwrite = ["."]\n'


class AgentPlace(Place):
    """A place whose folder `repo` is a git repository; the ledger lies outside of it."""

    def __init__(self, folder: Path, plan: Plan, *, isolated: bool = True, **options: Any) -> None:
        super().__init__(folder)
        self.isolated = isolated and not no_isolation()
        self.repository = folder / "repo"
        self.heard_file = folder / "heard.jsonl"
        (self.repository / "tests").mkdir(parents=True)
        (self.repository / "lib.py").write_text(LIBRARY.format(1), encoding="utf-8")
        (self.repository / "tests" / "check.py").write_text(CHECK, encoding="utf-8")
        (self.repository / ".gitignore").write_text("ignored/\n.pursuit/\n", encoding="utf-8")
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--message=First")
        self.plan(plan, **options)
        self.configured()

    def write(self, name: str, text: str) -> Path:
        """A configuration is one for the stand-in."""
        if name == "pursuit.toml" and "[agents]" not in text:
            text += agents_table(isolated=self.isolated)
        return super().write(name, text)

    def plan(self, turns: Plan, **options: Any) -> None:
        """What the agent does in each turn; the last one again and again."""
        self.write("plan.json", json.dumps({"turns": turns, "options": options}))

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def agent(self, name: str, turns: Plan, **options: Any) -> str:
        """The row of another agent in `[[proposer.agents]]`."""
        plan = self.write(f"{name}.json", json.dumps({"turns": turns, "options": options}))
        words = [sys.executable, str(AGENT), str(plan), str(self.folder / f"{name}.jsonl")]
        return f'[[proposer.agents]]\nname = "{name}"\ncommand = {json.dumps(words)}\n'

    def mission(
        self, proposer: str = "", workspace: str = "", budget: str = "max_iterations = 4", rest: str = ""
    ) -> Path:
        words = [sys.executable, str(AGENT), str(self.folder / "plan.json"), str(self.heard_file)]
        command = f'kind = "agent"\ncommand = {json.dumps(words)}\n'
        if "headless" in proposer:
            command = 'kind = "agent"\n'
        elif "best_of" in proposer:
            command = ""
        return self.write(
            "fix.toml",
            f"""
directive = "Make value() return 2."
{rest}
[[criteria]]
criterion_id = "check"
kind = "check"
command = ["{sys.executable}", "-B", "-m", "tests.check"]
cwd = "repo"
[workspace]
path = "repo"
protect = ["tests/**"]
{workspace}
[proposer]
{command}{proposer}
[budget]
{budget}
""",
        )

    @property
    def heard(self) -> list[dict[str, Any]]:
        """What the agent was sent."""
        return [json.loads(line) for line in self.heard_file.read_text(encoding="utf-8").splitlines()]

    @property
    def prompts(self) -> list[str]:
        return [one["params"]["prompt"][0]["text"] for one in self.heard if one.get("method") == "session/prompt"]

    def turns(self, mission: str = "last") -> list[dict[str, Any]]:
        """The turns of the agent in the report."""
        return [one for one in self.json("report", mission)["turns"] if one["who"] == "agent"]
