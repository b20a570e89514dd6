"""Starts a process in its own session, reads its output within bounds, and ends its process group.

The pid of the process is the id of its group, and stays in use as long as the group has a member. `tree` finds
descendants that left the group; the subreaper of a `SubreapedProcess` ends them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Self

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from pursuit.processes.subreaper import start_time
from pursuit.processes.tree import ProcessIdentity

DRAIN_SECONDS = 1.0
"""Seconds to read output after the process has ended: a process that left the group may hold the pipes open."""
POLL = 0.01
STOP_SECONDS = 2.0
"""Seconds in which a subreaped process must exit after its standard input was closed."""
KILL_SECONDS = 8.0
"""Seconds in which a subreaper must end all processes below it."""


def script(module: str) -> list[str]:
    """The command line that runs `main` of our module, which may need only the standard library."""
    root = str(Path(__file__).parents[2])
    line = f"import sys; sys.path.append({root!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", line]


async def start(
    words: Sequence[str],
    *,
    cwd: str | Path | None,
    env: Mapping[str, str],
    stdin: bool = True,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Starts a process with pipes, in its own session and process group. Raises `OSError` or `ValueError`."""
    process: Process | None = None
    # Shielded, which is quick: a cancellation in the middle would leave a process that is never ended.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            list(words),
            stdin=PIPE if stdin else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd=cwd,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    assert process is not None  # noqa: S101 - a shielded block is never left early
    return process


async def start_protocol(
    protocol: asyncio.SubprocessProtocol, words: Sequence[str], *, cwd: str | None, env: Mapping[str, str]
) -> None:
    """Starts a command like `start`, for a protocol of asyncio, which gets the transport and the output."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope(shield=True):  # see `start`
        await loop.subprocess_exec(
            lambda: protocol, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=cwd, env=env, start_new_session=True
        )


def signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member changed its user, or macOS reports a zombie so: the group may still have a process.
        pass
    return True


async def end_group(group: int, grace: float) -> None:
    if not signal_group(group, signal.SIGTERM):
        return
    with anyio.move_on_after(grace):
        # The end of a process that is not our child can only be polled.
        while signal_group(group, 0):  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(POLL)
    signal_group(group, signal.SIGKILL)


class OutputTail:
    """The last `most` bytes of a stream, and whether there were more (`cut`)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.data = bytearray()
        self.cut = False

    async def read(self, stream: ByteReceiveStream | None) -> None:
        if stream is None:
            return
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for chunk in stream:
                self.data += chunk
                if len(self.data) > self._most:
                    self.cut = True
                    del self.data[: -self._most]

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


async def communicate(process: Process, given: bytes | None, stdout: OutputTail, stderr: OutputTail) -> int:
    """Sends a process its input, reads its output, and returns its exit code.

    When this returns or is cancelled, all processes of the group have ended.
    """
    code = -1
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process.stdin, given)
            tasks.start_soon(stdout.read, process.stdout)
            tasks.start_soon(stderr.read, process.stderr)
            code = await process.wait()
            signal_group(process.pid, signal.SIGKILL)
            tasks.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS
    except BaseException:
        signal_group(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.wait()
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return code


async def _feed(stream: ByteSendStream | None, given: bytes | None) -> None:
    if stream is None or given is None:
        return
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await stream.send(given)
    await stream.aclose()


class SubreapedProcess:
    """A process below a subreaper, which ends all descendants: at `aclose`, or when this process is killed."""

    def __init__(self, process: Process, control: int) -> None:
        self.process = process
        """The subreaper; its pipes and its exit code are those of the command below it."""
        self.identity = ProcessIdentity(pid=process.pid, start=start_time(process.pid))
        self._control = control

    @classmethod
    async def start(cls, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], fds: Sequence[int] = ()) -> Self:
        reading, writing = os.pipe()
        try:
            above = [*script("pursuit.processes.subreaper"), str(reading)]
            return cls(await start([*above, *words], cwd=cwd, env=env, pass_fds=[reading, *fds]), writing)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)

    async def end_input(self) -> None:
        if self.process.stdin is not None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.process.stdin.aclose()

    async def aclose(self, *, at_once: bool = False) -> None:
        """Ends it with all its descendants: after it has exited by itself, or immediately."""
        with anyio.CancelScope(shield=True):
            if not at_once:
                await self.end_input()
                await self._wait(STOP_SECONDS)
            if self._control >= 0:
                os.close(self._control)
                self._control = -1
            await self._wait(KILL_SECONDS)
            if self.process.returncode is None:
                self.process.kill()
            await self.process.aclose()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.process.wait()
