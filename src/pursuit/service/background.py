"""Runs that nobody waits for: a serving process drives them, and takes up those that were cut short.

Owns: their tasks, and when a run is tried again. Knows no transport.
Invariant: a run that was promised to a caller is in the ledger, so whoever serves next goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pursuit.core.mission import Proposal
from pursuit.core.state import MissionState
from pursuit.errors import Conflict, PursuitError, SessionNotFound
from pursuit.service.service import Service

LOOK_EVERY = 0.5
FIRST_RETRY = 1.0
LAST_RETRY = 60.0

log = logging.getLogger(__name__)

Prepare = Callable[[str], Awaitable[None]]


class BackgroundRuns:
    """The runs of one process. Leaving it stops them where they are, recorded and resumable."""

    def __init__(self, service: Service, prepare: Prepare) -> None:
        self._service = service
        self._prepare = prepare
        self._driving: set[str] = set()
        self._not_before: dict[str, tuple[float, float]] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._look_out)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, value, trace)

    async def begin(
        self, mission_id: str, iterations: int, proposal: Proposal | None, after: int | None = None
    ) -> None:
        """Starts a run and returns once it is in the ledger; raises what refuses it."""
        await self._prepare(mission_id)
        refused = await self._tasks.start(self._run, mission_id, iterations, proposal, after)
        if refused is not None:
            raise refused

    async def _run(
        self,
        mission_id: str,
        iterations: int,
        proposal: Proposal | None,
        after: int | None,
        *,
        task_status: TaskStatus[Exception | None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        claimed: list[bool] = []

        def tell(_state: MissionState) -> None:
            self._driving.add(mission_id)
            claimed.append(True)
            task_status.started(None)

        try:
            await self._service.driver.drive(
                mission_id, iterations=iterations, proposal=proposal, background=True, after=after, claimed=tell
            )
        except Exception as error:  # noqa: BLE001 - the boundary: one mission's fault must not stop the others
            if not claimed:
                task_status.started(error)
                return
            log.warning("run stopped", extra=_fields(mission_id, error))
        finally:
            if claimed:
                self._driving.discard(mission_id)

    async def _look_out(self) -> None:
        """Goes on with runs that were cut short, also those of a process that died or that an answer has woken."""
        while True:
            try:
                names = await self._service.interrupted(background=True)
            except PursuitError as error:
                log.warning("cannot look for interrupted runs", extra=_fields(None, error))
                names = []
            self._not_before = {name: wait for name, wait in self._not_before.items() if name in names}
            for name in names:
                due = self._not_before.get(name, (0.0, 0.0))[0]
                if name not in self._driving and anyio.current_time() >= due:
                    self._driving.add(name)
                    self._tasks.start_soon(self._go_on, name)
            await anyio.sleep(LOOK_EVERY)

    async def _go_on(self, mission_id: str) -> None:
        try:
            await self._prepare(mission_id)
            await self._service.go_on(mission_id)
        except Conflict:
            self._later(mission_id, FIRST_RETRY)  # another process drives it; should that one die, it is our turn
        except SessionNotFound:
            return
        except Exception as error:  # noqa: BLE001 - the boundary: one mission's fault must not stop the others
            waited = self._not_before.get(mission_id, (0.0, FIRST_RETRY / 2))[1]
            self._later(mission_id, min(2 * waited, LAST_RETRY))
            log.warning("run cannot go on", extra=_fields(mission_id, error))
        finally:
            self._driving.discard(mission_id)

    def _later(self, mission_id: str, seconds: float) -> None:
        self._not_before[mission_id] = (anyio.current_time() + seconds, seconds)


def _fields(mission_id: str | None, error: Exception) -> dict[str, Any]:
    """What a log line about an error carries."""
    code = error.code if isinstance(error, PursuitError) else type(error).__name__
    return {"pursuit_fields": {"mission": mission_id, "code": code, "reason": str(error)}}
