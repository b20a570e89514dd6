"""`pursuit serve`: missions for any MCP client.

Owns: the command and its words. Serving itself is `surfaces.mcp`'s.
Invariant: over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, StateOption, common

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
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", show_default=False, help="text or json; else text on a terminal, json elsewhere."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Serve missions to MCP clients, over stdio or HTTP."""
    import gc  # noqa: PLC0415 - commands import what they need
    import logging  # noqa: PLC0415
    import sys  # noqa: PLC0415

    gc.disable()  # what is imported now, about 150,000 objects, stays: searching it for garbage is in vain
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415
    from pursuit.surfaces import logs  # noqa: PLC0415
    from pursuit.surfaces.cli.context import Interrupted, conduct, driving, ledger_path  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.mcp.serve import Door  # noqa: PLC0415
    from pursuit.surfaces.mcp.serve import serve as serving  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    said = common(ctx, config, state, json)
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))
    given = [
        ("--allow-host", bool(allow_host)),
        ("--require-token", require_token),
        ("--host", host != "127.0.0.1"),
        ("--json", said.json),
    ]
    faults = [Fault(field=name, reason="goes with --http") for name, there in given if there and not http]
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    door = None
    if http:
        from pursuit.surfaces.mcp.doors import check_bind, resolve  # noqa: PLC0415
        from pursuit.surfaces.tokens import Tokens  # noqa: PLC0415

        tokens = Tokens.beside(ledger_path(said))
        needed = require_token or not resolve(host).is_loopback
        check_bind(host, tokens if needed else None)
        door = Door(host=host, port=port, tokens=tokens if needed else None, allowed_hosts=allow_host or ())
    elif sys.stdin.isatty():
        typer.echo(
            "MCP on this terminal; a client starts this itself: pursuit install --help. Or try --http.", err=True
        )
    log = logging.getLogger(__name__)

    def tell(url: str) -> None:
        if said.json:
            Screen(said).document({"transport": "http", "url": url})
            sys.stdout.flush()

    async def work() -> int:
        await serving(driving(said), door, listening=tell)
        return 0

    try:
        return conduct(work)
    except Interrupted as stop:
        logs.event(log, logging.INFO, "stopped", signal=stop.number)
        return 0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=PANEL)(serve)
