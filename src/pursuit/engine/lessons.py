"""What earlier missions of the same ledger learned.

Owns: which of them are like a mission, and how much of what they learned it is told. Knows no SQL and no proposer.
Invariant: what comes from here was written by other missions' tools and people: it is data for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pursuit.core.criteria import describe
from pursuit.core.lessons import Recollection, recollected
from pursuit.core.mission import AskedProposer
from pursuit.core.state import MissionState
from pursuit.ledger.contract import Ledger, StreamRow

LONGEST_LESSON = 800
LONGEST_GOAL = 160
_LIKE = 0.2
"""A mission whose match is worse than this part of the best one's is not like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """An ended mission that was found, with what it learned."""

    row: StreamRow
    rank: float
    learned: Recollection

    def as_json(self) -> dict[str, Any]:
        """What a surface shows of it."""
        return {
            "session_id": self.row.name,
            "directive": self.learned.goal,
            "status": self.row.status,
            "ending": self.learned.ending,
            "lessons": list(self.learned.lessons),
            "rank": round(self.rank, 6),
        }


async def recall(ledger: Ledger, words: str, *, limit: int) -> list[Remembered]:
    """The ended missions that these words lead to, the best match first."""
    found = await ledger.search(words, kind="mission", limit=limit)
    return [Remembered(row=one.row, rank=one.rank, learned=recollected(one.text)) for one in found]


async def lessons_for(ledger: Ledger, mission_id: str, state: MissionState, most: int) -> tuple[str, ...]:
    """What missions like this one learned, for a proposer that reads; one text for each, at most so many."""
    mission = state.mission
    if most < 1 or not mission.lessons or not isinstance(mission.proposer, AskedProposer):
        return ()
    # One more than wanted: a mission that ended and was extended finds itself.
    found = await recall(ledger, " ".join(_about(state)), limit=most + 1)
    others = [one for one in found if one.row.name != mission_id and one.learned.lessons]
    return tuple(_told(one) for one in others[:most] if one.rank >= _LIKE * others[0].rank)


def _about(state: MissionState) -> Iterable[str]:
    """What a mission is about, the most telling first, as a search looks for so many words only."""
    yield from (describe(criterion) for criterion in state.mission.criteria)
    yield state.mission.directive
    yield from state.tools


def _told(one: Remembered) -> str:
    goal = one.learned.goal
    short = goal if len(goal) <= LONGEST_GOAL else f"{goal[: LONGEST_GOAL - 1].rstrip()}…"
    text = f"“{short}” ({one.learned.ending}): {' '.join(one.learned.lessons)}"
    return text if len(text) <= LONGEST_LESSON else f"{text[: LONGEST_LESSON - 1].rstrip()}…"
