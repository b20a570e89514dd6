"""What a program hands in (functions, upstreams of its own) as a server that is spoken to like any other.

Owns: the messages of both eras for the tools of an `Upstream`. Does not know: who asks. Invariant: a tool is listed and
answers as it does for a mission; what it may do is the program's own word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
import anyio.abc

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import CallFailed, ProgressFn, Tool, ToolResult, Upstream, UpstreamError
from pursuit.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, UpstreamUnavailable
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import CLIENT_INFO, Opener
from pursuit.upstream.transport import Asked, CallBroken, ConnectionLost, Heard, StderrTail, Wire

_NEW: Mapping[str, Any] = {"resultType": "complete"}
_LISTED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}


class LocalUpstream(McpUpstream):
    """An upstream of this process, behind the messages of MCP."""

    def __init__(self, inner: Upstream, *, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__(ServerConfig(name=inner.name), _opener(inner), tasks=tasks)
        self.inner = inner

    async def tools(self) -> Sequence[Tool]:
        """The tools as the program says what they may do."""
        return await self.inner.tools()


def _opener(inner: Upstream) -> Opener:
    async def opened(_stack: AsyncExitStack, over: anyio.Event, _tail: StderrTail) -> Wire:
        return LocalWire(inner, over)

    return opened


class LocalWire:
    """Requests run in the caller's own task, so that cancelling the caller cancels the tool."""

    can_hang = False
    hears = True

    def __init__(self, inner: Upstream, over: anyio.Event) -> None:
        self._inner = inner
        self._over = over
        self._modern = False
        self._heard: Heard | None = None

    async def run(
        self, heard: Heard, asked: Asked, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """There is no other side that could go, or ask."""
        self._heard = heard
        task_status.started()
        await self._over.wait()

    def adopt(self, version: str, *, modern: bool) -> None:
        """Answers in this era from now on."""
        self._modern = modern

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        cancellable: bool = True,
        heard: Heard | None = None,
    ) -> dict[str, Any]:
        """The answer of the upstream as a message; `UpstreamError` for whatever is not about tools."""
        if self._over.is_set():
            raise ConnectionLost(sent=False)
        match method:
            case "initialize":
                return self._hello(params)
            case "server/discover":
                return _discovered()
            case "ping":
                return {}
            case "tools/list":
                tools = [dict(tool.definition) for tool in await self._tools()]
                return {"tools": tools, **(_NEW if self._modern else {}), **(_LISTED if self._modern else {})}
            case "tools/call":
                return {**await self._called(params), **(_NEW if self._modern else {})}
            case _:
                raise UpstreamError(METHOD_NOT_FOUND, f"Method not found: {method}")

    def _hello(self, params: Mapping[str, Any]) -> dict[str, Any]:
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION  # noqa: PLC0415 - slow

        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": {**CLIENT_INFO, "name": self._inner.name},
        }

    async def _tools(self) -> Sequence[Tool]:
        try:
            return await self._inner.tools()
        except UpstreamUnavailable as error:
            raise CallBroken(error.message) from None

    async def _called(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        meta = params.get("_meta")
        said: Mapping[str, Any] = cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}
        if not any(tool.name == name for tool in await self._tools()):
            raise UpstreamError(INVALID_PARAMS, f"Unknown tool: {name}")
        try:
            result = await self._inner.call(
                str(name),
                cast("Mapping[str, Any]", arguments or {}),
                call_id=str(said.get("pursuit/callId", "")),
                on_progress=self._progress(said.get("progressToken")),
            )
        except CallFailed as error:
            if error.answered:
                raise UpstreamError(INTERNAL_ERROR, str(error)) from None
            raise CallBroken(str(error), sent=error.sent) from None
        return _message(result)

    def _progress(self, token: Any) -> ProgressFn | None:
        if token is None:
            return None

        async def told(progress: float, total: float | None, message: str | None) -> None:
            body = {"progressToken": token, "progress": progress, "total": total, "message": message}
            if self._heard is not None:
                self._heard("notifications/progress", {key: one for key, one in body.items() if one is not None})

        return told

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Nothing here listens."""

    def ending(self) -> str:
        """Why it is over."""
        return "the program closed it"


def _discovered() -> dict[str, Any]:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS  # noqa: PLC0415 - slow, and there may be no client at all

    return {"supportedVersions": list(MODERN_PROTOCOL_VERSIONS), "capabilities": {"tools": {}}, **_NEW, **_LISTED}


def _message(result: ToolResult) -> dict[str, Any]:
    """A result as MCP wants it: whoever reads text alone finds what is structured there, too."""
    body = result.as_dict()
    if not result.content and result.structured is not None:
        body["content"] = [{"type": "text", "text": json.dumps(result.structured, ensure_ascii=False)}]
    return body
