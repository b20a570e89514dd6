"""The resources and prompts of a server as read-only tools, for proposers that use only tools.

The tools are named after the requests that they send (`files.resources/read`), so they differ from all names of a
server's own tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pursuit.core.tools import CallFailed, Tool, ToolResult, Traits, UpstreamError

if TYPE_CHECKING:
    from pursuit.upstream.client import McpUpstream

_NAMES: tuple[str, ...] = ("read_only", "idempotent", "parallel_safe", "destructive")
_WHY: Mapping[str, str] = dict.fromkeys(_NAMES, "MCP: this request only reads")
READ_TRAITS = Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False, why=_WHY)
_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
_NOTHING: Mapping[str, Any] = {**_OBJECT, "properties": {}}
_URI: Mapping[str, Any] = {**_OBJECT, "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
_TEXTS: Mapping[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
_PROMPT: Mapping[str, Any] = {
    **_OBJECT,
    "properties": {"name": {"type": "string"}, "arguments": _TEXTS},
    "required": ["name"],
}
READING: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "resources/list": ("resources", "Lists the resources of this server: documents, files, records.", _NOTHING),
    "resources/read": ("resources", "Reads one of this server's resources by its uri.", _URI),
    "prompts/list": ("prompts", "Lists the prompts that this server offers, with their arguments.", _NOTHING),
    "prompts/get": ("prompts", "Gives one of this server's prompts, filled in.", _PROMPT),
}
"""Each request with the capability that it needs, its description and its arguments."""


async def reading_tools(server: str, upstream: object) -> list[Tool]:
    """The tools whose request this server declares. Raises `UpstreamUnavailable`."""
    if not hasattr(upstream, "entries"):  # it accepts only tool calls
        return []
    declared = (await cast("McpUpstream", upstream).about()).capabilities
    return [
        Tool(
            server=server,
            name=method,
            description=description,
            input_schema=schema,
            traits=READ_TRAITS,
            definition={"name": method, "description": description, "inputSchema": schema},
            method=method,
        )
        for method, (needed, description, schema) in READING.items()
        if needed in declared
    ]


async def read(upstream: object, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Sends the request of a tool. Raises `CallFailed` and `UpstreamUnavailable`."""
    client = cast("McpUpstream", upstream)
    try:
        match tool.method:
            case "resources/list":
                found = {kind: await client.entries(kind) for kind in ("resources", "resourceTemplates")}
                return ToolResult(structured=found)
            case "prompts/list":
                return ToolResult(structured={"prompts": await client.entries("prompts")})
            case method:
                return _result(tool, await client.request(method, dict(arguments)))
    except UpstreamError as error:
        raise CallFailed(f"server {tool.server!r} refused {tool.method}: {error.message}", answered=True) from None


def _result(tool: Tool, raw: Mapping[str, Any]) -> ToolResult:
    if raw.get("resultType", "complete") != "complete":
        raise CallFailed(f"{tool.qualified} requires user input, which is not available here", answered=True)
    if tool.method == "prompts/get":
        return ToolResult(content=[_block(message.get("content")) for message in _tables(raw.get("messages"))])
    return ToolResult(
        content=[
            {"type": "text", "text": one["text"]}
            if isinstance(one.get("text"), str)
            else {"type": "resource", "resource": one}
            for one in _tables(raw.get("contents"))
        ]
    )


def _block(content: object) -> Mapping[str, Any]:
    if isinstance(content, Mapping):
        return cast("Mapping[str, Any]", content)
    return {"type": "text", "text": str(content)}


def _tables(value: object) -> list[Mapping[str, Any]]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, Mapping)]
