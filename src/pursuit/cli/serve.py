"""The commands `serve`, `page` and `schedule`.

Over stdio, only MCP messages go to standard output. A token is printed once, by the command that creates it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import CommandAnswer, Fact, Hint, Note, Part, TableRows, facts_of, line
from pursuit.cli.context import Context, Interrupted, NoLedger, command, conduct, group
from pursuit.cli.options import LogFormatOption, LogLevelOption, ModeOption, mission_ids
from pursuit.errors import Fault, InvalidArgument, ValidationFailed, advice

if TYPE_CHECKING:
    from pursuit.page import Sessions
    from pursuit.runtime import Runtime
    from pursuit.server.bind import HttpBinding

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765

HttpOption = Annotated[
    bool, typer.Option("--http", help="Serve streamable HTTP at /mcp (default: stdio, as clients start it).")
]
HostOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free port.")]
AllowHostOption = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Accept this Host header; repeatable.")]
RequireTokenOption = Annotated[
    bool,
    typer.Option(
        "--require-token/--no-token",
        help="Require a bearer token (`pursuit token`). --no-token works on loopback only and admits every local user.",
    ),
]
SocketOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Serve HTTP on this unix socket, for your user only, without a token."),
]
_TCP_OPTIONS = ("allow_host", "require_token", "host", "port")

app = typer.Typer()
schedule_app = group("schedule")


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
        bool,
        typer.Option("--gateway", help="Serve the tools of the configured servers, under policy, instead of missions."),
    ] = False,
    tool_search: Annotated[
        bool, typer.Option("--tool-search", help="With --gateway: offer three tools that find and call all others.")
    ] = False,
    plain_names: Annotated[
        bool, typer.Option("--plain-names", help="With --gateway: no dots in tool names, for models that reject them.")
    ] = False,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = None,
    mode: ModeOption = None,
) -> None:
    with loading():
        from pursuit.server import logs
        from pursuit.server.serve import serve as serving
        from pursuit.server.serve import serve_missions

    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    faults = transport_faults(context, http=http, socket=socket)
    gateway_only = [("--tool-search", tool_search), ("--plain-names", plain_names)]
    faults += [Fault(field=name, reason="requires --gateway") for name, given in gateway_only if given and not gateway]
    if gateway and mission_id is not None:
        faults.append(
            Fault(field="--mission", reason="cannot be combined with --gateway, which does not serve missions")
        )
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    if mission_id is not None:
        context.existing_ledger()
    context.trust_here(schedules=True)
    door = None
    if http or socket is not None:
        door = http_door(
            context, host=host, port=port, allow_host=allow_host, require_token=require_token, socket=socket
        )
    elif sys.stdin.isatty():
        typer.echo(
            f"MCP on this terminal; normally a client starts it ({advice('pursuit install --help')}). Or try --http.",
            err=True,
        )
    options = None
    # A closing terminal also sends SIGHUP; the server must end then, not reload.
    reloads = gateway and not any(os.isatty(stream) for stream in (0, 1, 2))
    if gateway:
        from pursuit.server.gateway.upstreams import GatewayOptions

        spelling = "escaped" if plain_names else "dotted"
        options = GatewayOptions(alone=door is None, spelling=spelling, search=tool_search, reloads=reloads)

    sessions = page = None
    if door is not None and door.unix_socket is None:  # browsers cannot open unix sockets
        from pursuit.page import open_page

        sessions = sessions_of(context)
        page = partial(open_page, sessions=sessions)

    def open_runtime() -> Runtime:
        with loading():
            return context.trusted_runtime(mode, only=mission_id)

    async def work() -> None:
        if door is None and not gateway and mission_id is None and not context.configuration.commands:
            await serve_missions(open_runtime)
            return
        runtime = open_runtime()
        listening = print_address(context, door, sessions)
        await serving(runtime, door, gateway=options, page=page, listening=listening)

    serve_until_stopped(work, hang_up=not reloads)


@contextmanager
def loading() -> Generator[None]:
    """Within it, imports create up to 150,000 permanent objects, and there is no garbage to collect."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve_until_stopped(work: Callable[[], Awaitable[None]], *, hang_up: bool = True) -> None:
    """Serves until the client disconnects or a signal stops the server; both are normal ends."""
    from pursuit.server import logs

    try:
        conduct(work, hang_up=hang_up)
    except Interrupted as stop:
        logs.event(logging.getLogger(__name__), logging.INFO, "stopped", signal=stop.number)


