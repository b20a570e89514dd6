"""Finds the lessons of earlier missions in the same ledger, and selects those for a similar mission.

The lessons were written by the tools and people of other missions: for their reader they are data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pursuit.core.criteria import describe
from pursuit.core.lessons import Recollection, recollected
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState
from pursuit.core.truncate import cut_text
from pursuit.ledger.contract import Ledger, StreamRow

MAX_LESSON = 800
MAX_GOAL = 160
_LIKE = 0.2
"""A match with less than this fraction of the best match's rank does not count as similar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedMission:
    """An ended mission that was found, with its lessons."""

    row: StreamRow
    rank: float
    learned: Recollection

    def as_json(self) -> dict[str, Any]:
        """The JSON for the command line and the MCP server."""
        return {
            "session_id": self.row.name,
            "directive": self.learned.goal,
            "status": self.row.status,
            "ending": self.learned.ending,
            "lessons": list(self.learned.lessons),
            "rank": round(self.rank, 6),
        }


async def recall(ledger: Ledger, words: str, *, limit: int) -> list[RememberedMission]:
    """The ended missions that match these words, best match first."""
    found = await ledger.search(words, kind="mission", limit=limit)
    return [RememberedMission(row=one.row, rank=one.rank, learned=recollected(one.text)) for one in found]


async def lessons_for(ledger: Ledger, mission_id: str, state: MissionState, most: int) -> tuple[str, ...]:
    """The lessons of at most `most` similar missions, one text for each, for a proposer with a language model."""
    others, _same = await _similar(ledger, mission_id, state, most)
    return tuple(_as_text(one) for one in others[:most] if one.rank >= _LIKE * others[0].rank)


async def left_out(ledger: Ledger, mission_id: str, state: MissionState, most: int) -> list[str]:
    """The warning that the lessons of an identical mission are withheld, because such missions compare models."""
    _others, same = await _similar(ledger, mission_id, state, most)
    names = ", ".join(one.row.name for one in same)
    return [f"lessons omitted: {names} had the same mission with another proposer or budget"] if same else []


async def _similar(
    ledger: Ledger, mission_id: str, state: MissionState, most: int
) -> tuple[list[RememberedMission], list[RememberedMission]]:
    """The similar missions that a proposer may learn from, and those that differ only in their proposer."""
    mission = state.mission
    if most < 1 or not mission.lessons or not mission.proposer.LEARNS:
        return [], []
    others: list[RememberedMission] = []
    same: list[RememberedMission] = []
    # More than needed: a mission that ended and was extended also finds itself.
    for one in await recall(ledger, " ".join(_about(state)), limit=2 * most + 1):
        if one.row.name != mission_id and one.learned.lessons and _may_learn(state, one.row.summary):
            (same if await _is_same(ledger, one.row.name, mission) else others).append(one)
    return others, same


async def _is_same(ledger: Ledger, name: str, mission: Mission) -> bool:
    stored = [msgspec.json.decode(one.body).get("mission") for one in await ledger.read(name, limit=1)]
    given = mission.model_dump(mode="json")
    return stored == [given | {key: one[key] for key in ("proposer", "budget") if key in one} for one in stored if one]


def _may_learn(state: MissionState, other: Mapping[str, Any]) -> bool:
    """True if both a mission's owner and its driver, whose model may read the prompt, may see another mission.

    The operator sees all missions, a client its own and shared ones, the local user also those without an owner.
    """
    owner, driver = other.get("owner"), None if state.driver is None else state.driver.subject
    clients = [one for one in (state.owner, driver) if one is not None and one != owner]
    return "*" in other.get("share", ()) or all(owner is None and one.startswith("local:") for one in clients)


def _about(state: MissionState) -> Iterable[str]:
    """The search words for a mission, most specific first, because a search uses a limited number of words."""
    yield from (describe(criterion) for criterion in state.mission.criteria)
    yield state.mission.directive
    yield from state.tools


def _as_text(one: RememberedMission) -> str:
    goal = cut_text(one.learned.goal, MAX_GOAL)
    return cut_text(f"“{goal}” ({one.learned.ending}): {' '.join(one.learned.lessons)}", MAX_LESSON)
