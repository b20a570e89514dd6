"""The process of an agent below its subreaper: lines in and out, and the end of standard error."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process

from pursuit.processes.groups import STOP_SECONDS, OutputTail, SubreapedProcess

LONGEST_LINE = 16 * 1024 * 1024
KEPT = 4_096
"""Bytes that are kept of the end of standard error."""


class AgentGone(Exception):
    """The agent's process has ended, or it sent what no agent sends."""


class AgentProcess(SubreapedProcess):
    """A started agent. Make it with `start`."""

    def __init__(self, process: Process, control: int) -> None:
        super().__init__(process, control)
        self._partial = bytearray()
        self._lines: list[bytes] = []
        self._errors = OutputTail(KEPT)
        self._reading_errors = anyio.Lock()

    async def send(self, line: bytes) -> None:
        """Writes one line. Raises `AgentGone`."""
        assert self.process.stdin is not None  # noqa: S101 - it was started with a pipe
        try:
            await self.process.stdin.send(line + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise AgentGone(await self.why()) from None

    async def line(self) -> bytes:
        """The next line of its standard output. Raises `AgentGone`."""
        assert self.process.stdout is not None  # noqa: S101 - it was started with a pipe
        while not self._lines:
            try:
                chunk = await self.process.stdout.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                if self._partial:
                    self._lines, self._partial = [bytes(self._partial)], bytearray()
                    continue
                raise AgentGone(await self.why()) from None
            *whole, rest = chunk.split(b"\n")
            if whole:
                self._lines = [bytes(self._partial) + whole[0], *whole[1:]]
                self._partial = bytearray(rest)
            else:
                self._partial += rest
            if len(self._partial) > LONGEST_LINE:
                raise AgentGone(f"it sent a line of more than {LONGEST_LINE} bytes")
        return self._lines.pop(0)

    @asynccontextmanager
    async def draining(self) -> AsyncGenerator[None]:
        """Reads its standard error during the block: an agent that writes much there would stop at a full pipe."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain_errors)
            yield
            tasks.cancel_scope.cancel()

    async def _drain_errors(self) -> None:
        async with self._reading_errors:  # a stream has one reader at a time
            await self._errors.read(self.process.stderr)

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.process.returncode

    async def why(self) -> str:
        """How its process ended, with the end of what it wrote to standard error."""
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            await self.process.wait()
            await self._drain_errors()
        code = self.process.returncode
        how = "it closed its standard output" if code is None else f"its process ended with exit code {code}"
        said = self._errors.text.strip()
        return f"{how}: {said[-800:]}" if said else how
