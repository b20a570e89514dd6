"""Evidence and its end: verify, export, audit, forget.

Owns: the four commands. What is proved is the ledger's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.options import ConfigOption, JsonOption, MissionId, StateOption, common, mission_ids

if TYPE_CHECKING:
    from pursuit.ledger.contract import Verification
    from pursuit.runtime import Runtime

PANEL = "Prove"


def verify(
    ctx: typer.Context,
    *,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="An exported mission; else the whole ledger."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="ROOT", show_default=False, help="The root that it must have."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Check every hash of the ledger, or of an exported mission; exit code 1 if anything was changed."""
    from pursuit.cli import show  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import existing_ledger, look  # noqa: PLC0415

    said = common(ctx, config, state, json)
    if file is not None:
        found, what = _verify_file(file, expect), file
    else:

        async def verb(runtime: Runtime) -> Verification:
            return await runtime.service.verify(expect=expect)

        found, what = look(said, verb), existing_ledger(said)
    document = {
        "ok": found.ok,
        "streams": found.streams,
        "events": found.events,
        "blobs": found.blobs,
        "root": found.root,
        "faults": list(found.faults),
    }
    show.verification(Screen(said), str(what), document)
    return 0 if found.ok else 1


def _verify_file(file: Path, expect: str | None) -> Verification:
    from dataclasses import replace  # noqa: PLC0415 - commands import what they need

    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415
    from pursuit.ledger.archive import verify_archive  # noqa: PLC0415

    if expect is not None and ":" in expect:
        reason = (
            "a root POSITION:HASH, as reports print it, stands for a whole ledger: check it without a FILE. "
            "An exported file has a hash of its own, which `pursuit verify FILE` prints"
        )
        raise ValidationFailed([Fault(field="--expect", reason=reason)])
    found = verify_archive(file)
    if expect is None or expect.strip() == found.root:
        return found
    return replace(found, faults=(*found.faults, f"the root is {found.root}, not {expect}"))


def export(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The new file.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Write a mission with its blobs to one file that can be verified elsewhere."""
    from pursuit.cli.console import Screen, clean  # noqa: PLC0415
    from pursuit.cli.context import check_output, look  # noqa: PLC0415

    said = common(ctx, config, state, json)
    check_output(said, output, force=force)

    async def verb(runtime: Runtime) -> None:
        await runtime.service.export(mission_id, output)

    look(said, verb)
    screen = Screen(said)
    if screen.json:
        screen.document({"session_id": mission_id, "file": clean(output)})
        return 0
    screen.fact("wrote", output)
    screen.hint(f"check it with: pursuit verify {output}")
    return 0


def forget(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Remove an ended mission and everything it stored; a tombstone stays."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.reports import remove_reports  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def check(runtime: Runtime) -> None:
        await runtime.service.state(mission_id)

    look(said, check)
    if not yes:
        _ask(mission_id, asking=not said.json)

    async def verb(runtime: Runtime) -> None:
        await runtime.service.forget(mission_id)

    look(said, verb)
    remove_reports(said, mission_id)
    screen = Screen(said)
    if screen.json:
        screen.document({"session_id": mission_id, "status": "forgotten"})
    else:
        screen.fact("forgotten", mission_id)
    return 0


def audit(
    ctx: typer.Context,
    *,
    mission_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", show_default=False, autocompletion=mission_ids, help="Only of this mission."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many lines, the newest.")] = 50,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show who asked for what: each start, drive, stop and extension, from wherever it came."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.show import audit_line  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> Sequence[dict[str, Any]]:
        return await runtime.service.audited(mission_id, limit=limit)

    lines = look(said, verb)
    screen = Screen(said)
    if screen.json:
        screen.document({"audit": lines})
        return 0
    for line in lines:
        screen.plain(audit_line(line))
    if not lines:
        screen.hint("nothing has been asked yet")
    return 0


def _ask(mission_id: str, *, asking: bool) -> None:
    from pursuit.errors import InvalidArgument  # noqa: PLC0415 - commands import what they need

    if not (asking and sys.stdin.isatty()):
        raise InvalidArgument(f"forgetting {mission_id} cannot be undone; say --yes", session_id=mission_id)
    typer.confirm(f"Forget {mission_id} and everything it stored? This cannot be undone.", abort=True)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=PANEL)(verify)
    app.command(rich_help_panel=PANEL, epilog="Example:  pursuit export ID -o mission.jsonl")(export)
    app.command(rich_help_panel=PANEL)(audit)
    app.command(rich_help_panel=PANEL)(forget)
