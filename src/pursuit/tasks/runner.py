"""Runs commands as tasks: a command outlives the process that started it, and the next process finds it again.

Invariant: a command is started once or not at all, whichever process dies in between; other users can read none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
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
from pursuit.processes.tree import ProcessIdentity, ProcessTable, Root
from pursuit.tasks.command import (
    GRACE,
    LONGEST_STDERR_LINE,
    OUTPUT_BYTES,
    STDERR_LINES,
    Command,
    FinishedRun,
    ending_of,
    in_words,
    refusal_of,
)
from pursuit.tasks.execution import TaskContext, log_fields
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
LONGEST_WORD = 16 * 1024 * 1024


class StartRefused(Exception):
    """A command could not be started; the message says why, and nothing runs."""


class StartUnanswered(Exception):
    """The supervisor did not answer a start: the command may run, or may yet be started."""


class SupervisorClient:
    """The supervisor of this process: started with the first command. `on_news` gets the ids of commands with news.

    `on_loss` is called when the supervisor is gone. The files in a command's folder are the truth and messages only
    hints, so a lost message costs time and nothing else.
    """

    def __init__(
        self, folder: Path, tasks: TaskGroup, on_news: Callable[[Iterable[str]], None], on_loss: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._on_news = on_news
        self._on_loss = on_loss
        self._starting = anyio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[str, tuple[anyio.Event, list[str]]] = {}
        self.losses = 0
        """How many supervisors were lost; there is no news of commands that were started before the last loss."""

    async def start(self, request: dict[str, Any]) -> None:
        """Starts a command; returns when it runs. Raises `StartRefused` or `StartUnanswered`."""
        answered, reasons, losses = anyio.Event(), list[str](), self.losses
        self._asked[request["id"]] = answered, reasons
        try:
            async with self._starting:
                writer = await self._connect()
                writer.write(json.dumps(request).encode() + b"\n")
            with anyio.move_on_after(PATIENCE) as patience:
                await answered.wait()
        except OSError as error:
            raise StartRefused(f"its supervisor cannot be started: {error}") from error
        finally:
            del self._asked[request["id"]]
        if patience.cancelled_caught or self.losses > losses:
            raise StartUnanswered
        if reasons:
            raise StartRefused(reasons[0])

    def close(self) -> None:
        """Disconnects from the supervisor, which runs until its commands have ended."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _connect(self) -> asyncio.StreamWriter:
        if self._writer is None:
            ours, theirs = socket.socketpair()
            with theirs:
                await anyio.to_thread.run_sync(_launch, self._folder, theirs)
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST_WORD)
            self._tasks.start_soon(self._listen, reader, self._writer)
        return self._writer

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receives messages until either side is gone; callers that wait for a start get their answer also then."""
        try:
            await self._receive_while(reader, lambda: True)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._receive_while(
                    reader, lambda: any(not answered.is_set() for answered, _ in self._asked.values())
                )
            raise
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None

    async def _receive_while(self, reader: asyncio.StreamReader, wanted: Callable[[], bool]) -> None:
        try:
            while wanted():
                line = await reader.readline()
                if not line:
                    break
                self._handle(json.loads(line))
            else:
                return
        except (OSError, ValueError):
            pass  # half a message of a supervisor that was killed
        self.losses += 1
        for answered, _ in self._asked.values():
            answered.set()
        self._on_loss()

    def _handle(self, word: dict[str, Any]) -> None:
        if "news" in word:
            self._on_news(word["news"])
            return
        if word["id"] in self._asked:
            answered, reasons = self._asked[word["id"]]
            reasons.extend([word["refused"]] if "refused" in word else [])
            answered.set()


def _launch(folder: Path, theirs: socket.socket) -> None:
    """Runs the supervisor's script, which leaves a process of its own behind; raises `OSError`."""
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
        os.close(descriptor)
    if ended.returncode:
        raise OSError(f"it ended with {ended.returncode}; see {folder / 'supervisor.err'}")


NOTIFY_EVERY = 0.2
LIVENESS_EVERY = 5
"""Polls for output between two checks that the supervisor lives."""


@dataclass(eq=False, slots=True, kw_only=True)
class Watch:
    """One command: `news` wakes its reader; `lost` once its supervisor is gone."""

    reader: Reader
    supervisor: ProcessIdentity
    ours: bool
    lost: bool = False
    news: anyio.Event = field(default_factory=anyio.Event)


