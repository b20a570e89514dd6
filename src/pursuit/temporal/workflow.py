"""The workflow of a mission on Temporal: it drives the mission while it is due, and waits in between.

Invariant: it imports only the standard library and temporalio, and its payload is ids and times; the ledger has the
rest. A change of its behaviour needs a new name, or `workflow.patched`: histories of open workflows are replayed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

WORKFLOW, DRIVE, PAUSE, WAKE = "pursuit.mission.v1", "pursuit.drive.v1", "pursuit.pause.v1", "wake"
DRIVE_SECONDS = 600.0
"""Maximum time of one drive by a worker, which then returns the mission."""
_MAX_DRIVE = timedelta(minutes=15)
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=4))


@dataclass
class Wake:
    """A mission is due after so many seconds, on this task queue."""

    seconds: float
    task_queue: str


@dataclass
class DriveInput:
    """The argument of the activity: the mission, the requirements for a worker, and the number of postponements."""

    key: str
    needs: str
    attempts: int = 0


@dataclass
class DriveResult:
    """The mission after the activity: due again after so many seconds, or not due."""

    seconds: float | None
    attempts: int = 0
    needs: str = ""
    task_queue: str = ""


@dataclass
class WorkflowInput:
    """The argument of the workflow, even when it continues as a new one."""

    drive: DriveInput
    lease: float
    task_queue: str
    due: float | None = None
    """The time when it is due, by the clock of the workflow; None without a known time."""
    wakes: list[Wake] = field(default_factory=list[Wake])


@workflow.defn(name=WORKFLOW)
class MissionWorkflow:
    """One mission, until it is not due any more; the next signal begins another workflow with the same id."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._queue = ""

    @workflow.signal(name=WAKE)
    def wake(self, word: Wake) -> None:
        """The mission is due; the earlier time counts."""
        due = workflow.time() + word.seconds
        self._due = due if self._due is None else min(self._due, due)
        self._queue = word.task_queue

    @workflow.run
    async def run(self, job: WorkflowInput) -> None:
        if job.due is not None:
            self._due = job.due if self._due is None else min(self._due, job.due)
        self._queue = self._queue or job.task_queue
        try:
            while self._due is not None:
                await self._until_due()
                self._due = None
                left = await self._drive(job)
                if left.seconds is not None:
                    due = workflow.time() + left.seconds
                    # A signal that arrived during this is handled before the workflow returns.
                    self._due = due if self._due is None else min(self._due, due)
                    job.drive.attempts, job.drive.needs = left.attempts, left.needs
                    self._queue = left.task_queue or self._queue
                if self._due is not None and workflow.info().is_continue_as_new_suggested():
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    job.due, job.task_queue = self._due, self._queue
                    workflow.continue_as_new(job)
        except BaseException as error:
            if not (isinstance(error, asyncio.CancelledError) or is_cancelled_exception(error)):
                raise
            # Cancel in Temporal's own interface means pause; `pursuit resume` begins the workflow again.
            await asyncio.shield(
                workflow.execute_activity(
                    PAUSE,
                    job.drive.key,
                    task_queue=self._queue,
                    start_to_close_timeout=timedelta(minutes=1),
                    retry_policy=_RETRY,
                )
            )
            raise

    async def _until_due(self) -> None:
        """Waits for the time; a signal may make it earlier."""
        while self._due is not None and (left := self._due - workflow.time()) > 0:
            before = self._due
            try:
                await workflow.wait_condition(lambda before=before: self._due != before, timeout=left)
            except TimeoutError:
                return

    async def _drive(self, job: WorkflowInput) -> DriveResult:
        """One drive on a worker of the queue; if the worker dies, another one drives."""
        try:
            return await workflow.execute_activity(
                DRIVE,
                job.drive,
                result_type=DriveResult,
                task_queue=self._queue,
                start_to_close_timeout=_MAX_DRIVE,
                heartbeat_timeout=timedelta(seconds=job.lease),
                retry_policy=_RETRY,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return DriveResult(seconds=30.0, needs=job.drive.needs)
