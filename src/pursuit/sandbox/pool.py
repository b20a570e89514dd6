"""The sandbox processes, which run user code, from their first use to the end of our process.

The first run imports `pydantic_monty` and starts a process; nothing does so earlier.

Monty can abort its host while the interpreter shuts down, and the exit code is then wrong. A command must close its
sandbox and, if `monty_started()`, end with `leave(code)` instead of `sys.exit(code)`. Any other program waits briefly
before the interpreter shuts down, so that Monty's threads can end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import anyio

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, AsyncMontySession, OSPolicy, ResourceLimits

MIB = 1024 * 1024
# A sandbox process that is silent for this long beyond its limit is killed.
PATIENCE = 3.0
# Of sixty programs that did not wait, sixteen were aborted; with half this wait, none was.
LAST_MOMENT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Resource limits for user code. Seconds count its running time, not its waiting time."""

    predicate_seconds: float = 0.05
    predicate_memory: int = 16 * MIB
    predicate_recursion: int = 200
    predicate_workers: int = 4
    script_seconds: float = 30.0
    script_memory: int = 200 * MIB
    script_calls: int = 100_000
    script_workers: int = 32


_started = False


class SessionLostError(Exception):
    """No sandbox process was available, or it died or was stopped during its work; the session cannot be trusted."""


def monty():
    """The library, imported on first use: the import takes longer than `pursuit --help`."""
    import pydantic_monty  # noqa: PLC0415 - lazy by contract, see above

    return pydantic_monty


class Workers:
    """A pool that starts with its first session. Any task may use or close it."""

    def __init__(self, most: int, patience: float) -> None:
        self._most = most
        self._patience = patience
        self._pool: AsyncMonty | None = None
        self._starting = anyio.Lock()
        self._closed = False

    @contextlib.asynccontextmanager
    async def session(self, limits: ResourceLimits, policy: OSPolicy) -> AsyncGenerator[AsyncMontySession]:
        """Yields a fresh session; then its process returns to the pool, or is killed if its code still runs."""
        try:
            pool = await self._started()
            checkout = pool.checkout(limits=limits, os_policy=policy)
            await checkout.__aenter__()
        except (RuntimeError, OSError, monty().MontyError) as error:
            await self._forget()
            raise SessionLostError(f"no sandbox process can be started: {error}") from error
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(checkout.__aexit__)
            yield checkout

    async def aclose(self) -> None:
        """Ends the processes. An open session ends with its own block."""
        self._closed = True
        await self._forget()

    async def _started(self) -> AsyncMonty:
        async with self._starting:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            if self._pool is None:
                global _started  # noqa: PLW0603 - a fact about this process, not about one pool
                if not _started:
                    _started = True
                    atexit.register(time.sleep, LAST_MOMENT)
                pool = monty().AsyncMonty(min_processes=1, max_processes=self._most, request_timeout=self._patience)
                # A start that is cancelled half-way would leave a process without an owner.
                with anyio.CancelScope(shield=True):
                    await pool.__aenter__()
                self._pool = pool
            return self._pool

    async def _forget(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            with anyio.CancelScope(shield=True):
                await pool.__aexit__(None, None, None)


def monty_started() -> bool:
    """True if this process has started a sandbox process and therefore must end with `leave`."""
    return _started


def leave(code: int) -> NoReturn:
    """Ends the process now with this code: flushes, then skips the interpreter's shutdown (and `atexit`)."""
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe or stream must not change the exit code.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
