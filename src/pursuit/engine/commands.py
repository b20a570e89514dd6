"""Runs the command of a check or of a judge: the operator's argv, never a client's.

Invariant: when `run_command` returns or is cancelled, no process of the command's group is left; processes that left
the group are not awaited.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from pursuit.config.process_environment import MAX_NAMES, REAL_PYTHON, USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.core.log_metrics import LogMetrics, MetricRule
from pursuit.core.patterns import Unfinished
from pursuit.core.tools import CallFailed
from pursuit.processes.groups import OutputTail, communicate, start
from pursuit.tasks.command import read_files, stamps_of

KEPT = 64 * 1024
"""The number of bytes kept of each stream, from its end."""
PYTEST_CHECK = Path(__file__).parents[1] / "proposers" / "agent" / "pytest_check.py"


async def run_command(
    argv: Sequence[str],
    cwd: str | None,
    *,
    around: ProcessEnvironment = USUAL_ENVIRONMENT,
    ours: Mapping[str, str] | None = None,
    given: bytes | None = None,
    whole: int | None = None,
    metrics: Sequence[MetricRule] = (),
) -> dict[str, Any]:
    """Runs a command; returns its exit code and the ends of stdout and stderr, with its secrets removed.

    `ours` are further variables, without secrets. `cut` names the streams whose beginning is not kept. `given` is the
    standard input. With `whole`, all of stdout is kept up to that many bytes, and more is an error. If the command
    fails, the result also names our environment variables that it did not get. If it succeeds, the result has its
    `metrics`, with `notes` on those without a value. Raises `CallFailed`.
    """
    words = list(argv)
    if words[0] == "pursuit-pytest":  # our own program, even if it is not on PATH
        words[:1] = [REAL_PYTHON, "-I", "-S", str(PYTEST_CHECK)]
    metrics = [rule if rule.file is None else replace(rule, file=str(Path(cwd or ".", rule.file))) for rule in metrics]
    before = stamps_of(metrics) if metrics else {}
    try:
        if around.isolation is not None:
            words = around.isolation.words(words, Path(cwd or ".").absolute())  # noqa: ASYNC240 - reads no disk
        environment = {**around.environment(os.environ), **(ours or {})}
        process = await start(words, cwd=cwd, env=environment, stdin=given is not None)
    except (OSError, ValueError) as error:
        raise CallFailed(f"cannot run {argv[0]!r}: {error}", sent=False) from None
    tails = {"stdout": OutputTail(KEPT if whole is None else whole + 1), "stderr": OutputTail(KEPT)}
    code = await communicate(process, given, tails["stdout"], tails["stderr"])
    if whole is not None and len(tails["stdout"].data) > whole:
        raise CallFailed(f"{argv[0]!r} printed more than the limit of {whole} bytes", answered=True)
    secrets = around.secrets(os.environ) if around.env else ()
    texts = {name: _redacted(tail.text, secrets) for name, tail in tails.items()}
    withheld = sorted(os.environ.keys() - environment.keys())[:MAX_NAMES] if code != 0 else []
    cut = [name for name, tail in tails.items() if tail.cut]
    told: dict[str, Any] = {"cut": cut, "not_inherited": withheld}
    if metrics and code == 0:
        told |= await anyio.to_thread.run_sync(partial(_measured, metrics, texts, before, cwd))
    return {"exit_code": code, **texts, **{key: names for key, names in told.items() if names}}


def _is_linked(file: str, cwd: str | None) -> bool:
    """True if a link leads to a file: the tree of a check is an agent's, and may lead anywhere."""
    folder = os.path.realpath(cwd or ".")
    return os.path.realpath(file) != os.path.normpath(Path(folder, os.path.relpath(file, cwd or ".")))


def _measured(
    rules: Sequence[MetricRule], texts: Mapping[str, str], before: Mapping[str, Sequence[int]], cwd: str | None
) -> dict[str, Any]:
    """The metrics in the output, and in the files that the command wrote."""
    links = [rule for rule in rules if rule.file is not None and _is_linked(rule.file, cwd)]
    notes = [f"metric {rule.name}: {rule.file} is a link, or lies behind one" for rule in links]
    rules = [rule for rule in rules if rule not in links]
    found = LogMetrics(rules)
    for rule in rules:
        try:
            if rule.file is None:
                found.look(rule, "\n".join(texts.values()))
        except Unfinished as error:
            notes.append(f"metric {rule.name}: {error}")
    return {"metrics": found.found, "notes": [*notes, *read_files(rules, before, found), *found.notes()]}


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
