"""What a client may say to the tools about tasks.

Owns: the shapes of their arguments. Invariant: wrong arguments are refused with every fault at once.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from pursuit.core.base_model import InputModel, Number, Whole
from pursuit.surfaces.mcp.arguments import Cursor, Reason
from pursuit.tasks.record import is_task_id

MOST_LINES = 10_000
LONGEST_WAIT = 86_400
USUAL_WAIT = 50.0
"""Less than the minute after which most clients give a request up."""


def _a_task_id(value: str) -> str:
    if not is_task_id(value):
        raise ValueError("is no task id; one is `task-` and 32 hex digits, as task_status says")
    return value


TaskId = Annotated[str, AfterValidator(_a_task_id), Field(json_schema_extra={"pattern": "^task-[0-9a-f]{32}$"})]


class OfTask(InputModel):
    """A task by its id."""

    task_id: TaskId


class Look(InputModel):
    """One task, or all."""

    task_id: TaskId | None = None
    cursor: Cursor | None = None


class Tail(OfTask):
    """How much of the output."""

    lines: Annotated[Whole, Field(ge=1, le=MOST_LINES)] = 100


class Cancel(OfTask):
    """Why."""

    reason: Reason | None = None


class Wait(OfTask):
    """For how long."""

    timeout_seconds: Annotated[Number, Field(gt=0, le=LONGEST_WAIT)] = USUAL_WAIT
