"""Runs commands as tasks: a command outlives the process that started it, and another process finds it again.

Invariant: a command is started at most once, whichever process dies in between; other users cannot read its files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from pursuit.core.tasks import TaskState
from pursuit.errors import PursuitError, TaskNotFound, ValidationFailed
from pursuit.processes.groups import script
from pursuit.processes.subreaper import TAG
from pursuit.processes.tree import ProcessTable, Root
from pursuit.tasks.command import (
    GRACE,
    MAX_STDERR_LINE,
    OUTPUT_BYTES,
    STDERR_LINES,
    Command,
    FinishedRun,
    ending_of,
    in_words,
    refusal_of,
)
from pursuit.tasks.execution import DEADLINES, TaskContext, log_fields
from pursuit.tasks.host import Work
from pursuit.tasks.reader import (
    BOUND,
    ERRORS,
    LOG,
    UNREADABLE,
    Meta,
    Reader,
    ended_at,
    left_out,
    log_end,
    read_identity,
    read_json,
    read_log,
    read_meta,
    tail_position,
)
from pursuit.tasks.record import is_task_id
from pursuit.tasks.store import Ending
from pursuit.tasks.supervisor import STREAMS, claim, write_once, write_whole

PATIENCE = 120.0
"""Seconds for a supervisor to answer a request."""


class SupervisorClient:
    """The supervisor of this process: started with the first command, and restarted if it was killed.

    It answers through files in each command's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sending = anyio.Lock()
        self._socket: socket.socket | None = None

    async def request(self, parts: Mapping[str, Any]) -> None:
        body = json.dumps(parts).encode() + b"\n"
        async with self._sending:
            if self._socket is None or not self.lives:
                self.close()
                self._socket = await anyio.to_thread.run_sync(_launch, self._folder)
            await anyio.to_thread.run_sync(self._socket.sendall, body)

    @property
    def lives(self) -> bool:
        """False once the supervisor has died: its end of the connection is closed."""
        try:
            return self._socket is not None and self._socket.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _launch(folder: Path) -> socket.socket:
    """Runs the supervisor's script, which forks a lasting process; raises `OSError`."""
    ours, theirs = socket.socketpair()
    descriptor = os.open(folder / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        ended = subprocess.run(  # noqa: S603 - our own script
            script("pursuit.tasks.supervisor"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            start_new_session=True,
            check=False,
        )
    finally:
        theirs.close()
        os.close(descriptor)
    if ended.returncode:
        ours.close()
        raise OSError(f"it exited with {ended.returncode}; see {folder / 'supervisor.err'}")
    return ours


SHORTEST_PAUSE = 0.02
MAX_PAUSE = 0.2
LIVENESS_EVERY = 1.0
UNMARKED = 32 * 1024 * 1024
"""Maximum bytes to read before a mark, which removes them from the spool."""
SLOWEST_MARK = 5.0
READERS = 4

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Running:
    """A started command as the work of one task: read to its end, or stopped on request.

    Invariant: this process or the next records its real exit; if this process ends, the command continues.
    """

    ctx: TaskContext
    command: Command
    meta: Meta
    reader: Reader
    process_table: ProcessTable
    readers: anyio.CapacityLimiter
    unmarked: int = UNMARKED
    left: bool = False
    """True if it was left running for another process."""
    _cancelled: bool = False
    _marked: float = 0.0
    _lost: bool = False

    def __post_init__(self) -> None:
        self._item = self.ctx.state.item
        self._heard = self._beat = self._checked = time.monotonic()

    async def to_its_end(self, folder: Path) -> Ending:
        """Reads its output, stops it on request, and returns its end. If cancelled, leaves the command running."""
        stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop, stopped, folder)
                await self._read()
                if self.ctx.cancelled:
                    await stopped.wait()
                elif self.reader.exit is None:
                    # Its supervisor died: its output is lost and its exit unknown.
                    await self.process_table.end(self.meta, self.command.grace)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise
        ending = ending_of(await anyio.to_thread.run_sync(self._run, folder))
        return msgspec.structs.replace(ending, at=(self.reader.exit or {}).get("at") or 0.0)

    async def _stop(self, stopped: anyio.Event, folder: Path) -> None:
        await self.ctx.wait_cancelled()
        ended, order = ended_at(folder), self.ctx.state.cancel
        self._cancelled = ended is None or order is None or order.at < ended  # a request after its end changes nothing
        await self.process_table.end(self.meta, self.command.grace)
        stopped.set()

    async def _read(self) -> None:
        while True:
            before = self.reader.taken
            more = await anyio.to_thread.run_sync(lambda: self.reader.step(last=self._lost), limiter=self.readers)
            if self.reader.taken != before:
                self._heard = self._beat = time.monotonic()
            if self.reader.finished:
                return
            if self.reader.unmarked and (time.monotonic() >= self._due() or self.reader.unmarked >= self.unmarked):
                await self._mark()
            if not more:
                await self._wait()

    def _due(self) -> float:
        """When the next mark is worth its commit: the longer it runs, the rarer the marks."""
        return self._marked + max(0.5, min(SLOWEST_MARK, self._seconds() / 60))

    async def _wait(self) -> None:
        """Returns when there is something to do. The longer the command is silent, the longer the pauses."""
        while True:
            now = time.monotonic()
            await anyio.sleep(min(MAX_PAUSE, max(SHORTEST_PAUSE, (now - self._heard) / 10)))
            if now >= self._checked + LIVENESS_EVERY:
                self._checked = now
                self._lost = not await anyio.to_thread.run_sync(lambda: self.meta.supervisor.lives)
            if now >= self._beat + self.command.heartbeat:
                await self._sign_of_life()
            if self._lost or self.reader.has_news() or (self.reader.unmarked and now >= self._due()):
                return

    async def _sign_of_life(self) -> None:
        self._beat = time.monotonic()
        progress = self.reader.progress
        last = progress.item or self._item or progress.message
        named = f" (last: {last})" if last else ""
        await self._told(self.ctx.heartbeat(f"still running … {in_words(self._seconds())} elapsed{named}"))

    async def _mark(self) -> None:
        """Stores how far the output was read, and then deletes that part of the spool."""
        self._marked = time.monotonic()
        progress = self.reader.progress
        try:
            mark = self.reader.mark()
        except OSError as error:
            log.warning("a task's units cannot be stored", extra=log_fields(self.ctx.task_id, error))
            return
        done = progress.units.count if progress.counts else None
        word = self.ctx.remember(
            {**mark, "pid": self.meta.leader.pid}, message=progress.message, done=done, item=progress.item
        )
        if await self._told(word):
            await anyio.to_thread.run_sync(self.reader.discard, mark, limiter=self.readers)

    async def _told(self, word: Any) -> bool:
        """True if the ledger stored it; a ledger that is not writable now must not stop the command."""
        try:
            await word
        except PursuitError as error:
            log.warning("a task's progress cannot be stored", extra=log_fields(self.ctx.task_id, error))
            return False
        return True

    def _seconds(self) -> float:
        return max(0.0, time.time() - self.meta.at)

    def _run(self, folder: Path) -> FinishedRun:
        reader, progress, order = self.reader, self.reader.progress, self.ctx.state.cancel
        ended = reader.exit or {}
        notes = list(progress.notes)
        if ended.get("code") == 0:
            notes += [*self.command.read_files(progress.metrics), *progress.metrics.notes()]
        # After a failure the end of stderr is shown anyway, and often it is the whole output.
        only_errors = ended.get("code") != 0 and log_end(folder, LOG) == log_end(folder, ERRORS)
        return FinishedRun(
            task_id=self.ctx.task_id,
            command=self.command,
            code=ended.get("code"),
            seconds=max(0.0, ended.get("at", time.time()) - self.meta.at),
            done=progress.units.count if progress.counts else None,
            item=progress.item or self._item,
            failures=progress.failures,
            metrics=progress.metrics.found,
            stderr=tail_of(folder, ERRORS, STDERR_LINES, MAX_STDERR_LINE),
            output=[] if only_errors else _end_of_output(folder),
            notes=notes,
            mark={**reader.mark(), "pid": self.meta.leader.pid},
            cancelled=self._cancelled,
            overdue=order is not None and order.by in DEADLINES,
            why=None if order is None else order.reason,
        )


def tail_of(folder: Path, name: str, lines: int, longest: int | None = None) -> list[str]:
    found = _lines_from(folder, name, tail_position(folder, name, lines))
    return [line if longest is None else line[:longest] for line in found[-lines:]] if lines > 0 else []


def _end_of_output(folder: Path) -> list[str]:
    """The end of a command's output on both streams; the first line tells how much is omitted."""
    start = max(0, log_end(folder, LOG) - OUTPUT_BYTES)
    left = [f"[the first {start:,} bytes are omitted]"] if start else []
    return left + _lines_from(folder, LOG, start)


def _lines_from(folder: Path, name: str, place: int) -> list[str]:
    end, data = log_end(folder, name), bytearray()
    while place < end:
        piece, place = read_log(folder, name, place)
        if not piece:
            break
        data += piece
    return data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []


SEGMENT = 8 * 1024 * 1024
UNREAD = 1024 * 1024 * 1024
LOOK_EVERY = 0.1
STARTED_EVERY = 0.005
NOT_STARTED = "its command was not started: the starting process ended first"


class Processes:
    """Runs commands below `folder`; `log_bytes` limits the log of each command, `unread` its unread output."""

    def __init__(
        self,
        folder: Path,
        *,
        log_bytes: int = BOUND,
        unread: int = UNREAD,
        segment: int = SEGMENT,
        known_secrets: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._folder = folder.absolute()
        self._known_secrets = known_secrets
        self._log_bytes = log_bytes
        self._limits = {"unread": unread, "segment": segment}
        self._unmarked = min(UNMARKED, unread // 4)
        self._process_table = ProcessTable()
        self._tasks: TaskGroup
        self._supervisor: SupervisorClient
        self._readers: anyio.CapacityLimiter

    async def __aenter__(self) -> Self:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._readers = anyio.CapacityLimiter(READERS)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._supervisor = SupervisorClient(self._folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supervisor.close()
        self._tasks.cancel_scope.cancel()
        # Exits without the caller's exception, which a group would wrap.
        await self._tasks.__aexit__(None, None, None)

    def work(self, command: Command) -> Work:
        """The work of a new task: starts the command and reads it to its end."""

        async def run(ctx: TaskContext) -> Ending:
            folder, stamped = self._place(ctx.task_id), command.stamped()
            try:
                stamped.check()
                # Shielded: after a cancellation in the middle nobody would know if it runs. Starting is quick.
                with anyio.CancelScope(shield=True):
                    folder.mkdir(mode=0o700)
                    await anyio.to_thread.run_sync(write_whole, str(folder / "command"), stamped.stored())
                    request = {"id": ctx.task_id, "folder": str(folder), **_to_start(stamped), **self._limits}
                    await self._supervisor.request(request)
            except ValidationFailed as error:
                why = "; ".join(fault.reason for fault in error.faults)
            except OSError as error:
                why = str(error)
            else:
                with anyio.move_on_after(PATIENCE):
                    while self._supervisor.lives and read_meta(folder) is None:  # noqa: ASYNC110 - no event for it
                        await anyio.sleep(STARTED_EVERY)
                return await self._find(ctx, folder, stamped)
            return self._refusal(ctx, folder, stamped, f"the command was not started: {why}")

        return run

    def resume(self, state: TaskState) -> Work | None:
        """The work of a dead process's task: finds the command and continues where that process stopped."""
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
                await self._process_table.end(Root(tag=ctx.task_id), GRACE)
                return self._refusal(ctx, folder, None, UNREADABLE)
            (folder / "ended").unlink(missing_ok=True)
            command = replace(command, secrets=[*command.secrets, *self._known_secrets()])
            return await self._find(ctx, folder, command)

        return run

    async def tail(self, task_id: str, lines: int = 100, *, errors: bool = False) -> list[str]:
        """The last lines of its log, with a note on dropped output before them; with `errors`, only stderr."""

        def read() -> list[str]:
            folder, name = self._place(task_id), ERRORS if errors else LOG
            missing = left_out(folder, name, tail_position(folder, name, lines), lines)
            return [*([missing] if missing else []), *tail_of(folder, name, lines)]

        return await anyio.to_thread.run_sync(read)

    async def follow(self, task_id: str, lines: int = 10, *, errors: bool = False) -> AsyncGenerator[str]:
        """The last lines and then every new line, until the command has ended and all output was read."""
        folder, name = self._place(task_id), ERRORS if errors else LOG
        place = await anyio.to_thread.run_sync(tail_position, folder, name, lines)
        if missing := left_out(folder, name, place, lines):
            yield missing
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
        """Deletes the files of an ended task, unless its command may still run."""
        folder = self._place(task_id)
        if _is_over(folder) or not (folder / "claim").exists():
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))

    def _place(self, task_id: str) -> Path:
        if not is_task_id(task_id):  # it becomes a folder's name
            raise TaskNotFound(f"task {task_id[:100]!r} does not exist", task_id=task_id)
        return self._folder / task_id

    async def _find(self, ctx: TaskContext, folder: Path, command: Command) -> Ending:
        refused = await self._wait_started(folder)
        if refused is None:
            return await self._attend(ctx, folder, command)
        return self._refusal(ctx, folder, command, refused)

    def _refusal(self, ctx: TaskContext, folder: Path, command: Command | None, why: str) -> Ending:
        """The end of a command that never ran; its start parameters are removed."""
        if folder.exists():
            (folder / "ended").touch(mode=0o600)
            self._tasks.start_soon(self._tidy, ctx, folder)
        return refusal_of(ctx.task_id, command, why)

    async def _wait_started(self, folder: Path) -> str | None:
        """Why it was not started, or None if it was; until this process holds the claim, another may start it."""
        while True:
            meta = read_meta(folder)
            if meta is not None:
                return meta if isinstance(meta, str) else None
            try:
                claim(str(folder / "claim"), {"void": True})
            except FileExistsError:
                holder = read_identity(folder / "claim")
                if holder is None or not holder.lives:
                    # A process that it forked may not have reached exec yet: the first to write `meta` decides.
                    with contextlib.suppress(FileExistsError):
                        write_once(str(folder / "meta"), {"refused": NOT_STARTED})
                    continue
            await anyio.sleep(LOOK_EVERY)

    async def _attend(self, ctx: TaskContext, folder: Path, command: Command) -> Ending:
        meta = read_meta(folder)
        assert isinstance(meta, Meta)  # noqa: S101 - it was started
        reader = await anyio.to_thread.run_sync(
            lambda: Reader(folder, command, ctx.state.mark, bound=self._log_bytes), limiter=self._readers
        )
        running = Running(
            ctx=ctx,
            command=command,
            meta=meta,
            reader=reader,
            process_table=self._process_table,
            readers=self._readers,
            unmarked=self._unmarked,
        )
        try:
            ending = await running.to_its_end(folder)
            refused = read_meta(folder)  # `meta` is written before exec, which may fail
            return refusal_of(ctx.task_id, command, refused) if isinstance(refused, str) else ending
        except Exception:
            # An internal error fails the task, and nothing would stop its command after that.
            await self._process_table.end(meta, command.grace)
            raise
        finally:
            if not running.left:
                (folder / "ended").touch(mode=0o600)
                self._tasks.start_soon(self._tidy, ctx, folder)

    @staticmethod
    async def _tidy(ctx: TaskContext, folder: Path) -> None:
        """Deletes all but the log once the end is durable; before that, recovery would need the other files."""
        try:
            await ctx.store.wait(ctx.task_id)
        except PursuitError:
            return  # already removed, or the ledger is unavailable; `remove` deletes all
        await anyio.to_thread.run_sync(_tidy_up, folder)


def _to_start(command: Command) -> dict[str, Any]:
    """The request to the supervisor, with everything that this process would add."""
    env = os.environ if command.env is None else command.env
    cwd = Path(command.cwd or ".").absolute()
    return {
        "argv": list(command.argv) if command.isolation is None else command.isolation.words(command.argv, cwd),
        "cwd": str(cwd),
        "env": {key: value for key, value in env.items() if key != TAG},
    }


def _is_over(folder: Path) -> bool:
    """True if no more output comes: the command has ended, or was never started."""
    return (folder / "ended").exists() or isinstance(read_meta(folder), str)


def _tidy_up(folder: Path) -> None:
    for pattern in ("units", *(f"{stream}.*" for stream in STREAMS), "command"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
