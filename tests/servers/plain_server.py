"""A quick MCP server of the standard library, for test servers that are started often and need no more than tools.

Owns: the conversation over stdio. Each call runs in a thread of its own; what a tool gives back is its text, and its
structured content if it is a table. Nothing is checked: these tools are called by tests.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

Tool = Callable[..., Any]
KINDS = {"str": "string", "float": "number"}


class PlainServer:
    """Tools by their names; each is described by its docstring and its parameters."""

    def __init__(self, name: str, *tools: Tool) -> None:
        self.name = name
        self.tools = {tool.__name__: tool for tool in tools}
        self.speaking = threading.Lock()

    def run(self) -> None:
        for line in sys.stdin:
            self._hear(json.loads(line))

    def _say(self, message: Mapping[str, Any]) -> None:
        with self.speaking:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def _hear(self, message: dict[str, Any]) -> None:
        request, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": self.name, "version": "1"}}
                self._say({"id": request, "result": {"capabilities": {"tools": {}}, **about}})
            case "tools/list":
                self._say({"id": request, "result": {"tools": [_described(tool) for tool in self.tools.values()]}})
            case "tools/call":
                words = (request, self.tools[params["name"]], params.get("arguments") or {})
                threading.Thread(target=self._call, args=words, daemon=True).start()
            case "ping":
                self._say({"id": request, "result": {}})
            case method if request is not None:
                self._say({"id": request, "error": {"code": -32601, "message": f"no {method}"}})
            case _:
                pass

    def _call(self, request: Any, tool: Tool, arguments: dict[str, Any]) -> None:
        found = tool(**arguments)
        text = found if isinstance(found, str) else json.dumps(found)
        body = {} if isinstance(found, str) else {"structuredContent": found}
        self._say({"id": request, "result": {"content": [{"type": "text", "text": text}], **body}})


def _described(tool: Tool) -> dict[str, Any]:
    """Its entry in the list; annotations are words, as everywhere here."""
    kinds = {name: kind for name, kind in tool.__annotations__.items() if name != "return"}
    needed = list(kinds)[: len(kinds) - len(tool.__defaults__ or ())]
    properties = {name: {"type": KINDS[kind]} for name, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": needed}
    return {"name": tool.__name__, "description": tool.__doc__, "inputSchema": schema}
