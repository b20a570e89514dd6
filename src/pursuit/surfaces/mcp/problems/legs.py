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
    """What was asked, by the state that a client brings back."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[str, int]] = {}

    def note(self, result: Mapping[str, Any], number: int, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the result of the call of this number asks something first; then it is remembered."""
        state = result.get("requestState")
        if result.get("resultType") != "input_required" or not isinstance(state, str):
            return False
        if state not in self._asked and len(self._asked) >= MOST_LEGS:
            return False
        self._asked[state] = (_shape(tool, arguments), number)
        return True

    def number(self, state: object, tool: str, arguments: Mapping[str, Any]) -> int | None:
        """The number of the call that a request goes on with; None if it is a call of its own."""
        known = self._asked.get(state) if isinstance(state, str) else None
        if known is None or known[0] != _shape(tool, arguments):
            return None
        del self._asked[str(state)]
        return known[1]

    def forget(self, number: int) -> bool:
        """Nobody goes on with this call any more; whether somebody could have."""
        known = [state for state, (_, one) in self._asked.items() if one == number]
        for state in known:
            del self._asked[state]
        return bool(known)


def _shape(tool: str, arguments: Mapping[str, Any]) -> str:
    """What tells two calls apart, at a bounded size."""
    return sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()
