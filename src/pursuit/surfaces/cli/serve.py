"""`pursuit serve`: missions for any MCP client.

Owns: the command and its words. Serving itself is `surfaces.mcp`'s.
Invariant: over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, ModeOption, StateOption, common

PANEL = "Serve"
DEFAULT_PORT = 8765


def serve(
    ctx: typer.Context,
    *,
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP at /mcp; else stdio, as clients start it.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free one.")] = DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", show_default=False, help="A Host header to accept; repeatable."),
    ] = None,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Ask for a bearer token on loopback, too (see `pursuit token`).")
    ] = False,
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
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415
    from pursuit.surfaces import logs  # noqa: PLC0415
    from pursuit.surfaces.cli.context import Interrupted, conduct, driving, ledger_path  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.mcp.gateway.options import GatewayOptions  # noqa: PLC0415
    from pursuit.surfaces.mcp.serve import Door  # noqa: PLC0415
    from pursuit.surfaces.mcp.serve import serve as serving  # noqa: PLC0415
    from pursuit.tools.policy import parse_mode  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    said = common(ctx, config, state, json)
    drives = None if mode is None else parse_mode(mode)
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    given = [
        ("--allow-host", bool(allow_host)),
        ("--require-token", require_token),
        ("--host", host != "127.0.0.1"),
        ("--json", said.json),
    ]
    faults = [Fault(field=name, reason="goes with --http") for name, there in given if there and not http]
    wished = [("--tool-search", tool_search), ("--plain-names", plain_names)]
    faults += [Fault(field=name, reason="goes with --gateway") for name, there in wished if there and not gateway]
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    door = None
    if http:
        from pursuit.surfaces.mcp.doors import check_bind, resolve  # noqa: PLC0415
        from pursuit.surfaces.tokens import Tokens  # noqa: PLC0415

        tokens = Tokens.beside(ledger_path(said))
        needed = require_token or not resolve(host).is_loopback
        check_bind(host, tokens if needed else None)
        door = Door(
            host=host,
            port=port,
            tokens=tokens if needed else None,
            operators=tokens,
            allowed_hosts=allow_host or (),
        )
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

    def tell(url: str) -> None:
        if said.json:
            Screen(said).document({"transport": "http", "url": url})
            sys.stdout.flush()

    async def work() -> int:
        await serving(driving(said, drives), door, gateway=options, listening=tell)
        return 0

    try:
        return conduct(work, hang_up=not reloads)
    except Interrupted as stop:
        logs.event(log, logging.INFO, "stopped", signal=stop.number)
        return 0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=PANEL)(serve)
