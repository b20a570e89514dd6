"""`pursuit serve`: missions for any MCP client.

Owns: the command and its words. Serving itself is in `server`.
Invariant: over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.options import Common, ConfigOption, JsonOption, ModeOption, StateOption, common, mission_ids

if TYPE_CHECKING:
    from pursuit.server.tokens import Tokens
if TYPE_CHECKING:
    from pursuit.errors import Fault
    from pursuit.server.serve import Door


# `pursuit token`: who may use the HTTP server.
# Invariant: a token is printed once, by the command that makes it.

PANEL = "Serve"

app = typer.Typer(help="Make a bearer token for the HTTP server; list and revoke them.", invoke_without_command=True)


@app.callback(epilog="Example:  pursuit token --name laptop")
def make(
    ctx: typer.Context,
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", show_default=False, help="Whose it is; else token-1, …")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="It may answer approvals, which no client's token may.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Make a bearer token for the HTTP server; list and revoke them."""
    said = common(ctx, config, state, json)
    if ctx.invoked_subcommand is not None:
        for option, given in (("--name", name is not None), ("--operator", operator)):
            if given:
                raise typer.BadParameter(f"{option} makes a token; `{ctx.invoked_subcommand}` takes none")
        ctx.obj = said
        return 0

    from pursuit.cli.console import Screen  # noqa: PLC0415 - commands import what they need
    from pursuit.server.tokens import role_of  # noqa: PLC0415

    screen = Screen(said)
    made, token = _made(_tokens(said), name, operator=operator)
    role = role_of(operator=operator)
    header = f"Authorization: Bearer {token}"
    if screen.json:
        screen.document({"name": made, "role": role, "token": token, "header": header})
        return 0
    screen.fact("name", made)
    screen.fact("role", role)
    screen.fact("token", token)
    screen.fact("header", header)
    screen.hint(f"it is shown this once; to take it back: {said.command('token', 'revoke', made)}")
    if operator:
        screen.hint("whoever holds it answers approvals in your name: keep it from agents")
    return 0


