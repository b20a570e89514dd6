"""`pursuit serve`: missions for MCP clients; `token`: bearer tokens for its HTTP server; `schedule`: what it starts.

Over stdio nothing of ours goes to standard output. A token is printed once, by the command that makes it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.context import Context, Interrupted, NoLedger, WithContext, command, conduct, group
from pursuit.cli.options import ModeOption, mission_ids

if TYPE_CHECKING:
    from pursuit.errors import Fault
    from pursuit.server.bind import HttpBinding
    from pursuit.server.tokens import Right, Tokens

PANEL = "Serve"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765

HttpOption = Annotated[
    bool, typer.Option("--http", help="Serve streamable HTTP at /mcp (default: stdio, as clients start it).")
]
HostOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on; any but loopback needs a token.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")]
AllowHostOption = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Accept this Host header; repeatable.")]
RequireTokenOption = Annotated[
    bool, typer.Option("--require-token", help="Require a bearer token on loopback too (see `pursuit token`).")
]
OperatorOption = Annotated[bool, typer.Option("--operator", help="Operator token: may answer approvals.")]
_HTTP_OPTIONS = ("allow_host", "require_token", "host", "port")

app = typer.Typer()
token_app = typer.Typer(
    name="token",
    help="Make a bearer token for the HTTP server; list and revoke tokens.",
    invoke_without_command=True,
    rich_help_panel=PANEL,
)
schedule_app = group("schedule", "List the schedules that `pursuit serve` keeps.", panel=PANEL)


@command(app)
def serve(
    context: Context,
    *,
    http: HttpOption = False,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    allow_host: AllowHostOption = None,
    require_token: RequireTokenOption = False,
    mission_id: Annotated[
        str | None,
        typer.Option(
            "--mission",
            metavar="ID",
            autocompletion=mission_ids,
            help="Serve only this mission: clients see no other mission and cannot start one.",
        ),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Serve the tools of the configured servers, under policy, not missions.")
    ] = False,
    tool_search: Annotated[
        bool, typer.Option("--tool-search", help="With --gateway: offer three tools that find and call all others.")
    ] = False,
    plain_names: Annotated[
        bool, typer.Option("--plain-names", help="With --gateway: no dots in tool names, for models that reject them.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None, typer.Option(help="text or json (default: text on a terminal, else json).")
    ] = None,
    mode: ModeOption = None,
) -> None:
    """Serve missions to MCP clients, over stdio or HTTP."""
    import gc
    import os

    gc.disable()  # these imports make about 150,000 objects that stay: there is no garbage among them
    from pursuit.errors import Fault, ValidationFailed
    from pursuit.server import logs
    from pursuit.server.serve import serve as serving

    gc.freeze()
    gc.enable()
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    faults = [] if http else without_http(context)
    gateway_only = [("--tool-search", tool_search), ("--plain-names", plain_names)]
    faults += [Fault(field=name, reason="goes with --gateway") for name, given in gateway_only if given and not gateway]
    if gateway and mission_id is not None:
        faults.append(Fault(field="--mission", reason="does not go with --gateway, which serves no missions"))
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    door = None
    if http:
        door = http_door(context, host=host, port=port, allow_host=allow_host, require_token=require_token)
    elif sys.stdin.isatty():
        typer.echo(
            "MCP on this terminal; a client starts this itself: pursuit install --help. Or try --http.", err=True
        )
    options = None
    # A terminal that closes sends SIGHUP too, and then the server must end and not reload.
    reloads = gateway and not any(os.isatty(stream) for stream in (0, 1, 2))
    if gateway:
        from pursuit.server.gateway.upstreams import GatewayOptions

        spelling = "escaped" if plain_names else "dotted"
        options = GatewayOptions(alone=not http, spelling=spelling, search=tool_search, reloads=reloads)
    context.trust_here(schedules=True)

    async def work() -> None:
        runtime = context.driving(mode, only=mission_id)
        await serving(runtime, door, gateway=options, listening=print_address(context))

    serve_until_stopped(work, hang_up=not reloads)


def serve_until_stopped(work: Callable[[], Awaitable[None]], *, hang_up: bool = True) -> None:
    """Serves until the client leaves or a signal asks to stop, which is a normal end."""
    import logging

    from pursuit.server import logs

    try:
        conduct(work, hang_up=hang_up)
    except Interrupted as stop:
        logs.event(logging.getLogger(__name__), logging.INFO, "stopped", signal=stop.number)


def without_http(context: Context) -> list[Fault]:
    """The options that mean nothing over stdio and were given, even with their default values."""
    from pursuit.errors import Fault

    sources = {name: context.click.get_parameter_source(name) for name in _HTTP_OPTIONS}
    given = [f"--{name.replace('_', '-')}" for name, source in sources.items() if source and source.name != "DEFAULT"]
    return [Fault(field=name, reason="goes with --http") for name in (*given, *(["--json"] if context.json else []))]


def http_door(
    context: Context, *, host: str, port: int, allow_host: Sequence[str] | None, require_token: bool
) -> HttpBinding:
    """Where HTTP clients connect; raises `InvalidArgument` for an address that needs a token if there is none."""
    from pursuit.server.bind import HttpBinding, check_bind, resolve

    tokens = _tokens(context)
    needed = tokens if require_token or not resolve(host).is_loopback else None
    check_bind(host, needed)
    return HttpBinding(host=host, port=port, tokens=needed, operators=tokens, allowed_hosts=allow_host or ())


def print_address(context: Context) -> Callable[[str], None]:
    """A callback that prints the server's address as JSON, if `--json` asks for it."""

    def listening(url: str) -> None:
        context.screen.answer({"transport": "http", "url": url})

    return listening


