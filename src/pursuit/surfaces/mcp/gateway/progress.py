"""Progress of a call as its client counts it.

Owns: the client's token and numbers that only rise, also where the server begins again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.tasks.record import finite


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
        """What the client is told; the server's own words but for the token, and for numbers that are none."""
        if self.token is None:
            return None
        body = {**params, "progressToken": self.token}
        value, total = finite(params.get("progress")), finite(params.get("total"))
        if value is None:
            return None if isinstance(params.get("progress"), int | float) else body
        if total is None:
            body.pop("total", None)
        if self._base:
            body["progress"] = self._base + value
            if total is not None:
                body["total"] = self._base + total
        self._last = max(self._last, self._base + value)
        return body
