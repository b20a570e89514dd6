"""`pursuit token`: who may use the HTTP server.

Owns: the three commands and their words. The tokens themselves are `surfaces.tokens`'.
Invariant: a token is printed once, by the command that makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.options import Common, ConfigOption, JsonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.server.tokens import Tokens

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

    from pursuit.server.tokens import role_of  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415 - commands import what they need

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
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415 - commands import what they need

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
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    screen = Screen(said)
    _tokens(said).revoke(name)
    if screen.json:
        screen.document({"revoked": name})
    else:
        screen.fact("revoked", name)
    return 0


def _tokens(said: Common) -> Tokens:
    from pursuit.server.tokens import Tokens  # noqa: PLC0415
    from pursuit.surfaces.cli.context import ledger_path  # noqa: PLC0415 - commands import what they need

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


def register(parent: typer.Typer) -> None:
    """Adds the commands."""
    parent.add_typer(app, name="token", rich_help_panel=PANEL)
