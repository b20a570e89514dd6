"""`pursuit task`: long commands with a durable record.

Owns: the commands and their options. Running is `task_run`'s, what is shown is `show_tasks`'.
Invariant: every id may be shortened to a beginning that only one task has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pursuit.cli.options import ConfigOption, JsonLinesOption, JsonOption, StateOption, common, task_ids

if TYPE_CHECKING:
    from pursuit.runtime import Runtime

PANEL = "Tasks"
DASHES = "pursuit.dashes"
"""Whether the words of a command line stand behind `--`."""

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        show_default=False,
        autocompletion=task_ids,
        help="A task, as in `pursuit task list`; or how it begins.",
    ),
]
CommandName = typer.Argument(
    metavar="NAME | -- CMD…", show_default=False, help="A configured command; or any, behind --."
)

app = typer.Typer(
    help="Run long commands that go on without you; list, tail, wait for and cancel them.",
    no_args_is_help=True,
    epilog="Examples:  pursuit task run -- make -j4,  pursuit task list,  pursuit task tail -f ID",
)


class _Behind(TyperCommand):
    """Remembers whether the words were put behind `--`, which the parser drops."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[DASHES] = "--" in args
        return super().parse_args(ctx, args)


@app.callback()
def group(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> None:
    """Run long commands that go on without you; list, tail, wait for and cancel them."""
    ctx.obj = common(ctx, config, state, json)


@app.command(
    cls=_Behind,
    epilog="Examples:  pursuit task run --units 'ok (\\d+)' -- make test,  pursuit task run train --arg jobs=8",
)
def run(
    ctx: typer.Context,
    *,
    words: Annotated[list[str], CommandName],
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", show_default=False, help="What to call it.")
    ] = None,
    total: Annotated[
        float | None, typer.Option("--total", metavar="N", show_default=False, help="How many units there are.")
    ] = None,
    units: Annotated[
        str | None,
        typer.Option("--units", metavar="PATTERN", show_default=False, help="A line that matches counts one unit."),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option("--failures", metavar="PATTERN", show_default=False, help="Lines to show if it fails."),
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="PATTERN", show_default=False, help="Names what it is at.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option("--cwd", metavar="DIR", show_default=False, help="Where to run it; else here.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", show_default=False, help="Added to the environment; repeatable."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="SECONDS", show_default=False, help="From SIGTERM to SIGKILL; else 10."),
    ] = None,
    heartbeat: Annotated[
        float | None,
        typer.Option(
            "--heartbeat", metavar="SECONDS", show_default=False, help="Silence until a sign of life; else 30."
        ),
    ] = None,
    allow_parent_paths: Annotated[
        bool, typer.Option("--allow-parent-paths", help="Allow words with a '..' segment.")
    ] = False,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="KEY=VALUE", show_default=False, help="For NAME: a parameter; repeatable."),
    ] = None,
    args_json: Annotated[
        str | None,
        typer.Option("--args-json", metavar="JSON|-", show_default=False, help="For NAME: all of them; - reads stdin."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the id and leave; it goes on.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Run a command as a task. Ctrl-C stops it; closing the terminal does not."""
    from pursuit.cli.task_run import RunRequest, run_task  # noqa: PLC0415 - commands import what they need

    wish = RunRequest(
        words=words,
        by_name=not ctx.meta[DASHES],
        parts={
            "--title": title,
            "--total": total,
            "--units": units,
            "--failures": failures,
            "--item": item,
            "--cwd": cwd,
            "--env": env,
            "--grace": grace,
            "--heartbeat": heartbeat,
            "--allow-parent-paths": allow_parent_paths or None,
        },
        arguments=arg or (),
        args_json=args_json,
    )
    return run_task(common(ctx, config, state, json), wish, detach=detach)


@app.command("list")
def list_tasks(
    ctx: typer.Context,
    *,
    wanted: Annotated[
        str | None, typer.Option("--status", metavar="S", show_default=False, help="Only these, for example working.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="C", show_default=False, help="next_cursor of the page before.")
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """List the tasks, newest first."""
    from pursuit.cli import task_run  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import ledger_path, look  # noqa: PLC0415
    from pursuit.cli.task_run import status_named  # noqa: PLC0415

    said = common(ctx, config, state, json)
    only = status_named(wanted)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        await runtime.tasks.catch_up()
        return await runtime.tasks.list(status=only, cursor=cursor, limit=limit)

    task_run.listing(Screen(said), look(said, verb) if ledger_path(said).exists() else {"tasks": []})
    return 0


@app.command()
def show(
    ctx: typer.Context,
    *,
    task_id: TaskId,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show how a task stands, and what it came to."""
    from pursuit.cli import task_run  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        await runtime.tasks.catch_up()
        return await runtime.tasks.show(await runtime.tasks.named(task_id))

    task_run.task(Screen(said), look(said, verb))
    return 0


@app.command()
def tail(
    ctx: typer.Context,
    *,
    task_id: TaskId,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many of the last lines.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with each new line until it has ended.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonLinesOption = False,
) -> int:
    """Show the last lines that a command wrote. Ctrl-C leaves."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.task_run import tail_task  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> None:
        await tail_task(runtime.tasks, Screen(said), task_id, lines, follow=follow)

    look(said, verb)
    return 0


@app.command()
def cancel(
    ctx: typer.Context,
    *,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option("--reason", show_default=False, help="Why; it is kept.")] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Stop a task with every process that it started, and wait until they are gone."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.task_run import cancel_task  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> None:
        await cancel_task(runtime.tasks, Screen(said), task_id, reason)

    look(said, verb)
    return 0


@app.command()
def wait(
    ctx: typer.Context,
    *,
    task_id: TaskId,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, show_default=False, help="Then leave with exit code 4."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Wait until a task has ended; the exit code is the command's own. Ctrl-C leaves it running."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.task_run import wait_for_task  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> int:
        return await wait_for_task(runtime.tasks, Screen(said), task_id, timeout)

    return look(said, verb)


@app.command(epilog="Example:  pursuit task prune --keep 20 --older-than 12h")
def prune(
    ctx: typer.Context,
    *,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, show_default=False, help="Keep the newest; else as set.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", show_default=False, help="30m, 12h, 7d or seconds; else as set."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Remove ended tasks and their output. A running one always stays."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import conduct, driving, existing_ledger  # noqa: PLC0415 - as above
    from pursuit.cli.task_run import seconds_of  # noqa: PLC0415

    said = common(ctx, config, state, json)
    age = None if older_than is None else seconds_of(older_than)
    existing_ledger(said)

    async def work() -> list[str]:
        async with driving(said) as runtime:
            return await runtime.tasks.prune(keep=keep, older_than=age)

    removed = conduct(work)
    screen = Screen(said)
    if screen.json:
        screen.document({"removed": removed})
    else:
        screen.fact("removed", f"{len(removed)} task{'' if len(removed) == 1 else 's'}")
    return 0


def register(parent: typer.Typer) -> None:
    """Adds the commands."""
    parent.add_typer(app, name="task", rich_help_panel=PANEL)
