"""Missions or a gateway over HTTP, for several callers with tokens of their own; `World` keeps what was reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from plain_http import post

from pursuit import Runtime
from pursuit.config.configuration import load_configuration
from pursuit.server.access import MISSIONS, UPSTREAM
from pursuit.server.bind import HttpBinding
from pursuit.server.gateway.server import Gateway, open_gateway
from pursuit.server.gateway.upstreams import GatewayOptions
from pursuit.server.http import serve_http
from pursuit.server.missions.server import mission_server
from pursuit.server.oauth import KeySettings, OAuth
from pursuit.server.operator_api import approval_routes
from pursuit.server.tokens import Tokens

NAMES = ("guest", "reader", "other")


class World:
    """An MCP server with a tool, a resource, a prompt and a method of its own; what it was asked for is kept."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.hold: anyio.Event | None = None
        self.server: Server[Any] = Server(
            "world",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_read_resource=self._read,
            on_get_prompt=self._prompt,
            on_completion=self._complete,
            on_list_resources=self._resources,
            on_list_prompts=self._prompts,
        )
        self.server.middleware = [self._custom]

    async def _custom(self, ctx: Any, call_next: Any) -> Any:
        if ctx.method == "world/wipe":
            self.reached.append(ctx.method)
            return {"wiped": True}
        return await call_next(ctx)

    async def _list(self, _ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="wipe", input_schema={"type": "object"})])

    async def _call(self, _ctx: Any, _params: Any) -> types.CallToolResult:
        self.reached.append("tools/call")
        if self.hold is not None:
            await self.hold.wait()
        return types.CallToolResult(content=[types.TextContent(text="wiped")])

    async def _resources(self, _ctx: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def _read(self, _ctx: Any, params: Any) -> types.ReadResourceResult:
        self.reached.append("resources/read")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text="secret")])

    async def _prompts(self, _ctx: Any, _params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="plan")])

    async def _prompt(self, _ctx: Any, _params: Any) -> types.GetPromptResult:
        self.reached.append("prompts/get")
        return types.GetPromptResult(messages=[])

    async def _complete(self, _ctx: Any, _params: Any) -> types.CompleteResult:
        self.reached.append("completion/complete")
        return types.CompleteResult(completion=types.Completion(values=["secret"]))


@dataclass(kw_only=True)
class Served:
    """A server that runs, and the tokens of its callers by name."""

    url: str
    runtime: Runtime
    tokens: Tokens
    shown: dict[str, str]
    world: World = field(default_factory=World)

    async def ask(
        self, who: str | None, method: str, params: Mapping[str, Any], able: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The whole answer to one request of a caller."""
        token = None if who is None else self.shown[who]
        return await anyio.to_thread.run_sync(partial(post, self.url, method, params, able=able or {}, token=token))

    async def call(
        self, who: str | None, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The result of a tool, which must be one."""
        return (await self.ask(who, "tools/call", {"name": tool, "arguments": arguments or {}}, **more))["result"]

    async def start(self, who: str, mission: Mapping[str, Any]) -> str:
        """The id of a mission that a caller starts."""
        started = await self.call(who, "mission_start", mission)
        assert not started.get("isError"), started
        return started["structuredContent"]["session_id"]


@asynccontextmanager
async def serving(
    folder: Path,
    config: str,
    *,
    gateway: bool = False,
    shown: dict[str, str] | None = None,
    keys: KeySettings | None = None,
) -> AsyncIterator[Served]:
    """Serves missions, or a gateway, with this configuration to the callers in `NAMES`, and to those of an issuer.

    Their tokens may be `shown`.
    """
    path = folder / "pursuit.toml"
    path.write_text(config, encoding="utf-8")
    tokens, world = Tokens.beside(folder / "ledger.db"), World()
    shown = shown or {name: tokens.make(name) for name in NAMES}
    urls: list[str] = []
    told = anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        told.set()

    loaded = load_configuration(path)
    oauth = None if loaded.serve.oauth is None else OAuth(loaded.serve.oauth, keys)
    runtime = Runtime(state=folder / "ledger.db", config=loaded, servers={"world": world.server})
    async with runtime, anyio.create_task_group() as tasks:
        opened = open_gateway(runtime, GatewayOptions(alone=False)) if gateway else mission_server(runtime)
        async with opened as found:
            server = await found.server() if isinstance(found, Gateway) else found
            door = HttpBinding(host="127.0.0.1", port=0, tokens=tokens, oauth=oauth)
            rules, routes = UPSTREAM if gateway else MISSIONS, approval_routes(runtime.runner, tokens, oauth)
            tasks.start_soon(partial(serve_http, server, door, routes=routes, rules=rules, listening=listening))
            await told.wait()
            yield Served(url=urls[0], runtime=runtime, tokens=tokens, shown=shown, world=world)
            tasks.cancel_scope.cancel()
