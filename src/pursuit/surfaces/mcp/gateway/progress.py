"""Progress of a call as its client counts it.

Owns: the client's token and numbers that only rise, also where the server begins again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Progress:
    """The progress of one call; nothing is told to a client that did not ask for it."""

    def __init__(self, token: Any) -> None:
        self.token = token
        self._base = 0.0
        self._last = 0.0

    def restart(self) -> None:
        """The server is asked again, and counts from its beginning."""
        self._base = self._last

    def told(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the client is told; the server's own words but for the token."""
        if self.token is None:
            return None
        body = {**params, "progressToken": self.token}
        value = _number(params.get("progress"))
        if value is None:
            return body
        if self._base:
            body["progress"] = self._base + value
            total = _number(params.get("total"))
            if total is not None:
                body["total"] = self._base + total
        self._last = max(self._last, self._base + value)
        return body


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
