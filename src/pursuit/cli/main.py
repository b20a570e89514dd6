"""The command `pursuit`: the app, the one place that catches every error, and the way out of the process.

No input and no fault of ours ends in a traceback, unless PURSUIT_DEBUG=1 asks for it. Start-up time is a feature: this
module and the modules of commands import nothing heavy; each command imports what it needs when it runs.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, NoReturn

import typer
from typer.models import CommandInfo

from pursuit import __version__
from pursuit.cli import (
    audit,
    control,
    install,
    migrate,
    missions,
    problem,
    queries,
    serve,
    setup,
    task,
    tools,
    worker,
    workspace,
)
from pursuit.cli.context import Context, WithContext

app = typer.Typer(
    name="pursuit",
    help="Pursues a goal with MCP servers until its criteria are met, its budget is spent, or it is stuck.",
    epilog="Start here:  pursuit init demo,  then  cd demo  and  pursuit run mission.toml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        # `--json` may come later on the line, and typer calls this before it has read that.
        typer.echo(f'{{"version": "{__version__}"}}' if "--json" in sys.argv else f"pursuit {__version__}")
        raise typer.Exit


@app.callback()
@WithContext
def before(
    _context: Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Pursues a goal with MCP servers until its criteria are met, its budget is spent, or it is stuck."""


for module in (setup, install, missions, queries, control, audit, serve, worker):
    for one in module.app.registered_commands:
        one.rich_help_panel = module.PANEL
    app.registered_commands += module.app.registered_commands
for group in (
    serve.token_app,
    serve.schedule_app,
    worker.workers_app,
    task.app,
    problem.app,
    tools.app,
    workspace.app,
    migrate.app,
):
    app.add_typer(group, name=group.info.name, rich_help_panel=group.rich_help_panel)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and ends the process with its exit code."""
    gc.disable()  # saves an eighth of the start while modules load; `context.run` turns it on again
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show \u2713 shows a question mark, and the command goes on.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = answer(words)
    try:
        sys.stdout.flush()
    except OSError:
        code = _lost_reader(code)
    pool = sys.modules.get("pursuit.sandbox.pool")
    if pool is not None and pool.monty_started():
        pool.leave(code)
    sys.exit(code)


def answer(words: Sequence[str]) -> int:
    """Runs one command in this process and returns its exit code, whatever happens."""
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code: Any = _app_for(words)(list(words), prog_name="pursuit", standalone_mode=False)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # typer's own exit when the reader of its help is gone
        return _lost_reader(end.code if isinstance(end.code, int) else 1)
    except Exception as error:  # noqa: BLE001 - the boundary: every error becomes a message and a code
        from pursuit.cli.errors import explain

        try:
            return explain(error, as_json=as_json)
        except BrokenPipeError:
            return _lost_reader(1)
    return code if isinstance(code, int) else 0


def _app_for(words: Sequence[str]) -> typer.Typer:
    """The app with only the command that comes first, if one does: building all of them takes a while."""
    narrow = copy(app)
    narrow.registered_commands = [one for one in app.registered_commands if words[:1] == [_name(one)]]
    narrow.registered_groups = [one for one in app.registered_groups if words[:1] == [one.name]]
    return narrow if narrow.registered_commands or narrow.registered_groups else app


def _name(command: CommandInfo) -> str | None:
    return command.name or (command.callback and command.callback.__name__)


def _lost_reader(code: int) -> int:
    """The reader of our output is gone: what is still buffered must not fail at the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return code