@app.command("list")
def list_tokens(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> int:
    """List the tokens by name and role; the tokens themselves are not kept."""
    from pursuit.cli.console import Screen  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    screen = Screen(said)
    rows = _tokens(said).names()
    if screen.json:
        screen.document({"tokens": rows})
        return 0
    for row in rows:
        screen.plain(f"{row['name']}  {row['role']}  made {row['created_at']}")
    if not rows:
        screen.hint(f"there are no tokens; to make one: {said.command('token')}")
    return 0


@app.command()
def revoke(
    ctx: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="A token, as in `token list`.")],
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Take a token back; a server that runs refuses it from the next request on."""
    from pursuit.cli.console import Screen  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    screen = Screen(said)
    _tokens(said).revoke(name)
    if screen.json:
        screen.document({"revoked": name})
    else:
        screen.fact("revoked", name)
    return 0


def _tokens(said: Common) -> Tokens:
    from pursuit.cli.context import ledger_path  # noqa: PLC0415 - commands import what they need
    from pursuit.server.tokens import Tokens  # noqa: PLC0415

    return Tokens.beside(ledger_path(said))


def _made(tokens: Tokens, name: str | None, *, operator: bool) -> tuple[str, str]:
    """A new token and its name; a name that we chose ourselves may be taken by another process meanwhile."""
    from pursuit.server.tokens import NameTaken  # noqa: PLC0415 - commands import what they need

    while name is None:
        chosen = tokens.free_name()
        try:
            return chosen, tokens.make(chosen, operator=operator)
        except NameTaken:
            continue
    return name, tokens.make(name, operator=operator)


def register_token(parent: typer.Typer) -> None:
    """Adds the commands."""
    parent.add_typer(app, name="token", rich_help_panel=PANEL)


# The options of commands that serve over HTTP.
# Invariant: a door that other machines can reach asks for a token.

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765

HttpOption = Annotated[
    bool, typer.Option("--http", help="Serve streamable HTTP at /mcp; else stdio, as clients start it.")
]
HostOption = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; any but loopback needs a token.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free one.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", show_default=False, help="A Host header to accept; repeatable."),
]
RequireTokenOption = Annotated[
    bool, typer.Option("--require-token", help="Ask for a bearer token on loopback, too (see `pursuit token`).")
]


_OF_HTTP = ("allow_host", "require_token", "host", "port")


def without_http(ctx: typer.Context, said: Common) -> list[Fault]:
    """What was given, also if it is the default, and has no meaning over stdio."""
    from pursuit.errors import Fault  # noqa: PLC0415 - commands import what they need

    given = [f"--{name.replace('_', '-')}" for name in _OF_HTTP if _is_given(ctx, name)]
    return [Fault(field=name, reason="goes with --http") for name in (*given, *(["--json"] if said.json else []))]


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def http_door(said: Common, *, host: str, port: int, allow_host: Sequence[str] | None, require_token: bool) -> Door:
    """Where clients come in; raises `InvalidArgument` for an address that needs a token where there is none."""
    from pursuit.cli.context import ledger_path  # noqa: PLC0415 - commands import what they need
    from pursuit.server.bind import check_bind, resolve  # noqa: PLC0415
    from pursuit.server.serve import Door  # noqa: PLC0415
    from pursuit.server.tokens import Tokens  # noqa: PLC0415

    tokens = Tokens.beside(ledger_path(said))
    needed = tokens if require_token or not resolve(host).is_loopback else None
    check_bind(host, needed)
    return Door(host=host, port=port, tokens=needed, operators=tokens, allowed_hosts=allow_host or ())


def told_on(said: Common) -> Callable[[str], None]:
    """What tells the address, as a document on standard output, to whoever asked for JSON."""
    from pursuit.cli.console import Screen  # noqa: PLC0415 - commands import what they need

    def tell(url: str) -> None:
        if said.json:
            Screen(said).document({"transport": "http", "url": url})
            sys.stdout.flush()

    return tell


def serve(
    ctx: typer.Context,
    *,
    http: HttpOption = False,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    allow_host: AllowHostOption = None,
    require_token: RequireTokenOption = False,
    mission: Annotated[
        str | None,
        typer.Option(
            "--mission",
            metavar="ID",
            show_default=False,
            autocompletion=mission_ids,
            help="Serve this mission alone: clients see no other one and start none.",
        ),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Serve the configured servers instead of missions, under policy.")
    ] = False,
    tool_search: Annotated[
        bool, typer.Option("--tool-search", help="With --gateway: three tools to find and call all others.")
    ] = False,
    plain_names: Annotated[
        bool, typer.Option("--plain-names", help="With --gateway: no dots in names, for models that take none.")
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", show_default=False, help="text or json; else text on a terminal, json elsewhere."),
    ] = None,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Serve missions to MCP clients, over stdio or HTTP."""
    import gc  # noqa: PLC0415 - commands import what they need
    import logging  # noqa: PLC0415
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415

    gc.disable()  # what is imported now, about 150,000 objects, stays: searching it for garbage is in vain
    from pursuit.cli.context import conduct, driving  # noqa: PLC0415
    from pursuit.cli.errors import Interrupted  # noqa: PLC0415
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415
    from pursuit.policy.rules import parse_mode  # noqa: PLC0415
    from pursuit.server import logs  # noqa: PLC0415
    from pursuit.server.gateway.upstreams import GatewayOptions  # noqa: PLC0415
    from pursuit.server.serve import serve as serving  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    said = common(ctx, config, state, json)
    drives = None if mode is None else parse_mode(mode)
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    faults = [] if http else without_http(ctx, said)
    wished = [("--tool-search", tool_search), ("--plain-names", plain_names)]
    faults += [Fault(field=name, reason="goes with --gateway") for name, there in wished if there and not gateway]
    if gateway and mission is not None:
        faults.append(Fault(field="--mission", reason="does not go with --gateway, which serves no missions"))
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    door = None
    if http:
        door = http_door(said, host=host, port=port, allow_host=allow_host, require_token=require_token)
    elif sys.stdin.isatty():
        typer.echo(
            "MCP on this terminal; a client starts this itself: pursuit install --help. Or try --http.", err=True
        )
    log = logging.getLogger(__name__)
    options = None
    # A terminal that is closed sends SIGHUP, too, and nothing of it shall stay behind.
    reloads = gateway and not any(os.isatty(stream) for stream in (0, 1, 2))
    if gateway:
        spelling = "escaped" if plain_names else "dotted"
        options = GatewayOptions(alone=not http, spelling=spelling, search=tool_search, reloads=reloads)

    async def work() -> int:
        await serving(driving(said, drives, only=mission), door, gateway=options, listening=told_on(said))
        return 0

    try:
        return conduct(work, hang_up=not reloads)
    except Interrupted as stop:
        logs.event(log, logging.INFO, "stopped", signal=stop.number)
        return 0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=PANEL)(serve)