def transport_faults(context: Context, *, http: bool, socket: Path | None) -> list[Fault]:
    """A fault for each given option that does not apply to this transport, even with its default value."""
    sources = {name: context.click.get_parameter_source(name) for name in _TCP_OPTIONS}
    given = [_spelt(context, name) for name, source in sources.items() if source and source.name != "DEFAULT"]
    if socket is not None:
        return [
            Fault(field=name, reason="cannot be combined with --socket")
            for name in (*given, *(["--http"] if http else []))
        ]
    given += ["--json"] if context.json else []
    return [] if http else [Fault(field=name, reason="requires --http") for name in given]


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
    """Returns the binding for HTTP clients; creates a token if none exists, but never for other machines."""
    from pursuit.server.bind import HttpBinding, check_bind, resolve

    tokens, oauth = context.tokens, None
    if socket is not None:
        return HttpBinding(unix_socket=socket, operators=tokens)
    if (config := context.configuration.serve.oauth) is not None:
        from pursuit.server.oauth import OAuth

        context.trust_here()  # an untrusted folder must not decide whose tokens are valid
        oauth = OAuth(config)
        if not require_token:
            raise InvalidArgument(
                "--no-token contradicts [serve.oauth] of the configuration; remove one of the two",
                field="--no-token",
            )
    needed = tokens if require_token else None
    check_bind(host, needed, oauth=oauth is not None)
    # A token for other machines is only made by a person; with an authorization server, clients sign in there.
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
    """Returns a callback that prints a newly created token, and with `--json` the server's address.

    The sign-in link of the page is printed to a terminal only, never to the log of a service.
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
                "kept in": context.tokens.local_file,
                "for a client": context.command("install", "CLIENT", "--http"),
            }
        if link and sys.stdout.isatty():
            facts |= link
        context.screen.render(
            CommandAnswer({"transport": "http", "url": url, **where, **made, **link}, facts_of(facts))
        )

    return listening


def sessions_of(context: Context) -> Sessions:
    from pursuit.config.files import SESSIONS_FILE
    from pursuit.page import Sessions

    tokens = context.tokens
    context.trust_credentials(tokens.path.with_name(SESSIONS_FILE))
    return Sessions.beside(tokens)


@command(app, epilog="Example:  pursuit page --no-browser")
def page(
    context: Context,
    *,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, or only print its address.")
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port, if no server is running; 0 selects a free port.")
    ] = 0,
) -> None:
    """Open the web page: missions, costs and pending approvals.

    If `pursuit serve --http` already serves this ledger, opens its page. Otherwise serves only the page, until Ctrl-C,
    and runs no missions.
    """
    from pursuit.page import open_page
    from pursuit.server.bind import HttpBinding
    from pursuit.server.serve import serve_page

    context.existing_ledger()
    tokens, sessions = context.tokens, sessions_of(context)

    def show(root: str) -> None:
        link = sessions.link(root)
        context.screen.render(CommandAnswer({"page": link}, Fact("page", link)))
        if browser and not context.json:
            import webbrowser

            webbrowser.open(link)

    if (root := sessions.served()) is not None:
        show(root)
        return
    context.trust_here()
    door = HttpBinding(port=port, tokens=tokens, operators=tokens)

    async def work() -> None:
        await serve_page(
            context.trusted_runtime(),
            door,
            partial(open_page, sessions=sessions),
            lambda url: show(sessions.serve_at(url)),
        )

    serve_until_stopped(work)


@command(schedule_app, "list", reads=True)
def list_schedules(context: Context) -> CommandAnswer:
    """List the schedules: the next time, the last run, and missed or skipped runs."""
    from pursuit.engine.context import SystemClock
    from pursuit.service.schedules import schedule_rows

    configs, now = context.configuration.schedule, SystemClock.now()
    try:
        rows = context.look(lambda runtime: schedule_rows(configs, runtime.runner.ledger, now))
    except NoLedger:
        rows = conduct(lambda: schedule_rows(configs, None, now))
    return CommandAnswer({"schedules": rows}, _schedule_parts(rows))


def _schedule_parts(rows: Sequence[dict[str, Any]]) -> Iterator[Part]:
    if not rows:
        write = advice('schedule."{}" = {{ cron = "{}", mission = "{}" }}', "nightly", "0 6 * * *", "mission.toml")
        yield Hint(f"there are no schedules; add this above the tables of pursuit.toml: {write}")
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
