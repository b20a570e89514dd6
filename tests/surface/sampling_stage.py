"""What the tests of sampling share: a place to take steps in, and clients whose models answer as they are told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server.validation import validate_tool_use_result_messages
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ErrorData,
    SamplingCapability,
    SamplingToolsCapability,
    TextContent,
    ToolUseContent,
)

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.events import decode
from pursuit.policy.rules import OperatorPolicy
from pursuit.server.missions.server import mission_server
from pursuit.server.tasks.promotion import PromotionSettings

LEGACY, MODERN = ERAS = ["legacy", "2026-07-28"]
WITH_TOOLS = SamplingCapability(tools=SamplingToolsCapability())
MODES = ["native", "words"]
Answer = CreateMessageResult | CreateMessageResultWithTools | ErrorData


def mission(steps: int = 3, **more: Any) -> dict[str, Any]:
    criterion = {
        "criterion_id": "enough",
        "kind": "metric_threshold",
        "metric": "steps",
        "op": ">=",
        "target": steps,
        "required": True,
    }
    return {
        "directive": "Take steps",
        "criteria": [criterion],
        "budget": {"max_iterations": 20},
        "tool_allowlist": ["world.*"],
        **more,
    }


def says(text: str, **more: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text=text), model="theirs", **more)


def calls(*amounts: Any, name: str = "world__step") -> CreateMessageResultWithTools:
    parts: list[Any] = [TextContent(text="onward")]
    parts += [ToolUseContent(name=name, id=str(at), input={"amount": one}) for at, one in enumerate(amounts)]
    return CreateMessageResultWithTools(role="assistant", content=parts, model="theirs", stop_reason="toolUse")


def wants(mode: str, *amounts: Any, name: str = "world__step") -> Answer:
    if mode == "native":
        return calls(*amounts, name=name)
    return says(json.dumps({"why": "onward", "calls": [{"tool": name, "args": {"amount": one}} for one in amounts]}))


class World:
    """A place to take steps in, a server over it, and clients whose models answer as they are told."""

    def __init__(self, runtime: Runtime, taken: list[int], server: Any, gate: anyio.Event) -> None:
        self.gate = gate
        self.runtime = runtime
        self.taken = taken
        self.server = server
        self.asked: list[CreateMessageRequestParams] = []

    def client(self, era: Any, mode: str, answer: Callable[[int], Answer]) -> Client:
        async def sample(_context: Any, params: CreateMessageRequestParams) -> Answer:
            for end in range(len(params.messages)):
                validate_tool_use_result_messages(params.messages[: end + 1])
            self.asked.append(params)
            return answer(len(self.asked) - 1)

        able = WITH_TOOLS if mode == "native" else None
        return Client(self.server, mode=era, cache=None, sampling_callback=sample, sampling_capabilities=able)

    async def events(self, name: str, *kinds: type[Any]) -> list[Any]:
        rows = [decode(row.type, row.body) for row in await self.runtime.runner.ledger.read(name)]
        return [row for row in rows if isinstance(row, kinds)]


@asynccontextmanager
async def world(
    folder: Path, mode: Any = "auto", promotion: PromotionSettings | None = None, **servers: Any
) -> AsyncIterator[World]:
    taken: list[int] = []

    gate = anyio.Event()

    async def step(amount: int = 1) -> dict[str, Any]:
        """Takes steps; a step of 7 waits until the gate is open."""
        taken.append(amount)
        if amount == 7:
            await gate.wait()
        return {"metrics": {"steps": sum(taken)}}

    config = Configuration(policy=OperatorPolicy(mode=mode))
    async with (
        Runtime(state=folder / "l.db", config=config, servers={"world": [step], **servers}) as runtime,
        mission_server(runtime, promotion) as server,
    ):
        yield World(runtime, taken, server, gate)


async def done(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is not None and not result.is_error, result
    return result.structured_content


async def begun(client: Client, **more: Any) -> str:
    return (await done(client, "mission_start", **mission(**more)))["session_id"]
