"""The words of both generations of MCP tasks, and which of them a request speaks.

Owns: names that stand in messages, and what a request says of itself. Knows no task. Pure.

The first generation is in the core of 2025-11-25 (SEP-1686); the second is an extension of 2026-07-28 (SEP-2663). They
are not compatible on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import CLIENT_CAPABILITIES_META_KEY, HEADER_MISMATCH, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.surfaces.mcp.failure import Context

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"
FIRST_VERSIONS = frozenset({"2025-11-25"})

Generation = Literal[0, 1, 2]
"""0 is a client of a version without tasks, or of the new era without the extension on this request."""

JsonObject = Mapping[str, Any]


def is_modern(ctx: Context) -> bool:
    """Whether the request is of the era without handshakes."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def generation_of(ctx: Context) -> Generation:
    """What this request's client can do with a task."""
    if is_modern(ctx):
        extensions = obj(capabilities_of(ctx).get("extensions"))
        return 2 if extensions.get(EXTENSION) is not None else 0
    return 1 if ctx.protocol_version in FIRST_VERSIONS else 0


def capabilities_of(ctx: Context) -> JsonObject:
    """What the client says that it can do: on this request, or when it shook hands."""
    if is_modern(ctx):
        meta = obj((ctx.params or {}).get("_meta"))
        return obj(meta.get(CLIENT_CAPABILITIES_META_KEY))
    said = ctx.session.client_params
    return {} if said is None else said.capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)


def missing_extension() -> MCPError:
    """What a client is told that did not declare the extension on this request."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"the request must declare the extension {EXTENSION} in its capabilities",
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


def task_id_of(ctx: Context) -> str:
    """The task that a request is about; over HTTP the new era names it in a header, too.

    A header that says something else is refused. Clients must send it; FastMCP 4.1 does not, and is served.
    """
    task_id = (ctx.params or {}).get("taskId")
    if is_modern(ctx) and ctx.request is not None:
        named = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
        if named is not None and named != task_id:
            raise MCPError(HEADER_MISMATCH, f"the header {MCP_NAME_HEADER} must be the request's taskId")
    if not isinstance(task_id, str):
        raise MCPError(INVALID_PARAMS, f"{ctx.method} needs a taskId")
    return task_id


def obj(value: object) -> JsonObject:
    """A part of a message that should be an object; empty where it is none."""
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}
