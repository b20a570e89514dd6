"""Tasks over HTTP: the header that names one, and whose they are where tokens are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from plain_http import post
from tasks_stage import MISSION, NOBODY, World

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.server.bind import HttpBinding
from pursuit.server.http import serve_http
from pursuit.server.missions.server import mission_server
from pursuit.server.tokens import Tokens


class Door:
    """A front door over HTTP, and its world."""

    def __init__(self, url: str, world: World) -> None:
        self.url = url
        self.world = world

    async def post(self, method: str, params: Any = None, **more: Any) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(partial(post, self.url, method, params, **more))

    async def begin(self, **more: Any) -> str:
        started = await self.post("tools/call", {"name": "mission_start", "arguments": MISSION}, **more)
        mission = started["result"]["structuredContent"]["session_id"]
        call = {"session_id": mission, "proposal": {"tool_calls": [{"tool_name": "work"}]}}
        made = await self.post("tools/call", {"name": "mission_iterate", "arguments": call}, **more)
        return made["result"]["taskId"]


@asynccontextmanager
async def door(folder: Path, tokens: Tokens | None = None) -> AsyncIterator[Door]:
    world, urls = World(), list[str]()
    told = anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        told.set()

    runtime = Runtime(state=folder / "ledger.db", config=Configuration(), servers={"world": [world.work]})
    async with runtime, mission_server(runtime) as server, anyio.create_task_group() as tasks:
        serve = partial(serve_http, server, HttpBinding(host="127.0.0.1", port=0, tokens=tokens), listening=listening)
        tasks.start_soon(serve)
        await told.wait()
        yield Door(urls[0], world)
        tasks.cancel_scope.cancel()


async def test_the_header_names_the_task(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        task_id = await here.begin()
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params = {"taskId": task_id, "inputResponses": {}}
            wrong = await here.post(method, params, headers={"Mcp-Name": NOBODY})
            assert (wrong["status"], wrong["error"]["code"]) == (400, -32020)
        right = await here.post("tasks/get", {"taskId": task_id})
        assert (right["status"], right["result"]["status"]) == (200, "working")
        without = await here.post("tasks/get", {"taskId": task_id}, able={})
        assert (without["status"], without["error"]["code"]) == (400, -32021)


@pytest.mark.guarantee("wrong-input-starts-nothing")
async def test_an_id_of_somebody_else_is_as_unknown_as_one_that_never_was(tmp_path: Path) -> None:
    def unknown() -> str:
        return "task 'ID' does not exist; it may have been removed after its retention time"

    tokens = Tokens.beside(tmp_path / "ledger.db")
    ann, bob = tokens.make("ann"), tokens.make("bob")
    async with door(tmp_path, tokens) as here:
        task_id = await here.begin(token=ann)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for named in (task_id, NOBODY):
                params = {"taskId": named, "inputResponses": {}}
                error = (await here.post(method, params, token=bob))["error"]
                assert error["code"] == -32602
                assert error["message"].replace(named, "ID") == unknown(), method
        assert (await here.post("tasks/get", {"taskId": task_id}, token=ann))["result"]["status"] == "working"
        here.world.go.set()
