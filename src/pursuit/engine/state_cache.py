"""The states of missions that this process has read, kept so that only what is new is folded again.

Owns: the cache. The ledger is the truth: a state is handed out only after its head was compared.
Invariant: a state that is lent out is as new as the stream was when it was asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pursuit.core.events import decode
from pursuit.core.fold import advance
from pursuit.core.state import MissionState
from pursuit.errors import SessionNotFound
from pursuit.ledger.contract import FORGOTTEN, Ledger

MOST = 64


@dataclass(slots=True)
class _Known:
    state: MissionState
    head: int


class States:
    """What was read of each mission. A state belongs to one holder at a time: readers only look at theirs at once."""

    def __init__(self, ledger: Ledger, *, most: int = MOST) -> None:
        self._ledger = ledger
        self._most = most
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def look(self, mission_id: str) -> tuple[MissionState, int]:
        """The state now, and the number of its last event. It is shared: read it before the next await."""
        row = await self._ledger.row(mission_id)
        if row is None:
            raise SessionNotFound(
                f"no mission {mission_id!r} in this ledger; `pursuit list` shows what there is", session_id=mission_id
            )
        if row.status == FORGOTTEN:
            self._known.pop(mission_id, None)
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        known = self._known.get(mission_id)
        if known is None or known.head != row.head.seq:
            known = await self._read(mission_id)
        self._keep(mission_id, known)
        return known.state, known.head

    async def take(self, mission_id: str) -> tuple[MissionState, int]:
        """The state for somebody who will change it; it is forgotten here until it is given back."""
        state, head = await self.look(mission_id)
        self._known.pop(mission_id, None)
        return state, head

    def give(self, mission_id: str, state: MissionState, head: int) -> None:
        """Takes back a state; one that holds more than the stream up to `head` is let go."""
        if state.seq != head:
            return
        self._keep(mission_id, _Known(state, head))

    async def _read(self, mission_id: str) -> _Known:
        """Folds what is new; taken out meanwhile, so that nobody else folds the same events into it."""
        known = self._known.pop(mission_id, None)
        state = known.state if known is not None else None
        head = known.head if known is not None else 0
        for stored in await self._ledger.read(mission_id, head):
            state = advance(state, decode(stored.type, stored.body))
            head = stored.seq
        if state is None:
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        return _Known(state, head)

    def _keep(self, mission_id: str, known: _Known) -> None:
        now = self._known.get(mission_id)
        if now is None or now.head <= known.head:
            self._known[mission_id] = known
        self._known.move_to_end(mission_id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
