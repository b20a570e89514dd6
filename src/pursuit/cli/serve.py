"""`pursuit serve`: missions for MCP clients; `token`: bearer tokens for its HTTP server; `schedule`: what it starts.

Over stdio nothing of ours goes to standard output. A token is printed once, by the command that makes it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import CommandAnswer, Fact, Hint, Note, Part, TableRows, facts_of, line
from pursuit.cli.context import Context, Interrupted, NoLedger, WithContext, command, conduct, group
from pursuit.cli.options import ModeOption, mission_ids
from pursuit.errors import Fault, InvalidArgument, ValidationFailed, advice

if TYPE_CHECKING:
    from pursuit.page import Sessions
    from pursuit.server.bind import HttpBinding
    from pursuit.server.tokens import Right, Scope, Tokens

PANEL = "Serve"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
_LONGEST_LIFE = 3650 * 86_400.0

HttpOption = Annotated[
    bool, typer.Option("--http", help="Serve streamable HTTP at /mcp (default: stdio, as clients start it).")
]
HostOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")]
AllowHostOption = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Accept this Host header; repeatable.")]
RequireTokenOption = Annotated[
    bool,
    typer.Option(
        "--require-token/--no-token",
        help="Ask for a bearer token (`pursuit token`); or not, on loopback alone: every local user can use it then.",
    ),
]
SocketOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Serve HTTP on this unix socket, to your own user only, without a token."),
]
_TCP_OPTIONS = ("allow_host", "require_token", "host", "port")
OperatorOption = Annotated[bool, typer.Option("--operator", help="Operator token: may answer approvals.")]

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
    require_token: RequireTokenOption = True,
    socket: SocketOption = None,
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
    from pursuit.server import logs
    from pursuit.server.serve import serve as serving

    gc.freeze()
    gc.enable()
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    faults = transport_faults(context, http=http, socket=socket)
    gateway_only = [("--tool-search", tool_search), ("--plain-names", plain_names)]
    faults += [Fault(field=name, reason="goes with --gateway") for name, given in gateway_only if given and not gateway]
    if gateway and mission_id is not None:
        faults.append(Fault(field="--mission", reason="does not go with --gateway, which serves no missions"))
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    if mission_id is not None:
        context.existing_ledger()
    trusted = context.trust_here(schedules=True)
    door = None
    if http or socket is not None:
        door = http_door(
            context, host=host, port=port, allow_host=allow_host, require_token=require_token, socket=socket
        )
    elif sys.stdin.isatty():
        typer.echo(
            f"MCP on this terminal; a client starts it ({advice('pursuit install --help')}). Or try --http.", err=True
        )
    options = None
    # A terminal that closes sends SIGHUP too, and then the server must end and not reload.
    reloads = gateway and not any(os.isatty(stream) for stream in (0, 1, 2))
    if gateway:
        from pursuit.server.gateway.upstreams import GatewayOptions

        spelling = "escaped" if plain_names else "dotted"
        options = GatewayOptions(alone=door is None, spelling=spelling, search=tool_search, reloads=reloads)

    sessions = page = None
    if door is not None and door.unix_socket is None:  # a browser opens no unix socket
        from pursuit.page import open_page

        sessions = sessions_of(context)
        page = partial(open_page, sessions=sessions)

    async def work() -> None:
        runtime = trusted.runtime(mode, only=mission_id)
        listening = print_address(context, door, sessions)
        await serving(runtime, door, gateway=options, page=page, listening=listening)

    serve_until_stopped(work, hang_up=not reloads)


def serve_until_stopped(work: Callable[[], Awaitable[None]], *, hang_up: bool = True) -> None:
    """Serves until the client leaves or a signal asks to stop, which is a normal end."""
    import logging

    from pursuit.server import logs

    try:
        conduct(work, hang_up=hang_up)
    except Interrupted as stop:
        logs.event(logging.getLogger(__name__), logging.INFO, "stopped", signal=stop.number)


def transport_faults(context: Context, *, http: bool, socket: Path | None) -> list[Fault]:
    """The options that mean nothing for this transport and were given, even with their default values."""
    sources = {name: context.click.get_parameter_source(name) for name in _TCP_OPTIONS}
    given = [_spelt(context, name) for name, source in sources.items() if source and source.name != "DEFAULT"]
    if socket is not None:
        return [
            Fault(field=name, reason="does not go with --socket") for name in (*given, *(["--http"] if http else []))
        ]
    given += ["--json"] if context.json else []
    return [] if http else [Fault(field=name, reason="goes with --http") for name in given]


def _spelt(context: Context, name: str) -> str:
    return "--no-token" if context.click.params.get(name) is False else f"--{name.replace('_', '-')}"


def http_door(
    context: Context,
    *,
    host: str,
    port: int,
    allow_host: Sequence[str] | None,
    require_token: bool,
    socket: Path | None,
) -> HttpBinding:
    """Where HTTP clients connect, with a new token if there is none; other machines need one that a person made."""
    from pursuit.server.bind import HttpBinding, check_bind, resolve

    tokens, oauth = tokens_of(context), None
    if socket is not None:
        return HttpBinding(unix_socket=socket, operators=tokens)
    if (config := context.configuration.oauth) is not None:
        from pursuit.server.oauth import OAuth

        context.trust_here()  # a folder of a stranger must not say whose tokens count
        oauth = OAuth(config)
        if not require_token:
            raise InvalidArgument(
                "--no-token: [serve.oauth] of the configuration asks for tokens; remove one of the two",
                field="--no-token",
            )
    needed = tokens if require_token else None
    check_bind(host, needed, oauth=oauth is not None)
    # Other machines get no token that no person made; and with an authorization server clients sign in there.
    makes = require_token and oauth is None and resolve(host).is_loopback
    return HttpBinding(
        host=host,
        port=port,
        tokens=needed,
        operators=tokens,
        oauth=oauth,
        allowed_hosts=allow_host or (),
        new_token=tokens.local_if_needed() if makes else None,
    )


def print_address(
    context: Context, door: HttpBinding | None, sessions: Sessions | None = None
) -> Callable[[str], None]:
    """A callback that prints a token that was made for the server, and with `--json` the server's address.

    The link that signs in to the page goes to a terminal, and not into the log of a service.
    """

    def listening(url: str) -> None:
        if door is None:
            return
        root = None if sessions is None else sessions.serve_at(url)
        link = {} if sessions is None or root is None else {"page": sessions.link(root)}
        where = {} if door.unix_socket is None else {"socket": str(door.unix_socket)}
        made = {} if door.new_token is None else {"token": door.new_token}
        facts: dict[str, object] = {}
        if door.new_token is not None:
            facts = {
                "token": door.new_token,
                "header": f"Authorization: Bearer {door.new_token}",
                "kept in": tokens_of(context).local_file,
                "for a client": context.command("install", "CLIENT", "--http"),
            }
        if link and sys.stdout.isatty():
            facts |= link
        context.screen.render(
            CommandAnswer({"transport": "http", "url": url, **where, **made, **link}, facts_of(facts))
        )

    return listening


def sessions_of(context: Context) -> Sessions:
    """The sessions of the page over the ledger of this folder."""
    from pursuit.config.files import SESSIONS_FILE
    from pursuit.page import Sessions

    tokens = tokens_of(context)
    context.trust_credentials(tokens.path.with_name(SESSIONS_FILE))
    return Sessions.beside(tokens)


@command(app, epilog="Example:  pursuit page --no-browser")
def page(
    context: Context,
    *,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser, or only print it.")
    ] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port, if nothing serves yet; 0 takes any free one.")] = 0,
) -> None:
    """Open the page: what runs, why it waits, what it cost, and a yes or no.

    Where `pursuit serve --http` serves this ledger already, its page is opened. Else this command serves the page
    alone, until Ctrl-C; it drives no mission.
    """
    from pursuit.page import open_page
    from pursuit.server.bind import HttpBinding
    from pursuit.server.serve import serve_page

    context.existing_ledger()
    tokens, sessions = tokens_of(context), sessions_of(context)

    def show(root: str) -> None:
        link = sessions.link(root)
        context.screen.render(CommandAnswer({"page": link}, Fact("page", link)))
        if browser and not context.json:
            import webbrowser

            webbrowser.open(link)

    if (root := sessions.served()) is not None:
        show(root)
        return
    trusted = context.trust_here()
    door = HttpBinding(port=port, tokens=tokens, operators=tokens)

    async def work() -> None:
        await serve_page(
            trusted.runtime(), door, partial(open_page, sessions=sessions), lambda url: show(sessions.serve_at(url))
        )

    serve_until_stopped(work)


@token_app.callback(epilog="Example:  pursuit token --name laptop")
@WithContext
def make(
    context: Context,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Token name (default: token-1, …).")] = None,
    operator: OperatorOption = False,
) -> CommandAnswer | None:
    """Make a bearer token for the HTTP server; list and revoke tokens."""
    if (subcommand := context.click.invoked_subcommand) is not None:
        for option, given in (("--name", name is not None), ("--operator", operator)):
            if given:
                how = "give it after `new`" if subcommand == "new" else f"`{subcommand}` takes none"
                raise typer.BadParameter(f"{option} makes a token; {how}")
        return None
    return new_token(context, name=name, operator=operator)


@command(token_app, "new", epilog="Example:  pursuit token new ci --expires 30d --scope missions:read")
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
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="missions:read, missions:write, tools:call, tasks:* or approvals:answer; repeatable "
            "(default: all of its role).",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Refuse it after this time: 12h, 30d (default: never).")
    ] = None,
) -> CommandAnswer:
    """Make a bearer token, also with further rights, fewer scopes or an expiry."""
    from pursuit.server.tokens import RIGHTS, SCOPES, role_of

    rights: list[Right] = [one for one in RIGHTS if one in (may or ())]
    scopes: list[Scope] | None = None if scope is None else [one for one in SCOPES if one in scope]
    faults = [
        Fault(field="--may", reason=f"{one[:80]!r} is not a right; there is approve-own")
        for one in may or ()
        if one not in RIGHTS
    ]
    faults += [
        Fault(field="--scope", reason=f"{one[:80]!r} is not a scope; there are {', '.join(SCOPES)}")
        for one in scope or ()
        if one not in SCOPES
    ]
    seconds = None
    if expires is not None:
        from pursuit.cli.task_run import seconds_of

        seconds = seconds_of(expires, "--expires")
        if not 0 < seconds <= _LONGEST_LIFE:
            faults.append(Fault(field="--expires", reason="must be more than nothing and at most 3650d"))
    if faults:
        raise ValidationFailed(faults, "no token was made")
    options = {"operator": operator, "may": rights, "scopes": scopes, "seconds": seconds}
    made, token = _make_token(tokens_of(context), name, **options)
    facts = {
        "name": made,
        "role": role_of(operator=operator),
        **({"may": ", ".join(rights)} if rights else {}),
        **({} if scopes is None else {"scope": " ".join(scopes)}),
        **({} if expires is None else {"expires": expires}),
        "token": token,
        "header": f"Authorization: Bearer {token}",
    }
    hints = [Hint(f"the token is shown only now; to revoke it: {context.command('token', 'revoke', made)}")]
    if operator:
        hints.append(Hint("with it a client answers approvals in your name: keep it from agents"))
    return CommandAnswer(facts, facts_of(facts), *hints)


@command(token_app, "list", reads=True)
def list_tokens(context: Context) -> CommandAnswer:
    """List the tokens by name and role; the tokens themselves are not stored."""
    rows = tokens_of(context).names()
    none = Hint(f"there are no tokens; to make one: {context.command('token')}")
    return CommandAnswer({"tokens": rows}, _token_lines(rows) if rows else none)


def _token_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        may = f"  may {', '.join(row['may'])}" if "may" in row else ""
        may += f"  scope {' '.join(row['scopes'])}" if "scopes" in row else ""
        if "expires_at" in row:
            may += f"  {'expired' if row['expired'] else 'expires'} {row['expires_at']}"
        yield f"{row['name']}  {row['role']}  made {row['created_at']}{may}"


@command(token_app)
def revoke(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> CommandAnswer:
    """Revoke a token; a running server refuses it from the next request on."""
    tokens_of(context).revoke(name)
    return CommandAnswer({"revoked": name}, Fact("revoked", name))


@command(token_app)
def rotate(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> CommandAnswer:
    """Make a new token in place of one; its missions and tasks stay its own."""
    token = tokens_of(context).rotate(name)
    facts = {"name": name, "token": token, "header": f"Authorization: Bearer {token}"}
    return CommandAnswer(facts, facts_of(facts), Hint("the token is shown only now; the one before is refused"))


@command(schedule_app, "list", reads=True)
def list_schedules(context: Context) -> CommandAnswer:
    """List the schedules: the next time, the last run, and runs that were missed or skipped."""
    from pursuit.engine.context import SystemClock
    from pursuit.service.schedules import schedule_rows

    configs, now = context.configuration.schedules, SystemClock.now()
    try:
        rows = context.look(lambda runtime: schedule_rows(configs, runtime.runner.ledger, now))
    except NoLedger:
        rows = conduct(lambda: schedule_rows(configs, None, now))
    return CommandAnswer({"schedules": rows}, _schedule_parts(rows))


def _schedule_parts(rows: Sequence[dict[str, Any]]) -> Iterator[Part]:
    if not rows:
        write = advice('schedule."{}" = {{ cron = "{}", mission = "{}" }}', "nightly", "0 6 * * *", "mission.toml")
        yield Hint(f"there are no schedules; write this above the tables of pursuit.toml: {write}")
        return
    columns = ("schedule", "cron", "next", "last run", "missed", "mission file")
    yield TableRows(columns, [_schedule_cells(row) for row in rows])
    for row in rows:
        if reason := row.get("last_run", {}).get("reason"):
            yield Note(f"{row['name']}: the last run was refused: {reason}")
    if any(row.get("missed") for row in rows):
        yield Hint(f"runs are missed while no `{advice('pursuit serve')}` runs with this configuration")


def _schedule_cells(row: dict[str, Any]) -> list[str]:
    from pursuit.reports.wording import moment

    last = row.get("last_run")
    run = "none" if last is None else f"{last['session_id']} {last['status']}"
    missed = f"{row['missed']} (last {moment(row['last_missed_at'])})" if row.get("missed") else "0"
    return [line(row["name"]), row["cron"], moment(row["next_at"]), run, missed, row["mission"]]


def tokens_of(context: Context) -> Tokens:
    """The tokens beside the ledger of this folder: they also count for the other ledgers there."""
    from pursuit.server.tokens import Tokens

    context.refuse_agents(always=True)
    tokens = Tokens.beside(context.ledger_path)
    context.trust_credentials(tokens.path)
    return tokens


def _make_token(tokens: Tokens, name: str | None, **options: Any) -> tuple[str, str]:
    """A new token and its name; another process may take a name that we chose, so we try the next one."""
    from pursuit.server.tokens import NameTaken

    while name is None:
        chosen = tokens.free_name()
        try:
            return chosen, tokens.make(chosen, **options)
        except NameTaken:
            continue
    return name, tokens.make(name, **options)
