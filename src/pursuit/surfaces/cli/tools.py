"""`pursuit tools`: every tool of every server, what it may do and why; and a call by hand.

Owns: the commands and their arguments. What is shown is `show_tools`'. Invariant: looking makes no ledger; a call is in
the audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pursuit.surfaces.cli.options import Common, ConfigOption, JsonOption, ModeOption, StateOption, common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pursuit.config.configuration import Configuration
    from pursuit.config.servers import ServerConfig
    from pursuit.runtime import Runtime
    from pursuit.surfaces.cli.screen import Screen

PANEL = "Look"
LIST = "list"
_VALUED = ("--config", "--state")
_PLAIN = ("--json",)


class _ListByDefault(TyperGroup):
    """`pursuit tools SERVER` is `pursuit tools list SERVER`: a group has either words of its own or commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args, tuple(self.commands)))


def spelled_out(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """The words with the command that is meant where none is named."""
    rest = list(words)
    while rest and rest[0].partition("=")[0] in (*_VALUED, *_PLAIN):
        valued = rest[0] in _VALUED
        rest = rest[2 if valued else 1 :]
    named = bool(rest) and (rest[0] in commands or rest[0] in ("-h", "--help"))
    return list(words) if named else [LIST, *words]


app = typer.Typer(
    cls=_ListByDefault,
    help="List the tools of every server with what they may do; call one.",
    epilog="Examples:  pursuit tools,  pursuit tools git --why,  pursuit tools call git.git_log --arg repo_path=.",
)


@app.callback()
def group(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> None:
    """List the tools of every server with what they may do; call one."""
    ctx.obj = common(ctx, config, state, json)


@app.command(LIST)
def list_tools(
    ctx: typer.Context,
    *,
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", show_default=False, help="Only the tools of this one.")
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="With descriptions, and why each answer is believed.")] = False,
    mission: Annotated[
        Path | None,
        typer.Option(
            "--mission",
            metavar="FILE",
            show_default=False,
            help="A dry run: what this mission would be allowed. Nothing is started.",
        ),
    ] = None,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """List every tool: reads, writes or destroys, runs in parallel, asks first."""
    from pursuit.errors import InvalidArgument  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.context import conduct  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.cli.show_tools import listing  # noqa: PLC0415

    if server is not None and mission is not None:
        raise InvalidArgument("give a SERVER or --mission, not both", field="--mission")
    said = common(ctx, config, state, json)
    screen = Screen(said)
    found: Mapping[str, Any] = conduct(lambda: _look(said, screen, server, mission, mode))
    listing(screen, found, why=why)
    return 1 if found["failures"] else 0


async def _look(said: Common, screen: Screen, server: str | None, mission: Path | None, mode: str | None) -> Any:
    from pursuit.config.mission_file import load_mission_file  # noqa: PLC0415
    from pursuit.policy.rules import parse_mode  # noqa: PLC0415
    from pursuit.runtime import open_toolbox  # noqa: PLC0415 - commands import what they need

    loaded = None if mission is None else load_mission_file(mission)
    configuration = read_configuration(said)
    if loaded is not None:
        require_same(loaded.path, configuration, loaded.servers)
    servers = None if loaded is None else loaded.servers
    with screen.busy("asking the servers for their tools"):
        async with open_toolbox(
            configuration, mode=None if mode is None else parse_mode(mode), servers=servers
        ) as toolbox:
            return await (toolbox.listing(server) if loaded is None else toolbox.foresee(loaded.mission))


def read_configuration(said: Common) -> Configuration:
    """The configuration that is meant; an empty one where there is none."""
    from pursuit.config.configuration import Configuration, load_configuration  # noqa: PLC0415
    from pursuit.surfaces.cli.context import configuration_path  # noqa: PLC0415 - commands import what they need

    path = configuration_path(said)
    return Configuration() if path is None else load_configuration(path)


def require_same(path: Path, configuration: Configuration, servers: Mapping[str, ServerConfig]) -> None:
    """A server of the mission file must not have the name of another that is configured, here as when it is started."""
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415 - commands import what they need

    reason = "the configuration has a different server of that name; rename one"
    known = {name: replace(server, operators=False) for name, server in configuration.servers.items()}
    faults = [
        Fault(field=f"servers.{name}", reason=reason, source=str(path))
        for name, server in servers.items()
        if known.get(name, server) != server
    ]
    if faults:
        raise ValidationFailed(faults)


@app.command(
    epilog="""Example:  pursuit tools call files.read_text_file --arg path=notes.txt --arg head=10""",
)
def call(
    ctx: typer.Context,
    *,
    tool: Annotated[
        str, typer.Argument(metavar="SERVER.TOOL", show_default=False, help="A tool, as in `pursuit tools`.")
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="KEY=VALUE",
            show_default=False,
            help="An argument, JSON where that parses, else text; repeatable.",
        ),
    ] = None,
    args_json: Annotated[
        str | None,
        typer.Option(
            "--args-json", metavar="JSON|-", show_default=False, help="All arguments as one object; - reads stdin."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Say yes where policy asks first.")] = False,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Call one tool, under policy, and show what it answers."""
    from pursuit.core.tools import ToolResult  # noqa: PLC0415
    from pursuit.errors import ApprovalNeeded  # noqa: PLC0415 - commands import what they need
    from pursuit.policy.rules import parse_mode  # noqa: PLC0415
    from pursuit.surfaces.cli.call_arguments import read_arguments  # noqa: PLC0415
    from pursuit.surfaces.cli.context import conduct, driving  # noqa: PLC0415
    from pursuit.surfaces.cli.failure import Interrupted, the_cause  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.cli.show_tools import result  # noqa: PLC0415

    said = common(ctx, config, state, json)
    screen = Screen(said)
    arguments = read_arguments(arg or (), args_json)
    drives = None if mode is None else parse_mode(mode)

    async def work() -> ToolResult:
        runtime: Runtime = driving(said, drives)
        async with runtime:
            return await runtime.toolbox.call(tool, arguments, approve=_approver(screen, yes=yes))

    try:
        answer = conduct(work)
    except (ApprovalNeeded, ExceptionGroup) as error:
        cause = the_cause(error)
        if not isinstance(cause, ApprovalNeeded):
            raise
        hint = "nobody can be asked here; --yes (-y) says yes"
        raise ApprovalNeeded(f"{cause.message}; {hint}", **cause.details) from None
    except Interrupted as stop:
        screen.note("stopped; whether the call had its effect is not known")
        return 128 + stop.number
    result(screen, answer)
    return 1 if answer.is_error else 0


def _approver(screen: Screen, *, yes: bool) -> Any:
    """Who says yes: the option, the person at the terminal, or nobody."""
    import sys  # noqa: PLC0415 - commands import what they need

    import anyio  # noqa: PLC0415
    import anyio.to_thread  # noqa: PLC0415

    async def said_yes(_question: str) -> bool:
        return True

    async def asked(question: str) -> bool:
        screen.note(question)
        return await anyio.to_thread.run_sync(lambda: typer.confirm("Call it?", err=True), abandon_on_cancel=True)

    if yes:
        return said_yes
    return asked if sys.stdin.isatty() and not screen.json else None


def register(parent: typer.Typer) -> None:
    """Adds the commands."""
    parent.add_typer(app, name="tools", rich_help_panel=PANEL)
