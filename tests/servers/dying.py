"""A server of the old era, in the standard library, that dies where a call wants it to.

It speaks over stdio; `http=PATH` lets it serve HTTP and write its port to that file. A call of `effect` adds its `key`
to the file `tally`, and dies before that (`die` is `before`), after it (`after`), or answers. `job` is the same as a
task of the server's own, which does its work when it is first asked about.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

WORDS: dict[str, str] = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:]}
TOOLS = [{"name": "effect", "inputSchema": {}}]
JOB = {"name": "job", "inputSchema": {}, "execution": {"taskSupport": "required"}}
tasks: dict[str, dict[str, Any]] = {}


def effect(key: str = "", tally: str = "", die: str = "") -> dict[str, Any]:
    if die == "before":
        os._exit(9)
    with Path(tally).open("a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    if die == "after":
        os._exit(9)
    return {"content": [{"type": "text", "text": key}]}


def error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
            about = {"serverInfo": {"name": "dying", "version": "1"}, "capabilities": capabilities}
            return {"result": {"protocolVersion": "2025-11-25", **about}}
        case "tools/list":
            return {"result": {"tools": [*TOOLS, JOB]}}
        case "tools/call" if params["name"] == "job":
            task = {"taskId": str(len(tasks)), "status": "working", "pollInterval": 20}
            tasks[task["taskId"]] = {**task, "arguments": params.get("arguments", {})}
            return {"result": {"task": task}}
        case "tools/call":
            return {"result": effect(**params.get("arguments", {}))}
        case "tasks/result" if params["taskId"] in tasks:
            return {"result": tasks[params["taskId"]]["result"]}
        case "tasks/get" if params["taskId"] in tasks:
            task = tasks[params["taskId"]]
            task |= {"result": effect(**task["arguments"]), "status": "completed"}
            return {"result": task}
        case "tasks/result" | "tasks/get":
            return error(-32602, "Failed to retrieve task: Task not found")
        case "ping":
            return {"result": {}}
        case _:
            return error(-32601, "no such method")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = b""
        if "id" in message:
            reply = answer(message["method"], message.get("params", {}))
            said = json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode()
        self.send_response(200 if said else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_args: object) -> None:
        pass


def main() -> None:
    if "http" in WORDS:
        server = HTTPServer(("127.0.0.1", 0), Handler)
        part = Path(WORDS["http"] + ".part")
        part.write_text(str(server.server_address[1]), encoding="utf-8")
        part.rename(WORDS["http"])
        server.serve_forever()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            reply = answer(message["method"], message.get("params", {}))
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
