"""`pursuit worker` runs missions of a shared ledger; `workers` lists and drains workers."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pursuit import __version__
from pursuit.cli.console import CommandAnswer, Fact, Hint, TableRows
from pursuit.cli.context import Context, WithContext, command, run, signals_to
from pursuit.cli.options import LogFormatOption, LogLevelOption, seconds_of
from pursuit.core.mission import QUEUE
from pursuit.errors import Fault, ValidationFailed
from pursuit.ledger.opening import wait_for_database
from pursuit.ledger.placement import QUEUE_NAME, Placement, WorkerRow
from pursuit.runtime import Runtime
from pursuit.service.run_loop import drain as order

app = typer.Typer()
workers_app = typer.Typer(name="workers", invoke_without_command=True)


@command(app, epilog="Example:  pursuit worker --state postgresql://pursuit@db/pursuit --queue gpu --concurrency 2")
def worker(
    context: Context,
    *,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Queue to serve; repeatable (default: default).")
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(min=1, max=1_000, help="Maximum concurrent missions (one slot is reserved for other callers)."),
    ] = 8,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Time for calls in progress to finish when the worker stops.")
    ] = "60",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Worker name (default: machine and process).")
    ] = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = None,
) -> None:
    from pursuit.server import logs

    given: dict[str, Any] = {"version": __version__, "queues": queue or [QUEUE], "concurrency": concurrency}
    given |= {"grace": seconds_of(grace, "--grace"), **({} if name is None else {"name": name})}
    rule = "is not a valid name: use a-z, 0-9, '-' and '_', and start with a letter or digit"
    faults = [
        Fault(field=option, reason=f"{one[:80]!r} {rule}")
        for option, one in [*(("--queue", one) for one in given["queues"]), *([("--name", name)] if name else [])]
        if QUEUE_NAME.fullmatch(one) is None
    ]
    if faults:
        raise ValidationFailed(faults, "no worker was started")
    context.require_shared("--state", _SHARED)
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    run(_serve, context.ledger_path, context.trusted_runtime(), given)


_LEAVING_SECONDS = 4.0
"""Seconds after the grace to store results and end processes; limits the wait for an unreachable database."""


async def _serve(path: Path, opened: Runtime, settings: dict[str, Any]) -> None:
    """Runs a worker. The first signal drains it; the second ends it immediately."""
    from pursuit.server import logs

    log = logging.getLogger(__name__)

    def leave() -> None:
        logs.event(log, logging.ERROR, "ended before the shutdown was complete", grace=settings["grace"])
        os._exit(1)

    async def stop(number: int) -> None:
        if worker.stopping.is_set():
            os._exit(128 + number)
        logs.event(log, logging.INFO, "draining", signal=number)
        asyncio.get_running_loop().call_later(settings["grace"] + _LEAVING_SECONDS, leave)
        worker.stop()

    await wait_for_database(path, math.inf, log.warning)
    async with opened as runtime:
        worker = runtime.worker(**settings)
        about = worker.about()
        queues = ", ".join(about.queues)
        async with signals_to(stop):
            await runtime.tasks.maintain()
            logs.event(log, logging.INFO, "working", worker=about.name, queues=queues, concurrency=about.concurrency)
            await worker.run()
        logs.event(log, logging.INFO, "stopped", worker=about.name)


_SHARED = "workers need a shared ledger"


@workers_app.callback(epilog="Example:  pursuit workers drain gpu-1-4711")
@partial(WithContext, reads=True)
def workers(context: Context) -> CommandAnswer | None:
    if context.click.invoked_subcommand is not None:
        return None
    context.require_shared("--state", _SHARED)
    return context.look(lambda runtime: _list(context, runtime.placement))


async def _list(context: Context, placement: Placement | None) -> CommandAnswer:
    assert placement is not None  # noqa: S101 - the ledger is shared
    found = await placement.health()
    heads = ("worker", "machine", "version", "queues", "load", "lease", "seen")
    shown = TableRows(heads, [_cells(one) for one in found.workers])
    none = Hint(f"there are no workers; start one with: {context.command('worker')}")
    data = {
        "workers": [{**asdict(one), "load": len(one.jobs)} for one in found.workers],
        "queued": found.queued,
        "running": found.running,
    }
    return CommandAnswer(data, shown if found.workers else none)


def _cells(one: WorkerRow) -> list[str]:
    state = "gone " if not one.live else "draining " if one.draining else ""
    lease = "" if one.lease_age is None else f"{one.lease_age:.0f} s"
    load = f"{len(one.jobs)}/{one.concurrency}"
    return [one.name, one.host, one.version, " ".join(one.queues), load, lease, f"{state}{one.seen_ago:.0f} s ago"]


@command(workers_app)
def drain(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Worker (`pursuit workers`).")],
) -> CommandAnswer:
    """Let a worker finish its current calls and exit; other workers continue its missions."""
    context.require_shared("--state", _SHARED)
    context.look(lambda runtime: order(runtime.runner, name))
    return CommandAnswer({"draining": name}, Fact("draining", name))
