"""Task ids, the JSON record of a task, and the form of a task's events that can be stored. Pure."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from pursuit.core.report import iso
from pursuit.core.tasks import TASK_ENDS, AnyTaskEvent, TaskState, encode_task
from pursuit.upstream.fixed_patterns import TASK_ID

EXACT = 2**53
"""JSON readers that use doubles read whole numbers exactly up to this one."""

_NUMBERS = ("done", "total")
_IN_SUMMARY = ("requestor", "title", "message", "owner", "item", "updated_at", "ended_at", "expires_at", "exit_code")
_Event = TypeVar("_Event", bound=AnyTaskEvent)


def finite(value: object) -> float | None:
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
    if number is None or not math.isfinite(number) or abs(number) > EXACT or number != int(number):
        return number
    return int(number)


def sound_text(text: str) -> str:
    """Text that can be encoded: replaces a lone surrogate, which JSON and file names can hold, with a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def storable(event: _Event) -> _Event:
    """The event in a form that encodes, and decodes to itself; unchanged if it already is."""
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


def is_task_id(text: str) -> bool:
    return TASK_ID.fullmatch(text) is not None


def generate_task_id() -> str:
    """A random id of 128 bits, which cannot be guessed."""
    return f"task-{secrets.token_hex(16)}"


def is_terminal(status: str) -> bool:
    """True for `completed`, `failed` and `cancelled`: a task in this status never changes."""
    return status in TASK_ENDS


def record_of(state: TaskState) -> dict[str, Any]:
    """The task as JSON, without empty fields and without its result."""
    body: dict[str, Any] = {
        **{name: getattr(state, name) for name in ("task_id", "kind", "title", "requestor", "status", "message")},
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
    body: dict[str, Any] = {name: getattr(state, name) for name in _IN_SUMMARY}
    body |= {"task_kind": state.kind, "done": whole(state.done), "total": whole(state.total)}
    return {key: value for key, value in body.items() if value is not None}
