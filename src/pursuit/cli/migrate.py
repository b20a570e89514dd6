"""The command `pursuit migrate`: copies a ledger to another database, and brings a schema up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.cli.console import CommandAnswer, Fact
from pursuit.cli.context import Context, WithContext, command, run
from pursuit.config.files import locate_state
from pursuit.errors import Fault, InvalidArgument, ValidationFailed, advice
from pursuit.ledger.opening import address_of
from pursuit.ledger.postgres_schema import migrate_up
from pursuit.ledger.transfer import transfer
from pursuit.service.proof import FOLDS

app = typer.Typer(name="migrate", invoke_without_command=True)


@app.callback(epilog="Example:  pursuit migrate --from .pursuit/ledger.db --to postgresql://pursuit@db/pursuit")
@WithContext
def migrate(
    context: Context,
    *,
    source: Annotated[
        str | None, typer.Option("--from", metavar="LEDGER", help="The ledger to copy: a file or postgresql://…")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="LEDGER", help="The target: a new file, or an empty database.")
    ] = None,
) -> CommandAnswer | None:
    """Copy a ledger to another database and prove that the copy has the same root; `up` migrates a schema."""
    if context.click.invoked_subcommand is not None:
        return None
    missing = [name for name, value in (("--from", source), ("--to", target)) if value is None]
    if source is None or target is None:
        reason = f"is missing; name both ledgers, or use `{advice('pursuit migrate up')}`"
        raise ValidationFailed([Fault(field=name, reason=reason) for name in missing])
    found = run(transfer, locate_state(source, None), locate_state(target, None), FOLDS)
    return CommandAnswer(
        {"root": found.root, "events": found.events, "streams": found.streams},
        Fact("copied", f"{found.events} events of {found.streams} streams, {found.blobs} blobs"),
        Fact("root", found.root),
    )


@command(app)
def up(
    context: Context,
    *,
    role: Annotated[
        str | None, typer.Option(metavar="NAME", help="Grant this database role only what running Pursuit needs.")
    ] = None,
) -> CommandAnswer:
    """Migrate the schema of a ledger on PostgreSQL; other ledgers are migrated when they are opened."""
    address = address_of(context.ledger_path)
    if address is None:
        raise InvalidArgument(
            "the ledger is a file, and files are migrated when they are opened; name a database with --state"
        )
    before, after = migrate_up(address, role)
    facts = [Fact("schema", f"version {after}" if before == after else f"version {before} to {after}")]
    facts += [] if role is None else [Fact("granted to", role)]
    return CommandAnswer({"before": before, "after": after, "role": role}, *facts)
