"""Runs the command of a check or of a judge: an argv of the operator's, never of a client's.

Invariant: when `run_command` returns or is cancelled, no process of the command's group is left; a process that has
left the group is not waited for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pursuit.config.surroundings import MOST_NAMES, USUAL_SURROUNDINGS, Surroundings
from pursuit.core.tools import CallFailed
from pursuit.processes.groups import OutputTail, communicate, start

KEPT = 64 * 1024
"""Bytes that are kept of each stream, from its end."""


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
    words = list(argv)
    if words[0] == "pursuit-pytest":  # our own program, also where it is not on PATH
        words[0] = str(Path(sys.executable).with_name(words[0]))
    try:
        if around.isolation is not None:
            words = around.isolation.words(words, Path(cwd or ".").absolute())  # noqa: ASYNC240 - reads no disk
        process = await start(words, cwd=cwd, env=around.environment(os.environ), stdin=given is not None)
    except (OSError, ValueError) as error:
        raise CallFailed(f"cannot run {argv[0]!r}: {error}", sent=False) from None
    tails = {"stdout": OutputTail(KEPT if whole is None else whole + 1), "stderr": OutputTail(KEPT)}
    code = await communicate(process, given, tails["stdout"], tails["stderr"])
    if whole is not None and len(tails["stdout"].data) > whole:
        raise CallFailed(f"{argv[0]!r} printed more than the {whole} bytes that are read", answered=True)
    secrets = around.secrets(os.environ) if around.env else ()
    texts = {name: _redacted(tail.text, secrets) for name, tail in tails.items()}
    withheld = around.withheld(os.environ)[:MOST_NAMES] if code != 0 else []
    cut = [name for name, tail in tails.items() if tail.cut]
    told = {"cut": cut, "not_inherited": withheld}
    return {"exit_code": code, **texts, **{key: names for key, names in told.items() if names}}


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
