"""The command `pursuit migrate`: copies a ledger to another database, and brings a schema up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.console import CommandAnswer, Fact
from pursuit.cli.context import Context, WithContext, command, run
from pursuit.errors import Fault, InvalidArgument, ValidationFailed, advice

if TYPE_CHECKING:
    from pursuit.ledger.contract import Verification

PANEL = "Prove"

app = typer.Typer(name="migrate", rich_help_panel=PANEL, invoke_without_command=True)


@app.callback(epilog="Example:  pursuit migrate --from .pursuit/ledger.db --to postgresql://pursuit@db/pursuit")
@WithContext
def migrate(
    context: Context,
    *,
    source: Annotated[
        str | None, typer.Option("--from", metavar="LEDGER", help="The ledger to copy: a file or postgresql://…")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="LEDGER", help="Where to: a new file, or an empty database.")
    ] = None,
) -> CommandAnswer | None:
    """Copy a ledger to another database and prove that the copy has the same root; `up` migrates a schema."""
    if context.click.invoked_subcommand is not None:
        return None
    missing = [name for name, value in (("--from", source), ("--to", target)) if value is None]
    if source is None or target is None:
        reason = f"is missing; name both ledgers, or say `{advice('pursuit migrate up')}`"
        raise ValidationFailed([Fault(field=name, reason=reason) for name in missing])
    found = _transfer(source, target)
    return CommandAnswer(
        {"root": found.root, "events": found.events, "streams": found.streams},
        Fact("copied", f"{found.events} events of {found.streams} streams, {found.blobs} blobs"),
        Fact("root", found.root),
    )


def _transfer(source: str, target: str) -> Verification:
    from pursuit.config.files import locate_state
    from pursuit.ledger.transfer import transfer
    from pursuit.service.proof import FOLDS

    return run(transfer, locate_state(source, None), locate_state(target, None), FOLDS)


@command(app)
def up(
    context: Context,
    *,
    role: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let this role of the database run Pursuit, and no more.")
    ] = None,
) -> CommandAnswer:
    """Bring the schema of a ledger on PostgreSQL up to date; other ledgers are migrated when they are opened."""
    from pursuit.ledger.opening import address_of

    address = address_of(context.ledger_path)
    if address is None:
        raise InvalidArgument("the ledger is a file, which is migrated when it is opened; name a database with --state")
    from pursuit.ledger.postgres_schema import migrate_up
    from pursuit.ledger.queue import upgrade_queue

    before, after = migrate_up(address, role)
    run(upgrade_queue, address, role)
    facts = [Fact("schema", f"version {after}" if before == after else f"version {before} to {after}")]
    facts += [] if role is None else [Fact("may run it", role)]
    return CommandAnswer({"before": before, "after": after, "role": role}, *facts)
