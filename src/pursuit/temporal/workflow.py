"""The workflow of a mission on Temporal: it drives the mission while there is something to do, and waits in between.

Invariant: it imports the standard library and temporalio alone, and its payload is ids and times; the ledger has the
rest. A change of what it does needs a new name, or `workflow.patched`: histories of open workflows are replayed.
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
"""A worker drives a mission for so long at a time, then hands it back."""
_MAX_DRIVE = timedelta(minutes=15)
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


@dataclass
class Wake:
    """That a mission has something to do after so many seconds, and on which task queue."""

    seconds: float
    task_queue: str


@dataclass
class DriveInput:
    """What the activity gets: the mission, what a worker must have for it, and how often it was put off."""

    key: str
    needs: str
    attempts: int = 0


@dataclass
class DriveResult:
    """How the activity left the mission: due again after so many seconds, or with nothing to do."""

    seconds: float | None
    attempts: int = 0
    needs: str = ""
    task_queue: str = ""


@dataclass
class WorkflowInput:
    """What the workflow begins with, and goes on with as a new one."""

    drive: DriveInput
    lease: float
    task_queue: str
    due: float | None = None
    """When it is due, by the clock of the workflow; None without a time of its own."""
    wakes: list[Wake] = field(default_factory=list[Wake])


@workflow.defn(name=WORKFLOW)
class MissionWorkflow:
    """One mission, until it has nothing to do; the next signal begins another workflow with the same id."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._queue = ""

    @workflow.signal(name=WAKE)
    def wake(self, word: Wake) -> None:
        """The mission has something to do; the sooner time counts."""
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
                    # A signal that came meanwhile is looked at before the workflow returns.
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
            # Cancel in Temporal's own interface is a pause; `pursuit resume` begins the workflow anew.
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
        """Waits for the time; a signal may bring it forward."""
        while self._due is not None and (left := self._due - workflow.time()) > 0:
            before = self._due
            try:
                await workflow.wait_condition(lambda before=before: self._due != before, timeout=left)
            except TimeoutError:
                return

    async def _drive(self, job: WorkflowInput) -> DriveResult:
        """One drive on a worker of the queue; one that dies is noticed by its heartbeats, and another one drives."""
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
