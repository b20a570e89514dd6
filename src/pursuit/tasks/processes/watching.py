"""Who waits for news of which command, and a look now and then at those whose keeper says nothing to us.

Owns: the wake-ups. Does not know: what the news are. Invariant: each watch wakes for news within `LOOK_EVERY`, or at
once if the keeper is ours.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import anyio.to_thread

from pursuit.tasks.processes.identity import Identity
from pursuit.tasks.processes.reader import Reader

LOOK_EVERY = 0.2
LIVENESS_EVERY = 5
"""Looks for output between two looks for the keeper."""


class Watch:
    """One command: wakes its reader; `lost` once its keeper is gone."""

    def __init__(self, reader: Reader, keeper: Identity, *, ours: bool) -> None:
        self.reader = reader
        self.keeper = keeper
        self.ours = ours
        self.lost = False
        self._news = anyio.Event()

    def ring(self) -> None:
        """Wakes whoever waits."""
        self._news.set()

    def quiet(self) -> None:
        """From here on only new news count."""
        if self._news.is_set():
            self._news = anyio.Event()

    async def wait(self) -> None:
        """Returns when there may be news."""
        await self._news.wait()


class Watches:
    """All commands of this process."""

    def __init__(self) -> None:
        self._all: dict[str, Watch] = {}
        self._foreign = anyio.Event()

    def add(self, task_id: str, watch: Watch) -> None:
        """Watches it from here on."""
        self._all[task_id] = watch
        if not watch.ours:
            self._foreign.set()

    def remove(self, task_id: str) -> None:
        """Watches it no more."""
        self._all.pop(task_id, None)

    def ring(self, task_ids: Iterable[str]) -> None:
        """The keeper says that these have news."""
        for task_id in task_ids:
            if (watch := self._all.get(task_id)) is not None:
                watch.ring()

    def disown(self) -> None:
        """The keeper says nothing any more."""
        for watch in self._all.values():
            watch.ours = False
        self._foreign.set()

    async def look(self) -> None:
        """Looks after the commands of other keepers, until cancelled."""
        count = 0
        while True:
            await self._foreign.wait()
            foreign = [watch for watch in self._all.values() if not watch.ours and not watch.lost]
            if not foreign:
                self._foreign = anyio.Event()
                continue
            for watch in await anyio.to_thread.run_sync(_with_news, foreign, count % LIVENESS_EVERY == 0):
                watch.ring()
            count += 1
            await anyio.sleep(LOOK_EVERY)


def _with_news(watches: list[Watch], ask_for_keepers: bool) -> list[Watch]:
    if ask_for_keepers:
        dead = {keeper for keeper in {watch.keeper for watch in watches} if not keeper.lives}
        for watch in watches:
            watch.lost = watch.keeper in dead
    return [watch for watch in watches if watch.lost or watch.reader.has_news()]
