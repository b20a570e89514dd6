"""One command as the work of a task: started or found again, read to its end, stopped when somebody says so.

Owns: the course of one command in this process. Does not know: how bytes are kept, or how a keeper is spoken to.
Invariant: a command that runs is read to its end and its real exit is recorded, by us or by whoever comes after us;
when we only leave, it goes on.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from pursuit.errors import PursuitError
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.processes.command import Command
from pursuit.tasks.processes.endings import LONGEST_STDERR_LINE, STDERR_LINES, Course, ending_of, in_words
from pursuit.tasks.processes.identity import Meta
from pursuit.tasks.processes.log import log_end, read_log, tail_position
from pursuit.tasks.processes.reader import ERRORS
from pursuit.tasks.processes.tree import Census, Root, end_tree
from pursuit.tasks.processes.watching import Watch, Watches
from pursuit.tasks.store import Ending

UNMARKED = 32 * 1024 * 1024
"""Bytes that are read without a mark at most, and removed from the spool with it."""
SLOWEST_MARK = 5.0
READERS = 4

log = logging.getLogger(__name__)


class Running:
    """A command that was started, in the hands of one task."""

    def __init__(
        self,
        ctx: TaskContext,
        command: Command,
        meta: Meta,
        watch: Watch,
        *,
        census: Census,
        readers: anyio.CapacityLimiter,
        unmarked: int = UNMARKED,
    ) -> None:
        self._ctx = ctx
        self._command = command
        self._meta = meta
        self._watch = watch
        self._reader = watch.reader
        self._census = census
        self._readers = readers
        self._unmarked = unmarked
        self._item = ctx.state.item
        self.left = False
        """Whether it was left running, for somebody else to go on with."""
        self._marked = 0.0
        self._heard = time.monotonic()
        self._beat = self._heard

    async def to_its_end(self, watches: Watches, folder: Path) -> Ending:
        """Reads it and stops it if told to; returns how it ended. Cancelled, it leaves the command running."""
        stopped = anyio.Event()
        watches.add(self._ctx.task_id, self._watch)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop, stopped)
                await self._read()
                if self._ctx.cancelled:
                    await stopped.wait()
                elif self._reader.exit is None:
                    await self._end_tree()  # nobody reads it and nobody waits for it any more
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise
        finally:
            watches.remove(self._ctx.task_id)
        return ending_of(await anyio.to_thread.run_sync(self._course, folder))

    async def _stop(self, stopped: anyio.Event) -> None:
        await self._ctx.wait_cancelled()
        await self._end_tree()
        stopped.set()

    async def _end_tree(self) -> None:
        await end_tree(self._census, root_of(self._ctx.task_id, self._meta), self._command.grace)

    async def _read(self) -> None:
        while True:
            self._watch.quiet()
            before = self._reader.taken
            more = await anyio.to_thread.run_sync(self._step, limiter=self._readers)
            if self._reader.taken != before:
                self._heard = self._beat = time.monotonic()
            if self._reader.finished:
                return
            if self._reader.unmarked and (time.monotonic() >= self._due() or self._reader.unmarked >= self._unmarked):
                await self._mark()
            if not more:
                await self._wait()

    def _step(self) -> bool:
        return self._reader.step(last=self._watch.lost)

    def _due(self) -> float:
        """When the next mark is worth its commit: the longer it runs, the less a moment counts."""
        return self._marked + max(0.5, min(SLOWEST_MARK, self._seconds() / 60))

    async def _wait(self) -> None:
        ends = self._beat + self._command.heartbeat
        if self._reader.unmarked:
            ends = min(ends, self._due())
        with anyio.move_on_after(max(0.0, ends - time.monotonic())):
            await self._watch.wait()
            return
        if time.monotonic() >= self._beat + self._command.heartbeat:
            await self._sign_of_life()

    async def _sign_of_life(self) -> None:
        self._beat = time.monotonic()
        signs = self._reader.signs
        last = signs.item or self._item or signs.message
        named = f" (last: {last})" if last else ""
        await self._told(self._ctx.heartbeat(f"still running … {in_words(self._seconds())} elapsed{named}"))

    async def _mark(self) -> None:
        """Makes it durable how far we read; then the spool before it can go."""
        self._marked = time.monotonic()
        signs = self._reader.signs
        try:
            mark = self._reader.mark()
        except OSError as error:
            log.warning("a task's units cannot be written down", extra={"pursuit_fields": {"reason": str(error)}})
            return
        done = signs.units.count if signs.counts else None
        word = self._ctx.remember(
            {**mark, "pid": self._meta.leader.pid}, message=signs.message, done=done, item=signs.item
        )
        if await self._told(word):
            await anyio.to_thread.run_sync(self._reader.discard, mark, limiter=self._readers)

    async def _told(self, word: Any) -> bool:
        """Whether the ledger took it; one that cannot be written now must not stop the command."""
        try:
            await word
        except PursuitError as error:
            fields = {"task": self._ctx.task_id, "code": error.code, "reason": error.message}
            log.warning("a task's progress cannot be stored", extra={"pursuit_fields": fields})
            return False
        return True

    def _seconds(self) -> float:
        return max(0.0, time.time() - self._meta.at)

    def _course(self, folder: Path) -> Course:
        reader, signs = self._reader, self._reader.signs
        ended = reader.exit or {}
        return Course(
            task_id=self._ctx.task_id,
            command=self._command,
            code=ended.get("code"),
            seconds=max(0.0, ended.get("at", time.time()) - self._meta.at),
            done=signs.units.count if signs.counts else None,
            item=signs.item or self._item,
            failures=signs.failures,
            stderr=tail_of(folder, ERRORS, STDERR_LINES, LONGEST_STDERR_LINE),
            notes=signs.notes,
            mark={**reader.mark(), "pid": self._meta.leader.pid},
            cancelled=self._ctx.cancelled,
        )


def root_of(task_id: str, meta: Meta) -> Root:
    """By what the processes of a command that was started are known."""
    return Root(task_id=task_id, leader=meta.leader, subreaper=meta.subreaper)


def tail_of(folder: Path, name: str, lines: int, longest: int | None = None) -> list[str]:
    """The last lines of a log."""
    place, end, data = tail_position(folder, name, lines), log_end(folder, name), bytearray()
    while place < end:
        piece, place = read_log(folder, name, place)
        if not piece:
            break
        data += piece
    found = data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []
    return [line if longest is None else line[:longest] for line in found[-lines:]] if lines > 0 else []
