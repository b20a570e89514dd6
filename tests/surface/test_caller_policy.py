"""What the operator's policy says for whoever shows a token: it tightens, through the gateway and for missions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from gateway_stage import run
from plain_http import post

from pursuit import Runtime
from pursuit.config.configuration import load_configuration
from pursuit.errors import ValidationFailed
from pursuit.server.bind import HttpBinding
from pursuit.server.gateway.server import Gateway, open_gateway
from pursuit.server.gateway.upstreams import GatewayOptions
from pursuit.server.http import serve_http
from pursuit.server.missions.server import mission_server
from pursuit.server.tokens import Tokens

POLICY = """
[policy]
mode = "auto"
[policy.callers.guest]
deny = ["world.wipe"]
[policy.callers.reader]
mode = "never"
"""
MISSION: dict[str, Any] = {
    "directive": "Wipe",
    "criteria": [{"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}],
    "budget": {"max_iterations": 1},
    "tool_allowlist": ["world.wipe"],
    "proposer": {"kind": "repeat", "tool_name": "world.wipe", "args": {}},
}


@asynccontextmanager
async def serving(
    folder: Path, wiped: list[str], *, gateway: bool
) -> AsyncIterator[tuple[str, dict[str, str], Runtime]]:
    path = folder / "pursuit.toml"
    path.write_text(POLICY, encoding="utf-8")
    tokens = Tokens.beside(folder / "ledger.db")
    shown = {name: tokens.make(name) for name in ("guest", "reader", "other")}
    urls: list[str] = []
    told = anyio.Event()

    def wipe() -> str:
        """Wipes everything."""
        wiped.append("wiped")
        return "wiped"

    def listening(url: str) -> None:
        urls.append(url)
        told.set()

    runtime = Runtime(state=folder / "ledger.db", config=load_configuration(path), servers={"world": [wipe]})
    async with runtime, anyio.create_task_group() as tasks:
        opened = open_gateway(runtime, GatewayOptions(alone=False)) if gateway else mission_server(runtime)
        async with opened as found:
            server = await found.server() if isinstance(found, Gateway) else found
            door = HttpBinding(host="127.0.0.1", port=0, tokens=tokens)
            tasks.start_soon(partial(serve_http, server, door, listening=listening))
            await told.wait()
            yield urls[0], shown, runtime
            tasks.cancel_scope.cancel()


async def called(url: str, name: str, arguments: Any, token: str) -> dict[str, Any]:
    asked = partial(post, url, "tools/call", {"name": name, "arguments": arguments}, able={}, token=token)
    return (await anyio.to_thread.run_sync(asked))["result"]


@pytest.mark.guarantee("callers-only-tighten")
def test_through_the_gateway_a_callers_layer_holds_for_that_caller_alone(tmp_path: Path) -> None:
    wiped: list[str] = []

    async def main() -> None:
        async with serving(tmp_path, wiped, gateway=True) as (url, shown, _runtime):
            refused = await called(url, "wipe", {}, shown["guest"])
            assert refused["isError"]
            assert "the caller guest's own policy says deny" in refused["content"][0]["text"]
            assert wiped == []
            assert not (await called(url, "wipe", {}, shown["other"])).get("isError")
            assert wiped == ["wiped"]

    run(main)


@pytest.mark.guarantee("callers-only-tighten")
def test_a_mission_keeps_the_layer_of_whoever_started_it(tmp_path: Path) -> None:
    wiped: list[str] = []

    async def main() -> None:
        async with serving(tmp_path, wiped, gateway=False) as (url, shown, runtime):
            started = await called(url, "mission_start", MISSION, shown["guest"])
            mission = started["structuredContent"]["session_id"]
            await runtime.service.run(mission)  # the operator drives it, and it is the guest's still
            page = await runtime.service.history(mission, full=True)
            (call,) = page["iterations"][0]["calls"]
            assert (call["outcome"], wiped) == ("denied", [])

    run(main)


def test_wrong_callers_are_faults_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "pursuit.toml"
    text = '[policy.callers]\nann = 1\n[policy.callers.bob]\nmode = "nver"\nallow = ["x"]\ndeny = 5\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_configuration(path)
    fields = {fault.field for fault in refused.value.faults}
    assert fields == {
        "policy.callers.ann",
        "policy.callers.bob.mode",
        "policy.callers.bob.allow",
        "policy.callers.bob.deny",
    }
