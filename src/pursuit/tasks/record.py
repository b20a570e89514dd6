"""A task as people and listings see it.

Owns: ids, and the record's form as JSON. Pure.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from pursuit.core.report import iso
from pursuit.core.tasks import TaskState
from pursuit.tasks.soundness import whole

_ID = re.compile(r"task-[0-9a-f]{32}")


def is_task_id(text: str) -> bool:
    """Whether it could be one of ours; anything else never reaches storage."""
    return _ID.fullmatch(text) is not None


def new_task_id() -> str:
    """An id that nobody can guess: 128 random bits."""
    return f"task-{secrets.token_hex(16)}"


def record_of(state: TaskState) -> dict[str, Any]:
    """The task as JSON, without what it does not have and without its result."""
    body: dict[str, Any] = {
        "task_id": state.task_id,
        "kind": state.kind,
        "title": state.title,
        "requestor": state.requestor,
        "status": state.status,
        "message": state.message,
        "units_done": whole(state.done),
        "units_total": whole(state.total),
        "current_item": state.item,
        "created_at": iso(state.created_at),
        "updated_at": iso(state.updated_at),
        "ended_at": None if state.ended_at is None else iso(state.ended_at),
        "exit_code": state.exit_code,
        "error": state.error,
        "cancel_ordered": True if state.cancel is not None and not state.terminal else None,
        "input_requests": state.asked or None,
        "log_position": state.mark.get("log"),
    }
    return {key: value for key, value in body.items() if value is not None}


def summary_of(state: TaskState) -> Mapping[str, Any]:
    """What a listing shows of it without reading its stream."""
    body: dict[str, Any] = {
        "requestor": state.requestor,
        "task_kind": state.kind,
        "title": state.title,
        "message": state.message,
        "owner": state.owner,
        "done": whole(state.done),
        "total": whole(state.total),
        "item": state.item,
        "updated_at": state.updated_at,
        "ended_at": state.ended_at,
        "expires_at": state.expires_at,
        "exit_code": state.exit_code,
    }
    return {key: value for key, value in body.items() if value is not None}
