"""A coding agent that speaks the Agent Client Protocol, with faults that are switched on: the stand-in of the tests.

It reads a plan, one row for each turn, from the JSON file in its first argument; a row is a list of steps:

    {"write": {"a.py": "text"}}      writes files, below its working directory
    {"say": "text"}                  says something
    {"ask": {"kind": "execute", "title": "rm x", "rawInput": {...}}, "then": [...], "else": [...]}
    {"child": {"file": "late.txt", "after": 5}}   a process in a session of its own that writes late
    {"exit": 3}                      dies in the middle of the turn, in a call of a tool
    {"wait": "file"}                 waits until a file is there; for ever without a name
    {"flood": 1000000}               writes that many bytes of updates; without an end if it is 0
    {"line": 1000000}                writes that many bytes without an end of the line
    {"late": {...}}                  asks as with `ask`, after it has said that the turn is over
    {"run": "git init sub"}          runs a command of the shell, and waits for its end
    {"sleep": 0.1}                   does nothing for so many seconds
    {"call": {"tool": "name", "args": {...}}}     calls a tool of the MCP server that it was given
    {"usage": {...}, "cost": 0.5}    reports what the turn used
    {"update": {...}}                sends an update with these fields
    {"error": {...}}                 ends the turn with this error
    {"quiet": true}                  says nothing until it is ended

`options` beside `turns` switch faults of the whole agent: `no_load`, `version`, `auth`, `stray`, `refuse` (the
errors of the first requests for a session), and `noise`, the bytes that it writes to standard error first.
What it was sent is appended to the file in its second argument, a JSON object on each line.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PLAN = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
HEARD = Path(sys.argv[2])
OPTIONS: dict[str, Any] = PLAN.get("options", {})
CHILD = "import sys, time; time.sleep(float(sys.argv[2])); open(sys.argv[1], 'w').write('late')"


class Agent:
    """The loop; a turn runs inside of it, and reads the answers to its own questions."""

    def __init__(self) -> None:
        self.asked = 0
        self.server: dict[str, Any] | None = None
        self.cancelled = False
        self.usage: dict[str, Any] | None = None
        self.late: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None

    def hear(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message = json.loads(line)
        with HEARD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
        return message

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def update(self, session: str, update: str, **more: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": update, **more}, "unknown": 1}
        self.send(method="session/update", params=params)

    def run(self) -> None:
        while True:
            message = self.hear()
            method, params = message.get("method"), message.get("params", {})
            if method == "initialize":
                if OPTIONS.get("stray"):
                    sys.stdout.write("npm warn: a line that is no message\n")
                version = OPTIONS.get("version", 1)
                able = {"loadSession": not OPTIONS.get("no_load"), "mcpCapabilities": {"http": False}}
                info = {"name": "standin", "version": "1"}
                result = {"protocolVersion": version, "agentCapabilities": able, "agentInfo": info, "more": {}}
                self.send(id=message["id"], result=result)
            elif method == "session/new":
                if OPTIONS.get("auth"):
                    self.send(id=message["id"], error={"code": -32000, "message": "Authentication required"})
                    continue
                if error := self.refusal():
                    self.send(id=message["id"], error=error)
                    continue
                self.serve(params)
                self.send(id=message["id"], result={"sessionId": f"s-{os.getpid()}"})
            elif method == "session/load":
                self.serve(params)
                self.update(params["sessionId"], "user_message_chunk", content={"type": "text", "text": "before"})
                self.send(id=message["id"], result={})
            elif method == "session/prompt":
                self.prompt(message["id"], params)
            elif "id" in message:
                self.send(id=message["id"], error={"code": -32601, "message": "no such method"})

    def refusal(self) -> dict[str, Any] | None:
        """The error of this request for a session."""
        refused = HEARD.with_suffix(".refused")
        number = int(refused.read_text(encoding="utf-8")) if refused.exists() else 0
        refused.write_text(str(number + 1), encoding="utf-8")
        errors = OPTIONS.get("refuse", [])
        return errors[number] if number < len(errors) else None

    def serve(self, params: dict[str, Any]) -> None:
        self.server = next(iter(params.get("mcpServers", [])), None)

    def prompt(self, request: Any, params: dict[str, Any]) -> None:
        session = params["sessionId"]
        done = HEARD.with_suffix(".turns")
        number = int(done.read_text(encoding="utf-8")) if done.exists() else 0
        done.write_text(str(number + 1), encoding="utf-8")
        turns = PLAN["turns"]
        self.cancelled, self.usage, self.error = False, None, None
        steps = turns[min(number, len(turns) - 1)]
        while any(step.get("quiet") for step in steps):
            self.hear()
        self.update(session, "a_kind_of_the_future", content={"x": 1})
        self.steps(session, steps)
        if self.error is not None:
            self.send(id=request, error=self.error)
            return
        answer: dict[str, Any] = {"stopReason": "cancelled" if self.cancelled else "end_turn"}
        self.send(id=request, result=answer | ({"usage": self.usage} if self.usage else {}))
        if self.late is not None:
            call, self.late = self.late, None
            self.question(session, call, "late")

    def steps(self, session: str, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps):
            if self.cancelled:
                return
            self.step(session, step, f"call-{number}")

    def step(self, session: str, step: dict[str, Any], name: str) -> None:
        for path, text in step.get("write", {}).items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
            self.update(session, "tool_call", toolCallId=name, title=f"write {path}", kind="edit", status="completed")
        for path in step.get("remove", []):
            Path(path).unlink()
        self.misbehave(session, step)
        if "say" in step:
            self.update(session, "agent_message_chunk", content={"type": "text", "text": step["say"]})
        if "usage" in step:
            self.usage = step["usage"]
        if "cost" in step:
            cost = {"amount": step["cost"], "currency": "USD"}
            self.update(session, "usage_update", used=10, size=100, cost=cost)
        if "update" in step:
            self.update(session, **{"update": "session_info_update", **step["update"]})
        self.error = step.get("error", self.error)
        if "call" in step:
            said = self.call_tool(step["call"])
            self.update(session, "agent_message_chunk", content={"type": "text", "text": json.dumps(said)})
        if "ask" in step:
            self.steps(session, step.get("then" if self.ask(session, step["ask"], name) else "else", []))

    def misbehave(self, session: str, step: dict[str, Any]) -> None:
        if "child" in step:
            row = step["child"]
            words = [sys.executable, "-c", CHILD, str(Path(row["file"]).absolute()), str(row["after"])]
            subprocess.Popen(words, start_new_session=True, env={"PATH": os.environ["PATH"]})
        if "run" in step:
            subprocess.run(["sh", "-ec", step["run"]], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
        if "sleep" in step:
            time.sleep(step["sleep"])
        if "exit" in step:
            self.update(session, "tool_call", toolCallId="x", title="make", kind="execute", status="in_progress")
            sys.stderr.write("the agent dies\n")
            sys.stderr.flush()
            os._exit(step["exit"])
        if "wait" in step:
            while not (step["wait"] and Path(step["wait"]).exists()):
                time.sleep(0.02)
        if "flood" in step:
            for _ in range(step["flood"] // 1_000) if step["flood"] else itertools.count():
                self.update(session, "agent_thought_chunk", content={"type": "text", "text": "x" * 1_000})

        for _ in range(step.get("line", 0) // 100_000):
            sys.stdout.write("x" * 100_000)
        self.late = step.get("late", self.late)

    def question(self, session: str, call: dict[str, Any], name: str) -> None:
        self.asked += 1
        # The kind is in the update, and not in the question, as with some agents.
        self.update(session, "tool_call", toolCallId=name, title=call["title"], kind=call["kind"], status="pending")
        options = [
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        ]
        call = {"toolCallId": name, **{key: value for key, value in call.items() if key != "kind"}}
        params = {"sessionId": session, "toolCall": call, "options": options}
        self.send(id=f"q{self.asked}", method="session/request_permission", params=params)

    def ask(self, session: str, call: dict[str, Any], name: str) -> bool:
        self.question(session, call, name)
        while True:
            message = self.hear()
            if message.get("method") == "session/cancel":
                self.cancelled = True
            elif message.get("id") == f"q{self.asked}" and "method" not in message:
                outcome = message["result"]["outcome"]
                if outcome["outcome"] == "cancelled":
                    self.cancelled = True
                return outcome.get("optionId") == "yes"

    def call_tool(self, call: dict[str, Any]) -> Any:
        server = self.server
        if server is None:
            return "no server"
        environment = {**os.environ, **{row["name"]: row["value"] for row in server["env"]}}
        words = [server["command"], *server["args"]]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def request(number: int, method: str, params: dict[str, Any]) -> Any:
                process.stdin.write(
                    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
                )
                process.stdin.flush()
                while True:
                    found = json.loads(process.stdout.readline())
                    if found.get("id") == number:
                        return found.get("result", found.get("error"))

            client = {"name": "standin", "version": "1"}
            request(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
            listed = request(2, "tools/list", {})
            found = request(3, "tools/call", {"name": call["tool"], "arguments": call["args"]})
            process.stdin.close()
            return {"tools": [one["name"] for one in listed["tools"]], "result": found}


if __name__ == "__main__":
    sys.stderr.write("debug\n" * (OPTIONS.get("noise", 0) // 6))
    Agent().run()
