"""The commands about evidence: verify, export, audit, forget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.console import clean
from pursuit.cli.context import Context, command
from pursuit.cli.options import ForceOption, MissionId, mission_ids

if TYPE_CHECKING:
    from pursuit.ledger.contract import Verification

PANEL = "Prove"

app = typer.Typer()


@command(app)
def verify(
    context: Context,
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="An exported mission (default: the whole ledger).")
    ] = None,
    expect: Annotated[str | None, typer.Option(metavar="ROOT", help="Fail unless the root is this one.")] = None,
) -> int:
    """Check every hash of the ledger or of an exported mission; exit code 1 if anything was changed."""
    from pursuit.cli import show

    if file is not None:
        found, what = _verify_file(file, expect), file
    else:
        found, what = context.look(lambda runtime: runtime.service.verify(expect=expect)), context.existing_ledger()
    keys = ("ok", "streams", "events", "blobs", "root", "faults")
    show.verification(context.screen, str(what), {key: getattr(found, key) for key in keys})
    return 0 if found.ok else 1


def _verify_file(file: Path, expect: str | None) -> Verification:
    from dataclasses import replace

    from pursuit.errors import Fault, ValidationFailed
    from pursuit.service.proof import verify_export

    if expect is not None and ":" in expect:
        reason = (
            "a root POSITION:HASH, as reports print it, is that of a whole ledger: check it without a FILE. "
            "An exported file has a hash of its own, which `pursuit verify FILE` prints"
        )
        raise ValidationFailed([Fault(field="--expect", reason=reason)])
    found = verify_export(file)
    if expect is None or expect.strip() == found.root:
        return found
    return replace(found, faults=(*found.faults, f"the root is {found.root}, not {expect}"))


@command(app, epilog="Example:  pursuit export ID -o mission.jsonl")
def export(
    context: Context,
    *,
    mission_id: MissionId,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new file.")],
    force: ForceOption = False,
) -> None:
    """Write a mission with its blobs to one file that can be verified elsewhere."""
    context.check_output(output, force=force)
    context.look(lambda runtime: runtime.service.export(mission_id, output))
    context.screen.answer({"session_id": mission_id, "file": clean(output)})
    context.screen.fact("wrote", output)
    context.screen.hint(f"check it with: pursuit verify {output}")


@command(app)
async def audit(
    context: Context,
    *,
    mission_id: Annotated[
        str | None, typer.Argument(metavar="ID", autocompletion=mission_ids, help="Only this mission.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of rows, the newest.")] = 50,
) -> None:
    """Show who asked for what: every start, run, stop and extension, from the terminal or from a client."""
    from pursuit.cli.show import audit_line

    rows = await context.service.audited(mission_id, limit=limit)
    if context.screen.answer({"audit": rows}):
        return
    for row in rows:
        context.screen.plain(audit_line(row))
    if not rows:
        context.screen.hint("nothing has been asked yet")


@command(app)
def forget(
    context: Context,
    *,
    mission_id: MissionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an ended mission and everything it stored; a tombstone stays."""
    from pursuit.cli.reports import remove_reports
    from pursuit.errors import InvalidArgument

    context.look(lambda runtime: runtime.service.state(mission_id))  # fails if there is no such mission
    if not yes:
        if context.json or not sys.stdin.isatty():
            raise InvalidArgument(f"forgetting {mission_id} cannot be undone; say --yes", session_id=mission_id)
        typer.confirm(f"Forget {mission_id} and everything it stored? This cannot be undone.", abort=True)
    context.look(lambda runtime: runtime.service.forget(mission_id))
    remove_reports(context, mission_id)
    context.screen.answer({"session_id": mission_id, "status": "forgotten"})
    context.screen.fact("forgotten", mission_id)
