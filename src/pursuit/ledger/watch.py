"""Bells: they ring when a stream has grown, by an append of this process or of another one.

Invariant: up to the position `_seen`, every bell has been rung for every append that was not its owner's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.lowlevel

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.contract import Bell, StoredEvent

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


class HungBell:
    """A bell on a stream, or on all: see `contract.Bell`."""

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self.rung = False
        self.stirred = anyio.Event()

    def ring(self) -> None:
        """Makes `wait` return, now or at its next call."""
        self.rung = True
        self.stirred.set()

    async def wait(self) -> None:
        """Returns after at least one append that did not pass this bell as `by` since the last return."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        await self._bells.wait(self)
        self.rung = False


class Bells:
    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._seen = growth.last_position(0)
        self._hung: dict[str | None, set[HungBell]] = {}
        self._waiting: dict[object, HungBell] = {}
        self._looking: object | None = None
        self._closed = False

    @contextmanager
    def hang(self, stream: str | None) -> Generator[Bell]:
        """A bell that notices every append from here on."""
        self._look()
        bell = HungBell(self)
        self._hung.setdefault(stream, set()).add(bell)
        try:
            yield bell
        finally:
            self._hung[stream].discard(bell)
            if not self._hung[stream]:
                del self._hung[stream]

    def committed(self, first: int, last: int, grown: Iterable[tuple[str, Bell | None]]) -> None:
        """Rings for a commit of this process, with events at the positions `first` to `last`."""
        if not last:
            return
        if first > self._seen + 1:
            self._ring_for_others(first - 1)
        self._seen = max(self._seen, last)
        hung = self._hung
        for stream, by in grown if hung else ():
            if None in hung:
                self._ring(stream, by)
            elif stream in hung:
                for bell in hung[stream]:
                    if bell is not by:
                        bell.ring()

    def close(self) -> None:
        self._closed = True
        for bells in self._hung.values():
            for bell in bells:
                bell.stirred.set()

    async def wait(self, bell: HungBell) -> None:
        """Sleeps until the bell rings; one of all sleepers wakes regularly and looks for the others, too."""
        sleeper = object()
        self._waiting[sleeper] = bell
        try:
            while not bell.rung:
                self._require_open()
                if bell.stirred.is_set():
                    bell.stirred = anyio.Event()
                if self._looking is None:
                    self._looking = sleeper
                    self._look()
                elif self._looking is sleeper:
                    with anyio.move_on_after(LOOK_SECONDS):
                        await bell.stirred.wait()
                    self._look()
                else:
                    await bell.stirred.wait()
        finally:
            del self._waiting[sleeper]
            if self._looking is sleeper:
                self._looking = None
                if successor := next(iter(self._waiting.values()), None):
                    successor.stirred.set()

    def _look(self) -> None:
        self._require_open()
        last = self._growth.last_position(self._seen)
        if last > self._seen:
            self._ring_for_others(last)
            self._seen = last

    def _ring_for_others(self, until: int) -> None:
        if not self._hung:
            return
        try:
            streams = self._growth.grown(self._seen, until)
        except LedgerUnavailable:
            # This follows a commit, which must not appear to have failed: a bell may ring without cause.
            streams = None
        for stream in tuple(self._hung) if streams is None else streams:
            self._ring(stream, None)

    def _ring(self, stream: str | None, by: Bell | None) -> None:
        for key in (stream, None):
            for bell in self._hung.get(key, ()):
                if bell is not by:
                    bell.ring()

    def _require_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the ledger was closed while it was watched; open it again")


Read = Callable[[str, int, int | None], Awaitable[list[StoredEvent]]]


async def follow(bells: Bells, read: Read, stream: str, after: int) -> AsyncGenerator[StoredEvent, None]:
    with bells.hang(stream) as bell:
        while True:
            events = await read(stream, after, _PAGE)
            for event in events:
                after = event.seq
                yield event
            if not events:
                await bell.wait()
