"""A server of the old era in the standard library alone, for problems: quick to start, and rude in what it answers.

Words on its command line: `own` gives it a `submit_final`, `refuses` a list of prompts that it does not give,
`late=SECONDS` lets it sleep before it says hello. What a call asks for in `do` is what it does.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

WORDS = sys.argv[1:]
LEVELS = 150
hangs = False


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(params: dict[str, Any]) -> dict[str, Any]:
    global hangs
    given = params["arguments"]
    match given.get("do"):
        case "no list":
            return {"content": "nope", "structuredContent": [1]}
        case "deep":
            deep: Any = 1
            for _ in range(LEVELS):
                deep = {"a": deep}
            return {"content": [], "structuredContent": {"metrics": deep}}
        case "hang":
            hangs = True
            say({"method": "notifications/tools/list_changed"})
        case "refuse":
            return {"content": [{"type": "text", "text": "cold"}], "isError": True}
        case _:
            pass
    return {"content": [], "structuredContent": {"accepted": given}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        able = {"tools": {"listChanged": True}, **({"prompts": {}} if "refuses" in WORDS else {})}
        info = {"name": "rude", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info, "instructions": "Be quick."}
    if method == "tools/list":
        names = ["probe", *(["submit_final"] if "own" in WORDS else [])]
        return None if hangs else {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    return call(params)


for late in (float(word.partition("=")[2]) for word in WORDS if word.startswith("late=")):
    time.sleep(late)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method not in ("initialize", "tools/list", "tools/call"):
        code = -32603 if method == "prompts/list" else -32601
        say({"id": request["id"], "error": {"code": code, "message": "no"}})
        continue
    result = answer(method, request.get("params") or {})
    if result is not None:
        say({"id": request["id"], "result": result})
