"""A task as people and listings see it.

Owns: ids, and the record's form as JSON. Pure.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from pursuit.core.report import iso
from pursuit.core.tasks import AnyTaskEvent, TaskState, encode_task

# What of a task's facts can be stored, and read again by anybody.
# Invariant: what comes out encodes, and decodes to itself.

EXACT = 2**53
"""Up to here every whole number is a number of JSON as everybody reads it."""

_NUMBERS = ("done", "total")
_Event = TypeVar("_Event", bound=AnyTaskEvent)


def finite(value: object) -> float | None:
    """A number that can be counted with, as it is; None for anything else, also for infinity and the like."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) <= EXACT:
        return value
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(number: float | None) -> float | None:
    """A number as people write it: without a fraction where it has none."""
    if number is None or not math.isfinite(number) or abs(number) > EXACT or number != int(number):
        return number
    return int(number)


def sound_text(text: str) -> str:
    """Text that can be encoded: half a character, which JSON and file names can hold, becomes a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def storable(event: _Event) -> _Event:
    """The fact as it can be stored; the same one where nothing is wrong with it."""
    numbers = {name: getattr(event, name, None) for name in _NUMBERS}
    wrong = {name: finite(value) for name, value in numbers.items() if value is not None and finite(value) is not value}
    if wrong:
        event = msgspec.structs.replace(event, **wrong)
    try:
        encode_task(event)
    except UnicodeEncodeError:
        said = {name: _sound(value) for name, value in msgspec.structs.asdict(event).items()}
        return type(event)(**said)
    return event


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, Mapping):
        return {_sound(key): _sound(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_sound(inner) for inner in cast("Sequence[Any]", value)]
    return value


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
