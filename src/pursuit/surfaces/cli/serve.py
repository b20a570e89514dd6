"""`pursuit serve`: missions for any MCP client.

Owns: the command and its words. Serving itself is `surfaces.mcp`'s.
Invariant: over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.surfaces.cli.complete import mission_ids
from pursuit.surfaces.cli.http_options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    AllowHostOption,
    HostOption,
    HttpOption,
    PortOption,
    RequireTokenOption,
    http_door,
    told_on,
    without_http,
)
from pursuit.surfaces.cli.options import ConfigOption, JsonOption, ModeOption, StateOption, common

PANEL = "Serve"


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
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415
    from pursuit.policy.rules import parse_mode  # noqa: PLC0415
    from pursuit.server import logs  # noqa: PLC0415
    from pursuit.server.gateway.upstreams import GatewayOptions  # noqa: PLC0415
    from pursuit.server.serve import serve as serving  # noqa: PLC0415
    from pursuit.surfaces.cli.context import conduct, driving  # noqa: PLC0415
    from pursuit.surfaces.cli.failure import Interrupted  # noqa: PLC0415

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