@token_app.callback(epilog="Example:  pursuit token --name laptop")
@WithContext
def make(
    context: Context,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Token name (default: token-1, …).")] = None,
    operator: OperatorOption = False,
) -> None:
    """Make a bearer token for the HTTP server; list and revoke tokens."""
    if (subcommand := context.click.invoked_subcommand) is not None:
        for option, given in (("--name", name is not None), ("--operator", operator)):
            if given:
                how = "give it after `new`" if subcommand == "new" else f"`{subcommand}` takes none"
                raise typer.BadParameter(f"{option} makes a token; {how}")
        return
    _print_made(context, name, operator=operator)


@command(token_app, "new", epilog="Example:  pursuit token new laptop --may approve-own")
def new_token(
    context: Context,
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Token name (default: token-1, …).")] = None,
    operator: OperatorOption = False,
    may: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RIGHT",
            help="approve-own: its user's answers to approvals count over HTTP, if [approvals] channels lists that.",
        ),
    ] = None,
) -> None:
    """Make a bearer token, also with further rights."""
    _print_made(context, name, operator=operator, may=may or ())


def _print_made(context: Context, name: str | None, *, operator: bool, may: Sequence[str] = ()) -> None:
    from pursuit.errors import Fault, ValidationFailed
    from pursuit.server.tokens import RIGHTS, role_of

    screen = context.screen
    rights: list[Right] = [one for one in RIGHTS if one in may]
    if wrong := [one for one in may if one not in RIGHTS]:
        faults = [Fault(field="--may", reason=f"{one[:80]!r} is not a right; there is approve-own") for one in wrong]
        raise ValidationFailed(faults, "no token was made")
    made, token = _make_token(_tokens(context), name, operator=operator, may=rights)
    facts = {
        "name": made,
        "role": role_of(operator=operator),
        **({"may": ", ".join(rights)} if rights else {}),
        "token": token,
        "header": f"Authorization: Bearer {token}",
    }
    screen.answer(facts)
    for label, value in facts.items():
        screen.fact(label, value)
    screen.hint(f"the token is shown only now; to revoke it: {context.command('token', 'revoke', made)}")
    if operator:
        screen.hint("with it a client answers approvals in your name: keep it from agents")


@command(token_app, "list")
def list_tokens(context: Context) -> None:
    """List the tokens by name and role; the tokens themselves are not stored."""
    rows = _tokens(context).names()
    if context.screen.answer({"tokens": rows}):
        return
    for row in rows:
        may = f"  may {', '.join(row['may'])}" if "may" in row else ""
        context.screen.plain(f"{row['name']}  {row['role']}  made {row['created_at']}{may}")
    if not rows:
        context.screen.hint(f"there are no tokens; to make one: {context.command('token')}")


@command(token_app)
def revoke(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> None:
    """Revoke a token; a running server refuses it from the next request on."""
    _tokens(context).revoke(name)
    context.screen.answer({"revoked": name})
    context.screen.fact("revoked", name)


@command(token_app)
def rotate(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> None:
    """Make a new token in place of one; its missions and tasks stay its own."""
    token = _tokens(context).rotate(name)
    facts = {"name": name, "token": token, "header": f"Authorization: Bearer {token}"}
    context.screen.answer(facts)
    for label, value in facts.items():
        context.screen.fact(label, value)
    context.screen.hint("the token is shown only now; the one before is refused")


@command(schedule_app, "list")
def list_schedules(context: Context) -> None:
    """List the schedules: the next time, the last run, and runs that were missed or skipped."""
    from pursuit.cli.console import line
    from pursuit.engine.context import SystemClock
    from pursuit.service.schedules import schedule_rows

    configs, now = context.configuration().schedules, SystemClock.now()
    try:
        rows = context.look(lambda runtime: schedule_rows(configs, runtime.service.ledger, now))
    except NoLedger:
        rows = conduct(lambda: schedule_rows(configs, None, now))
    screen = context.screen
    if screen.answer({"schedules": rows}):
        return
    columns = ("schedule", "cron", "next", "last run", "missed", "mission file")
    cells = [[line(row["name"]), row["cron"], *_schedule_cells(row)] for row in rows]
    if screen.rich and cells:
        screen.table(columns, cells)
    else:
        for cell in cells:
            screen.row(cell)
    for row in rows:
        if reason := row.get("last_run", {}).get("reason"):
            screen.note(f"{row['name']}: the last run was refused: {reason}")
    if not rows:
        screen.hint("there are no schedules; write [schedule.NAME] in pursuit.toml, with cron and mission")
    elif any(row.get("missed") for row in rows):
        screen.hint("runs are missed while no `pursuit serve` runs with this configuration")


def _schedule_cells(row: dict[str, Any]) -> list[str]:
    """When it is due next, how its last run stands, what was missed, and its file."""
    from pursuit.reports.wording import moment

    last = row.get("last_run")
    run = "none" if last is None else f"{last['session_id']} {last['status']}"
    missed = f"{row['missed']} (last {moment(row['last_missed_at'])})" if row.get("missed") else "0"
    return [moment(row["next_at"]), run, missed, row["mission"]]


def _tokens(context: Context) -> Tokens:
    from pursuit.server.tokens import Tokens

    return Tokens.beside(context.ledger_path())


def _make_token(tokens: Tokens, name: str | None, *, operator: bool, may: Sequence[Right] = ()) -> tuple[str, str]:
    """A new token and its name; another process may take a name that we chose, so we try the next one."""
    from pursuit.server.tokens import NameTaken

    while name is None:
        chosen = tokens.free_name()
        try:
            return chosen, tokens.make(chosen, operator=operator, may=may)
        except NameTaken:
            continue
    return name, tokens.make(name, operator=operator, may=may)
