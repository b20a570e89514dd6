"""Wakes those who wait for a stream to grow, by an append of this process or of another one.

Invariant: every waiter was woken for every append up to the position `_seen`, except for its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.lowlevel

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.contract import StoredEvent, Wakeup

LOOK_SECONDS = 0.05
"""How often one waiter looks for commits of other processes, for all waiters of the ledger."""

_PAGE = 1000


class Growth(Protocol):
    def last_position(self, known: int) -> int:
        """The position of the last event, or `known` if nothing was committed since the last question."""
        ...

    def grown(self, after: int, until: int) -> list[str] | None:
        """The streams with events at `after < position <= until`; None: too many to list."""
        ...


class StreamWakeup:
    """A wakeup for a stream, or for all: see `contract.Wakeup`."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.due = False
        self.changed = anyio.Event()

    def wake(self) -> None:
        """Makes `wait` return, now or at its next call."""
        self.due = True
        self.changed.set()

    async def wait(self) -> None:
        """See `contract.Wakeup.wait`."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        await self._wakeups.wait(self)
        self.due = False


class Wakeups:
    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._seen = growth.last_position(0)
        self._entered: dict[str | None, set[StreamWakeup]] = {}
        self._waiting: dict[object, StreamWakeup] = {}
        self._looking: object | None = None
        self._closed = False

    @contextmanager
    def enter(self, stream: str | None) -> Generator[Wakeup]:
        """A wakeup that notices every append from now on."""
        self._look()
        wakeup = StreamWakeup(self)
        self._entered.setdefault(stream, set()).add(wakeup)
        try:
            yield wakeup
        finally:
            self._entered[stream].discard(wakeup)
            if not self._entered[stream]:
                del self._entered[stream]

    def committed(self, first: int, last: int, grown: Iterable[tuple[str, Wakeup | None]]) -> None:
        """Wakes the waiters for a commit of this process, with events at the positions `first` to `last`."""
        if not last:
            return
        if first > self._seen + 1:
            self._wake_for_others(first - 1)
        self._seen = max(self._seen, last)
        entered = self._entered
        for stream, by in grown if entered else ():
            if None in entered:
                self._wake(stream, by)
            elif stream in entered:
                for wakeup in entered[stream]:
                    if wakeup is not by:
                        wakeup.wake()

    def close(self) -> None:
        self._closed = True
        for wakeups in self._entered.values():
            for wakeup in wakeups:
                wakeup.changed.set()

    async def wait(self, wakeup: StreamWakeup) -> None:
        """Sleeps until the wakeup is due; one of the sleepers looks regularly, for all of them."""
        sleeper = object()
        self._waiting[sleeper] = wakeup
        try:
            while not wakeup.due:
                self._require_open()
                if wakeup.changed.is_set():
                    wakeup.changed = anyio.Event()
                if self._looking is None:
                    self._looking = sleeper
                    self._look()
                elif self._looking is sleeper:
                    with anyio.move_on_after(LOOK_SECONDS):
                        await wakeup.changed.wait()
                    self._look()
                else:
                    await wakeup.changed.wait()
        finally:
            del self._waiting[sleeper]
            if self._looking is sleeper:
                self._looking = None
                if successor := next(iter(self._waiting.values()), None):
                    successor.changed.set()

    def _look(self) -> None:
        self._require_open()
        last = self._growth.last_position(self._seen)
        if last > self._seen:
            self._wake_for_others(last)
            self._seen = last

    def _wake_for_others(self, until: int) -> None:
        if not self._entered:
            return
        try:
            streams = self._growth.grown(self._seen, until)
        except LedgerUnavailable:
            # This follows a commit, which must not appear to have failed: a waiter may wake without cause.
            streams = None
        for stream in tuple(self._entered) if streams is None else streams:
            self._wake(stream, None)

    def _wake(self, stream: str | None, by: Wakeup | None) -> None:
        for key in (stream, None):
            for wakeup in self._entered.get(key, ()):
                if wakeup is not by:
                    wakeup.wake()

    def _require_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the ledger was closed while it was watched; open it again")


Read = Callable[[str, int, int | None], Awaitable[list[StoredEvent]]]


async def follow(wakeups: Wakeups, read: Read, stream: str, after: int) -> AsyncGenerator[StoredEvent, None]:
    with wakeups.enter(stream) as wakeup:
        while True:
            events = await read(stream, after, _PAGE)
            for event in events:
                after = event.seq
                yield event
            if not events:
                await wakeup.wait()
