"""Commands as tasks, for one process of ours: what it starts goes on without it and is found again.

Owns: the folder of all commands, the keeper, and what is done with a command's files. Does not know: who may run what.
Invariant: a command is started once or not at all, whoever dies in between; nothing of it is readable by others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from pursuit.core.tasks import TaskState
from pursuit.errors import PursuitError, TaskNotFound, ValidationFailed
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.host import Work
from pursuit.tasks.processes.command import GRACE, Command
from pursuit.tasks.processes.endings import refusal_of
from pursuit.tasks.processes.identity import UNREADABLE, Identity, Meta, read_identity, read_json, read_meta
from pursuit.tasks.processes.keeper import STREAMS, TAG, claim, write_whole
from pursuit.tasks.processes.keeping import Keeping, Refused, Unanswered
from pursuit.tasks.processes.log import BOUND, read_log, tail_position
from pursuit.tasks.processes.reader import ERRORS, LOG, Reader
from pursuit.tasks.processes.running import READERS, UNMARKED, Running, root_of, tail_of
from pursuit.tasks.processes.tree import Census, Root, end_tree
from pursuit.tasks.processes.watching import Watch, Watches
from pursuit.tasks.record import is_task_id
from pursuit.tasks.store import Ending

SEGMENT = 8 * 1024 * 1024
UNREAD = 1024 * 1024 * 1024
LOOK_EVERY = 0.1
NOBODY = Identity(pid=-1, start=None)
NOT_STARTED = "its command was not started before the process that was to start it ended"


class Processes:
    """Runs commands below `folder`; `log_bytes` bounds what is kept of the output of each, `unread` what may wait."""

    def __init__(self, folder: Path, *, log_bytes: int = BOUND, unread: int = UNREAD, segment: int = SEGMENT) -> None:
        self._folder = folder.absolute()
        self._log_bytes = log_bytes
        self._limits = {"unread": unread, "segment": segment}
        self._unmarked = min(UNMARKED, unread // 4)
        self._watches = Watches()
        self._census = Census()
        self._tasks: TaskGroup
        self._keeping: Keeping
        self._readers: anyio.CapacityLimiter

    async def __aenter__(self) -> Self:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._readers = anyio.CapacityLimiter(READERS)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._keeping = Keeping(self._folder, self._tasks, self._watches.ring, self._watches.disown)
        self._tasks.start_soon(self._watches.look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeping.close()
        self._tasks.cancel_scope.cancel()
        # Left without the caller's exception, which would come out wrapped in a group.
        await self._tasks.__aexit__(None, None, None)

    def work(self, command: Command) -> Work:
        """The work of a new task: starts the command and sees it to its end."""

        async def run(ctx: TaskContext) -> Ending:
            folder, losses = self._place(ctx.task_id), self._keeping.losses
            try:
                # A cancel in the middle would leave it open whether it runs; it is quick, and then stopped like any.
                with anyio.CancelScope(shield=True):
                    await self._start(ctx.task_id, folder, command)
            except Unanswered:
                return await self._find(ctx, folder, command)
            except (Refused, OSError) as error:
                return self._refusal(ctx, folder, command, f"the command was not started: {error}")
            return await self._attend(ctx, folder, command, losses)

        return run

    def resume(self, state: TaskState) -> Work | None:
        """The work of a task that a dead process left: finds the command and goes on where that one stopped."""
        if state.kind != "process":
            return None

        async def run(ctx: TaskContext) -> Ending:
            folder = self._place(ctx.task_id)
            stored = read_json(folder / "command")
            if stored is None:
                return refusal_of(ctx.task_id, None, NOT_STARTED)
            try:
                command = msgspec.convert(stored, Command)
            except msgspec.ValidationError:
                await end_tree(self._census, Root(task_id=ctx.task_id, leader=NOBODY), GRACE)
                return self._refusal(ctx, folder, None, UNREADABLE)
            (folder / "ended").unlink(missing_ok=True)
            return await self._find(ctx, folder, command)

        return run

    async def tail(self, task_id: str, lines: int = 100, *, errors: bool = False) -> list[str]:
        """The last lines of its log; with `errors` those of stderr only."""
        return await anyio.to_thread.run_sync(tail_of, self._place(task_id), ERRORS if errors else LOG, lines)

    async def follow(self, task_id: str, lines: int = 10, *, errors: bool = False) -> AsyncGenerator[str]:
        """The last lines and every one that comes, until the command has ended and everything was given."""
        folder, name = self._place(task_id), ERRORS if errors else LOG
        place = await anyio.to_thread.run_sync(tail_position, folder, name, lines)
        held = b""
        while True:
            over = _is_over(folder) or not folder.exists()
            data, place = await anyio.to_thread.run_sync(read_log, folder, name, place)
            *whole, held = (held + data).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
            if data:
                continue
            if over:
                return
            await anyio.sleep(LOOK_EVERY)

    async def remove(self, task_id: str) -> None:
        """Deletes the files of an ended task; those of one whose command may still run are left alone."""
        folder = self._place(task_id)
        if _is_over(folder) or not (folder / "claim").exists():
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))

    def _place(self, task_id: str) -> Path:
        if not is_task_id(task_id):  # it becomes the name of a folder
            raise TaskNotFound(f"no task {task_id[:100]!r}", task_id=task_id)
        return self._folder / task_id

    async def _start(self, task_id: str, folder: Path, command: Command) -> None:
        try:
            command.check()
        except ValidationFailed as error:
            raise Refused("; ".join(fault.reason for fault in error.faults)) from error
        await anyio.to_thread.run_sync(_lay_out, folder, command)
        await self._keeping.start({"id": task_id, "folder": str(folder), **_to_start(command), **self._limits})

    async def _find(self, ctx: TaskContext, folder: Path, command: Command) -> Ending:
        """Goes on with a command of which nobody says whether it runs."""
        refused = await self._wait_started(folder)
        if refused is None:
            return await self._attend(ctx, folder, command)
        # A keeper that was killed in that very moment may have started it and not written it down.
        await end_tree(self._census, Root(task_id=ctx.task_id, leader=NOBODY), command.grace)
        return self._refusal(ctx, folder, command, refused)

    def _refusal(self, ctx: TaskContext, folder: Path, command: Command | None, why: str) -> Ending:
        """The end of a command that never ran; what it was to be started with does not stay."""
        if folder.exists():
            (folder / "ended").touch(mode=0o600)
            self._tasks.start_soon(self._tidy, ctx, folder)
        return refusal_of(ctx.task_id, command, why)

    async def _wait_started(self, folder: Path) -> str | None:
        """Why it was not started, or None if it was. Whoever was to start it may be about to, until we claim that."""
        while True:
            meta = read_meta(folder)
            if meta is not None:
                return meta if isinstance(meta, str) else None
            try:
                claim(str(folder / "claim"), {"void": True})
            except FileExistsError:
                holder = read_identity(folder / "claim")
                if holder is None or (not holder.lives and not (folder / "meta").exists()):
                    return NOT_STARTED
            await anyio.sleep(LOOK_EVERY)

    async def _attend(self, ctx: TaskContext, folder: Path, command: Command, losses: int | None = None) -> Ending:
        """Sees a running command to its end. It is our keeper's if none was lost since `losses`."""
        meta = read_meta(folder)
        assert isinstance(meta, Meta)  # noqa: S101 - it was started
        reader = await anyio.to_thread.run_sync(
            lambda: Reader(folder, command, ctx.state.mark, bound=self._log_bytes), limiter=self._readers
        )
        watch = Watch(reader, meta.keeper, ours=losses == self._keeping.losses)
        running = Running(
            ctx, command, meta, watch, census=self._census, readers=self._readers, unmarked=self._unmarked
        )
        try:
            return await running.to_its_end(self._watches, folder)
        except Exception:
            # A fault of ours fails the task, and nobody would ever stop its command after that.
            await end_tree(self._census, root_of(ctx.task_id, meta), command.grace)
            raise
        finally:
            if not running.left:
                (folder / "ended").touch(mode=0o600)
                self._tasks.start_soon(self._tidy, ctx, folder)

    @staticmethod
    async def _tidy(ctx: TaskContext, folder: Path) -> None:
        """Keeps only the log once the end is durable; before that, a crash would need the rest again."""
        try:
            await ctx.store.wait(ctx.task_id)
        except PursuitError:
            return  # removed meanwhile, or the ledger is gone; `remove` deletes all
        await anyio.to_thread.run_sync(_tidy_up, folder)


def _lay_out(folder: Path, command: Command) -> None:
    """The folder of a new command, with what is needed to go on with it."""
    folder.mkdir(mode=0o700)
    write_whole(str(folder / "command"), command.stored())


def _to_start(command: Command) -> dict[str, Any]:
    """What the keeper is told, with everything that this process would have added."""
    env = os.environ if command.env is None else command.env
    return {
        "argv": list(command.argv),
        "cwd": str(Path(command.cwd or ".").absolute()),
        "env": {key: value for key, value in env.items() if key != TAG},
    }


def _is_over(folder: Path) -> bool:
    """Whether nothing comes any more: the command has ended, or was never started."""
    return (folder / "ended").exists() or isinstance(read_meta(folder), str)


def _tidy_up(folder: Path) -> None:
    for pattern in ("units", *(f"{stream}.*" for stream in STREAMS), "command"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
