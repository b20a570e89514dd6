"""A scripted model repairs a small repository through the public filesystem and git servers, killed and interrupted."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from model_endpoint import ModelEndpoint, Reply, calls, transcript
from model_stage import scripted
from public_servers import GIT_ENV, SERVERS

from pursuit.core.events import ConversationCompacted, ModelAnswered, ModelAsked, decode
from pursuit.ledger.sqlite import SqliteLedger

pytestmark = pytest.mark.slow
COMMAND = Path(sys.executable).with_name("pursuit")
CART = """\
def total(prices, discount=0):
    result = 0
    for price in prices:
        result = price
    return result - discount
"""
TEST = """\
import unittest
from cart import total


class CartTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_no_total_is_negative(self):
        self.assertEqual(total([1], discount=5), 0)
"""
FIXED = """\
def total(prices, discount=0):
    result = 0
    for price in prices:
        result += price
    return max(result - discount, 0)
"""
CONFIG = """
{filesystem}
{git}
[policy]
mode = "ask"
[[policy.rules]]
server = "filesystem"
tool = "*"
decision = "allow"
[[policy.rules]]
server = "git"
tool = "git_add"
decision = "allow"
[[policy.rules]]
server = "git"
tool = "git_commit"
decision = "ask"
reason = "a commit is for ever"
"""
MISSION = """
directive = "Make test_cart.py pass and commit the repair. Change only cart.py."
tool_allowlist = ["filesystem.*", "git.*"]
stagnation_threshold = "off"
[budget]
max_iterations = 3
[proposer]
kind = "model"
model = "anthropic:claude-haiku-4-5"
max_requests = 40
window = 12000
[[criteria]]
criterion_id = "tests-pass"
kind = "check"
command = ["{python}", "-m", "unittest", "-q", "test_cart"]
cwd = "{repo}"
[[criteria]]
criterion_id = "committed"
kind = "tool_call_succeeded"
tool_name = "git.git_commit"
"""


class Coder:
    """The model: it goes through its plan, one answer for each new request; the same request gets the same answer."""

    def __init__(self, repo: Path) -> None:
        at = {"repo_path": str(repo)}

        def edit(old: str, new: str) -> tuple[str, dict[str, Any]]:
            edits = [{"oldText": old, "newText": new}]
            return "filesystem__edit_file", {"path": str(repo / "cart.py"), "edits": edits}

        def read(name: str) -> tuple[str, dict[str, Any]]:
            return "filesystem__read_text_file", {"path": str(repo / name)}

        self.plan: list[Reply] = [
            calls(("filesystem__list_directory", {"path": str(repo)}), ("git__git_status", at), text="I look around."),
            calls(read("test_cart.py")),
            calls(read("cart.py")),
            calls(("git__git_log", at)),
            calls(("pursuit__note", {"text": "The bug is in cart.py: total overwrites its sum."})),
            *[calls(read(f"module_{number}.py"), text=f"Is it module {number}?") for number in range(8)],
            calls(edit("result = price", "result += price"), text="The sum was overwritten."),
            calls(read("cart.py")),
            calls(("git__git_diff_unstaged", at)),
            calls(edit("result += prices", "nonsense")),
            calls(edit("return result - discount", "return max(result - discount, 0)")),
            *[calls(read(f"module_{number}.py")) for number in (8, 9, 10)],
            calls(read("cart.py")),
            calls(("git__git_status", at), ("git__git_fly", {})),
            calls(("git__git_add", {**at, "files": ["cart.py"]})),
            calls(("git__git_commit", {**at, "message": "Sum all prices"}), text="Ready to commit."),
        ]
        self.known: dict[str, Reply] = {}
        self.asked: Counter[str] = Counter()
        self.summaries = 0

    def __call__(self, request: dict[str, Any]) -> Reply:
        digest = hashlib.sha256(json.dumps(request["body"]).encode()).hexdigest()
        self.asked[digest] += 1
        if digest not in self.known:
            summary = "The conversation is about to be cut" in transcript(request)[-1].text
            self.summaries += summary
            said = Reply(text="I read the modules; they are fine. The bug is in cart.py.")
            self.known[digest] = said if summary else self.plan.pop(0)
        return self.known[digest]


class Work:
    """The folder with the repository and the configuration."""

    def __init__(self, folder: Path) -> None:
        self.repo = folder / "repo"
        self.repo.mkdir()
        lines = "\n".join(f"VALUE_{number} = {number * 37 % 101}  # nothing to see" for number in range(45))
        files = {"cart.py": CART, "test_cart.py": TEST} | {f"module_{number}.py": lines for number in range(11)}
        for name, text in files.items():
            (self.repo / name).write_text(text)
        for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
            subprocess.run(["git", *words], cwd=self.repo, check=True)
        tables = {name: SERVERS[name].table(self.repo) for name in ("filesystem", "git")}
        self.place = Place(folder)
        self.place.write("pursuit.toml", CONFIG.format(**tables))
        self.place.write("mission.toml", MISSION.format(python=sys.executable, repo=self.repo))
        self.mission_id = self.place.json("start", "mission.toml")["session_id"]

    def kill_after_requests(self, endpoint: ModelEndpoint, count: int) -> None:
        """The real command, killed once the endpoint has seen so many requests."""
        process = subprocess.Popen(
            [str(COMMAND), "resume", self.mission_id],
            cwd=self.place.folder,
            env=self.place.environment,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        try:
            assert all(endpoint.arrived.acquire(timeout=120) for _ in range(count))
        finally:
            process.kill()
            process.wait()

    def events(self) -> list[Any]:
        async def read() -> list[Any]:
            ledger = SqliteLedger.open(self.place.ledger)
            try:
                return [decode(one.type, one.body) for one in await ledger.read(self.mission_id)]
            finally:
                await ledger.close()

        return anyio.run(read)


@pytest.mark.guarantee("answers-are-paid-once")
@pytest.mark.guarantee("window-is-managed")
def test_a_model_repairs_a_repository_through_kills_an_approval_and_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are killed; what they leave is gone on with in this one, and another one approves."""
    for name, value in GIT_ENV.items():
        monkeypatch.setenv(name, value)
    with scripted(monkeypatch, lambda request: coder(request)) as endpoint:
        coder = Coder(tmp_path / "repo")
        work = Work(tmp_path)
        place, mission_id = work.place, work.mission_id
        work.kill_after_requests(endpoint, 4)
        work.kill_after_requests(endpoint, 6)
        place.ask("resume", mission_id, code=4)
        (asked,) = place.json("approvals", mission_id)["approvals"]
        assert asked["tool"] == "git.git_commit"
        place.run("approve", asked["approval_id"])
        status = place.json("resume", mission_id)
        assert (status["status"], status["verdict_reason"], status["iteration_count"]) == (
            "completed",
            "criteria_met",
            1,
        )
        assert status["notes"] == ["The bug is in cart.py: total overwrites its sum."]
        events = work.events()
        assert coder.plan == []
        answered = [one for one in events if isinstance(one, ModelAnswered)]
        assert len(answered) >= 25
        assert len(coder.asked) == len(answered), "each answer belongs to one request"
        assert sum(coder.asked.values()) <= len(answered) + 2, "only what was in flight at a kill is asked again"
        assert (
            coder.summaries == sum(bool(one.summary) for one in events if isinstance(one, ConversationCompacted)) >= 1
        )
        assert sum(isinstance(one, ModelAsked) for one in events) <= len(answered) + 2
        assert (work.repo / "cart.py").read_text() == FIXED
        diff = subprocess.run(
            ["git", "show", "--stat", "--format=%s"], cwd=work.repo, capture_output=True, text=True, check=True
        )
        assert "Sum all prices" in diff.stdout
        assert "1 file changed" in diff.stdout
        assert all(row["exact"] for row in place.json("prompt", mission_id, "--iteration", "1")["requests"])
