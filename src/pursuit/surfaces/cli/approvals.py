"""Questions to the operator: approvals, approve, deny.

Owns: the three commands, and how a question looks on a terminal. Each answer is one word appended to the ledger.
Invariant: no answer is given but by the person at the keyboard, or by the words of a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.surfaces.cli.options import Common, ConfigOption, JsonOption, ReasonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.core.events import Permission
    from pursuit.runtime import Runtime
    from pursuit.surfaces.cli.screen import Screen

PANEL = "Steer"
WIDTHS = ("once", "arguments", "mission")

ApprovalId = Annotated[
    str, typer.Argument(metavar="ID", show_default=False, help="A question, as in `pursuit approvals`.")
]


def approvals(
    ctx: typer.Context,
    *,
    mission_id: Annotated[
        str | None, typer.Argument(metavar="[MISSION]", show_default=False, help="Only of this mission.")
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show the calls that wait for your yes or no."""
    from pursuit.service.approvals import Approvals  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.context import look  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> list[dict[str, Any]]:
        return await Approvals(runtime.service).open(mission_id)

    rows = look(said, verb)
    screen = Screen(said)
    if screen.json:
        screen.document({"approvals": rows})
        return 0
    for row in rows:
        show_question(screen, row)
    if rows:
        screen.hint(f"answer with: {said.command('approve', 'ID')}  or  {said.command('deny', 'ID')}")
    else:
        screen.hint("nothing waits for an answer")
    return 0


def approve(
    ctx: typer.Context,
    *,
    approval_id: ApprovalId,
    width: Annotated[
        str,
        typer.Option(
            "--for", metavar="WIDTH", help="once, arguments (these, in this mission) or mission (this tool in it)."
        ),
    ] = "once",
    reason: ReasonOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Allow a call that waits; its mission goes on when it is driven."""
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415 - commands import what they need

    if width not in WIDTHS:
        raise ValidationFailed([Fault(field="--for", reason=f"{width!r} is not one of {', '.join(WIDTHS)}")])
    return _answer(common(ctx, config, state, json), approval_id, width, reason)


def deny(
    ctx: typer.Context,
    *,
    approval_id: ApprovalId,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Refuse a call that waits; its mission goes on without it."""
    return _answer(common(ctx, config, state, json), approval_id, "denied", reason)


def _answer(said: Common, approval_id: str, answer: Any, reason: str | None) -> int:
    from pursuit.service.approvals import Approvals  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.context import look  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await Approvals(runtime.service).answer(approval_id, answer, reason=reason)

    row = look(said, verb)
    screen = Screen(said)
    if screen.json:
        screen.document(row)
        return 0
    screen.fact("denied" if answer == "denied" else "approved", row["tool"])
    screen.fact(_asker(row), row["session_id"])
    if _asker(row) == "mission":
        screen.hint(f"unless a server drives it, go on with: {said.command('resume', row['session_id'])}")
    elif answer != "denied":
        screen.hint("the client may make the call again now")
    return 0


def _asker(row: Mapping[str, Any]) -> str:
    return "gateway" if str(row["session_id"]).startswith("gateway-") else "mission"


def show_question(screen: Screen, row: Mapping[str, Any]) -> None:
    """One question, as a person needs it to decide."""
    screen.fact("question", row["approval_id"])
    screen.fact(_asker(row), row["session_id"])
    for line in str(row["description"]).splitlines():
        screen.plain(f"  {line}")
    screen.fact("expires", row["expires_at"])


def ask_here(screen: Screen, row: Mapping[str, Any]) -> tuple[Permission, str | None] | None:
    """Asks the person at the terminal; None leaves the question open."""
    from pursuit.surfaces.cli.text import clean  # noqa: PLC0415 - only who is asked pays for it

    screen.plain("")
    for line in str(row["description"]).splitlines():
        screen.plain(clean(line))
    choices = "[y]es once, yes for these [a]rguments, yes for this [m]ission, [n]o, [l]ater"
    answers: dict[str, Permission] = {"y": "once", "a": "arguments", "m": "mission", "n": "denied"}
    while True:
        said = str(typer.prompt(choices, default="l", show_default=False, err=True)).strip().lower()[:1]
        if said == "l":
            return None
        if said in answers:
            return answers[said], None


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=PANEL)(approvals)
    app.command(rich_help_panel=PANEL, epilog="Example:  pursuit approve ID --for arguments")(approve)
    app.command(rich_help_panel=PANEL)(deny)
