"""An old-era server in forty lines of the standard library: quick to start, and rude in ways that no SDK allows.

Words on the command line: `hangup` ends it at an unknown first request, `silent` never answers, `deaf` ignores
the end of stdin and SIGTERM, `lingers` only the first, `pidfile=PATH` notes its pid.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WORDS = set(sys.argv[1:])
TOOLS: list[Any] = [
    {"name": "fine", "inputSchema": {"type": "object"}, "x-unknown": {"kept": None}},
    {"name": "fine", "inputSchema": {"type": "object"}, "description": "the second of that name"},
    {"name": "no-schema"},
    {"name": "listy", "inputSchema": {"type": "array"}},
    {"inputSchema": {"type": "object"}},
    "not an object",
    {"name": "loose", "inputSchema": {}},
    {"name": "odd_ref", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/none"}}}},
    {"name": "mistyped", "inputSchema": {"type": "object", "properties": 7}, "annotations": {"readOnlyHint": "yes"}},
]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
        case "tools/list":
            # The same cursor for ever: a careless client would never come back.
            return {"tools": TOOLS, "nextCursor": "again"}
        case "tools/call":
            if request["params"]["name"] == "malformed":
                return {"content": "not a list"}
            if request["params"]["name"] == "flood":
                for number in range(3000):
                    params = {"level": "info", "data": number}
                    print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params}))
                return {"content": [{"type": "text", "text": "x" * 3_000_000}]}
            return {"content": [{"type": "text", "text": str(os.getpid())}]}
        case _:
            raise KeyError(request["method"])


def main() -> None:
    if "deaf" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("hello", file=sys.stderr, flush=True)
    for word in WORDS:
        if word.startswith("pidfile="):
            noted = Path(word.removeprefix("pidfile="))
            noted.with_suffix(".new").write_text(str(os.getpid()))
            noted.with_suffix(".new").rename(noted)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "id" not in request or "silent" in WORDS:
            continue
        try:
            reply = {"result": answer(request)}
        except KeyError:
            if "hangup" in WORDS:
                print("expected initialize", file=sys.stderr, flush=True)
                sys.exit(1)
            reply = {"error": {"code": -32601, "message": "method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
    while WORDS & {"deaf", "lingers"}:
        time.sleep(60)


if __name__ == "__main__":
    main()
