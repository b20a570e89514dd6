"""What the tests of MCP tasks share: a front door with tools that wait to be told, and raw clients of both sorts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from gateway_stage import LEGACY, MODERN, Client, Message
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.server.missions.server import mission_server

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
FIRST, SECOND = LEGACY, MODERN
GENERATIONS = (FIRST, SECOND)
ENDS = ("completed", "failed", "cancelled")
NOBODY = "task-" + "0" * 32
ASKS = OperatorPolicy(rules=(Rule(decision="ask", tool="write"),))
MISSION: dict[str, Any] = {
    "directive": "Do something",
    "criteria": [{"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}],
    "budget": {"max_iterations": 1000},
    "tool_allowlist": ["world.*"],
    "stagnation_threshold": "off",
}


class World:
    """The tools behind the server, and what they were told."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.began = 0
        self.done: list[str] = []
        self.stubborn = False

    async def work(self, name: str = "work") -> dict[str, Any]:
        """Works until it is told to stop."""
        self.began += 1
        with anyio.CancelScope(shield=self.stubborn):
            await self.go.wait()
        self.done.append(name)
        return {"metrics": {"done": len(self.done)}}

    def write(self, text: str) -> None:
        """Writes."""
        self.done.append(text)

    def fails(self) -> None:
        """Fails."""
        raise ValueError("no more paper")


class Caller(Client):
    """A client that can leave, and that answers what it is asked when it likes."""

    def __init__(self, stage: Stage, era: str, able: Mapping[str, Any]) -> None:
        self.inbox, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](1_000)
        outgoing, self.outbox = anyio.create_memory_object_stream[SessionMessage](1_000)
        self.server = (incoming, outgoing)
        self.stage = stage
        self.held: list[Message] = []
        self.gone = anyio.Event()
        super().__init__(self._send, era, able)

    async def _send(self, message: Message) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message})
        await self.inbox.send(SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False)))

    async def take(self, message: Message) -> None:
        if "method" in message and "id" in message:
            self.held.append(message)
            self._stirred.set()
            self._stirred = anyio.Event()
        else:
            await super().take(message)

    async def read(self) -> None:
        with self.outbox, self.inbox:
            async for item in self.outbox:
                await self.take(json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True)))

    async def serve(self) -> None:
        server = self.stage.server
        await server.run(*self.server, server.create_initialization_options())
        self.gone.set()

    async def question(self) -> Message:
        """The next question that it is asked."""
        await self.until(lambda: self.held)
        return self.held.pop(0)

    async def reply(self, question: Message, result: Mapping[str, Any]) -> None:
        await self.send({"id": question["id"], "result": dict(result)})

    async def leave(self) -> None:
        """Hangs up, and waits until the server knows."""
        self.inbox.close()
        await self.gone.wait()

    async def mission(self, **more: Any) -> str:
        started = await self.call("mission_start", {**MISSION, **more})
        return started["structuredContent"]["session_id"]

    async def drive(self, mission: str, tool: str = "work", task: Any = None, **args: Any) -> Message:
        """Drives a mission by one call of a tool, as a task; returns the task as this generation has it."""
        proposal = {"tool_calls": [{"tool_name": tool, "args": args}]}
        more = {} if self.era == SECOND else {"task": task or {}}
        return self.task(await self.call("mission_iterate", {"session_id": mission, "proposal": proposal}, **more))

    async def begin_work(self, tool: str = "work", task: Any = None, **args: Any) -> str:
        """A task of its own mission; returns its id."""
        return (await self.drive(await self.mission(), tool, task, **args))["taskId"]

    def task(self, result: Message) -> Message:
        return result["task"] if self.era == FIRST else result

    async def get(self, task_id: str) -> Message:
        return await self.result("tasks/get", {"taskId": task_id})

    async def until_status(self, task_id: str, *wanted: str) -> Message:
        """Polls as often as it is told to."""
        with anyio.fail_after(60):
            while True:
                task = await self.get(task_id)
                if task["status"] in (wanted or ENDS):
                    return task
                await anyio.sleep(task["pollInterval" if self.era == FIRST else "pollIntervalMs"] / 1_000)

    async def refused(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        answer = await self.request(method, params)
        assert "error" in answer, answer
        return answer["error"]


class Stage:
    """A server, its runtime and its world."""

    def __init__(self, runtime: Runtime, server: Server[Any], world: World, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.server = server
        self.world = world
        self._tasks = tasks

    async def client(self, era: str, *, elicits: bool = False, extension: bool = True) -> Caller:
        """A further client, connected."""
        able: dict[str, Any] = {"elicitation": {"form": {}}} if elicits else {}
        if era == SECOND and extension:
            able["extensions"] = {EXTENSION: {}}
        client = Caller(self, era, able)
        self._tasks.start_soon(client.serve)
        self._tasks.start_soon(client.read)
        await client.hello()
        return client


@asynccontextmanager
async def stage(folder: Path, **settings: Any) -> AsyncIterator[Stage]:
    """A front door with a world behind it; a call of `write` needs a person's yes."""
    world = World()
    config = Configuration(policy=ASKS, settings=settings)
    servers = {"world": [world.work, world.write, world.fails]}
    runtime = Runtime(state=folder / "ledger.db", config=config, servers=servers)
    async with runtime, mission_server(runtime) as server, anyio.create_task_group() as tasks:
        yield Stage(runtime, server, world, tasks)
        tasks.cancel_scope.cancel()
