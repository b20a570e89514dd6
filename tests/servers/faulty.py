"""A server of the old era, in the standard library, that goes wrong in whichever way a call asks for.

Words on the command line: `births=PATH` gets a line with the pid at each start; `exits=PATH` lets it exit right after
the handshake, and `mute=PATH` never answer, for as long as that file exists. A call with a `mark` makes that file when
it begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORDS: dict[str, str] = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:]}
TOOLS = ["ok", "raw", "die", "hang", "stderr", "garbage", "big", "twice", "wrong_id", "child", "ask", "tell", "change"]
asked: dict[Any, Any] = {}
heard: list[dict[str, Any]] = []
declared: dict[str, Any] = {}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def there(word: str) -> bool:
    return word in WORDS and Path(WORDS[word]).exists()


def misbehave(ident: Any, tool: str, arguments: dict[str, Any]) -> bool:
    """Goes wrong; whether the call has had all the answer that it gets."""
    match tool:
        case "die":
            print("these are my last words", file=sys.stderr, flush=True)
            os._exit(9)
        case "deaf":
            time.sleep(600)
        case "nap":
            time.sleep(arguments["seconds"])
        case "wait":
            while not Path(arguments["until"]).exists():
                time.sleep(0.005)
        case "stderr":
            for _ in range(arguments["mb"]):
                sys.stderr.buffer.write((b"x" * 1023 + b"\n") * 1024)
        case "garbage":
            sys.stdout.buffer.write(b'\xff\xfe not json\n{"jsonrpc": \n[1, 2]\n\n\x00\n{"id": 1}\nnull\n')
        case "big":
            say({"id": ident, "result": text("x" * arguments["bytes"])})
        case "twice":
            say({"id": ident, "result": text("once")})
            say({"id": ident, "result": text("twice")})
        case "wrong_id":
            say({"id": 987654, "result": text("for somebody else")})
        case _:
            return tool == "hang"
    return tool in ("big", "twice", "wrong_id")


def call(ident: Any, tool: str, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    if "mark" in arguments:
        Path(arguments["mark"]).touch()
    if misbehave(ident, tool, arguments):
        return
    reply: dict[str, Any] = {"result": text(str(os.getpid()))}
    match tool:
        case "raw":
            reply = arguments
        case "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            reply = {"result": text(str(child.pid))}
        case "ask":
            asked["q-1"] = ident
            say({"id": "q-1", **arguments})
            return
        case "tell":
            for message in arguments["messages"]:
                if message["method"] == "notifications/progress":
                    message["params"]["progressToken"] = meta["progressToken"]
                say(message)
        case "change":
            TOOLS.append(arguments["name"])
            say({"method": "notifications/tools/list_changed"})
        case "heard":
            reply = {"result": text("", structuredContent={"heard": heard, "declared": declared})}
        case _:
            pass
    say({"id": ident, **reply})


def hear(message: dict[str, Any]) -> None:
    ident, params = message.get("id"), message.get("params", {})
    match message.get("method"):
        case None:
            say({"id": asked.pop(ident), "result": text("answered", structuredContent=message)})
        case "initialize":
            declared.update(params["capabilities"])
            about = {"serverInfo": {"name": "faulty", "version": "1", "x-odd": None}, "instructions": "Be careful."}
            capabilities = {"tools": {"listChanged": True}, "resources": {}, "x-own": {"deep": [None]}}
            say({"id": ident, "result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, **about}})
            if there("exits"):
                sys.exit(7)
        case "tools/list":
            say({"id": ident, "result": {"tools": [{"name": name, "inputSchema": {}} for name in TOOLS]}})
        case "resources/list":
            first = "cursor" not in params
            more = {"nextCursor": "2"} if first else {}
            entry = {"uri": f"x://{1 if first else 2}", "name": "n", "x-kept": None}
            say({"id": ident, "result": {"resources": [entry], **more}})
        case "tools/call":
            call(ident, params["name"], params.get("arguments", {}), params.get("_meta", {}))
        case "ping":
            say({"id": ident, "result": {}})
        case _ if ident is not None:
            say({"id": ident, "error": {"code": -32601, "message": "no such method"}})
        case _:
            heard.append(message)


def main() -> None:
    if "births" in WORDS:
        with Path(WORDS["births"]).open("a") as births:
            births.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        if not there("mute"):
            hear(json.loads(line))


if __name__ == "__main__":
    main()
