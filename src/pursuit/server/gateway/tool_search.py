"""Three tools instead of all: find one, read what it takes, call it.

Owns: the three tools and how a word finds a tool. Does not know: policy or connections, which hold as for any call.
Invariant: what is called through `tools.call` is answered as the tool itself answers; the three names shadow nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit.errors import Fault, ValidationFailed
from pursuit.server.errors import sendable
from pursuit.server.gateway.calls import Calls, tool_error
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.lists import Lists
from pursuit.server.gateway.protocol_versions import as_object
from pursuit.server.gateway.upstreams import Upstreams

OWN = "tools"
"""The part before the names of the three; no server may be called so that is one of several."""

MOST_FOUND = 50
_FEW = 10
_WORD = re.compile(r"[a-z0-9]+")
_READS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}

_TOOLS: list[dict[str, Any]] = [
    {
        "name": "search",
        "title": "Find a tool",
        "description": "Find tools by words of their names and descriptions, the best first. Without words: all names.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "A few words of what the tool should do."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "default": _FEW},
            },
            "additionalProperties": False,
        },
        "annotations": _READS,
    },
    {
        "name": "describe",
        "title": "Describe tools",
        "description": "The full definitions of tools, with what they take and give.",
        "inputSchema": {
            "type": "object",
            "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 20}},
            "required": ["names"],
            "additionalProperties": False,
        },
        "annotations": _READS,
    },
    {
        "name": "call",
        "title": "Call a tool",
        "description": "Call a tool by its name with its arguments, as its description gives them.",
        "inputSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
]


def check_names(servers: Sequence[str]) -> None:
    """Raises `ValidationFailed` if a server's tools would be named like the three."""
    if OWN in servers and len(servers) > 1:
        reason = "with --tool-search its tools would be named like those of the search; rename the server"
        raise ValidationFailed([Fault(field=f"servers.{OWN}", reason=reason)])


class Search:
    """Answers `tools/list` and `tools/call` of a gateway whose tools are searched."""

    def __init__(self, roster: Upstreams, lists: Lists, calls: Calls) -> None:
        check_names(roster.names.servers)
        self._roster = roster
        self._lists = lists
        self._calls = calls
        self._own = {tool["name"]: roster.names.spelled(OWN, tool["name"]) for tool in _TOOLS}

    async def listing(self, _visit: ClientRequest) -> dict[str, Any]:
        """The three tools."""
        return {"tools": [{**tool, "name": self._own[tool["name"]]} for tool in _TOOLS]}

    async def call(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers a call of one of the three."""
        name, arguments = visit.params.get("name"), as_object(visit.params.get("arguments"))
        if name == self._own["search"]:
            return await self._search(visit, arguments)
        if name == self._own["describe"]:
            return await self._describe(visit, arguments)
        if name == self._own["call"]:
            return await self._call(visit, arguments)
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(str(name))}; call it with {self._own['call']}")

    async def _search(self, visit: ClientRequest, arguments: Mapping[str, Any]) -> dict[str, Any]:
        query, limit = arguments.get("query", ""), arguments.get("limit", _FEW)
        if not isinstance(query, str) or not isinstance(limit, int) or isinstance(limit, bool):
            return tool_error(visit, "query is a text and limit a number")
        tools = await self._lists.everything(visit)
        found = ranked(tools, query)[: max(1, min(limit, MOST_FOUND))] if query.strip() else tools
        rows = [{"name": tool["name"], "description": str(tool.get("description", ""))[:300]} for tool in found]
        lines = [f"{row['name']}: {row['description'].partition(chr(10))[0]}" for row in rows]
        return _answer({"tools": rows, "of": len(tools)}, "\n".join(lines) or "no tool has these words")

    async def _describe(self, visit: ClientRequest, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given: Any = arguments.get("names")
        if not isinstance(given, list):
            return tool_error(visit, "names is a list of names")
        names = cast("list[Any]", given)
        known = {tool["name"]: tool for tool in await self._lists.everything(visit)}
        missing = [str(name) for name in names if not isinstance(name, str) or name not in known]
        if missing:
            return tool_error(visit, f"there is no tool {', '.join(missing)}; find one with {self._own['search']}")
        found = [known[name] for name in names]
        return _answer({"tools": found}, json.dumps(found, ensure_ascii=False, indent=1))

    async def _call(self, visit: ClientRequest, arguments: Mapping[str, Any]) -> dict[str, Any]:
        inner = ClientRequest(visit.ctx, visit.guest)
        inner.params = {**visit.params, "name": arguments.get("name"), "arguments": arguments.get("arguments") or {}}
        return await self._calls.call(inner)


def ranked(tools: list[Any], query: str) -> list[Any]:
    """The tools that have words of the query: first by how many of them, then by words in the name."""
    wanted = set(_WORD.findall(query.lower()))
    scored: list[tuple[int, int, int]] = []
    for place, tool in enumerate(tools):
        name = " ".join(_WORD.findall(str(tool.get("name", "")).lower()))
        text = f"{name} {tool.get('title', '')} {tool.get('description', '')}".lower()
        hits = sum(word in text for word in wanted)
        if hits:
            scored.append((-hits, -sum(word in name for word in wanted), place))
    return [tools[place] for _, _, place in sorted(scored)]


def _answer(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": sendable(text)}], "structuredContent": dict(body), "isError": False}
