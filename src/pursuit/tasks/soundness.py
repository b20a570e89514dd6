"""What of a task's facts can be stored, and read again by anybody.

Owns: how text and numbers of others are made so. Pure: knows no storage. Invariant: what comes out encodes, and decodes
to itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from pursuit.core.tasks import AnyTaskEvent, encode_task

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