class CommandWatches:
    """All commands of this process. Each wakes at once for news of our supervisor, else within NOTIFY_EVERY."""

    def __init__(self) -> None:
        self._all: dict[str, Watch] = {}
        self._foreign = anyio.Event()

    def add(self, task_id: str, watch: Watch) -> None:
        """Watches it from here on."""
        self._all[task_id] = watch
        if not watch.ours:
            self._foreign.set()

    def remove(self, task_id: str) -> None:
        """Watches it no more."""
        self._all.pop(task_id, None)

    def ring(self, task_ids: Iterable[str]) -> None:
        """Wakes the readers of these commands."""
        for task_id in task_ids:
            if (watch := self._all.get(task_id)) is not None:
                watch.news.set()

    def disown(self) -> None:
        """Polls all commands from now on: the supervisor is lost."""
        for watch in self._all.values():
            watch.ours = False
        self._foreign.set()

    async def look(self) -> None:
        """Polls the commands of other supervisors, until cancelled."""
        count = 0
        while True:
            await self._foreign.wait()
            foreign = [watch for watch in self._all.values() if not watch.ours and not watch.lost]
            if not foreign:
                self._foreign = anyio.Event()
                continue
            for watch in await anyio.to_thread.run_sync(_with_news, foreign, count % LIVENESS_EVERY == 0):
                watch.news.set()
            count += 1
            await anyio.sleep(NOTIFY_EVERY)


def _with_news(watches: list[Watch], check_supervisors: bool) -> list[Watch]:
    if check_supervisors:
        dead = {supervisor for supervisor in {watch.supervisor for watch in watches} if not supervisor.lives}
        for watch in watches:
            watch.lost = watch.supervisor in dead
    return [watch for watch in watches if watch.lost or watch.reader.has_news()]


UNMARKED = 32 * 1024 * 1024
"""Bytes that are read without a mark at most, and removed from the spool with it."""
SLOWEST_MARK = 5.0
READERS = 4

log = logging.getLogger(__name__)


