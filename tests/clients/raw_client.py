"""A client of a stdio server made of lines of JSON: nothing is tidied, dropped or added by any SDK.

Owns: the process, both ways of saying hello, and a record of all that was said. Does not know: whom it talks to.
Invariant: what a request brought is kept as it came, but for the request's id.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

OLD, NEW = "2025-11-25", "2026-07-28"
PATIENCE = 180.0
ENVELOPE = "io.modelcontextprotocol/"
INFO = {"name": "raw", "version": "1"}
Message = dict[str, Any]
LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")


@dataclass(kw_only=True)
class Exchange:
    """One request, what was heard of it while it was under way, and its answer: `result` or `error`."""

    method: str
    params: Mapping[str, Any]
    progress: list[Any] = field(default_factory=list[Any])
    answer: Message = field(default_factory=Message)


class RawClient:
    """Talks to a process in one era; what it is asked it answers from `answers`."""

    def __init__(
        self, process: subprocess.Popen[str], stderr: IO[str], era: str, able: Mapping[str, Any], answers: Message
    ) -> None:
        self._process = process
        self._stderr = stderr
        self._able = able
        self._answers = answers
        self.era = era
        self.asked: list[Message] = []
        self.told: list[Message] = []
        self._ids = 0

    def say(self, message: Message) -> None:
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

    def hear(self) -> Message:
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            raise AssertionError(f"{self._process.args} said no more; stderr:\n{self._stderr.read()[-2000:]}")
        return json.loads(line)

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Exchange:
        """Sends a request and waits for its answer."""
        self._ids += 1
        done, body = Exchange(method=method, params=params or {}), dict(params or {})
        if self.era == NEW:
            body["_meta"] = {
                **body.get("_meta", {}),
                f"{ENVELOPE}protocolVersion": NEW,
                f"{ENVELOPE}clientInfo": INFO,
                f"{ENVELOPE}clientCapabilities": self._able,
            }
        self.say({"id": self._ids, "method": method, "params": body})
        while True:
            message = self.hear()
            if "method" not in message:
                assert message.pop("id") == self._ids, message
                done.answer = message
                return done
            self._take(message, done)

    def _take(self, message: Message, under_way: Exchange) -> None:
        if "id" in message:
            self.asked.append({"method": message["method"], "params": message.get("params")})
            answer = self._answers.get(message["method"])
            refused = {"error": {"code": -32601, "message": "Method not found"}}
            self.say({"id": message["id"], **(refused if answer is None else {"result": answer})})
        elif message["method"] == "notifications/progress":
            under_way.progress.append(message["params"])
        else:
            self.told.append({"method": message["method"], "params": message.get("params")})

    def hello(self) -> Exchange:
        """Shakes hands, or discovers."""
        if self.era == NEW:
            return self.ask("server/discover")
        found = self.ask("initialize", {"protocolVersion": OLD, "capabilities": self._able, "clientInfo": INFO})
        self.say({"method": "notifications/initialized"})
        return found

    def pages(self, method: str) -> list[Exchange]:
        """A whole list, page by page; the first error is the last page."""
        pages = [self.ask(method)]
        while cursor := pages[-1].answer.get("result", {}).get("nextCursor"):
            pages.append(self.ask(method, {"cursor": cursor}))
        return pages


@contextmanager
def talking(
    command: Sequence[str],
    *,
    era: str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    able: Mapping[str, Any] | None = None,
    answers: Message | None = None,
    ends: bool = True,
) -> Iterator[RawClient]:
    """A client of a process that is started for it; `ends` is whether it must end by itself when its input does."""
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=1,
            text=True, encoding="utf-8",
        ) as process,
    ):  # fmt: skip
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        try:
            yield RawClient(process, stderr, era, able or {}, answers or {})
            process.stdin.close()
            if ends:
                assert process.wait(120) == 0
        finally:
            guard.cancel()
            process.kill()
            guard.join()
