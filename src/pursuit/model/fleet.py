"""What a mission says of the child missions that it may start.

Owns: the shape of `[fleet]` and its limits. Knows no mission and no budget.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pursuit.model.shape import Flag, Shape, Whole

FLEET = "fleet"
SPAWN = f"{FLEET}.spawn"
"""The tool that starts a child."""
MAX_CHILDREN = 1_000
MAX_DEPTH = 8
MAX_AT_ONCE = 64


class Fleet(Shape):
    """How many children, how deep, how many side by side, and what becomes of one that failed.

    A depth of 1 means that the children have no fleets of their own.
    """

    max_children: Annotated[Whole, Field(ge=1, le=MAX_CHILDREN)] = 8
    max_depth: Annotated[Whole, Field(ge=1, le=MAX_DEPTH)] = 1
    at_once: Annotated[Whole, Field(ge=1, le=MAX_AT_ONCE)] = 4
    restart: Literal["never", "on_failure"] = "never"
    max_restarts: Annotated[Whole, Field(ge=1, le=100)] = 3
    share_tools: Flag = False
