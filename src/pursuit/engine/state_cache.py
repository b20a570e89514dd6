"""Caches the states of missions that this process has read, so that only new events are folded.

The ledger is the truth: a state is returned only after its head was compared with the stream's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pursuit.core.events import decode
from pursuit.core.fold import advance
from pursuit.core.state import MissionState
from pursuit.errors import SessionNotFound, advice
from pursuit.ledger.contract import FORGOTTEN, Ledger

MOST = 64


def unknown_mission(mission_id: str) -> SessionNotFound:
    """The error for a mission that is not there."""
    text = f"no mission {mission_id!r} in this ledger; `{advice('pursuit list')}` shows all"
    return SessionNotFound(text, session_id=mission_id)


@dataclass(slots=True)
class _CachedState:
    state: MissionState
    head: int


class States:
    """The states by mission. A state that is taken has one owner; one that is looked at is shared."""

    def __init__(self, ledger: Ledger, *, most: int = MOST) -> None:
        self._ledger = ledger
        self._most = most
        self._known: OrderedDict[str, _CachedState] = OrderedDict()

    async def look(self, mission_id: str) -> tuple[MissionState, int]:
        """The state and the number of its last event. It is shared: use it before the next await."""
        row = await self._ledger.row(mission_id)
        if row is None:
            raise unknown_mission(mission_id)
        if row.status == FORGOTTEN:
            self._known.pop(mission_id, None)
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        known = self._known.get(mission_id)
        if known is None or known.head != row.head.seq:
            known = await self._read(mission_id)
        self._keep(mission_id, known)
        return known.state, known.head

    async def take(self, mission_id: str) -> tuple[MissionState, int]:
        """The state for a caller that changes it; the cache forgets it until it is given back."""
        state, head = await self.look(mission_id)
        self._known.pop(mission_id, None)
        return state, head

    def give(self, mission_id: str, state: MissionState, head: int) -> None:
        """Takes back a state, unless it holds more than the stream up to `head`."""
        if state.seq == head:
            self._keep(mission_id, _CachedState(state, head))

    async def _read(self, mission_id: str) -> _CachedState:
        """Folds the new events. The state leaves the cache meanwhile, or another task would fold them into it, too."""
        known = self._known.pop(mission_id, None)
        state = known.state if known is not None else None
        head = known.head if known is not None else 0
        for stored in await self._ledger.read(mission_id, head):
            state = advance(state, decode(stored.type, stored.body))
            head = stored.seq
        if state is None:
            raise SessionNotFound(f"{mission_id} was forgotten", session_id=mission_id)
        return _CachedState(state, head)

    def _keep(self, mission_id: str, known: _CachedState) -> None:
        now = self._known.get(mission_id)
        if now is None or now.head <= known.head:
            self._known[mission_id] = known
        self._known.move_to_end(mission_id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