class Running:
    """A started command as the work of one task: read to its end, or stopped on order.

    Invariant: its real exit is recorded, by this process or by the next; when this process only leaves, it runs on.
    """

    def __init__(
        self,
        ctx: TaskContext,
        command: Command,
        meta: Meta,
        watch: Watch,
        *,
        process_table: ProcessTable,
        readers: anyio.CapacityLimiter,
        unmarked: int = UNMARKED,
    ) -> None:
        self._ctx = ctx
        self._command = command
        self._meta = meta
        self._watch = watch
        self._reader = watch.reader
        self._process_table = process_table
        self._readers = readers
        self._unmarked = unmarked
        self._item = ctx.state.item
        self._cancelled = False
        self.left = False
        """Whether it was left running, for another process to read on."""
        self._marked = 0.0
        self._heard = time.monotonic()
        self._beat = self._heard

    async def to_its_end(self, watches: CommandWatches, folder: Path) -> Ending:
        """Reads it and stops it if told to; returns how it ended. Cancelled, it leaves the command running."""
        stopped = anyio.Event()
        watches.add(self._ctx.task_id, self._watch)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop, stopped, folder)
                await self._read()
                if self._ctx.cancelled:
                    await stopped.wait()
                elif self._reader.exit is None:
                    # Its supervisor is gone: its output is lost and its exit unknown.
                    await self._process_table.end(self._meta, self._command.grace)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise
        finally:
            watches.remove(self._ctx.task_id)
        ending = ending_of(await anyio.to_thread.run_sync(self._run, folder))
        return replace(ending, at=(self._reader.exit or {}).get("at"))

    async def _stop(self, stopped: anyio.Event, folder: Path) -> None:
        await self._ctx.wait_cancelled()
        ended, order = ended_at(folder), self._ctx.state.cancel
        self._cancelled = ended is None or order is None or order.at < ended  # after its end an order changes nothing
        await self._process_table.end(self._meta, self._command.grace)
        stopped.set()

    async def _read(self) -> None:
        while True:
            self._watch.news = anyio.Event()
            before = self._reader.taken
            more = await anyio.to_thread.run_sync(
                lambda: self._reader.step(last=self._watch.lost), limiter=self._readers
            )
            if self._reader.taken != before:
                self._heard = self._beat = time.monotonic()
            if self._reader.finished:
                return
            if self._reader.unmarked and (time.monotonic() >= self._due() or self._reader.unmarked >= self._unmarked):
                await self._mark()
            if not more:
                await self._wait()

    def _due(self) -> float:
        """When the next mark is worth its commit: the longer it runs, the less a moment counts."""
        return self._marked + max(0.5, min(SLOWEST_MARK, self._seconds() / 60))

    async def _wait(self) -> None:
        ends = self._beat + self._command.heartbeat
        if self._reader.unmarked:
            ends = min(ends, self._due())
        with anyio.move_on_after(max(0.0, ends - time.monotonic())):
            await self._watch.news.wait()
            return
        if time.monotonic() >= self._beat + self._command.heartbeat:
            await self._sign_of_life()

    async def _sign_of_life(self) -> None:
        self._beat = time.monotonic()
        progress = self._reader.progress
        last = progress.item or self._item or progress.message
        named = f" (last: {last})" if last else ""
        await self._told(self._ctx.heartbeat(f"still running … {in_words(self._seconds())} elapsed{named}"))

    async def _mark(self) -> None:
        """Makes it durable how far we read; then the spool before it can go."""
        self._marked = time.monotonic()
        progress = self._reader.progress
        try:
            mark = self._reader.mark()
        except OSError as error:
            log.warning("a task's units cannot be written down", extra=log_fields(self._ctx.task_id, error))
            return
        done = progress.units.count if progress.counts else None
        word = self._ctx.remember(
            {**mark, "pid": self._meta.leader.pid}, message=progress.message, done=done, item=progress.item
        )
        if await self._told(word):
            await anyio.to_thread.run_sync(self._reader.discard, mark, limiter=self._readers)

    async def _told(self, word: Any) -> bool:
        """Whether the ledger took it; one that cannot be written now must not stop the command."""
        try:
            await word
        except PursuitError as error:
            log.warning("a task's progress cannot be stored", extra=log_fields(self._ctx.task_id, error))
            return False
        return True

    def _seconds(self) -> float:
        return max(0.0, time.time() - self._meta.at)

    def _run(self, folder: Path) -> FinishedRun:
        reader, progress = self._reader, self._reader.progress
        ended = reader.exit or {}
        notes = list(progress.notes)
        if ended.get("code") == 0:
            notes += [*self._command.read_files(progress.metrics), *progress.metrics.notes()]
        # After a failure the end of stderr is shown anyway, and often it is all that there is.
        only_errors = ended.get("code") != 0 and log_end(folder, LOG) == log_end(folder, ERRORS)
        return FinishedRun(
            task_id=self._ctx.task_id,
            command=self._command,
            code=ended.get("code"),
            seconds=max(0.0, ended.get("at", time.time()) - self._meta.at),
            done=progress.units.count if progress.counts else None,
            item=progress.item or self._item,
            failures=progress.failures,
            metrics=progress.metrics.found,
            stderr=tail_of(folder, ERRORS, STDERR_LINES, LONGEST_STDERR_LINE),
            output=[] if only_errors else _end_of_output(folder),
            notes=notes,
            mark={**reader.mark(), "pid": self._meta.leader.pid},
            cancelled=self._cancelled,
            why=None if self._ctx.state.cancel is None else self._ctx.state.cancel.reason,
        )


def tail_of(folder: Path, name: str, lines: int, longest: int | None = None) -> list[str]:
    """The last lines of a log."""
    found = _lines_from(folder, name, tail_position(folder, name, lines))
    return [line if longest is None else line[:longest] for line in found[-lines:]] if lines > 0 else []


def _end_of_output(folder: Path) -> list[str]:
    """The end of what a command wrote to both streams; the first line says how much is left out."""
    start = max(0, log_end(folder, LOG) - OUTPUT_BYTES)
    left = [f"[the first {start:,} bytes are left out]"] if start else []
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
NOT_STARTED = "its command was not started: the process that should start it ended first"


