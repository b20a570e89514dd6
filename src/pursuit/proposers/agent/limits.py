"""Usage limits of coding agents: how an agent reports that its provider refuses work, and when to ask it again.

`limits.toml` lists the reports of the known agents. Text is used last, and only in a turn without a change.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import msgspec

LimitKind = Literal["limit", "overload", "billing", "silent"]
Place = Literal["error", "update", "line"]
WORDS: Mapping[LimitKind, str] = {
    "limit": "usage limit",
    "overload": "overload",
    "billing": "billing",
    "silent": "silence",
}
MAX_FREE = 20
"""Maximum consecutive turns at a limit that do not count as iterations, without progress in between."""
FIRST_PAUSE, MAX_PAUSE = 300.0, 3_600.0
"""Seconds until an agent with a limit of unknown end is asked again; doubled each time."""
MAX_RESET = 8 * 86_400
"""A reset time further away than this is ignored."""
MAX_JITTER = 60
MAX_SAID = 500
"""Maximum characters of an error message that ends a turn without a change; a longer message counts as work."""
_IN_MILLISECONDS = 1e11
_EPOCH = re.compile(r"\|(\d{10})\b")
_CLOCK = re.compile(r"\b(?:at|resets?)\s+(\d{1,2})(?::(\d{2}))?\s*([ap])\.?m\b", re.IGNORECASE)


class UsageLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that ended because the agent's provider refused work; stored with the result of the turn."""

    kind: LimitKind
    at: float
    resets_at: float | None = None

    def pause(self, number: int) -> float:
        """The pause after this number of consecutive turns at a limit of unknown end."""
        return min(FIRST_PAUSE * 2 ** min(number - 1, 10), MAX_PAUSE)

    def until(self, number: int, seed: str) -> float:
        """The time to ask the agent again. Agents that share an account get different seconds."""
        if self.resets_at is None:
            return self.at + self.pause(number)
        return self.resets_at + hashlib.sha256(seed.encode()).digest()[0] % (MAX_JITTER + 1)


class _Sign(msgspec.Struct, frozen=True, rename={"place": "in"}):
    place: Place
    path: list[str]
    values: dict[str, LimitKind]
    reset: list[str] = []


class _Text(msgspec.Struct, frozen=True):
    pattern: str
    kind: LimitKind


class _Signs(msgspec.Struct, frozen=True):
    sign: list[_Sign]
    text: list[_Text]


@cache
def _signs() -> _Signs:
    found = files("pursuit.proposers.agent").joinpath("limits.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(found), _Signs)


def limit_in(signs: Iterable[tuple[Place, Mapping[str, Any]]], texts: Sequence[str], now: float) -> UsageLimit | None:
    """The limit that the last sign names, or else the texts; None if they name none."""
    kind, reset = _kind_in(texts), None
    for place, said in signs:
        for sign in _signs().sign:
            value = _at(said, sign.path) if sign.place == place else None
            names: list[str] = list(cast("dict[str, Any]", value)) if isinstance(value, dict) else [str(value)]
            if name := next((one for one in names if one in sign.values), None):
                kind = sign.values[name]
                reset = _at(said, sign.reset) if sign.reset else reset
    if kind is None:
        return None
    known = _moment(reset) or next((when for text in texts if (when := _moment_in(text, now))), None)
    return UsageLimit(
        kind=kind, at=now, resets_at=known if known is not None and now < known <= now + MAX_RESET else None
    )


def _at(said: object, path: Sequence[str]) -> object:
    for key in path:
        if not isinstance(said, dict):
            return None
        said = cast("dict[str, Any]", said).get(key)
    return said


def _kind_in(texts: Sequence[str]) -> LimitKind | None:
    return next(
        (one.kind for one in _signs().text for text in texts if re.search(one.pattern, text, re.IGNORECASE)), None
    )


def _moment(value: object) -> float | None:
    """A time in seconds or milliseconds since 1970, or in ISO 8601."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value / 1_000 if value > _IN_MILLISECONDS else float(value)


def _moment_in(text: str, now: float) -> float | None:
    """The time that a text names: seconds since 1970, or the next such time of day in the zone of this machine."""
    if (epoch := _EPOCH.search(text)) is not None:
        return float(epoch[1])
    if (clock := _CLOCK.search(text)) is None:
        return None
    hour, minute = int(clock[1]), int(clock[2] or 0)
    if not 1 <= hour <= 12 or minute > 59:
        return None
    here = datetime.fromtimestamp(now).astimezone()
    wanted = here.replace(hour=hour % 12 + 12 * (clock[3] in "pP"), minute=minute, second=0, microsecond=0)
    return (wanted if wanted > here else wanted + timedelta(days=1)).timestamp()
