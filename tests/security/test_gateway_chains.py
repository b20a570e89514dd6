"""A client at one gateway answers approvals of another gateway behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from gateway_stage import HOSTILE, LEGACY, asked_of
from plain_http import post
from problem_stage import ERAS
from quick_start import pursuit
from test_approval_channels import LISTED
from test_http_elicitation import ABLE, agent, forged

from pursuit import Runtime
from pursuit.server.bind import HttpBinding
from pursuit.server.gateway.upstreams import GatewayOptions
from pursuit.server.serve import serve
from pursuit.server.tokens import Tokens


@asynccontextmanager
async def gateway(folder: Path, config: str) -> AsyncIterator[tuple[str, Tokens]]:
    """A gateway over HTTP, as `pursuit serve --gateway --http` serves it."""
    folder.mkdir()
    (folder / "pursuit.toml").write_text(config)
    tokens, told, urls = Tokens.beside(folder / "ledger.db"), anyio.Event(), list[str]()

    def listening(url: str) -> None:
        urls.append(url)
        told.set()

    runtime = Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml")
    options = GatewayOptions(reloads=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(serve, runtime, HttpBinding(tokens=tokens), gateway=options, listening=listening))
        await told.wait()
        yield urls[0], tokens
        tasks.cancel_scope.cancel()


def asks_first(log: Path) -> str:
    """A server whose calls need a yes."""
    args = json.dumps(["-S", str(HOSTILE), "tidy", f"log={log}"])
    return f"[servers.hostile]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"


@pytest.mark.guarantee("no-client-approves-through-a-chain")
async def test_a_client_of_a_gateway_answers_the_questions_of_gateways_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    logs = {"near": tmp_path / "near.log", "far": tmp_path / "far.log"}
    inner = tmp_path / "near"
    inner.mkdir()
    (inner / "pursuit.toml").write_text(asks_first(logs["near"]))
    words = [*pursuit(), "--config", str(inner / "pursuit.toml"), "serve", "--gateway"]

    def calls(server: str) -> int:
        return len(asked_of(logs[server], "tools/call")) if logs[server].exists() else 0

    async with gateway(tmp_path / "far", asks_first(logs["far"]) + LISTED) as (far, far_tokens):
        token = far_tokens.make("outer", may=["approve-own"])
        servers = (
            f"[servers.near]\ncommand = {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n"
            f'env = {{ PURSUIT_TRUST = "1", PURSUIT_RELAYED = "stdio" }}\n'
            f'[servers.far]\nurl = "{far}"\nheaders = {{ Authorization = "Bearer {token}" }}\n'
        )
        async with gateway(tmp_path / "outer", f'{LISTED}[policy]\nmode = "auto"\n{servers}') as (url, tokens):
            asked: list[str] = []
            guest, trusted = tokens.make("guest"), tokens.make("trusted", may=["approve-own"])
            for era in ERAS:
                async with agent(url, era, guest, asked) as client:
                    for server in logs:
                        refused = str(await client.call_tool(f"{server}.steps", {}))
                        assert "needs a person's approval" in refused
            # The client brings an answer to a question that it was not asked.
            approval = "approval-" + refused.partition("`pursuit approve approval-")[2][:16]
            call = {"name": "far.steps", "arguments": {}, "_meta": {"pursuit/mayApprove": True}}
            await forged(url, call, approval, f"pursuit-asked-{approval}", token=guest, able=ABLE)
            assert (asked, calls("near"), calls("far")) == ([], 0, 0)
            # A client whose answers count at the outer gateway is asked by a server over HTTP.
            async with agent(url, LEGACY, trusted, asked) as client:
                await client.call_tool("far.steps", {})
                await client.call_tool("near.steps", {})
            assert (len(asked), calls("near"), calls("far")) == (1, 0, 1)
            listed = await anyio.to_thread.run_sync(partial(post, url, "tools/list", {}, able={}, token=guest))
            assert {one["name"] for one in listed["result"]["tools"]} >= {"near.steps", "far.steps"}
