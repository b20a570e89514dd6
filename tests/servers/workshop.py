"""A quick MCP server of the standard library whose one tool changes the world: each step leaves a line in a log.

It runs calls side by side and hears when one is cancelled; the log then says so. A step that waits for `others` ends
when so many have begun, and one with a `gate` when there is a file of that name beside the logs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["LOGS"])
STEP = {
    "name": "step",
    "description": "Writes a key into a log, works for so long, and says how many steps the log has.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "log": {"type": "string", "pattern": "^[a-z0-9-]+$"},
            "key": {"type": "string", "default": "-"},
            "ms": {"type": "number", "default": 0},
            "others": {"type": "integer", "default": 0},
            "gate": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        },
        "required": ["log"],
        "additionalProperties": False,
    },
}
SPEAKING = threading.Lock()
cancelled: dict[Any, threading.Event] = {}
steps: dict[Any, threading.Thread] = {}


def say(message: dict[str, Any]) -> None:
    with SPEAKING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def mark(log: str, word: str, key: str) -> None:
    with (FOLDER / log).open("ab", buffering=0) as file:
        file.write(f"{word} {key}\n".encode())


def lines(log: str, word: str) -> int:
    return sum(line.startswith(word) for line in (FOLDER / log).read_text().splitlines())


def held(log: str, others: int, gate: str | None) -> bool:
    return lines(log, "begun") < others or (gate is not None and not (FOLDER / gate).exists())


def step(request: Any, log: str, key: str = "-", ms: float = 0, others: int = 0, gate: str | None = None) -> None:
    mark(log, "begun", key)
    gone = cancelled[request].wait(ms / 1000)
    while not gone and held(log, others, gate):
        gone = cancelled[request].wait(0.005)
    if gone:
        mark(log, "cancelled", key)
        return
    mark(log, "done", key)
    done = lines(log, "done")
    body = {"metrics": {"steps": done}}
    say({"id": request, "result": {"content": [{"type": "text", "text": str(done)}], "structuredContent": body}})


def hear(message: dict[str, Any]) -> None:
    request, params = message.get("id"), message.get("params", {})
    match message["method"]:
        case "initialize":
            about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "workshop", "version": "1"}}
            say({"id": request, "result": {"capabilities": {"tools": {}}, **about}})
        case "tools/list":
            say({"id": request, "result": {"tools": [STEP]}})
        case "tools/call":
            cancelled[request] = threading.Event()
            steps[request] = threading.Thread(target=step, args=(request,), kwargs=params["arguments"], daemon=True)
            steps[request].start()
        case "notifications/cancelled":
            if there := cancelled.get(params["requestId"]):
                there.set()
        case "ping":
            say({"id": request, "result": {}})
        case method if request is not None:
            say({"id": request, "error": {"code": -32601, "message": f"no {method}"}})
        case _:
            pass


if __name__ == "__main__":
    for line in sys.stdin:
        hear(json.loads(line))
    for request, event in cancelled.items():
        if event.is_set():  # it still has to write that to the log
            steps[request].join()
