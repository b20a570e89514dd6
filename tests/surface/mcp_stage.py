"""What the tests of the MCP resources, updates and prompts share: a small server with only those handlers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from engine_stage import mission, repeat
from mcp import Client
from mcp.server.lowlevel import Server

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration
from pursuit.server.missions.prompts import Prompts
from pursuit.server.missions.resources import Resources, ResourceSettings
from pursuit.server.missions.subscriptions import Subscriptions, SubscriptionSettings
from pursuit.service.service import Service

LEGACY, MODERN = "legacy", "2026-07-28"
ERAS = [LEGACY, MODERN]
UNKNOWN = "mission-0123456789abcdef"


def weigh(kilos: float = 3) -> dict[str, Any]:
    """Says what it weighs."""
    return {"metrics": {"mass": kilos}, "events": [{"event_name": "weighed"}]}


@dataclass(frozen=True)
class Stage:
    """A runtime and a server over it."""

    runtime: Runtime
    updates: Subscriptions
    server: Server[Any]

    @property
    def service(self) -> Service:
        return self.runtime.runner

    def client(self, era: str, **more: Any) -> Client:
        return Client(self.server, mode=era, cache=None, **more)

    async def start(self, **given: Any) -> str:
        """A mission that never gets light enough."""
        defaults: dict[str, Any] = {
            "directive": "Weigh it",
            "criteria": [metric("mass", source="weigh") <= 2],
            "budget": Budget(max_iterations=1000),
            "proposer": repeat("weigh"),
        }
        return (await self.service.start(mission(**{**defaults, **given}))).session_id


def opened(folder: Path, *tools: Callable[..., Any], **servers: Any) -> Runtime:
    named = {"demo": [*(tools or (weigh,))], **servers}
    return Runtime(state=folder / "ledger.db", config=Configuration(), servers=named)


@asynccontextmanager
async def stage(
    folder: Path,
    *tools: Callable[..., Any],
    following: SubscriptionSettings | None = None,
    pages: ResourceSettings | None = None,
    **servers: Any,
) -> AsyncIterator[Stage]:
    async with opened(folder, *tools, **servers) as runtime, anyio.create_task_group() as tasks:
        updates = Subscriptions(runtime.runner, tasks, following)
        resources, prompts = Resources(runtime.runner, pages), Prompts(runtime.runner)
        server: Server[Any] = Server(
            "stage",
            on_list_resources=resources.list,
            on_list_resource_templates=resources.templates,
            on_read_resource=resources.read,
            on_subscribe_resource=updates.subscribe,
            on_unsubscribe_resource=updates.unsubscribe,
            on_subscriptions_listen=updates.listen,
            on_list_prompts=prompts.list,
            on_get_prompt=prompts.get,
            on_completion=resources.complete,
        )
        yield Stage(runtime, updates, server)
        updates.close()
        tasks.cancel_scope.cancel()


async def read(client: Client, uri: str) -> Any:
    """The one JSON document at an address."""
    (content,) = (await client.read_resource(uri)).contents
    assert content.uri == uri and content.mime_type == "application/json"
    return json.loads(getattr(content, "text", ""))
