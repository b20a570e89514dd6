"""Which of a mission's tools a language model is offered.

Owns: how much room their descriptions and schemas have. Pure. Invariant: those that are offered are whole and together
within the room, however they are told; the same tools in the same order give the same offer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from pursuit.proposers.language import OfferedTool

ROOM = 64 * 1024
LONGEST_DESCRIPTION = 1_024


class Offer(NamedTuple):
    """The tools that there is room for, and the names of the others."""

    tools: list[OfferedTool]
    left_off: list[str]


def as_row(tool: OfferedTool) -> str:
    """A tool on one line of ASCII, in which nothing can look like another line; natively it is never longer."""
    return json.dumps({"tool": tool.name, "description": tool.description, "args": tool.schema}, default=str)


def offer(tools: Sequence[OfferedTool], room: int = ROOM) -> Offer:
    """The tools in their order; one that does not fit any more is left off whole, a smaller one after it may fit."""
    found = Offer([], [])
    for tool in tools:
        size = len(as_row(tool)) + 1
        if size > room:
            found.left_off.append(tool.name)
        else:
            room -= size
            found.tools.append(tool)
    return found
