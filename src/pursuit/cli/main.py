"""The command `pursuit`: the list of commands, the handler of every error, and the exit of the process.

Errors never print a traceback unless PURSUIT_DEBUG=1 is set. Start-up time is a feature: `pursuit --help` imports no
command, and running a command imports only that command.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from pursuit import __version__
from pursuit.cli.console import CommandAnswer
from pursuit.cli.context import Context, WithContext
from pursuit.errors import advice


class Listed(NamedTuple):
    """A command in the list of `pursuit --help`; `place` is its module and, unless it is `app`, the app's name."""

    panel: str
    place: str
    help: str


def _panel(title: str, **commands: tuple[str, str]) -> dict[str, Listed]:
    return {name: Listed(title, place, text) for name, (place, text) in commands.items()}


COMMANDS: dict[str, Listed] = {
    **_panel(
        "Start",
        demo=("missions", "Run an example in .pursuit/demo; needs no key and no network."),
        init=("setup", "Write a commented example mission that runs without changes."),
        schema=("setup", "Print the JSON Schema of mission.toml or pursuit.toml, for editors."),
        scaffold=("setup", "Draft a mission file for a goal from a template; complete it before you run it."),
        trust=("setup", "Trust the servers, commands, checks, judges and models of a folder."),
        install=("install", "Add Pursuit to Claude Desktop, Claude Code, VS Code or Cursor."),
        run=("missions", "Start the mission in a file and run it until it ends or waits."),
        check=("check", "Check the criteria of a mission file on the files as they are, without a proposer."),
        gate=("gate", "Answer the hooks of a coding agent: it may stop once the checks of a mission file pass."),
        start=("missions", "Record the mission in a file without running it here, and print its id."),
        iterate=("missions", "Run a few iterations of a mission."),
        resume=("missions", "Continue a mission that is pending, interrupted, paused, failed or ended as no_progress."),
    ),
    **_panel(
        "Look",
        status=("queries", "Show a mission's status: criteria with their evidence, budget, verdict."),
        compare=("queries", "Compare missions side by side: outcome, criteria, best values, use."),
        list=("queries", "List the missions of the ledger, newest first."),
        history=("queries", "Show the iterations of a mission, a hundred per page."),
        watch=("queries", "Follow a mission until it ends or is interrupted, whichever process runs it."),
        prompt=(
            "queries",
            "Show the exact requests to the mission's language model: the next, or those of an iteration.",
        ),
        replay=("queries", "Rebuild each request and verdict of a mission from its ledger, and show differences."),
        logs=("queries", "Show what a mission did, in order: turns, calls, questions, failing checks."),
        report=("queries", "Show the report of a mission; or write its trials as a table."),
        lessons=("queries", "Search the lessons of ended missions, best match first."),
        doctor=("queries", "Check configuration, servers and ledger, and suggest fixes."),
        agents=("queries", "List the coding agents on this machine, and the line for a mission file."),
        tools=("tools", "List the tools of every server and what they may do; call a tool; accept changed tools."),
    ),
    **_panel(
        "Steer",
        pause=("control", "Pause a mission; `pursuit resume` continues at the same call."),
        abort=("control", "End a mission as terminated, even during a call."),
        complete=("control", "End a mission as completed, by the operator's decision."),
        extend=("control", "Raise the caps of a mission's budget."),
        approvals=("control", "Show the calls that wait for your approval."),
        approve=("control", "Approve waiting calls; their missions continue when they run again."),
        deny=("control", "Deny waiting calls; their missions continue without them."),
        workspace=("workspace", "Show, apply or remove the changes of a mission's coding agent."),
    ),
    **_panel(
        "Prove",
        verify=("audit", "Check every hash of the ledger or of an exported mission."),
        export=("audit", "Write a mission with its blobs to one file that can be verified elsewhere."),
        audit=("audit", "Show who requested which operation, from the terminal or a client."),
        forget=("audit", "Delete an ended mission and everything it stored; a tombstone remains."),
        migrate=("migrate", "Copy a ledger to another database; `up` migrates a schema."),
    ),
    **_panel(
        "Serve",
        serve=("serve", "Serve missions to MCP clients, over stdio or HTTP."),
        page=("serve", "Open the web page: missions, costs and pending approvals."),
        worker=("worker", "Run missions of a ledger on PostgreSQL, alongside other workers."),
        token=("tokens", "Create a bearer token for the HTTP server; list and revoke tokens."),
        schedule=("serve.schedule_app", "List the schedules that `pursuit serve` runs."),
        workers=("worker.workers_app", "List the workers of a shared ledger; drain one."),
    ),
    **_panel(
        "Tasks", task=("task", "Run long commands that outlive the terminal; list, tail, wait for and cancel them.")
    ),
    **_panel(
        "Problems",
        problem=("problem", "Problems to test agents on: list, search, show, serve, attempt, compare."),
    ),
}
"""All commands, in the order of the list."""


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            self.commands[args[0]] = loaded(args[0])
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name].place.partition(".")
    own: typer.Typer = getattr(import_module(f"pursuit.cli.{module}"), attribute or "app")
    only = typer.Typer(add_completion=False, rich_markup_mode=own.rich_markup_mode)
    only.callback()(_listed)
    if own.info.name == name:
        only.add_typer(own, help=COMMANDS[name].help)
    only.registered_commands = [one for one in own.registered_commands if own.info.name != name]
    listed: Any = typer.main.get_command(only)
    found = listed.commands[name]
    found.help = found.help or COMMANDS[name].help  # a longer docstring takes precedence
    return found


