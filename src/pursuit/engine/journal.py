"""The states of missions as folds of their streams: anyone can look them up, a driver takes and writes them.

The ledger is the truth. `States` caches the folded states of this process, so that only new events are folded; a state
is returned only after its head was compared with the stream's. `Journal` is one driver's access to one stream.
Invariant: events are durable when `record` returns; concurrent events of the operator are folded once and never lost.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import anyio

from pursuit.core.events import AnyEvent, Event, OperatorEvent, decode, encoded
from pursuit.core.fold import Shown, advance, listing_of, shown_of, standing_after
from pursuit.core.state import MissionState
from pursuit.errors import Conflict, Fenced, InvalidArgument, SessionNotFound, advice
from pursuit.ledger.contract import FORGOTTEN, Claim, Draft, Ledger, QueuedJob, StreamRow, Wakeup

Build = Callable[[MissionState], Sequence[Event]]
Seen = tuple[MissionState, int]
"""The state of a mission, and the number of its last event."""

MISSION_ID = re.compile(r"mission-[0-9a-f]{16}")

MAX_STATES = 64
"""The number of states that a process keeps."""
MAX_NEWEST = 1 << 20
"""The bytes of stored events that a journal keeps; they suffice for the report of a short mission."""


def unknown_mission(mission_id: str) -> SessionNotFound:
    """The error for a mission that does not exist."""
    text = f"no mission {mission_id!r} in this ledger; `{advice('pursuit list')}` shows all"
    return SessionNotFound(text, session_id=mission_id)


def require_id(mission_id: str) -> None:
    """Rejects a malformed mission id before it reaches storage."""
    if MISSION_ID.fullmatch(mission_id) is None:
        raise InvalidArgument(
            f"{mission_id!r} is not a mission id: write `mission-` and 16 hex digits", session_id=mission_id
        )


class States:
    """The states by mission. A taken state has one owner; a state that was looked up is shared."""

    def __init__(self, ledger: Ledger, *, most: int = MAX_STATES) -> None:
        self._ledger = ledger
        self._most = most
        self._known: OrderedDict[str, Seen] = OrderedDict()

    async def look(self, mission_id: str, shows: Callable[[StreamRow], bool] = lambda _: True) -> Seen:
        """The state of a mission, which is shared: use it before the next await. Hides rows that `shows` rejects."""
        require_id(mission_id)
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
        """The state as this process last saw it, if it is still cached."""
        return self._known.get(mission_id)

    async def take(self, mission_id: str, *, seen: bool = False) -> Seen:
        """The state for a caller that changes it; the cache drops it until it is given back.

        With `seen` it may be outdated: then an append at its head fails.
        """
        known = (seen and self.seen(mission_id)) or await self.look(mission_id)
        self._known.pop(mission_id, None)
        return known

    def give(self, mission_id: str, state: MissionState, head: int) -> None:
        """Takes back a state, unless it includes events after `head`."""
        if state.seq == head:
            self._keep(mission_id, (state, head))

    async def _read(self, mission_id: str) -> Seen:
        """Folds the new events. Meanwhile the state is not cached, or another task would fold them into it, too."""
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


class OperatorFirst(Exception):
    """Something was appended before the first commit of a run that had begun in memory: it must begin again."""


class Journal:
    """The state of a mission, kept equal to the fold of its stream.

    `stage` applies an event immediately and stores it with the next `record`: use it only if losing the event before
    the next commit is harmless. The operator's events commute with staged events, so folding one after them gives the
    same state as the order in the stream.
    """

    def __init__(
        self,
        ledger: Ledger,
        mission_id: str,
        state: MissionState,
        head: int,
        wakeup: Wakeup | None = None,
        *,
        claim: Claim | None = None,
    ) -> None:
        self.ledger = ledger
        self.mission_id = mission_id
        self.state = state
        self.head = head
        self.wakeup = wakeup
        self.claim = claim
        """The driver's lock: events are stored only while it is held."""
        self.told: Callable[[], Awaitable[object]] | None = None
        """Appends the audit's line about this run, at the first commit and before it."""
        self.job: QueuedJob | None = None
        """The job to store in the next commit."""
        self.opening = False
        """True if the run's claim is staged and not stored yet."""
        self._staged: list[Event] = []
        self._blobs: dict[str, bytes] = {}
        self._text: str | None = None
        self._recording = False
        self._free: anyio.Event | None = None
        self._listed: Shown | None = None
        self.written = 0
        """The number of bytes of events and blobs stored."""
        self.newest: list[Event] = []
        """The last events up to the head that this driver stored or read, within `MAX_NEWEST`."""
        self._newest_size = 0
        self.on_operator_event: Callable[[OperatorEvent], None] | None = None
        self.on_recorded: Callable[[Sequence[tuple[int, Event]]], None] | None = None
        """Receives the stored events with their numbers, once they are durable and folded."""

    def stage(self, event: Event, blobs: Mapping[str, bytes] | None = None, text: str | None = None) -> None:
        """Applies an event now and stores it with the next `record`; a search finds the mission by `text`."""
        advance(self.state, event)
        self._staged.append(event)
        if blobs:
            self._blobs.update(blobs)
        if text is not None:
            self._text = text

    async def blob(self, digest: str) -> bytes | None:
        """A blob, including one that is staged but not stored yet."""
        staged = self._blobs.get(digest)
        return staged if staged is not None else await self.ledger.blob(digest)

    async def flush(self) -> None:
        """Stores the staged events."""
        if self._staged:
            await self.record(lambda _state: ())

    async def record(self, build: Build, with_blobs: Mapping[str, bytes] | None = None) -> Sequence[Event]:
        """Stores the staged events and those that `build` returns; concurrent operator events make it build again."""
        while self._recording:
            self._free = self._free or anyio.Event()
            await self._free.wait()
        self._recording = True
        try:
            while True:
                staged, text = len(self._staged), self._text
                events = build(self.state)
                if not staged and not events:
                    return events
                recorded = [*self._staged, *events]
                blobs = self._named_blobs(recorded, with_blobs if events else None) if self._blobs or with_blobs else {}
                at = standing_after(self.state, events)
                listed = shown_of(at)
                listing = None if listed == self._listed else listing_of(self.state, at)
                line = None if self.told is None else await self._line_of_audit(self.told)
                bodies = list(map(encoded, recorded))
                size = sum(map(len, bodies)) + (sum(map(len, blobs.values())) if blobs else 0)
                try:
                    head = await self.ledger.append(
                        self.mission_id,
                        self.head,
                        [Draft(type(event).__name__, body) for event, body in zip(recorded, bodies, strict=True)],
                        status=None if listing is None else at.status,
                        summary=listing,
                        blobs=blobs or None,
                        text=text,
                        by=self.wakeup,
                        claim=self.claim,
                        job=self.job,
                    )
                except Conflict as error:
                    before = self.head
                    if isinstance(error, Fenced) or await self.catch_up() == before:
                        raise
                    continue
                if line is not None:
                    await line
                self.opening, self.job = False, None
                self.head, self._listed = head.seq, listed
                self.written += size
                self._newest_size += size
                self.newest += recorded
                if self._newest_size > MAX_NEWEST:
                    self.newest, self._newest_size = [], 0
                del self._staged[:staged]
                if blobs or text is not None:
                    self._unstage(blobs, text)
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

    async def _line_of_audit(self, told: Callable[[], Awaitable[object]]) -> Awaitable[object]:
        self.told, line = None, told()
        if isinstance(line, asyncio.Task):  # of a ledger whose appends queue in their first step: then it is first
            await asyncio.sleep(0)
        return line

    def _named_blobs(self, events: Sequence[Event], more: Mapping[str, bytes] | None) -> dict[str, bytes]:
        """The staged blobs and `more`; one of the events must name each of them."""
        blobs = {**self._blobs, **(more or {})}
        if stray := blobs.keys() - {digest for event in events for digest in event.blobs()}:
            raise RuntimeError(f"no event names the blobs {sorted(stray)}; `verify` would report them")
        return blobs

    def _unstage(self, blobs: Iterable[str], text: str | None) -> None:
        for digest in blobs:
            self._blobs.pop(digest, None)
        if self._text is text:
            self._text = None

    async def past(self, after: int) -> list[tuple[int, AnyEvent]]:
        """The stored events after a sequence number, each with its number."""
        return [(one.seq, decode(one.type, one.body)) for one in await self.ledger.read(self.mission_id, after=after)]

    async def catch_up(self) -> int:
        """Folds the operator's events appended since, and returns the new head."""
        came = await self.past(self.head)
        if came and self.opening:
            raise OperatorFirst
        for seq, event in came:
            if not isinstance(event, OperatorEvent):
                raise Conflict(
                    f"another process drives {self.mission_id} now; this one stops",
                    session_id=self.mission_id,
                    event=type(event).__name__,
                )
            advance(self.state, event)
            self.newest.append(event)
            self.head = seq
            self._listed = None
            if self.on_operator_event is not None:
                self.on_operator_event(event)
        return self.head
