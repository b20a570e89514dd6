"""`pursuit worker` drives missions of a ledger that machines share; `workers` lists and drains those that do."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import CommandAnswer, Fact, Hint, TableRows
from pursuit.cli.context import Context, WithContext, command, run, stop_signals
from pursuit.errors import Fault, InvalidArgument, ValidationFailed

if TYPE_CHECKING:
    from pursuit.ledger.placement import Placement, WorkerRow
    from pursuit.runtime import Runtime
    from pursuit.service.run_loop import RunLoop

PANEL = "Serve"

app = typer.Typer()
workers_app = typer.Typer(
    name="workers",
    help="List the workers of a shared ledger; drain one.",
    invoke_without_command=True,
    rich_help_panel=PANEL,
)


@command(app, epilog="Example:  pursuit worker --state postgresql://pursuit@db/pursuit --queue gpu --concurrency 2")
def worker(
    context: Context,
    *,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Queue to serve; repeatable (default: default).")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1_000, help="Missions at once; of one caller at most one fewer.")
    ] = 8,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long a call under way has when the worker is told to stop.")
    ] = "60",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its name (default: machine and process).")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None, typer.Option(help="text or json (default: text on a terminal, else json).")
    ] = None,
) -> None:
    """Drive missions of a ledger on PostgreSQL, beside any number of other workers."""
    import sys

    from pursuit import __version__
    from pursuit.cli.task_run import seconds_of
    from pursuit.core.mission import QUEUE
    from pursuit.ledger.placement import QUEUE_NAME
    from pursuit.server import logs

    given: dict[str, Any] = {"version": __version__, "queues": queue or [QUEUE], "concurrency": concurrency}
    given |= {"grace": seconds_of(grace, "--grace"), **({} if name is None else {"name": name})}
    rule = "is not a name: use a-z, 0-9, '-' and '_', and start with a letter or digit"
    faults = [
        Fault(field=option, reason=f"{one[:80]!r} {rule}")
        for option, one in [*(("--queue", one) for one in given["queues"]), *([("--name", name)] if name else [])]
        if QUEUE_NAME.fullmatch(one) is None
    ]
    if faults:
        raise ValidationFailed(faults, "no worker was started")
    _require_shared(context)
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    trusted = context.trust_here()
    run(_serve, trusted.runtime(), given)


async def _serve(opened: Runtime, settings: dict[str, Any]) -> None:
    """Runs a worker. The first signal drains it, the second one ends it at once."""
    import logging
    import os

    import anyio
    from anyio.abc import TaskStatus

    from pursuit.server import logs

    log = logging.getLogger(__name__)

    async def listen(worker: RunLoop, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*stop_signals(hang_up=True)) as signals:
            task_status.started()
            async for number in signals:
                if worker.stopping.is_set():
                    os._exit(128 + number)
                logs.event(log, logging.INFO, "draining", signal=number)
                worker.stop()

    async with opened as runtime, anyio.create_task_group() as tasks:
        worker = runtime.worker(**settings)
        await tasks.start(listen, worker)
        await runtime.tasks.maintain()
        about = worker.about()
        queues = ", ".join(about.queues)
        logs.event(log, logging.INFO, "working", worker=about.name, queues=queues, concurrency=about.concurrency)
        await worker.run()
        logs.event(log, logging.INFO, "stopped", worker=about.name)
        tasks.cancel_scope.cancel()


def _require_shared(context: Context) -> None:
    """Refuses a ledger in a file before anything is made."""
    from pursuit.ledger.opening import address_of

    if address_of(context.ledger_path) is None:
        why = "workers need a ledger that machines share: --state postgresql://…, or `state` in the configuration"
        raise InvalidArgument(why, field="--state")


@workers_app.callback(epilog="Example:  pursuit workers drain gpu-1-4711")
@partial(WithContext, reads=True)
def workers(context: Context) -> CommandAnswer | None:
    """List the workers of a shared ledger; drain one."""
    if context.click.invoked_subcommand is not None:
        return None
    _require_shared(context)
    return context.look(lambda runtime: _list(context, runtime.placement))


async def _list(context: Context, placement: Placement | None) -> CommandAnswer:
    assert placement is not None  # noqa: S101 - the ledger is shared
    found = await placement.health()
    heads = ("worker", "machine", "version", "queues", "load", "lease", "seen")
    shown = TableRows(heads, [_cells(one) for one in found.workers])
    none = Hint(f"there are no workers; to start one: {context.command('worker')}")
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
    """Let a worker finish what it does and end; its other missions go on elsewhere."""
    _require_shared(context)
    from pursuit.service.run_loop import drain as order

    context.look(lambda runtime: order(runtime.runner, name))
    return CommandAnswer({"draining": name}, Fact("draining", name))