class Processes:
    """Runs commands below `folder`; `log_bytes` bounds what is kept of the output of each, `unread` what may wait."""

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
        self._watches = CommandWatches()
        self._process_table = ProcessTable()
        self._tasks: TaskGroup
        self._supervisor: SupervisorClient
        self._readers: anyio.CapacityLimiter

    async def __aenter__(self) -> Self:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._readers = anyio.CapacityLimiter(READERS)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._supervisor = SupervisorClient(self._folder, self._tasks, self._watches.ring, self._watches.disown)
        self._tasks.start_soon(self._watches.look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supervisor.close()
        self._tasks.cancel_scope.cancel()
        # Left without the caller's exception, which would come out wrapped in a group.
        await self._tasks.__aexit__(None, None, None)

    def work(self, command: Command) -> Work:
        """The work of a new task: starts the command and sees it to its end."""

        async def run(ctx: TaskContext) -> Ending:
            folder, losses = self._place(ctx.task_id), self._supervisor.losses
            stamped = command.stamped()
            try:
                # A cancel in the middle would leave it open whether it runs; it is quick, and then stopped like any.
                with anyio.CancelScope(shield=True):
                    await self._start(ctx.task_id, folder, stamped)
            except StartUnanswered:
                return await self._find(ctx, folder, stamped)
            except (StartRefused, OSError) as error:
                return self._refusal(ctx, folder, stamped, f"the command was not started: {error}")
            return await self._attend(ctx, folder, stamped, losses)

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
                await self._process_table.end(Root(tag=ctx.task_id), GRACE)
                return self._refusal(ctx, folder, None, UNREADABLE)
            (folder / "ended").unlink(missing_ok=True)
            command = replace(command, secrets=[*command.secrets, *self._known_secrets()])
            return await self._find(ctx, folder, command)

        return run

    async def tail(self, task_id: str, lines: int = 100, *, errors: bool = False) -> list[str]:
        """The last lines of its log, and if they begin with what is kept, what is not; with `errors` only stderr."""

        def read() -> list[str]:
            folder, name = self._place(task_id), ERRORS if errors else LOG
            missing = left_out(folder, name, tail_position(folder, name, lines), lines)
            return [*([missing] if missing else []), *tail_of(folder, name, lines)]

        return await anyio.to_thread.run_sync(read)

    async def follow(self, task_id: str, lines: int = 10, *, errors: bool = False) -> AsyncGenerator[str]:
        """The last lines and every one that comes, until the command has ended and everything was given."""
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
            raise StartRefused("; ".join(fault.reason for fault in error.faults)) from error
        await anyio.to_thread.run_sync(_lay_out, folder, command)
        await self._supervisor.start({"id": task_id, "folder": str(folder), **_to_start(command), **self._limits})

    async def _find(self, ctx: TaskContext, folder: Path, command: Command) -> Ending:
        """Reads on a command that may or may not have been started."""
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
        """Why it was not started, or None if it was; until we hold the claim, another process may start it."""
        while True:
            meta = read_meta(folder)
            if meta is not None:
                return meta if isinstance(meta, str) else None
            try:
                claim(str(folder / "claim"), {"void": True})
            except FileExistsError:
                holder = read_identity(folder / "claim")
                if holder is None or not holder.lives:
                    # A process that it forked may still be on its way to exec: the first that writes `meta` decides.
                    with contextlib.suppress(FileExistsError):
                        write_once(str(folder / "meta"), {"refused": NOT_STARTED})
                    continue
            await anyio.sleep(LOOK_EVERY)

    async def _attend(self, ctx: TaskContext, folder: Path, command: Command, losses: int | None = None) -> Ending:
        """Reads a running command to its end. It is our supervisor's if none was lost since `losses`."""
        meta = read_meta(folder)
        assert isinstance(meta, Meta)  # noqa: S101 - it was started
        reader = await anyio.to_thread.run_sync(
            lambda: Reader(folder, command, ctx.state.mark, bound=self._log_bytes), limiter=self._readers
        )
        watch = Watch(reader=reader, supervisor=meta.supervisor, ours=losses == self._supervisor.losses)
        running = Running(
            ctx, command, meta, watch, process_table=self._process_table, readers=self._readers, unmarked=self._unmarked
        )
        try:
            return await running.to_its_end(self._watches, folder)
        except Exception:
            # A fault of ours fails the task, and nothing would stop its command after that.
            await self._process_table.end(meta, command.grace)
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
    """Makes the folder of a new command, with what the next process needs to read it on."""
    folder.mkdir(mode=0o700)
    write_whole(str(folder / "command"), command.stored())


def _to_start(command: Command) -> dict[str, Any]:
    """What the supervisor is sent, with everything that this process would have added."""
    env = os.environ if command.env is None else command.env
    cwd = Path(command.cwd or ".").absolute()
    return {
        "argv": list(command.argv) if command.isolation is None else command.isolation.words(command.argv, cwd),
        "cwd": str(cwd),
        "env": {key: value for key, value in env.items() if key != TAG},
    }


def _is_over(folder: Path) -> bool:
    """Whether nothing comes any more: the command has ended, or was never started."""
    return (folder / "ended").exists() or isinstance(read_meta(folder), str)


def _tidy_up(folder: Path) -> None:
    for pattern in ("units", *(f"{stream}.*" for stream in STREAMS), "command"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
