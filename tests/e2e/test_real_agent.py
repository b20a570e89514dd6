"""A real coding agent from npm, unmodified and pinned, against a stand-in of a model on loopback.

Three turns: in the first it tries to change a protected file, in the second Pursuit is killed, in the third it asks for
permission, which comes from another terminal, and calls a tool of the mission. Where the system permits it, all of it
has no network but loopback.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from agent_stage import AgentPlace, agents_table, library
from cli_stage import BEAM, until
from model_endpoint import ModelEndpoint, Reply, calls

QWEN = Path(sys.executable).parents[1] / "real-agents" / "node_modules" / ".bin" / "qwen"
NODE = Path(sys.executable).parent
CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x4000_0000, 0x8914, 1
DIRECTIVE = "Make value() return 2."
CHEAP = """
[[criteria]]
criterion_id = "cheap"
kind = "metric_threshold"
metric = "cost"
op = "<="
target = 100
source = "beam.evaluate"
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not QWEN.exists(), reason="the pinned agent is not installed: npm install failed, see the Makefile"
    ),
]


@contextmanager
def loopback_only() -> Iterator[bool]:
    """Where the system permits it (Linux, root), this thread and what it starts have no network but loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux":
        yield False
        return
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            yield False
            return
        with socket.socket() as one:  # SIOCSIFFLAGS: the loopback of a new namespace is down
            fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        yield True
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)


class Model:
    """Answers the agent's requests: which turn it is follows from the prompt, the step from what was called since."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.in_second_turn = threading.Event()
        self.killed = threading.Event()
        self.offered: set[str] = set()

    def __call__(self, request: Any) -> Reply:
        body = request.get("body", request)
        tools = {one["function"]["name"] for one in body.get("tools", ())}
        messages = body["messages"]
        ours = [place for place, one in enumerate(messages) if one["role"] == "user" and DIRECTIVE in json.dumps(one)]
        later = [one for one in messages[ours[-1] + 1 :] if one["role"] == "user"] if ours else [{}]
        if "agent" not in tools or later:  # a request of the agent about itself
            return Reply(text="Nothing.")
        self.offered |= tools
        used = re.findall(r"max_iterations (\d+) of 9", json.dumps(messages[ours[-1]]))
        steps = self.turn(9 - int(used[-1]), json.dumps(messages))
        done = sum(len(one.get("tool_calls") or ()) for one in messages[ours[-1] :] if one["role"] == "assistant")
        return calls(steps[done], text="Next.") if done < len(steps) else Reply(text="Done.")

    def turn(self, left: int, said: str) -> list[tuple[str, dict[str, Any]]]:
        file, check = str(next(self.tree.glob("*/tree")) / "lib.py"), "tests/check.py"
        protected = str(Path(file).parent / check)
        write = ("write_file", {"file_path": file, "content": library(3 if left == 9 else 2)["lib.py"]})
        read = ("read_file", {"file_path": file})
        if left == 9:
            cheat = ("write_file", {"file_path": protected, "content": "print('cheat')\n"})
            return [("read_file", {"file_path": protected}), cheat, read, write]
        if left == 8 and not self.killed.is_set():  # the turn that is killed costs no iteration
            self.in_second_turn.set()
            self.killed.wait(60)
            return []
        shell = ("run_shell_command", {"command": "touch made.txt", "description": "make", "is_background": False})
        name = (re.findall(r"mcp__\w*evaluate", said) or ["mcp__pursuit__beam__evaluate"])[-1]  # as it was found
        beam = {"name": name, "arguments": {"h": 0.5, "l": 3.0, "t": 5.0, "b": 0.6}}
        return [shell, ("tool_search", {"query": "beam"}), ("tool_call", beam), read, write]


def test_a_real_agent_is_driven_to_a_goal_through_a_kill_and_an_approval(tmp_path: Path) -> None:
    with loopback_only() as alone:
        print("without a network but loopback" if alone else "with the network of this machine")
        if alone:
            with pytest.raises(OSError, match="unreachable"), socket.create_connection(("192.0.2.1", 80), 1):
                pass
        drive(tmp_path)


def of_the_agent() -> list[psutil.Process]:
    """The processes of the agent, by the words that started them."""
    found = psutil.process_iter(["cmdline", "status"])
    alive = [one for one in found if one.info["status"] != psutil.STATUS_ZOMBIE]
    return [one for one in alive if any(str(QWEN) in word for word in one.info["cmdline"] or [])]


def drive(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.write("pursuit.toml", BEAM + '[policy]\nmode = "ask"\n')
    path = place.mission(
        proposer='inherit_env = ["OPENAI_*"]',
        budget="max_iterations = 9",
        rest='tool_allowlist = ["beam.evaluate"]' + CHEAP,
    )
    words = json.dumps([str(QWEN), "--acp", "--auth-type", "openai"])
    text = re.sub(
        r"^command = .*standin_agent.*$", lambda _: f"command = {words}", path.read_text(), flags=re.MULTILINE
    )
    path.write_text(text, encoding="utf-8")
    model = Model(place.folder / ".pursuit" / "workspaces")
    with ModelEndpoint(model, strict=False) as endpoint:
        keys = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_MODEL": "gpt-4o-mini"}
        if place.isolated:
            hosts = f'network = ["127.0.0.1:{urlsplit(endpoint.url).port}"]\n'
            place.write("pursuit.toml", BEAM + '[policy]\nmode = "ask"\n' + agents_table() + hosts)
        place.environment |= {**keys, "PATH": f"{NODE}:{os.environ['PATH']}"}
        running = place.begin("run", "fix.toml")
        assert model.in_second_turn.wait(120), running.end(signal.SIGINT)
        running.process.send_signal(signal.SIGKILL)
        running.end()
        until(lambda: not of_the_agent())
        model.killed.set()

        running = place.begin("resume", "last")
        until(lambda: "execute of server agent" in place.ask("approvals", code=None)[0], 120)
        while running.process.poll() is None:  # one question after the other, each at its time
            if "of server" in place.ask("approvals", code=None)[0]:
                place.ask("approve", "--all", code=None)
            time.sleep(0.1)
        code, out, err = running.end()
        assert code == 0, (out, err, model.offered)
    first, second, third = place.turns()
    assert first["protected"] == ["tests/check.py"] and first["outcome"] == "ok"
    assert second["outcome"] == "unknown" and third["outcome"] == "ok"
    log = [(one["tool"], one["outcome"]) for one in place.json("report", "last")["call_log"]]
    assert ("beam.evaluate", "ok") in log
    assert "made.txt" in third["diff"] and not of_the_agent()
