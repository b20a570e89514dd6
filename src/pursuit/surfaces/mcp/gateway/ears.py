"""How a server is listened to, in the way of its era.

Owns: one stream at a server of the new era, begun again when it breaks; the shared connection and subscriptions at one
of the old era. Does not know: who listens. Invariant: whoever stops listening leaves no subscription behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.errors import PursuitError
from pursuit.surfaces.mcp.failure import sendable
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.transport import ClientSide

UPDATED = "notifications/resources/updated"
FLAGS: Mapping[str, str] = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
AGAIN = (1.0, 30.0)
Words = MemoryObjectSendStream[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Ear:
    """Where the words of one server go; `shown` are the addresses that the client has for its resources."""

    words: Words
    shown: Mapping[str, str]

    def hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Takes what the server says."""
        uri = params.get("uri")
        known = self.shown.get(uri) if isinstance(uri, str) else None
        say(self.words, method, params if known is None else {**params, "uri": known})


async def relayed(
    upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: Ear, outcome: list[Exception]
) -> None:
    """The stream of the only server, to its end."""
    with ear.words:
        try:
            await _listened(upstream, side, wanted, ear)
        except UpstreamError as error:
            outcome.append(MCPError(error.code, error.message, error.data))
        except (CallFailed, PursuitError) as error:
            outcome.append(error)


async def followed(upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: Ear) -> None:
    """The stream of one server among several: begun again when it breaks."""
    pause = AGAIN[0]
    while True:
        try:
            await _listened(upstream, side, wanted, ear)
            pause = AGAIN[0]
        except UpstreamError:
            return
        except (CallFailed, PursuitError):
            pass
        await anyio.sleep(pause)
        pause = min(pause * 2, AGAIN[1])


async def _listened(upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: Ear) -> None:
    async def heard(method: str, params: Mapping[str, Any]) -> None:
        ear.hear(method, params)

    async with upstream.leased(side) as talk:
        await talk.request("subscriptions/listen", {"notifications": wanted}, on_notify=heard)


async def overheard(
    upstream: McpUpstream, wanted: Mapping[str, Any], ear: Ear, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """What a server of the old era says on the connection that all share, and about resources on one of its own."""
    methods = {method for key, method in FLAGS.items() if wanted.get(key) is True}

    def heard(method: str, params: Mapping[str, Any]) -> None:
        if method in methods:
            ear.hear(method, params)

    def updated(method: str, params: Mapping[str, Any]) -> None:
        if method == UPDATED:
            ear.hear(method, params)

    stop = upstream.listen(heard)
    try:
        uris = cast("Sequence[str]", wanted.get("resourceSubscriptions") or ())
        if not uris:
            task_status.started()
            await anyio.sleep_forever()
        async with upstream.leased(ClientSide(heard=updated)) as talk:
            for uri in uris:
                try:
                    await talk.request("resources/subscribe", {"uri": uri})
                except (UpstreamError, CallFailed) as error:
                    reason = f"cannot listen to {sendable(uri)}: {error}"
                    raise MCPError(INVALID_PARAMS, reason, {"uri": uri}) from None
            task_status.started()
            await anyio.sleep_forever()
    finally:
        stop()


def say(words: Words, method: str, params: Mapping[str, Any]) -> None:
    """Puts a word where its client takes it from."""
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client has just left
        words.send_nowait((method, params))
