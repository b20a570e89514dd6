"""How long a server may take for a request.

Owns: the clock of one call: progress starts it again, and while a client is asked it stands still. Knows no call.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio

from pursuit.core.tools import CallFailed


class Limit:
    """The limit of one call; None is none."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._scope: anyio.CancelScope | None = None

    @contextmanager
    def running(self) -> Generator[None]:
        """Cuts what takes longer; raises `CallFailed`. Cutting it reaches the server as a cancellation."""
        if self.seconds is None:
            yield
            return
        with anyio.CancelScope() as self._scope:
            self.again()
            yield
        if self._scope.cancelled_caught:
            raise CallFailed(f"no answer within {self.seconds:g} s; the call was cancelled")

    def again(self) -> None:
        """The server shows that it works."""
        if self._scope is not None and self.seconds is not None:
            self._scope.deadline = anyio.current_time() + self.seconds

    @contextmanager
    def paused(self) -> Generator[None]:
        """The time of the client is not the server's."""
        if self._scope is not None:
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self.again()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Neither is the time in which a call waits for its turn."""
        with self.paused():
            yield
