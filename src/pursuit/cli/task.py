"""`pursuit task`: long commands with a durable record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pursuit.cli.console import CommandAnswer, Fact, counted
from pursuit.cli.context import Context, command, group
from pursuit.cli.options import ArgOption, ArgsJsonOption, CursorOption, LimitOption, task_ids

_DASHES = "pursuit.dashes"

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID", autocompletion=task_ids, help="Task id (`pursuit task list`), its beginning, or `last`."
    ),
]
CommandName = typer.Argument(metavar="NAME | -- CMD…", help="A configured command, or any command after --.")

app = group(
    "task",
    "Run long commands that continue without you; list, tail, wait for and cancel them.",
    panel="Tasks",
    no_args_is_help=True,
    epilog="Examples:  pursuit task run -- make -j4,  pursuit task list,  pursuit task tail -f ID",
)


class _RemembersDashes(TyperCommand):
    """Remembers whether the words came after `--`, which the parser drops."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


@command(
    app,
    cls=_RemembersDashes,
    epilog="Examples:  pursuit task run --units 'ok (\\d+)' -- make test,  pursuit task run train --arg jobs=8",
)
def run(
    context: Context,
    *,
    words: Annotated[list[str], CommandName],
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the task.")] = None,
    total: Annotated[float | None, typer.Option(metavar="N", help="How many units of work there are.")] = None,
    units: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Each output line that matches counts as one unit.")
    ] = None,
    failures: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Output lines to show if the command fails.")
    ] = None,
    item: Annotated[str | None, typer.Option(metavar="PATTERN", help="Output that names the current item.")] = None,
    cwd: Annotated[Path | None, typer.Option(metavar="DIR", help="Working directory (default: this one).")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable to add; repeatable.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds from SIGTERM to SIGKILL (default 10).")
    ] = None,
    heartbeat: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds of silence before a heartbeat (default 30).")
    ] = None,
    allow_parent_paths: Annotated[
        bool, typer.Option("--allow-parent-paths", help="Allow arguments with a '..' path segment.")
    ] = False,
    arg: ArgOption = None,
    args_json: ArgsJsonOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the id and exit; the command keeps running.")
    ] = False,
) -> CommandAnswer | int:
    """Run a command as a task. Ctrl-C stops it; closing the terminal does not."""
    from pursuit.cli.task_run import RunRequest, run_task

    request = RunRequest(
        words=words,
        by_name=not context.click.meta[_DASHES],
        options={
            "title": title,
            "total": total,
            "unit_pattern": units,
            "failure_pattern": failures,
            "item_pattern": item,
            "cwd": cwd,
            "env": env,
            "grace": grace,
            "heartbeat": heartbeat,
            "allow_parent_paths": allow_parent_paths or None,
        },
        arguments=arg or (),
        args_json=args_json,
    )
    return run_task(context, request, detach=detach)


@command(app, "list", reads=True)
def list_tasks(
    context: Context,
    *,
    wanted: Annotated[
        str | None, typer.Option("--status", metavar="S", help="Only this status, such as working.")
    ] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = None,
) -> CommandAnswer:
    """List the tasks, newest first."""
    from pursuit.cli.task_run import listing

    return listing(context, wanted, cursor, limit)


@command(app, reads=True)
async def show(context: Context, *, task_id: TaskId) -> CommandAnswer:
    """Show a task: its status, its progress and its result."""
    from pursuit.cli.task_run import whole_task

    tasks = context.runtime.tasks
    await tasks.catch_up()
    record = await tasks.show(task_id)
    return CommandAnswer(record, whole_task(record))


@command(app, json_lines=True, reads=True)
async def tail(
    context: Context,
    *,
    task_id: TaskId,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of lines.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print each new line until the command has ended.")
    ] = False,
) -> CommandAnswer | None:
    """Show the last lines of a command's output. Ctrl-C stops following."""
    from pursuit.cli.task_run import tail_task

    return await tail_task(context.runtime.tasks, context.screen, task_id, lines, follow=follow)


@command(app)
async def cancel(
    context: Context,
    *,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option(help="Reason; recorded with the task.")] = None,
) -> CommandAnswer:
    """Stop a task with every process that it started, and wait until they are gone."""
    from pursuit.cli.task_run import cancel_task

    return await cancel_task(context.runtime.tasks, context.screen, task_id, reason)


@command(app, reads=True)
async def wait(
    context: Context,
    *,
    task_id: TaskId,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after this long, with exit code 4.")
    ] = None,
) -> CommandAnswer:
    """Wait until a task has ended; exits with the command's own exit code. Ctrl-C leaves the task running."""
    from pursuit.cli.task_run import wait_for_task

    return await wait_for_task(context.runtime.tasks, context.screen, task_id, timeout)


@command(app, epilog="Example:  pursuit task prune --keep 20 --older-than 12h")
def prune(
    context: Context,
    *,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep the newest N (default: as configured).")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Age: 30m, 12h, 7d or seconds (default: as configured).")
    ] = None,
) -> CommandAnswer:
    """Delete ended tasks and their output. A running task is never deleted."""
    from pursuit.cli.task_run import seconds_of

    age = None if older_than is None else seconds_of(older_than)
    context.existing_ledger()
    removed = context.drive(lambda runtime: runtime.tasks.prune(keep=keep, older_than=age))
    return CommandAnswer({"removed": removed}, Fact("removed", counted(len(removed), "task")))
