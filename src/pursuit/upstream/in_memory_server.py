"""Serves the functions and upstreams that a program hands in as an MCP server, over an in-memory transport.

The gateway reaches them like any other server. A tool is listed and answers as it does for a mission; what it may do is
what the program says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import CallFailed, Tool, Upstream, UpstreamError, as_object
from pursuit.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, UpstreamUnavailable
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import CLIENT_INFO
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.transport import (
    PLAIN,
    CallBroken,
    ConnectionLost,
    OnNotification,
    OnRequest,
    RequestOptions,
    Started,
    Transport,
)

_COMPLETE: Mapping[str, Any] = {"resultType": "complete"}
_UNCACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}


class InMemoryUpstream(McpUpstream):
    """An upstream of this process, behind the messages of MCP."""

    def __init__(self, inner: Upstream, *, tasks: anyio.abc.TaskGroup) -> None:
        async def open_transport(_stack: AsyncExitStack, closed: anyio.Event, _tail: StderrTail) -> Transport:
            return InMemoryTransport(inner, closed)

        super().__init__(ServerConfig(name=inner.name), open_transport, tasks=tasks)
        self.inner = inner

    async def tools(self) -> Sequence[Tool]:
        """The tools, with the traits that the program states."""
        return await self.inner.tools()


class InMemoryTransport(Transport):
    """Runs each request in its caller's task, so that cancelling the caller cancels the tool."""

    def __init__(self, inner: Upstream, closed: anyio.Event) -> None:
        super().__init__(closed)
        self._inner = inner
        self._modern = False

    async def run(self, on_notification: OnNotification, on_request: OnRequest, *, task_status: Started) -> None:
        """Waits for the end: this server does not end by itself and sends no requests."""
        self._on_notification = on_notification
        task_status.started()
        await self._closed.wait()

    def set_protocol_version(self, version: str, *, modern: bool) -> None:
        """Answers in this era from now on."""
        self._modern = modern

    async def request(self, method: str, params: Mapping[str, Any], options: RequestOptions = PLAIN) -> dict[str, Any]:
        """The answer of the upstream as a message; `UpstreamError` for what does not concern tools."""
        if self._closed.is_set():
            raise ConnectionLost(sent=False)
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                version = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
                info = {**CLIENT_INFO, "name": self._inner.name}
                return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "server/discover":
                versions = list(MODERN_PROTOCOL_VERSIONS)
                return {"supportedVersions": versions, "capabilities": {"tools": {}}, **_COMPLETE, **_UNCACHED}
            case "ping":
                return {}
            case "tools/list":
                tools = [dict(tool.definition) for tool in await self._tools()]
                return {"tools": tools, **({**_COMPLETE, **_UNCACHED} if self._modern else {})}
            case "tools/call":
                return {**await self._call(params), **(_COMPLETE if self._modern else {})}
            case _:
                raise UpstreamError(METHOD_NOT_FOUND, f"Method not found: {method}")

    async def _tools(self) -> Sequence[Tool]:
        try:
            return await self._inner.tools()
        except UpstreamUnavailable as error:
            raise CallBroken(error.message) from None

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, said = params.get("name"), as_object(params.get("_meta"))
        token = said.get("progressToken")
        if not any(tool.name == name for tool in await self._tools()):
            raise UpstreamError(INVALID_PARAMS, f"Unknown tool: {name}")
        try:
            result = await self._inner.call(
                str(name),
                as_object(params.get("arguments")),
                call_id=str(said.get("pursuit/callId", "")),
                on_progress=None if token is None else self._progress_notifications(token),
            )
        except CallFailed as error:
            if error.answered:
                raise UpstreamError(INTERNAL_ERROR, str(error)) from None
            raise CallBroken(str(error), sent=error.sent) from None
        body = result.as_dict()
        if not result.content and result.structured is not None:  # repeated as text, for clients that read only text
            body["content"] = [{"type": "text", "text": json.dumps(result.structured, ensure_ascii=False)}]
        return body

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Does nothing: this server takes no notifications."""

    def close_reason(self) -> str:
        """Why the connection ended, as the end of a sentence."""
        return "the program closed it"
