"""A server that changes its tools on demand. Its tools are those in the JSON file of its first argument.

The tool `turn` writes that file anew and announces the change; every other one answers its own name. What was called
lies in the file of the second argument, one name for each line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOOLS, CALLED = Path(sys.argv[1]), Path(sys.argv[2])
INFO = {"name": "changing", "version": "0"}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(params: dict[str, Any]) -> dict[str, Any]:
    with CALLED.open("a") as file:
        file.write(params["name"] + "\n")
    if params["name"] == "turn":
        TOOLS.write_text(json.dumps(params["arguments"]["to"]))
        say({"method": "notifications/tools/list_changed"})
    return {"content": [{"type": "text", "text": params["name"]}]}


def main() -> None:
    while line := sys.stdin.readline():
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                able = {"tools": {"listChanged": True}}
                result: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": INFO}
            case "tools/list":
                result = {"tools": json.loads(TOOLS.read_text())}
            case "tools/call":
                result = call(message["params"])
            case "ping":
                result = {}
            case _:
                if "id" in message:
                    say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
                continue
        if "id" in message:
            say({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
