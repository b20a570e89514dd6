"""Work that is stopped before its end: how long that may take, and what its task is then.

Owns: the words for it, and the ending of work that a clock stopped. Pure: knows no clock and no work.
Invariant: whoever ordered the stop first says what it is: a person's is `cancelled`, a clock's is `failed`, and the
message, the status and the result say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pursuit.core.tasks import TaskState
from pursuit.errors import INTERNAL_ERROR
from pursuit.tasks.store import Ending

TIME_TO_LIVE = "its time to live"
"""Who orders a task stopped whose time to live is over."""

OUT_OF_TIME = "its time to live ended before the work did"
GRACE = "grace"
"""Where a task's origin keeps how many seconds its command has to leave, if it is not the usual time."""

USUAL_GRACE = 10.0
MARGIN = 5.0
"""Seconds that it takes at most to see that the last of a killed command's processes is gone."""


def stopping_time(state: TaskState) -> float:
    """Seconds within which a task that was ordered to stop has stopped."""
    grace = state.origin.get(GRACE)
    return (float(grace) if isinstance(grace, int | float) else USUAL_GRACE) + MARGIN


def out_of_time() -> Ending:
    """The end of work that was cut because its time to live was over."""
    return Ending(status="failed", message=OUT_OF_TIME, error={"code": INTERNAL_ERROR, "message": OUT_OF_TIME})


def stopped_by(ending: Ending, state: TaskState, by: str, why: str) -> Ending:
    """The ending as it is, or a failure for that reason if it was this one who ordered the work stopped first."""
    if ending.status != "cancelled" or state.cancel is None or state.cancel.by != by:
        return ending
    return cut_short(ending, why)


def cut_short(ending: Ending, why: str) -> Ending:
    """The ending of stopped work as a failure for that reason, in every part of it."""
    before = ending.message or ""
    after = before.removeprefix("cancelled").strip() if before.startswith("cancelled") else ""
    message = f"{why}, {after}" if after else why
    result = dict(ending.result or {})
    texts = cast("list[Mapping[str, Any]]", result.get("content") or [{"type": "text", "text": message}])
    content = [_reworded(part, before, message) for part in texts]
    structured = result.get("structuredContent")
    if isinstance(structured, Mapping):
        said = cast("Mapping[str, Any]", structured)
        result["structuredContent"] = {**said, "status": "failed", "reason": message}
    return replace(ending, status="failed", message=message, result={**result, "content": content, "isError": True})


def _reworded(part: Mapping[str, Any], before: str, after: str) -> Mapping[str, Any]:
    text = part.get("text")
    return {**part, "text": text.replace(before, after, 1)} if before and isinstance(text, str) else part
