"""Live fragments: one rendering, sent to all its viewers as server-sent events.

A channel renders when its streams grow, at a limited rate, and gives the newest fragment to its viewers; a slow viewer
skips fragments. The id of an event is a digest of its fragment: a viewer that reconnects with the last id gets the
fragment only if it differs.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import anyio
from anyio.abc import TaskGroup

from pursuit.errors import PursuitError
from pursuit.ledger.contract import Ledger, Wakeup

_log = logging.getLogger(__name__)

Render = Callable[[], Awaitable[str]]

CSRF_MARK: Final = f"csrf-{secrets.token_hex(16)}"
"""The placeholder for the viewer's CSRF token in shared fragments. It is random, so no tool can forge it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The maximum rate of updates, and the times of silence."""

    interval: float = 0.2
    look_again: float = 5.0
    """Seconds after which a fragment is rendered again without an event: a dying driver writes none."""
    rest: float = 3.0
    """The ratio of a channel's pause to its rendering time: on a busy machine viewers see fewer updates."""
    heartbeat: float = 15.0
    """Seconds of silence before a comment is sent, to detect dead connections."""


@dataclass(slots=True, eq=False)
class _Channel:
    key: str
    render: Render
    wakeup: AbstractContextManager[Wakeup]
    every: float
    viewers: int = 0
    version: str = ""
    body: str = ""
    changed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Live:
    """The channels of one server; `tasks` runs one task for each channel that has viewers."""

    def __init__(self, ledger: Ledger, tasks: TaskGroup, settings: LiveSettings | None = None) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self.settings = settings or LiveSettings()
        self._channels: dict[str, _Channel] = {}

    def follow(
        self,
        key: str,
        render: Render,
        *,
        stream: str | None = None,
        every: float | None = None,
        last: str = "",
        csrf: str = "",
        valid: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes]:
        """Yields a viewer's events: the newest fragment whenever it differs from the `last` one.

        Viewers with the same `key` share a rendering. It is repeated when `stream` (or any stream) grows, and `every`
        few seconds for content outside the ledger, such as the output of a command. Ends when the viewer's session is
        no longer `valid`. Raises `InvalidArgument` for an impossible stream name: raised in the channel's task, it
        would end the server.
        """
        wakeup = self._ledger.wakeup(stream)
        return self._events(_Channel(key, render, wakeup, every or self.settings.look_again), last, csrf, valid)

    async def _events(self, new: _Channel, last: str, csrf: str, valid: Callable[[], bool]) -> AsyncGenerator[bytes]:
        channel = self._channels.setdefault(new.key, new)
        if channel is new:
            self._tasks.start_soon(self._run, channel)
        channel.viewers += 1
        try:
            while valid():
                changed = channel.changed
                if channel.version and channel.version != last:
                    last = channel.version
                    yield _event(channel.body.replace(CSRF_MARK, csrf), last)
                    continue  # it may have changed while it was sent
                with anyio.move_on_after(self.settings.heartbeat) as silence:
                    await changed.wait()
                if silence.cancelled_caught:
                    yield b": still here\n\n"
        finally:
            channel.viewers -= 1
            if not channel.viewers:
                channel.scope.cancel()
                if self._channels.get(channel.key) is channel:
                    del self._channels[channel.key]

    async def _run(self, channel: _Channel) -> None:
        with channel.scope, channel.wakeup as wakeup:
            while True:
                began = anyio.current_time()
                body = await _body(channel.render)
                version = sha256(body.encode(errors="replace")).hexdigest()[:16]
                if version != channel.version:
                    channel.version, channel.body = version, body
                    channel.changed.set()
                    channel.changed = anyio.Event()
                spent = anyio.current_time() - began
                await anyio.sleep(max(self.settings.interval, self.settings.rest * spent))
                with anyio.move_on_after(channel.every):
                    await wakeup.wait()


async def _body(render: Render) -> str:
    """A fragment, or a sentence if rendering fails: one view must not end the server."""
    try:
        return await render()
    except PursuitError as error:  # the mission was forgotten, or the ledger cannot be read now
        why = error.code
    except Exception:  # noqa: BLE001 - the task of a channel has no caller that could handle it
        why = "internal_error"
        _log.exception("a live view failed")
    return f'<p class="note" role="status">This cannot be shown now ({why}); reload the page.</p>'


def _event(body: str, version: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in body.replace("\r", "").split("\n"))
    return f"id: {version}\n{lines}\n".encode(errors="replace")
