"""The line to the keeper: starts it with the first command, hands commands over, and hears of news.

Owns: our end of the socket. Does not know: output, or what a command is for. Invariant: the files in a command's folder
are the truth and the keeper's words only hints, so a lost word costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from pursuit.tasks.processes import keeper

PATIENCE = 120.0
LONGEST_WORD = 16 * 1024 * 1024


class Refused(Exception):
    """A command could not be started; the message says why, and nothing runs."""


class Unanswered(Exception):
    """The keeper was asked to start a command and said nothing: it may run, and may yet be started."""


class Keeping:
    """One keeper for one process of ours. `on_news` hears which commands have news, `on_loss` that it is gone."""

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
        """How often a keeper went away; what was started before the last time is not heard of any more."""

    async def start(self, request: dict[str, Any]) -> None:
        """Starts a command; returns when it runs. Raises `Refused` or `Unanswered`."""
        answered, reasons, losses = anyio.Event(), list[str](), self.losses
        self._asked[request["id"]] = answered, reasons
        try:
            async with self._starting:
                writer = await self._line()
                writer.write(json.dumps(request).encode() + b"\n")
            with anyio.move_on_after(PATIENCE) as patience:
                await answered.wait()
        except OSError as error:
            raise Refused(f"its supervisor cannot be started: {error}") from error
        finally:
            del self._asked[request["id"]]
        if patience.cancelled_caught or self.losses > losses:
            raise Unanswered
        if reasons:
            raise Refused(reasons[0])

    def close(self) -> None:
        """Lets go of the keeper, which goes on until its commands have ended."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _line(self) -> asyncio.StreamWriter:
        if self._writer is None:
            ours, theirs = socket.socketpair()
            with theirs:
                await anyio.to_thread.run_sync(_launch, self._folder, theirs)
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST_WORD)
            self._tasks.start_soon(self._listen, reader, self._writer)
        return self._writer

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hears the keeper until it is gone or we are; whoever waits for a start is told how it went, also then."""
        try:
            await self._hear_while(reader, lambda: True)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._hear_while(
                    reader, lambda: any(not answered.is_set() for answered, _ in self._asked.values())
                )
            raise
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None

    async def _hear_while(self, reader: asyncio.StreamReader, wanted: Callable[[], bool]) -> None:
        try:
            while wanted():
                line = await reader.readline()
                if not line:
                    break
                self._hear(json.loads(line))
            else:
                return
        except (OSError, ValueError):
            pass  # half a word of a keeper that was killed
        self.losses += 1
        for answered, _ in self._asked.values():
            answered.set()
        self._on_loss()

    def _hear(self, word: dict[str, Any]) -> None:
        if "news" in word:
            self._on_news(word["news"])
            return
        if word["id"] in self._asked:
            answered, reasons = self._asked[word["id"]]
            reasons.extend([word["refused"]] if "refused" in word else [])
            answered.set()


def _launch(folder: Path, theirs: socket.socket) -> None:
    """Runs the keeper's script, which leaves a process of its own behind; raises `OSError`."""
    words = [sys.executable, "-I", "-S", keeper.__file__]
    descriptor = os.open(folder / "keeper.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        ended = subprocess.run(  # noqa: S603 - our own script
            words,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(descriptor)
    if ended.returncode:
        raise OSError(f"it ended with {ended.returncode}; see {folder / 'keeper.err'}")
