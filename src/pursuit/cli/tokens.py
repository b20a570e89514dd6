"""`pursuit token`: bearer tokens of the HTTP server. A token is printed once, by the command that creates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from pursuit.cli.console import CommandAnswer, Fact, Hint, facts_of
from pursuit.cli.context import Context, WithContext, command
from pursuit.cli.options import seconds_of
from pursuit.errors import Fault, ValidationFailed
from pursuit.server.tokens import RIGHTS, SCOPES, Right, Scope, role_of

_MAX_LIFE = 3650 * 86_400.0
OperatorOption = Annotated[bool, typer.Option("--operator", help="Operator token: may answer approvals.")]

app = typer.Typer(name="token", invoke_without_command=True)


@app.callback(epilog="Example:  pursuit token --name laptop")
@WithContext
def make(
    context: Context,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Token name (default: token-1, …).")] = None,
    operator: OperatorOption = False,
) -> CommandAnswer | None:
    if (subcommand := context.click.invoked_subcommand) is not None:
        for option, given in (("--name", name is not None), ("--operator", operator)):
            if given:
                how = "give it after `new`" if subcommand == "new" else f"`{subcommand}` takes none"
                raise typer.BadParameter(f"{option} makes a token; {how}")
        return None
    return new_token(context, name=name, operator=operator)


@command(app, "new", epilog="Example:  pursuit token new ci --expires 30d --scope missions:read")
def new_token(
    context: Context,
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Token name (default: token-1, …).")] = None,
    operator: OperatorOption = False,
    may: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RIGHT",
            help="approve-own: accept its user's answers to approvals over HTTP, if [approvals] channels allows it.",
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="missions:read, missions:write, tools:call, tasks:* or approvals:answer; repeatable "
            "(default: all scopes of its role).",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Lifetime: 12h, 30d (default: unlimited).")
    ] = None,
) -> CommandAnswer:
    """Create a bearer token, optionally with extra rights, fewer scopes or an expiry."""
    rights: list[Right] = [one for one in RIGHTS if one in (may or ())]
    scopes: list[Scope] | None = None if scope is None else [one for one in SCOPES if one in scope]
    given = [("--may", may, RIGHTS, "a right; known: approve-own")]
    given += [("--scope", scope, SCOPES, f"a scope; known: {', '.join(SCOPES)}")]
    faults = [
        Fault(field=option, reason=f"{one[:80]!r} is not {what}")
        for option, words, known, what in given
        for one in words or ()
        if one not in known
    ]
    seconds = None
    if expires is not None:
        seconds = seconds_of(expires, "--expires")
        if not 0 < seconds <= _MAX_LIFE:
            faults.append(Fault(field="--expires", reason="must be positive and at most 3650d"))
    if faults:
        raise ValidationFailed(faults, "no token was created")
    tokens = context.tokens
    made = tokens.free_name() if name is None else name
    token = tokens.make(made, operator=operator, may=rights, scopes=scopes, seconds=seconds)
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
        hints.append(Hint("clients with this token can answer approvals in your name: keep it from agents"))
    return CommandAnswer(facts, facts_of(facts), *hints)


@command(app, "list", reads=True)
def list_tokens(context: Context) -> CommandAnswer:
    """List the tokens by name and role; the tokens themselves are not stored."""
    rows = context.tokens.names()
    none = Hint(f"there are no tokens; create one with: {context.command('token')}")
    return CommandAnswer({"tokens": rows}, _token_lines(rows) if rows else none)


def _token_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        may = f"  may {', '.join(row['may'])}" if "may" in row else ""
        may += f"  scope {' '.join(row['scopes'])}" if "scopes" in row else ""
        if "expires_at" in row:
            may += f"  {'expired' if row['expired'] else 'expires'} {row['expires_at']}"
        yield f"{row['name']}  {row['role']}  made {row['created_at']}{may}"


@command(app)
def revoke(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> CommandAnswer:
    """Revoke a token; a running server refuses it immediately."""
    context.tokens.revoke(name)
    return CommandAnswer({"revoked": name}, Fact("revoked", name))


@command(app)
def rotate(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Token name (`token list`).")],
) -> CommandAnswer:
    """Replace a token by a new one, which keeps access to its missions and tasks."""
    token = context.tokens.rotate(name)
    facts = {"name": name, "token": token, "header": f"Authorization: Bearer {token}"}
    return CommandAnswer(facts, facts_of(facts), Hint("the token is shown only now; the old token is refused"))
