"""What the tests of the gateway share: raw clients of both eras, through the gateway and straight to the server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ServerConfig
from pursuit.policy.rules import OperatorPolicy
from pursuit.server.gateway.server import Gateway, open_gateway
from pursuit.server.gateway.upstreams import GatewayOptions

HOSTILE = Path(__file__).parent.parent / "servers" / "hostile_upstream.py"
ENVELOPE = "io.modelcontextprotocol/"
LEGACY, MODERN = "legacy", "modern"
ERAS = (LEGACY, MODERN)
_ERAS = ("client_era", "server_era")
_PAIRS = [(client, server) for client in ERAS for server in ERAS]
pairs = pytest.mark.parametrize(_ERAS, _PAIRS)
each_way = pytest.mark.parametrize(
    (*_ERAS, "alone"),
    [
        pytest.param(*pair, alone, marks=() if alone == (pair[0] == LEGACY) else pytest.mark.soak)
        for pair in _PAIRS
        for alone in (True, False)
    ],
)
"""Over stdio, where a client is alone, and over HTTP; `make soak` has the other half of the combinations."""
ABLE: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {"listChanged": True}}
TASKS: dict[str, dict[str, Any]] = {
    LEGACY: {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
    MODERN: {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
"""What the gateway itself declares, whatever the servers behind it know."""
Handler = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Message = dict[str, Any]


def unable(method: str, _params: Mapping[str, Any]) -> Mapping[str, Any]:
    raise AssertionError(f"nobody expected {method}")


class Client:
    """A client by hand: what it is told lies in `told`, what it is asked goes to `handler`."""

    def __init__(self, send: Callable[[Message], Awaitable[None]], era: str, capabilities: Mapping[str, Any]) -> None:
        self.send = send
        self.era = era
        self.capabilities = dict(capabilities)
        self.told: list[Message] = []
        self.asked: list[str] = []
        self.handler: Handler = unable
        self._ids = count(1)
        self._answers: dict[Any, Message] = {}
        self._stirred = anyio.Event()

    async def take(self, message: Message) -> None:
        """Takes one message of the server."""
        if "method" in message and "id" in message:
            self.asked.append(message["method"])
            answer = self.handler(message["method"], message.get("params", {}))
            await self.send({"id": message["id"], "result": dict(answer)})
        elif "method" in message:
            self.told.append(message)
        else:
            self._answers[message["id"]] = message
        self._stirred.set()
        self._stirred = anyio.Event()

    async def until(self, happened: Callable[[], Any]) -> Any:
        """Waits until something has come."""
        with anyio.fail_after(60):
            while not (found := happened()):
                await self._stirred.wait()
        return found

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Sends a request and does not wait; returns its id."""
        ident, body = next(self._ids), dict(params or {})
        if self.era == MODERN:
            envelope = {
                f"{ENVELOPE}protocolVersion": "2026-07-28",
                f"{ENVELOPE}clientInfo": {"name": "t", "version": "1"},
                f"{ENVELOPE}clientCapabilities": self.capabilities,
            }
            body["_meta"] = {**body.get("_meta", {}), **envelope}
        await self.send({"id": ident, "method": method, "params": body} if body else {"id": ident, "method": method})
        return ident

    async def ended(self, ident: int) -> Message:
        """The answer to a request: `result` or `error`."""
        await self.until(lambda: ident in self._answers)
        answer = self._answers.pop(ident)
        return {key: answer[key] for key in ("result", "error") if key in answer}

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        return await self.ended(await self.begin(method, params))

    async def result(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        answer = await self.request(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def call(self, tool: str, arguments: Any = None, **more: Any) -> Message:
        return await self.result("tools/call", {"name": tool, "arguments": arguments or {}, **more})

    async def hello(self) -> Message:
        """Shakes hands, or discovers."""
        if self.era == MODERN:
            return await self.result("server/discover")
        info = {"name": "t", "version": "1"}
        said = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "clientInfo": info}
        result = await self.result("initialize", said)
        await self.send({"method": "notifications/initialized"})
        return result

    async def entries(self, method: str, kind: str) -> list[Any]:
        """A whole list, page by page."""
        found: list[Any] = []
        params: dict[str, Any] = {}
        while True:
            page = await self.result(method, params)
            found += page[kind]
            if "nextCursor" not in page:
                return found
            params = {"cursor": page["nextCursor"]}


def told(client: Client, method: str) -> list[Any]:
    return [one.get("params", {}) for one in client.told if one["method"] == method]


def words(result: Mapping[str, Any]) -> str:
    """The text of a result with one block."""
    (block,) = result["content"]
    return block["text"]


def hostile(*args: str, name: str = "hostile", **more: Any) -> ServerConfig:
    return ServerConfig(name=name, command=sys.executable, args=("-S", str(HOSTILE), f"name={name}", *args), **more)


@asynccontextmanager
async def direct(*args: str, era: str = LEGACY, capabilities: Mapping[str, Any] | None = None) -> AsyncIterator[Client]:
    """A client of the server itself."""
    command = [sys.executable, "-S", str(HOSTILE), *args, *([MODERN] if era == MODERN else [])]
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(await anyio.open_process(command, stderr=None))
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        async def send(message: Message) -> None:
            await stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

        client = Client(send, era, capabilities or {})

        async def read() -> None:
            rest = b""
            async for chunk in stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    await client.take(json.loads(line))

        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(read)
        await client.hello()
        yield client
        await stdin.aclose()
        tasks.cancel_scope.cancel()


class House:
    """A gateway and its clients."""

    def __init__(self, runtime: Runtime, server: Server[Any], gateway: Gateway, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.server = server
        self.gateway = gateway
        self._tasks = tasks

    async def client(
        self, era: str, capabilities: Mapping[str, Any] | None = None, handler: Handler = unable, *, hello: bool = True
    ) -> Client:
        """A further client, connected."""
        to_server, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        outbox, from_server = anyio.create_memory_object_stream[SessionMessage](100)

        async def send(message: Message) -> None:
            text = json.dumps({"jsonrpc": "2.0", **message})
            await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False)))

        client = Client(send, era, capabilities or {})
        client.handler = handler

        async def read() -> None:
            with from_server, to_server:
                async for item in from_server:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await client.take(json.loads(text))

        async def serve() -> None:
            await self.server.run(inbox, outbox, self.server.create_initialization_options())

        self._tasks.start_soon(serve)
        self._tasks.start_soon(read)
        if hello:
            await client.hello()
        return client


@asynccontextmanager
async def house(
    folder: Path,
    *servers: ServerConfig,
    policy: OperatorPolicy | None = None,
    alone: bool = True,
    config: Path | Configuration | None = None,
    settings: Mapping[str, float] | None = None,
    handed: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[House]:
    """A gateway in front of these servers, in this process; without a policy everything is allowed."""
    configuration: Configuration | Path = Configuration(
        servers={server.name: server for server in servers},
        policy=policy or OperatorPolicy(mode="auto"),
        settings=settings or {},
    )
    if config is not None:
        configuration = config
    runtime = Runtime(state=folder / "ledger.db", config=configuration, servers=handed)
    options = GatewayOptions(alone=alone, **more)
    async with runtime, open_gateway(runtime, options) as gateway, anyio.create_task_group() as tasks:
        yield House(runtime, await gateway.server(), gateway, tasks)
        tasks.cancel_scope.cancel()


def asked_of(log: Path, method: str) -> Sequence[Message]:
    """What a server with a log was asked."""
    return [one for line in log.read_text().splitlines() if (one := json.loads(line)).get("method") == method]