def _listed() -> None:
    """A placeholder in the list for a command that is not loaded."""


app = typer.Typer(
    name="pursuit",
    cls=_Commands,
    help="Pursues a goal with MCP servers until its criteria are met, its budget is spent, or it is stuck.",
    epilog="Start here:  pursuit demo,  then  pursuit init beam,  cd beam  and  pursuit run mission.toml",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.help, rich_help_panel=_entry.panel)(_listed)


def installation() -> dict[str, str | list[str] | dict[str, str]]:
    """Versions of Pursuit, Python, the system and the packages that it uses; variables that are set, without values."""
    import platform
    import re
    from importlib.metadata import distributions, requires

    installed = {one.name.lower(): one.version for one in distributions()}
    wanted = [one for one in requires("pursuit") or () if not re.search(r"extra == ['\"](dev|bench)['\"]", one)]
    names = sorted({re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted})
    matters = re.compile(r"PURSUIT_\w+|XDG_(DATA|CONFIG)_HOME|\w+_API_KEY|OPENAI_BASE_URL|VIRTUAL_ENV")
    return {
        "version": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "packages": {name: installed[name] for name in names if name in installed},
        "environment": sorted(name for name in os.environ if matters.fullmatch(name)),
    }


def _show_version(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        # typer calls this before it has parsed a `--json` later on the line.
        if "--json" in sys.argv:
            import json

            typer.echo(json.dumps(installation(), indent=2))
        else:
            typer.echo(f"pursuit {__version__}")
        raise typer.Exit


@app.callback()
@partial(WithContext, reads=True)
def before(
    context: Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> CommandAnswer | None:
    """Pursues a goal with MCP servers until its criteria are met, its budget is spent, or it is stuck."""
    if version or context.click.invoked_subcommand is not None:
        return None
    steps = {
        advice("pursuit demo"): "watch an example: a script designs a beam, no key needed",
        advice("pursuit init"): f"write that example here; then: {advice('pursuit run {}', 'mission.toml')}",
        advice("pursuit init --template {}", "coding"): "your coding agent works until your checks pass",
        "pursuit --help": "show all commands",
    }
    lines = [f"  {step:32}{text}" for step, text in steps.items()]
    return CommandAnswer({"next": list(steps)}, "Pursuit works until your criteria are met. Type next:", *lines)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    gc.disable()  # saves an eighth of the start-up time; `context.run` enables it again
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show \u2713 shows a question mark instead of failing.
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
        code: Any = app(list(words), prog_name="pursuit", standalone_mode=False)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # typer exits like this if the pipe that reads its help is closed
        return _lost_reader(end.code if isinstance(end.code, int) else 1)
    except Exception as error:  # noqa: BLE001 - the boundary: every error becomes a message and a code
        from pursuit.cli.errors import explain

        try:
            return explain(error, as_json=as_json)
        except BrokenPipeError:
            return _lost_reader(1)
    return code if isinstance(code, int) else 0


def _lost_reader(code: int) -> int:
    """The pipe that reads our output is closed: buffered output must not fail at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return code
