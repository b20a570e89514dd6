"""The legs of one call in the new era: a result that asks, and the same call again with the answer.

Owns: which request goes on with which call. Pure but for what it remembers. Invariant: a request goes on with a call
only if its tool and arguments are those of that call, and only once for each question; anything else is another call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

MOST_LEGS = 1_000
"""Calls that wait for an answer; of further ones the next leg counts as another call."""

_ANSWERS = ("inputResponses", "requestState")


def comes_back(params: Mapping[str, Any]) -> bool:
    """Whether a request brings what one that was asked something brings back: answers, a state, or both."""
    return any(key in params for key in _ANSWERS)


class Legs:
    """What was asked, by the shape of the call and the state that a client brings back; a server may do without one."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str | None], list[int]] = {}
        self._many = 0

    def note(self, result: Mapping[str, Any], number: int, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the result of the call of this number asks something first; then it is remembered."""
        state = result.get("requestState")
        if result.get("resultType") != "input_required" or not (state is None or isinstance(state, str)):
            return False
        if self._many >= MOST_LEGS:
            return False
        self._asked.setdefault((_shape(tool, arguments), state), []).append(number)
        self._many += 1
        return True

    def number(self, params: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]) -> int | None:
        """The number of the call that a request goes on with; None if it is a call of its own."""
        if not comes_back(params):
            return None
        state = params.get("requestState")
        key = _shape(tool, arguments), state if isinstance(state, str) else None
        numbers = self._asked.get(key)
        return None if numbers is None else self._taken(key, numbers[0])

    def forget(self, number: int) -> bool:
        """Nobody goes on with this call any more; whether somebody could have."""
        known = [key for key, numbers in self._asked.items() if number in numbers]
        for key in known:
            self._taken(key, number)
        return bool(known)

    def _taken(self, key: tuple[str, str | None], number: int) -> int:
        numbers = self._asked[key]
        numbers.remove(number)
        self._many -= 1
        if not numbers:
            del self._asked[key]
        return number


def _shape(tool: str, arguments: Mapping[str, Any]) -> str:
    """What tells two calls apart, at a bounded size."""
    return sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()
