"""Runs the command of a check or of a judge: an argv of the operator's, never of a client's.

Owns: one child process with its whole group, its bounded output and its time. Knows no mission.
Invariant: no process of its group is left when `run_command` returns or is cancelled, and none that has left the group
is waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from pursuit.core.tools import CallFailed

KEPT = 64 * 1024
LAST_WORDS = 1.0
"""Seconds in which is read what a process wrote that has ended."""


async def run_command(
    argv: Sequence[str], cwd: str | None, *, given: bytes | None = None, whole: int | None = None
) -> dict[str, Any]:
    """The exit code and the tails of stdout and stderr; `given` is what it may read on standard input.

    With `whole` all of stdout is kept, and one that has more bytes than that is refused. Raises `CallFailed`.
    """
    try:
        process = await _started(argv, cwd, reads=given is not None)
    except (OSError, ValueError) as error:
        raise CallFailed(f"cannot run {argv[0]!r}: {error}", sent=False) from None
    most = KEPT if whole is None else whole + 1
    tails = {"stdout": bytearray(), "stderr": bytearray()}
    code = -1
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process.stdin, given)
            tasks.start_soon(_drain, process.stdout, tails["stdout"], most)
            tasks.start_soon(_drain, process.stderr, tails["stderr"], KEPT)
            code = await process.wait()
            _kill_group(process)
            # What is in the pipes is read; a process that left the group may hold their other ends for ever.
            tasks.cancel_scope.deadline = anyio.current_time() + LAST_WORDS
    except BaseException:
        _kill_group(process)
        with anyio.CancelScope(shield=True):
            await process.wait()
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if whole is not None and len(tails["stdout"]) > whole:
        said = f"{argv[0]!r} printed more than {whole} bytes, which is the most that is read"
        raise CallFailed(said, answered=True)
    return {"exit_code": code, **{name: tail.decode(errors="replace") for name, tail in tails.items()}}


async def _started(argv: Sequence[str], cwd: str | None, *, reads: bool) -> Process:
    process: Process | None = None
    # Quick, and shielded: a cancel in the middle of it would end the leader alone, and leave the rest of its group.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            list(argv),
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
        )
    assert process is not None  # noqa: S101 - nothing leaves a shielded block early
    return process


async def _feed(stream: ByteSendStream | None, given: bytes | None) -> None:
    """Writes all of it, unless the process stops reading first."""
    if stream is None or given is None:
        return
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await stream.send(given)
    await stream.aclose()


async def _drain(stream: ByteReceiveStream | None, tail: bytearray, most: int) -> None:
    """Reads everything and keeps the end."""
    if stream is None:
        return
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for chunk in stream:
            tail.extend(chunk)
            del tail[:-most]


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
