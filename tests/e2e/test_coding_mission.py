"""A scripted model repairs a small repository through the public filesystem and git servers, killed and interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from model_endpoint import ModelEndpoint, Reply, calls, transcript
from public_servers import GIT_ENV, SERVERS
from quick_start import pursuit

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
    """The folder with the repository, the configuration and the real command."""

    def __init__(self, folder: Path, endpoint: ModelEndpoint) -> None:
        self.folder, self.repo = folder, folder / "repo"
        self.repo.mkdir()
        lines = "\n".join(f"VALUE_{number} = {number * 37 % 101}  # nothing to see" for number in range(45))
        files = {"cart.py": CART, "test_cart.py": TEST} | {f"module_{number}.py": lines for number in range(11)}
        for name, text in files.items():
            (self.repo / name).write_text(text)
        for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
            subprocess.run(["git", *words], cwd=self.repo, env={**os.environ, **GIT_ENV}, check=True)
        tables = {name: SERVERS[name].table(self.repo) for name in ("filesystem", "git")}
        (folder / "pursuit.toml").write_text(CONFIG.format(**tables))
        (folder / "mission.toml").write_text(MISSION.format(python=sys.executable, repo=self.repo))
        self.environment = {**os.environ, **GIT_ENV, **endpoint.environment}
        self.mission_id = json.loads(self.run("start", "mission.toml", "--json"))["session_id"]

    def run(self, *words: str, code: int = 0) -> str:
        """A command to its end."""
        process = self.begin(*words, by=pursuit())
        out, _ = process.communicate(timeout=120)
        assert process.returncode == code, out
        return out

    def begin(self, *words: str, by: Any = (str(COMMAND),)) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*by, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def kill_after_requests(self, endpoint: ModelEndpoint, count: int) -> None:
        process = self.begin("resume", self.mission_id)
        try:
            assert all(endpoint.arrived.acquire(timeout=120) for _ in range(count))
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def events(self) -> list[Any]:
        async def read() -> list[Any]:
            ledger = SqliteLedger.open(self.folder / ".pursuit" / "ledger.db")
            try:
                return [decode(one.type, one.body) for one in await ledger.read(self.mission_id)]
            finally:
                await ledger.close()

        return anyio.run(read)


@pytest.mark.guarantee("answers-are-paid-once")
@pytest.mark.guarantee("window-is-managed")
def test_a_model_repairs_a_repository_through_kills_an_approval_and_a_compaction(tmp_path: Path) -> None:
    with ModelEndpoint(lambda request: coder(request)) as endpoint:
        coder = Coder(tmp_path / "repo")
        work = Work(tmp_path, endpoint)
        work.kill_after_requests(endpoint, 4)
        work.kill_after_requests(endpoint, 6)
        work.run("resume", work.mission_id, code=4)
        (asked,) = json.loads(work.run("approvals", work.mission_id, "--json"))["approvals"]
        assert asked["tool"] == "git.git_commit"
        work.run("approve", asked["approval_id"])
        status = json.loads(work.run("resume", work.mission_id, "--json"))
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
        shown = json.loads(work.run("prompt", work.mission_id, "--iteration", "1", "--json"))["requests"]
        assert all(row["exact"] for row in shown)
