"""Runs the command of a check or of a judge: an argv of the operator's, never of a client's.

Invariant: when `run_command` returns or is cancelled, no process of the command's group is left; a process that has
left the group is not waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from pursuit.config.surroundings import MOST_NAMES, USUAL_SURROUNDINGS, Surroundings
from pursuit.core.tools import CallFailed

KEPT = 64 * 1024
"""Bytes that are kept of each stream, from its end."""
DRAIN_SECONDS = 1.0
"""How long the output is read after the process has ended."""


async def run_command(
    argv: Sequence[str],
    cwd: str | None,
    *,
    around: Surroundings = USUAL_SURROUNDINGS,
    given: bytes | None = None,
    whole: int | None = None,
) -> dict[str, Any]:
    """The exit code and the ends of stdout and stderr, without the secrets of its own environment.

    `cut` names the streams whose beginning is not kept. `given` is the standard input. With `whole` all of stdout is
    kept, and more bytes than that are refused. A command that fails also tells which of our variables it did not get.
    Raises `CallFailed`.
    """
    try:
        process = await _started(argv, cwd, around, reads=given is not None)
    except (OSError, ValueError) as error:
        raise CallFailed(f"cannot run {argv[0]!r}: {error}", sent=False) from None
    most = KEPT if whole is None else whole + 1
    tails = {"stdout": bytearray(), "stderr": bytearray()}
    dropped: set[str] = set()
    code = -1
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process.stdin, given)
            tasks.start_soon(_drain, process.stdout, tails["stdout"], most, partial(dropped.add, "stdout"))
            tasks.start_soon(_drain, process.stderr, tails["stderr"], KEPT, partial(dropped.add, "stderr"))
            code = await process.wait()
            _kill_group(process)
            # The pipes are read to their end, but not for ever: a process that left the group may keep them open.
            tasks.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS
    except BaseException:
        _kill_group(process)
        with anyio.CancelScope(shield=True):
            await process.wait()
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if whole is not None and len(tails["stdout"]) > whole:
        raise CallFailed(f"{argv[0]!r} printed more than the {whole} bytes that are read", answered=True)
    secrets = around.secrets(os.environ) if around.env else ()
    texts = {name: _redacted(tail.decode(errors="replace"), secrets) for name, tail in tails.items()}
    withheld = around.withheld(os.environ)[:MOST_NAMES] if code != 0 else []
    cut = {"cut": [name for name in tails if name in dropped]} if dropped else {}
    return {"exit_code": code, **texts, **cut, **({"not_inherited": withheld} if withheld else {})}


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


async def _started(argv: Sequence[str], cwd: str | None, around: Surroundings, *, reads: bool) -> Process:
    words = list(argv)
    if around.isolation is not None:
        words = around.isolation.words(words, Path(cwd or ".").absolute())  # noqa: ASYNC240 - reads no disk
    environment = around.environment(os.environ)
    process: Process | None = None
    # Shielded, because it is quick: a cancellation in the middle would end the leader and leave the rest of its group.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            words,
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
    assert process is not None  # noqa: S101 - nothing leaves a shielded block early
    return process


async def _feed(stream: ByteSendStream | None, given: bytes | None) -> None:
    """Writes the whole input, unless the process stops reading first."""
    if stream is None or given is None:
        return
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await stream.send(given)
    await stream.aclose()


async def _drain(stream: ByteReceiveStream | None, tail: bytearray, most: int, on_cut: Callable[[], None]) -> None:
    """Reads everything and keeps the end."""
    if stream is None:
        return
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for chunk in stream:
            tail.extend(chunk)
            if len(tail) > most:
                on_cut()
                del tail[:-most]


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
