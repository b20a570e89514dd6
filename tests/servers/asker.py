"""A server for problems in the standard library alone, whose tools ask something first: quick to start.

Words on its command line: `modern` or `legacy` is its era, `silent` lets its `submit_final` ask nothing, `nostate` its
questions have no state, `/…` is a file that must be there for it to start, and beside which it writes what happens.
With `sleepy` no answer wakes it, and it writes that there was one. `x` below zero is refused, `x` of 666 ends it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

WORDS = sys.argv[1:]
(THERE,) = [Path(word) for word in WORDS if "/" in word]
if not THERE.exists():
    sys.exit("not today")
MODERN, DIES = "modern" in WORDS, 666
TOOLS = ["probe", "askme", "submit_final"]
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"good": {"type": "boolean"}}}},
}
answers: dict[str, Any] = {}
answered = threading.Condition()


def note(what: str, x: Any = None) -> None:
    with THERE.with_name("log").open("a", encoding="utf-8") as log:
        print(what, x, file=log)


def say(message: dict[str, Any]) -> None:
    with answered:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def ask(params: dict[str, Any]) -> dict[str, Any] | None:
    """A result that asks or says that nobody could be asked, or None when there is an answer."""
    if MODERN and "inputResponses" in params:
        return None
    if MODERN:
        state = {} if "nostate" in WORDS else {"requestState": json.dumps(params["arguments"])}
        return {"resultType": "input_required", "inputRequests": {"sure": QUESTION}, **state}
    with answered:
        key = f"question-{len(answers)}"
        answers[key] = None
        say({"id": key, **QUESTION})
        answered.wait_for(lambda: answers[key] is not None and "sleepy" not in WORDS)
    return None if "result" in answers[key] else {"content": [], "isError": True}


def call(params: dict[str, Any]) -> dict[str, Any]:
    name, x = params["name"], params["arguments"]["x"]
    note("called", x)
    asks = name == "askme" or (name == "submit_final" and "silent" not in WORDS)
    question = ask(params) if asks else None
    if question is not None:
        return question
    if x == DIES:
        os._exit(1)
    note(name, x)
    return {"content": [], "structuredContent": {"accepted": x}, "isError": x < 0}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    info = {"name": "asker", "version": "1"}
    match method:
        case "initialize" if not MODERN:
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "server/discover" if MODERN:
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case "tools/call":
            return call(params)
        case _:
            return None


def work(request: dict[str, Any]) -> None:
    result = answer(request["method"], request.get("params") or {})
    if result is None:
        say({"id": request["id"], "error": {"code": -32601, "message": "no"}})
        return
    if MODERN:
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
    say({"id": request["id"], "result": result})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        with answered:
            answers[message["id"]] = message
            answered.notify_all()
        if "sleepy" in WORDS:
            note("answered")
    elif "id" in message:
        threading.Thread(target=work, args=(message,), daemon=True).start()
    elif message["method"] == "notifications/cancelled":
        note("cancelled")
