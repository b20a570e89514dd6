"""A server of the standard library that tells everybody everything that it was told: its words, environment, headers.

Over stdio it tells what its process was started with; over HTTP (`HttpBlabber`, in a thread) what came with the
request. It does so wherever a server can put text: on stderr and stray on stdout, in its instructions, in lists, in
progress and logs, in errors of every kind. `show` alone returns it as a result.

Words on the command line: `refuse` fails the handshake with an error, `leave` ends the process instead.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = ("show", "refuse", "wrong", "malformed", "odd", "tell", "die", "fine")
Message = dict[str, Any]


def told_at_start() -> str:
    return "\n".join([*sys.argv, *(f"{key}={value}" for key, value in os.environ.items())])


def answers(message: Message, told: str) -> Iterator[Message]:
    """What is said to a message, in order."""
    ident, params = message.get("id"), message.get("params", {})
    text = [{"type": "text", "text": told}]
    match message.get("method"):
        case "initialize":
            about = {"serverInfo": {"name": "blabber", "version": told}, "instructions": told}
            capabilities = {"tools": {}, "logging": {}}
            yield {"id": ident, "result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, **about}}
        case "tools/list":
            tools = [{"name": name, "description": told, "inputSchema": {"type": "object"}} for name in TOOLS]
            unusable = [{"name": told}, {"name": f"bad {told}", "inputSchema": {"type": told}}, told]
            yield {"id": ident, "result": {"tools": [*tools, *unusable]}}
        case "tools/call":
            match params["name"]:
                case "show":
                    yield {"id": ident, "result": {"content": text}}
                case "refuse":
                    yield {"id": ident, "error": {"code": -32000, "message": told, "data": {told: [told]}}}
                case "wrong":
                    yield {"id": ident, "result": {"content": text, "structuredContent": {"x": told}, "isError": True}}
                case "malformed":
                    yield {"id": ident, "result": {"content": told}}
                case "odd":
                    yield {"id": ident, "result": {"resultType": told}}
                case "tell":
                    token = params.get("_meta", {}).get("progressToken")
                    body = {"progressToken": token, "progress": 1, "message": told}
                    yield {"method": "notifications/progress", "params": body}
                    yield {"method": "notifications/message", "params": {"level": "error", "data": told}}
                    yield {"id": ident, "result": {"content": []}}
                case "die":
                    raise SystemExit(told)
                case _:
                    yield {"id": ident, "result": {"content": []}}
        case _ if ident is not None:
            yield {"id": ident, "error": {"code": -32601, "message": told}}
        case _:
            pass


class HttpBlabber(BaseHTTPRequestHandler):
    """Answers each POST with JSON; what it knows is the request's own address and headers."""

    def do_POST(self) -> None:
        user = base64.b64decode(self.headers.get("authorization", "").removeprefix("Basic ") + "==", validate=False)
        told = "\n".join([self.path, str(self.headers), user.decode(errors="replace")])
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message.get("method") == "server/discover" or "/refused" in self.path:
            self._answer(401, told, "text/plain", {"www-authenticate": f'Basic realm="{" ".join(told.split())}"'})
            return
        try:
            said = [one for one in answers(message, told) if "id" in one]
        except SystemExit:
            self._answer(500, json.dumps({"error": told}), "application/json", {})
            return
        if said:
            self._answer(200, json.dumps({"jsonrpc": "2.0", **said[-1]}), "application/json", {})
        else:
            self._answer(202, "", "text/plain", {})

    def _answer(self, status: int, text: str, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"content-type": kind, "content-length": str(len(text.encode())), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Not into the tests' own output."""


@contextmanager
def http_blabber() -> Iterator[int]:
    """One on a free port of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), HttpBlabber) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def say(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    told = told_at_start()
    print(told, file=sys.stderr, flush=True)
    print(told, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "initialize" and "leave" in sys.argv:
            raise SystemExit(told)
        if message.get("method") == "initialize" and "refuse" in sys.argv:
            say({"id": message["id"], "error": {"code": -32000, "message": told, "data": told}})
            continue
        for one in answers(message, told):
            say(one)


if __name__ == "__main__":
    main()
