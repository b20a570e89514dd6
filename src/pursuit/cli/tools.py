"""`pursuit tools`: every tool of every server, what it may do and why; and a call by hand.

Owns: the commands and their arguments. What is shown is `show_tools`'. Invariant: looking makes no ledger; a call is in
the audit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from pursuit.cli.console import Screen, clean, line
from pursuit.cli.options import Common, ConfigOption, JsonOption, ModeOption, StateOption, common
from pursuit.reports.wording import compact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pursuit.cli.console import Screen
    from pursuit.config.configuration import Configuration
    from pursuit.config.servers import ServerConfig
    from pursuit.runtime import Runtime
if TYPE_CHECKING:
    from pursuit.core.tools import ToolResult


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
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import conduct  # noqa: PLC0415
    from pursuit.errors import InvalidArgument  # noqa: PLC0415 - commands import what they need

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
    from pursuit.cli.context import configuration_path  # noqa: PLC0415 - commands import what they need
    from pursuit.config.configuration import Configuration, load_configuration  # noqa: PLC0415

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
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import conduct, driving  # noqa: PLC0415
    from pursuit.cli.errors import Interrupted, the_cause  # noqa: PLC0415
    from pursuit.cli.options import read_arguments  # noqa: PLC0415
    from pursuit.errors import ApprovalNeeded  # noqa: PLC0415 - commands import what they need
    from pursuit.policy.rules import parse_mode  # noqa: PLC0415

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


# Tools on the screen: a listing, the reasons behind it, and what a call answered.
# Invariant: a plain listing is one tool a line; what a server wrote cannot steer the terminal.

ASKS = {"allow": "no", "ask": "yes", "deny": "denied"}
STYLES = {"reads": "green", "writes": "yellow", "destroys": "red", "no": "green", "yes": "yellow", "denied": "red"}
QUESTIONS = ("read_only", "idempotent", "parallel_safe", "destructive")
LONGEST = 160


def listing(screen: Screen, found: Mapping[str, Any], *, why: bool) -> None:
    """Every tool, then what could not be reached."""
    if screen.json:
        screen.document(found)
        return
    rows = found["tools"]
    if screen.rich and rows and not why:
        screen.show(_table(rows))
    else:
        for row in rows:
            _plain(screen, row, why=why)
    for server, reason in found["failures"].items():
        screen.plain(f"{line(server)}\tcannot be reached\t{line(reason, LONGEST)}")
        screen.note(reason)
    for call in found.get("calls", ()):
        screen.plain(_call(call))
    _footer(screen, found)


def _footer(screen: Screen, found: Mapping[str, Any]) -> None:
    for server in found.get("disabled", ()):
        screen.note(f"server {server} is disabled in the configuration")
    for warning in found["warnings"]:
        screen.note(f"warning: {warning}")
    if not found["tools"] and not found["failures"]:
        screen.hint("no server offers a tool; configure one under [servers] in pursuit.toml, or in mcp.json")
    elif any(row["when"] for row in found["tools"]):
        screen.hint(f"mode {found['mode']}; * depends on the arguments: --why shows the rules")
    else:
        screen.hint(f"mode {found['mode']}; --why shows the reasons")


def _asks(row: Mapping[str, Any]) -> str:
    return ASKS[row["decision"]] + ("*" if row["when"] else "")


def _table(rows: list[Mapping[str, Any]]) -> Any:
    from rich.table import Table  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("tool", "may", "parallel", "asks first", "why"):
        table.add_column(name, no_wrap=name != "why", overflow="ellipsis" if name == "why" else "fold")
    for row in rows:
        cells = (line(row["name"]), row["effect"], "yes" if row["parallel_safe"] else "no", _asks(row), row["reason"])
        styles = ("", STYLES[row["effect"]], "", STYLES[_asks(row).removesuffix("*")], "dim")
        table.add_row(*(Text(line(cell), style=style) for cell, style in zip(cells, styles, strict=True)))
    return table


def _plain(screen: Screen, row: Mapping[str, Any], *, why: bool) -> None:
    parallel = "parallel" if row["parallel_safe"] else "alone"
    cells = (row["name"], row["effect"], parallel, f"asks first: {_asks(row)}", row["reason"])
    screen.plain("\t".join(line(cell) for cell in cells))
    if not why:
        return
    if row["description"]:
        screen.plain(f"  {line(row['description'], LONGEST)}")
    for name in QUESTIONS:
        answer = "yes" if row[name] else "no"
        screen.plain(f"  {name}: {answer} ({line(row['why'].get(name, 'nobody says otherwise'))})")
    for rule in row["when"]:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in rule["arguments"].items())
        because = f": {rule['reason']}" if rule["reason"] else ""
        screen.plain(f"  {line(rule['decision'])} when {line(when + because)}")


def _call(call: Mapping[str, Any]) -> str:
    return line(f"call {call['name']} {compact(call['args'])}: {call['decision']} ({call['reason']})")


def result(screen: Screen, answer: ToolResult) -> None:
    """What a tool answered: texts as they are, other blocks by their kind, structured content where there are none."""
    if screen.json:
        screen.document(answer.as_dict())
        return
    if answer.is_error:
        screen.note("the tool answered with an error:")
    shown = [_block(block) for block in answer.content]
    if not shown and answer.structured is not None:
        shown = [json.dumps(answer.structured, indent=2, ensure_ascii=False, default=str)]
    for text in shown:
        screen.plain(clean(text))
    if not shown:
        screen.hint("it answered with nothing")


def _block(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"[link {block.get('uri')} {block.get('name', '')}]".replace(" ]", "]")
        case "resource":
            resource = block.get("resource")
            inner = cast("dict[str, Any]", resource) if isinstance(resource, dict) else {}
            return str(inner["text"]) if "text" in inner else f"[resource {inner.get('uri')}]"
        case kind:
            size = len(str(block.get("data", ""))) * 3 // 4
            return f"[{kind} {block.get('mimeType', '')}, about {size} bytes]"
