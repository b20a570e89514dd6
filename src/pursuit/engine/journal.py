"""The states of missions as folds of their streams: looked up by anyone, taken and written by a driver.

The ledger is the truth. `States` keeps what this process has folded, so that only new events are; a state is returned
only after its head was compared with the stream's. `Journal` is one driver's access to one stream. Invariant: what
`record` returned for is durable; an event of the operator that came in between is folded once and never overwritten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from pursuit.core.events import AnyEvent, Event, OperatorEvent, decode, encode
from pursuit.core.fold import Listing, advance, listing_of
from pursuit.core.state import MissionState
from pursuit.errors import Conflict, Fenced, SessionNotFound, advice
from pursuit.ledger.contract import FORGOTTEN, Bell, Claim, Draft, Head, Ledger, StreamRow

Build = Callable[[MissionState], Sequence[Event]]
Seen = tuple[MissionState, int]
"""The state of a mission, and the number of its last event."""

MOST_STATES = 64
"""The states that a process keeps."""
MOST_NEWEST = 1 << 20
"""The bytes of stored events that a journal keeps; the report of a short mission needs no others."""


def unknown_mission(mission_id: str) -> SessionNotFound:
    """The error for a mission that is not there."""
    text = f"no mission {mission_id!r} in this ledger; `{advice('pursuit list')}` shows all"
    return SessionNotFound(text, session_id=mission_id)


class States:
    """The states by mission. A state that is taken has one owner; one that is looked at is shared."""

    def __init__(self, ledger: Ledger, *, most: int = MOST_STATES) -> None:
        self._ledger = ledger
        self._most = most
        self._known: OrderedDict[str, Seen] = OrderedDict()

    async def look(self, mission_id: str, shows: Callable[[StreamRow], bool] = lambda _: True) -> Seen:
        """The state of a mission, which is shared: use it before the next await. What `shows` hides is unknown."""
        row = await self._ledger.row(mission_id)
        if row is None or not shows(row):
            raise unknown_mission(mission_id)
        if row.status == FORGOTTEN:
            self._known.pop(mission_id, None)
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        known = self._known.get(mission_id)
        if known is None or known[1] != row.head.seq:
            known = await self._read(mission_id)
        self._keep(mission_id, known)
        return known

    def seen(self, mission_id: str) -> Seen | None:
        """The state as this process last saw it, if it knows it still."""
        return self._known.get(mission_id)

    async def take(self, mission_id: str, *, seen: bool = False) -> Seen:
        """The state for a caller that changes it; the cache forgets it until it is given back.

        As `seen` it may be an older one: an append at its head fails then.
        """
        known = (seen and self.seen(mission_id)) or await self.look(mission_id)
        self._known.pop(mission_id, None)
        return known

    def give(self, mission_id: str, state: MissionState, head: int) -> None:
        """Takes back a state, unless it holds more than the stream up to `head`."""
        if state.seq == head:
            self._keep(mission_id, (state, head))

    async def _read(self, mission_id: str) -> Seen:
        """Folds the new events. The state leaves the cache meanwhile, or another task would fold them into it, too."""
        state, head = self._known.pop(mission_id, (None, 0))
        for stored in await self._ledger.read(mission_id, head):
            state = advance(state, decode(stored.type, stored.body))
            head = stored.seq
        if state is None:
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        return state, head

    def _keep(self, mission_id: str, known: Seen) -> None:
        now = self._known.get(mission_id)
        if now is None or now[1] <= known[1]:
            self._known[mission_id] = known
        self._known.move_to_end(mission_id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


class Journal:
    """The state of a mission, kept equal to the fold of its stream.

    `stage` applies an event at once and stores it with the next `record`: it is for what cannot be lost by
    waiting for the very next commit. The operator's events commute with staged events, so folding one after them
    gives the state that the stream's own order gives.
    """

    def __init__(
        self,
        ledger: Ledger,
        mission_id: str,
        state: MissionState,
        head: int,
        bell: Bell | None = None,
        *,
        claim: Claim | None = None,
    ) -> None:
        self.ledger = ledger
        self.mission_id = mission_id
        self.state = state
        self.head = head
        self.bell = bell
        self.claim = claim
        """The driver's lock: what is recorded here is stored only while it is held."""
        self._staged: list[Event] = []
        self._blobs: dict[str, bytes] = {}
        self._text: str | None = None
        self._recording = False
        self._free: anyio.Event | None = None
        self._listed: Listing | None = None
        self.written = 0
        """Bytes of events and blobs that were stored."""
        self._size = 0
        self.newest: list[Event] = []
        """The last events up to the head, as far as this driver stored or read them and they are not many."""
        self._newest_size = 0
        self.on_operator_event: Callable[[OperatorEvent], None] | None = None
        self.on_recorded: Callable[[Sequence[tuple[int, Event]]], None] | None = None
        """Gets what was stored, each event with its number, once it is durable and folded."""

    def stage(self, event: Event, blobs: Mapping[str, bytes] | None = None, text: str | None = None) -> None:
        """Applies an event now and stores it with the next record; a search finds the mission by `text`."""
        advance(self.state, event)
        self._staged.append(event)
        if blobs:
            self._blobs.update(blobs)
        if text is not None:
            self._text = text

    async def blob(self, digest: str) -> bytes | None:
        """A blob, also one that is staged and not stored yet."""
        staged = self._blobs.get(digest)
        return staged if staged is not None else await self.ledger.blob(digest)

    async def flush(self) -> None:
        """Stores what is staged."""
        if self._staged:
            await self.record(lambda _state: ())

    async def record(self, build: Build, with_blobs: Mapping[str, bytes] | None = None) -> Sequence[Event]:
        """Stores what is staged and what `build` makes of the state; an event of the operator makes it build again."""
        while self._recording:
            self._free = self._free or anyio.Event()
            await self._free.wait()
        self._recording = True
        try:
            while True:
                staged, blobs, text = len(self._staged), self._blobs.copy(), self._text
                events = build(self.state)
                if not staged and not events:
                    return events
                listing = listing_of(self.state, events)
                stored = {**blobs, **with_blobs} if with_blobs and events else blobs
                try:
                    head = await self._append(events, listing, stored, text)
                except Fenced:
                    raise
                except Conflict:
                    before = self.head
                    await self.catch_up()
                    if self.head == before:
                        raise
                    continue
                self.head, self._listed = head.seq, listing
                self.written += self._size
                recorded = (*self._staged[:staged], *events)
                self._keep(recorded, self._size)
                del self._staged[:staged]
                for digest in blobs:
                    self._blobs.pop(digest, None)
                if self._text is text:
                    self._text = None
                for event in events:
                    advance(self.state, event)
                if self.on_recorded is not None:
                    self.on_recorded(list(enumerate(recorded, head.seq - len(recorded) + 1)))
                return events
        finally:
            self._recording = False
            if self._free is not None:
                self._free.set()
                self._free = None

    def _keep(self, stored: Sequence[Event], size: int) -> None:
        self._newest_size += size
        self.newest += stored
        if self._newest_size > MOST_NEWEST:
            self.newest, self._newest_size = [], 0

    def _append(
        self, events: Sequence[Event], listing: Listing, blobs: Mapping[str, bytes], text: str | None
    ) -> Awaitable[Head]:
        """The append of what is staged and of these events."""
        changed = listing != self._listed
        drafts = [Draft(*encode(event)) for event in (*self._staged, *events)]
        self._size = sum([len(draft.body) for draft in drafts])
        if blobs:
            if stray := blobs.keys() - {digest for event in (*self._staged, *events) for digest in event.blobs()}:
                raise RuntimeError(f"no event names the blobs {sorted(stray)}; `verify` would report them")
            self._size += sum(map(len, blobs.values()))
        return self.ledger.append(
            self.mission_id,
            self.head,
            drafts,
            status=listing.status if changed else None,
            summary=listing.summary() if changed else None,
            blobs=blobs or None,
            text=text,
            by=self.bell,
            claim=self.claim,
        )

    async def past(self, after: int) -> list[tuple[int, AnyEvent]]:
        """The stored events after a sequence number, each with its own number."""
        return [(one.seq, decode(one.type, one.body)) for one in await self.ledger.read(self.mission_id, after=after)]

    async def catch_up(self) -> None:
        """Folds the operator's events that were appended since."""
        for seq, event in await self.past(self.head):
            if not isinstance(event, OperatorEvent):
                raise Conflict(
                    f"another process drives {self.mission_id} now; this one stops",
                    session_id=self.mission_id,
                    event=type(event).__name__,
                )
            advance(self.state, event)
            self._keep((event,), 0)
            self.head = seq
            self._listed = None
            if self.on_operator_event is not None:
                self.on_operator_event(event)
