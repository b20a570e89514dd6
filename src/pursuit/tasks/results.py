"""Large results of tasks, kept beside the events.

Owns: which result lies in a blob, and how it is put together again. Knows no protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from pursuit.core.tasks import TaskSettled, TaskState
from pursuit.errors import TaskNotFound
from pursuit.ledger.contract import Ledger

INLINE = 16 * 1024


def kept_apart(settled: TaskSettled) -> tuple[TaskSettled, dict[str, bytes]]:
    """The settlement with a large result taken out, and the blobs to store with it."""
    if settled.result is None:
        return settled, {}
    body = msgspec.json.encode(settled.result)
    if len(body) <= INLINE:
        return settled, {}
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.structs.replace(settled, result=None, blob=digest), {digest: body}


async def whole_result(ledger: Ledger, state: TaskState) -> Mapping[str, Any] | None:
    """The result of a task, from wherever it lies. Raises `TaskNotFound` if it was removed with its task."""
    if state.blob is None:
        return state.result
    body = await ledger.blob(state.blob)
    if body is None:
        raise TaskNotFound(f"the task {state.task_id!r} was removed, with its result", task_id=state.task_id)
    return msgspec.json.decode(body)
