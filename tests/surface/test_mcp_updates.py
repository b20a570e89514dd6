"""Clients of both eras are told that a mission moved on, whoever moved it, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_stage import ERAS, LEGACY, MODERN, UNKNOWN, Stage, opened, read, stage
from mcp_types import ResourceUpdatedNotification

from pursuit import Budget
from pursuit.server.missions.subscriptions import SubscriptionSettings

eras = pytest.mark.parametrize("era", ERAS)


class Ear:
    """What one client has been told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, ServerEvent]] = []
        self.stirred = anyio.Event()

    def note(self, event: ServerEvent) -> None:
        self.told.append((time.monotonic(), event))
        self.stirred.set()

    async def message(self, message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.note(ResourceUpdated(message.params.uri))

    async def until(self, told: Callable[[], bool]) -> None:
        while not told():
            await self.stirred.wait()
            self.stirred = anyio.Event()

    async def hears(self, event: ServerEvent) -> None:
        """Waits for it, and forgets what came before."""
        await self.until(lambda: event in [one for _, one in self.told])
        self.told.clear()


async def subscribe(client: Client, uri: str) -> None:
    with pytest.warns(MCPDeprecationWarning):
        await client.subscribe_resource(uri)


async def unsubscribe(client: Client, uri: str) -> None:
    with pytest.warns(MCPDeprecationWarning):
        await client.unsubscribe_resource(uri)


@asynccontextmanager
async def listening(here: Stage, era: str, *uris: str) -> AsyncIterator[tuple[Ear, Client]]:
    """A client that follows these resources in the way of its era."""
    ear = Ear()
    async with here.client(era, message_handler=ear.message if era == LEGACY else None) as client:
        if era == LEGACY:
            for uri in uris:
                await subscribe(client, uri)
            yield ear, client
            return
        heard = client.listen(resource_subscriptions=uris)
        async with heard as events, anyio.create_task_group() as tasks:

            async def follow() -> None:
                async for event in events:
                    ear.note(event)

            tasks.start_soon(follow)
            yield ear, client
            tasks.cancel_scope.cancel()


async def unwatched(here: Stage) -> None:
    """The server notices that a client left a moment after the client did."""
    while here.updates.watched or here.updates.connections:
        await anyio.lowlevel.checkpoint()


@eras
async def test_a_subscriber_hears_of_every_resource_of_its_mission_and_of_no_other(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here:
        mine, other = await here.start(), await here.start()
        uris = [f"mission://{mine}", f"mission://{mine}/report", f"mission://{mine}/events?after=0"]
        async with listening(here, era, *uris) as (ear, client):
            assert here.updates.watched == {mine}
            await here.service.pause(other)
            await here.service.pause(mine)
            await ear.until(lambda: len(ear.told) >= 3)
            assert {event for _, event in ear.told} == {ResourceUpdated(uri) for uri in uris}
            assert (await read(client, uris[0]))["status"] == "paused"
            ear.told.clear()
            await here.service.resume(mine)
            await ear.hears(ResourceUpdated(uris[0]))
        await unwatched(here)


@eras
async def test_a_busy_mission_is_told_of_now_and_then_and_of_its_last_change_always(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here:
        mission_id = await here.start(budget=Budget(max_iterations=150))
        uri = f"mission://{mission_id}/events"
        totals: list[int] = []
        async with listening(here, era, uri) as (ear, client), anyio.create_task_group() as tasks:

            async def reader() -> None:
                """Reads when it is told to, and never otherwise."""
                seen = 0
                while True:
                    await ear.until(lambda seen=seen: len(ear.told) > seen)
                    seen = len(ear.told)
                    totals.append((await read(client, uri))["total"])

            tasks.start_soon(reader)
            began = time.monotonic()
            await here.service.run(mission_id)
            final = len(await here.service.ledger.read(mission_id))
            while not totals or totals[-1] < final:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert final > 300
        assert len(ear.told) <= (ear.told[-1][0] - began) / SubscriptionSettings().spacing + 2


@eras
async def test_another_runtime_on_the_same_ledger_is_heard_soon(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, opened(tmp_path) as elsewhere:
        mission_id = await here.start()
        uri = f"mission://{mission_id}"
        async with listening(here, era, uri) as (ear, client):
            await elsewhere.runner.pause(mission_id)
            await ear.hears(ResourceUpdated(uri))
            assert (await read(client, uri))["status"] == "paused"


async def test_the_command_line_of_another_process_is_heard(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        mission_id = await here.start()
        uri = f"mission://{mission_id}"
        async with listening(here, LEGACY, uri) as (old, _), listening(here, MODERN, uri) as (new, client):
            pause = ("pause", mission_id, "--state", tmp_path / "ledger.db")
            await anyio.to_thread.run_sync(lambda: Place(tmp_path).run(*pause))
            await old.hears(ResourceUpdated(uri))
            await new.hears(ResourceUpdated(uri))
            assert (await read(client, uri))["status"] == "paused"


async def test_whoever_unsubscribed_or_left_is_told_no_more_and_nothing_is_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        mission_id = await here.start()
        uri, report = f"mission://{mission_id}", f"mission://{mission_id}/report"
        async with listening(here, LEGACY, uri) as (stays, _):
            async with listening(here, LEGACY, uri, uri, report) as (ear, client):
                assert here.updates.connections == 2
                await unsubscribe(client, uri)
                await unsubscribe(client, uri)
                await unsubscribe(client, "mission://what was never there")
                await here.service.pause(mission_id)
                await stays.hears(ResourceUpdated(uri))
                await ear.until(lambda: bool(ear.told))
                assert {event for _, event in ear.told} == {ResourceUpdated(report)}
                assert here.updates.watched == {mission_id}
            # The client closed its transport and said nothing more.
            while here.updates.connections > 1:
                await anyio.lowlevel.checkpoint()
            assert here.updates.watched == {mission_id}
            await here.service.resume(mission_id)
            await stays.hears(ResourceUpdated(uri))
        await unwatched(here)


async def test_a_connection_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    stuck, never = anyio.Event(), anyio.Event()

    async def deaf(_: Any) -> None:
        stuck.set()
        await never.wait()

    async with stage(tmp_path) as here:
        uris = [f"mission://{await here.start()}" for _ in range(8)]
        async with here.client(LEGACY, message_handler=deaf) as client:
            for uri in uris:
                await subscribe(client, uri)
            async with listening(here, LEGACY, *uris) as (ear, _):
                for verb in (here.service.pause, here.service.resume) * 3:
                    for uri in uris:
                        await verb(uri.removeprefix("mission://"))
                    await ear.until(lambda: {event for _, event in ear.told} == set(map(ResourceUpdated, uris)))
                    ear.told.clear()
                assert stuck.is_set()
            never.set()
        await unwatched(here)


async def test_a_mission_is_watched_for_as_long_as_any_stream_listens(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        mission_id = await here.start()
        uri = f"mission://{mission_id}"
        async with here.client(MODERN) as client:
            async with client.listen(resource_subscriptions=[uri]):
                async with client.listen(resource_subscriptions=[uri, uri]):
                    assert here.updates.watched == {mission_id}
                assert here.updates.watched == {mission_id}
            await unwatched(here)


async def test_leaving_the_updates_ends_a_listen_stream_politely(tmp_path: Path) -> None:
    heard: list[ServerEvent] | None = None

    async def client_of(here: Stage, uri: str, ready: anyio.Event) -> None:
        nonlocal heard
        async with here.client(MODERN) as client, client.listen(resource_subscriptions=[uri]) as events:
            ready.set()
            heard = [event async for event in events]

    async with anyio.create_task_group() as clients, stage(tmp_path) as here:
        ready = anyio.Event()
        clients.start_soon(client_of, here, f"mission://{await here.start()}", ready)
        await ready.wait()
    assert heard == [] and here.updates.watched == frozenset()


async def test_a_wrong_address_cannot_be_subscribed_to(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        mission_id = await here.start()
        async with here.client(LEGACY) as client:
            for uri in (f"mission://{UNKNOWN}", "mission://nobody/report", "file:///etc/passwd"):
                with pytest.raises(MCPError, match="mission") as refused, pytest.warns(MCPDeprecationWarning):
                    await client.subscribe_resource(uri)
                assert refused.value.code == -32002 and refused.value.data["uri"] == uri
        async with here.client(MODERN) as client:
            wrong = [f"mission://{UNKNOWN}", f"mission://{mission_id}", "mission://nobody"]
            with pytest.raises(MCPError) as refused:
                async with client.listen(resource_subscriptions=wrong):
                    pass
            assert refused.value.code == -32602
            faults = refused.value.data["details"]["faults"]
            assert [fault["field"] for fault in faults] == ["resourceSubscriptions[0]", "resourceSubscriptions[2]"]
            assert UNKNOWN in refused.value.message and "nobody" in refused.value.message
        await unwatched(here)


async def test_one_client_cannot_follow_without_end(tmp_path: Path) -> None:
    async with stage(tmp_path, following=SubscriptionSettings(most_uris=3)) as here:
        uris = [f"mission://{await here.start()}" for _ in range(4)]
        async with here.client(LEGACY) as client:
            for uri in (*uris[:3], uris[0]):
                await subscribe(client, uri)
            with pytest.raises(MCPError, match="at most"), pytest.warns(MCPDeprecationWarning):
                await client.subscribe_resource(uris[3])
        async with here.client(MODERN) as client:
            with pytest.raises(MCPError, match="at most"):
                async with client.listen(resource_subscriptions=uris):
                    pass
        await unwatched(here)
