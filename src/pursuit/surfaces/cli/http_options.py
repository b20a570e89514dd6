"""The options of commands that serve over HTTP.

Owns: their words, and what they mean together: a door to listen at. Serving itself is `surfaces.mcp`'s.
Invariant: a door that other machines can reach asks for a token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.options import Common

if TYPE_CHECKING:
    from pursuit.errors import Fault
    from pursuit.server.serve import Door

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
    from pursuit.server.bind import check_bind, resolve  # noqa: PLC0415
    from pursuit.server.serve import Door  # noqa: PLC0415
    from pursuit.server.tokens import Tokens  # noqa: PLC0415
    from pursuit.surfaces.cli.context import ledger_path  # noqa: PLC0415 - commands import what they need

    tokens = Tokens.beside(ledger_path(said))
    needed = tokens if require_token or not resolve(host).is_loopback else None
    check_bind(host, needed)
    return Door(host=host, port=port, tokens=needed, operators=tokens, allowed_hosts=allow_host or ())


def told_on(said: Common) -> Callable[[str], None]:
    """What tells the address, as a document on standard output, to whoever asked for JSON."""
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415 - commands import what they need

    def tell(url: str) -> None:
        if said.json:
            Screen(said).document({"transport": "http", "url": url})
            sys.stdout.flush()

    return tell
