"""A problem over HTTP: a desk for each client of either era, and nobody at another one's."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from http_stage import client
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import SERVER_INFO_META_KEY
from problem_stage import ERAS, SCHEMA, attempts, problem, text

from pursuit import Problem
from pursuit.server.bind import HttpBinding
from pursuit.server.http import serve_http
from pursuit.server.problems.server import ProblemOptions, problem_server
from pursuit.server.tokens import Tokens

MODERN = "2026-07-28"


@asynccontextmanager
async def serving(one: Problem, folder: Path, tokens: Tokens | None = None, **options: Any) -> AsyncIterator[str]:
    """Serves a problem on a free port of this machine."""
    found: list[str] = []
    told = anyio.Event()

    def listening(url: str) -> None:
        found.append(url)
        told.set()

    async def serve(scope: anyio.CancelScope) -> None:
        with scope:
            server = problem_server(one.manifest, ProblemOptions(state=folder / "ledger.db", **options), many=True)
            await serve_http(server, HttpBinding(host="127.0.0.1", port=0, tokens=tokens), listening=listening)

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        tasks.start_soon(serve, scope)
        with anyio.fail_after(60):
            await told.wait()
        yield found[0]
        scope.cancel()


async def tries(agent: Any) -> int:
    told = (await agent.call_tool("probe", {"x": 1})).structured_content
    return told["tries"]


@pytest.mark.guarantee("clients-of-a-problem-share-nothing")
async def test_each_client_has_an_attempt_and_a_server_of_its_own(tmp_path: Path) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA)
    async with serving(one, tmp_path) as url, AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(client(f"{url}?client=eve", "legacy")),
            await stack.enter_async_context(client(f"{url}?client=joe", "legacy")),
            await stack.enter_async_context(client(f"{url}?client=ann", MODERN)),
            await stack.enter_async_context(client(f"{url}?client=bob", MODERN)),
        ]
        for agent in agents:
            assert await tries(agent) == 1
        for agent in agents:
            assert not (await agent.call_tool("submit_final", {"x": 3})).is_error
        for agent in agents:
            assert "already_submitted" in text(await agent.call_tool("submit_final", {"x": 3}))
        async with client(f"{url}?client=ann", MODERN) as again:
            assert "already_submitted" in text(await again.call_tool("submit_final", {"x": 3}))
    found = await attempts(tmp_path)
    assert len(found) == 4 and all(state.calls == 1 and state.status == "scored" for state in found)


async def test_who_cannot_be_told_apart_may_look_and_not_work(tmp_path: Path) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA)
    async with serving(one, tmp_path) as url, client(url, MODERN) as agent:
        assert {"probe", "submit_final"} <= {tool.name for tool in (await agent.list_tools()).tools}
        assert "# The exam" in text(await agent.call_tool("design_brief", {}))
        for tool in ("probe", "submit_final"):
            refused = await agent.call_tool(tool, {"x": 1})
            assert refused.is_error and "?client=NAME" in text(refused)
            assert refused.meta is not None and refused.meta[SERVER_INFO_META_KEY]["name"] == "exam"
    assert await attempts(tmp_path) == []


async def test_a_token_is_a_client_and_reaches_no_others_attempt(tmp_path: Path) -> None:
    one = problem(tmp_path, submission=SCHEMA)
    tokens = Tokens.beside(tmp_path / "ledger.db")
    keys = [tokens.make(name) for name in ("ann", "bob")]
    async with serving(one, tmp_path, tokens) as url:
        for query in ("", "?client=x"):
            for key in keys:
                async with client(url + query, MODERN, key) as agent:
                    assert (await agent.call_tool("submit_final", {"x": 3})).is_error is bool(query)
                    assert (await agent.call_tool("submit_final", {"x": 3})).is_error
    assert sorted(state.opened.label for state in await attempts(tmp_path)) == ["ann", "bob"]


@pytest.mark.parametrize("how", ["manifest", "option"])
async def test_all_work_at_one_attempt_if_somebody_says_so(tmp_path: Path, how: str) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA, visibility={"shared_attempt": how == "manifest"})
    options = {} if how == "manifest" else {"attempt_id": "attempt-ours"}
    async with serving(one, tmp_path, **options) as url, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(client(url, era)) for era in ERAS]
        assert await tries(first) == 1
        assert await tries(second) in (1, 2)  # a server of both eras may have a process for each of them
        assert not (await first.call_tool("submit_final", {"x": 3})).is_error
        assert "already_submitted" in text(await second.call_tool("submit_final", {"x": 3}))
    (state,) = await attempts(tmp_path)
    assert state.calls == 2


@asynccontextmanager
async def two(one: Problem, folder: Path, **options: Any) -> AsyncIterator[tuple[Client, Client]]:
    """Two clients of a server that has room for one."""
    async with (
        serving(one, folder, most_clients=1, **options) as url,
        client(f"{url}?client=ann", MODERN) as ann,
        client(f"{url}?client=bob", MODERN) as bob,
    ):
        yield ann, bob


@pytest.mark.guarantee("open-desks-are-bounded")
async def test_desks_are_bounded_and_idle_ones_make_room(tmp_path: Path) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA)
    async with two(one, tmp_path, idle_seconds=1e6) as (ann, bob):
        assert await tries(ann) == 1
        with pytest.raises(MCPError, match="concurrent clients is reached"):
            await bob.call_tool("probe", {"x": 1})
    async with two(one, tmp_path, idle_seconds=0) as (ann, bob):
        assert [await tries(one) for one in (ann, bob, ann)] == [1, 1, 1]
    found = await attempts(tmp_path)
    assert sorted(state.calls for state in found) == [1, 3], "whoever comes back goes on with its attempt"


def test_the_command_serves_over_http_with_the_options_of_serve(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    for word in (
        ("--port", "8765"),
        ("--host", "127.0.0.1"),
        ("--allow-host", "x"),
        ("--require-token",),
        ("--no-token",),
    ):
        for command in (("problem", "serve", "pangram"), ("serve",)):
            assert f"{word[0]}: requires --http" in place.ask(*command, *word, code=2)[1]
            refused = place.ask(*command, *word, "--socket", "x", code=2)[1]
            assert f"{word[0]}: cannot be combined with --socket" in refused
    assert "--host: requires --http" in place.ask("problem", "serve", "pangram", "--host", "0.0.0.0", code=2)[1]
    assert "no token" in place.ask("problem", "serve", "pangram", "--http", "--host", "0.0.0.0", code=2)[1]
    running = place.begin("problem", "serve", "pangram", "--http", "--port", 0, "--json", fresh=False)
    said = ""
    while not said.rstrip().endswith("}"):
        said += running.answer.get(timeout=60)
    url, token = json.loads(said)["url"], json.loads(said)["token"]

    async def main() -> None:
        for era in ERAS:
            async with client(f"{url}?client={era}", era, token) as agent:
                taken = await agent.call_tool("submit_final", {"answer": "Waltz"})
                assert not taken.is_error and taken.structured_content is not None

    anyio.run(main)
    running.end(signal.SIGTERM)
    (found,) = place.json("problem", "compare", "pangram")["problems"]
    assert len(found["attempts"]) == 2
