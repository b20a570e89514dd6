"""The process of an agent: lines in and out, and an end that leaves none of its descendants.

Invariant: when `aclose` returns, or when this process is killed, the subreaper above the agent has ended all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import Process

from pursuit.core.tools import CallFailed

SUBREAPER = Path(__file__).with_name("subreaper.py")
LONGEST_LINE = 16 * 1024 * 1024
KEPT = 4_096
"""Bytes that are kept of the end of standard error."""
STOP_SECONDS = 2.0
"""How long an agent may take to leave after its standard input has ended."""
KILL_SECONDS = 8.0


class AgentGone(Exception):
    """The agent's process has ended, or it sent what no agent sends."""


class AgentProcess:
    """A started agent. Make it with `start`."""

    def __init__(self, process: Process, control: int) -> None:
        self._process = process
        self._control = control
        self._partial = bytearray()
        self._lines: list[bytes] = []
        self._errors = bytearray()
        self._reading_errors = anyio.Lock()

    @classmethod
    async def start(cls, words: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> AgentProcess:
        """Starts it below a subreaper. Raises `CallFailed` if that is not possible."""
        reading, writing = os.pipe()
        process: Process | None = None
        try:
            # Shielded, because it is quick: a cancellation in the middle would leave a process that is never ended.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    [sys.executable, "-I", "-S", str(SUBREAPER), str(reading), *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env=dict(environment),
                    pass_fds=[reading],
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            os.close(writing)
            raise CallFailed(f"the agent {words[0]!r} cannot be started: {error}", sent=False) from None
        finally:
            os.close(reading)
        assert process is not None  # noqa: S101 - nothing leaves a shielded block early
        return cls(process, writing)

    async def send(self, line: bytes) -> None:
        """Writes one line. Raises `AgentGone`."""
        assert self._process.stdin is not None  # noqa: S101 - it was started with a pipe
        try:
            await self._process.stdin.send(line + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise AgentGone(await self.why()) from None

    async def end_input(self) -> None:
        """Closes its standard input."""
        if self._process.stdin is not None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._process.stdin.aclose()

    async def line(self) -> bytes:
        """The next line of its standard output. Raises `AgentGone`."""
        assert self._process.stdout is not None  # noqa: S101 - it was started with a pipe
        while not self._lines:
            try:
                chunk = await self._process.stdout.receive()
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
        assert self._process.stderr is not None  # noqa: S101 - it was started with a pipe
        gone = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
        async with self._reading_errors:  # a stream has one reader at a time
            with suppress(*gone):
                while True:
                    self._errors += await self._process.stderr.receive()
                    del self._errors[:-KEPT]

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.returncode

    async def ended(self) -> None:
        """Returns when it has ended with all that it started."""
        await self._process.wait()

    async def why(self) -> str:
        """How its process ended, with the end of what it wrote to standard error."""
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            await self._process.wait()
            await self._drain_errors()
        code = self._process.returncode
        how = "it closed its standard output" if code is None else f"its process ended with exit code {code}"
        said = self._errors.decode(errors="replace").strip()
        return f"{how}: {said[-800:]}" if said else how

    async def aclose(self, *, at_once: bool = False) -> None:
        """Ends it with all its descendants: after it has left by itself, or at once."""
        with anyio.CancelScope(shield=True):
            if not at_once:
                await self.end_input()
                await self._gone(STOP_SECONDS)
            if self._control >= 0:
                os.close(self._control)
                self._control = -1
            await self._gone(KILL_SECONDS)
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()

    async def _gone(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._process.wait()
