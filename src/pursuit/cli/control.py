"""The operator's commands: pause, abort, complete and extend a mission; show and answer approval requests.

Each is recorded at once, whichever process runs the mission; that process sees it within a quarter of a second. An
approval is answered only by the person at the keyboard or by one of these commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import ENDED, Screen, clean
from pursuit.cli.context import Context, command
from pursuit.cli.options import MissionId, ReasonOption

if TYPE_CHECKING:
    from pursuit.core.events import Permission
    from pursuit.core.state import MissionState

PANEL = "Steer"
MAX_CAP = 2**53
"""The largest cap that a mission file takes: a larger number has no exact float."""
WIDTHS = ("once", "arguments", "mission")

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Approval id (`pursuit approvals`).")]

app = typer.Typer()


@command(app)
async def pause(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> None:
    """Pause a mission where it is; `pursuit resume` continues at the same call."""
    _show_state(context, mission_id, await context.service.pause(mission_id, reason=reason))


@command(app)
async def abort(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> None:
    """End a mission as terminated, even in the middle of a call."""
    _show_state(context, mission_id, await context.service.abort(mission_id, reason=reason))


@command(app)
async def complete(context: Context, *, mission_id: MissionId, reason: ReasonOption = None) -> None:
    """End a mission as completed, by the operator's decision."""
    _show_state(context, mission_id, await context.service.complete(mission_id, reason=reason))


@command(app, epilog="Example:  pursuit extend ID --max-iterations 400,  then  pursuit resume ID")
async def extend(
    context: Context,
    *,
    mission_id: MissionId,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Iterations.")] = None,
    max_tool_calls: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Tool calls.")] = None,
    max_wall_clock_seconds: Annotated[float | None, typer.Option(metavar="S", help="Seconds of running time.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", max=MAX_CAP, help="Tokens.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(metavar="X", help="Cost in US dollars.")] = None,
) -> None:
    """Raise the caps of a mission's budget. Give the new cap, not the increase; -1 removes it."""
    given = {
        "max_iterations": max_iterations,
        "max_tool_calls": max_tool_calls,
        "max_wall_clock_seconds": max_wall_clock_seconds,
        "max_tokens": max_tokens,
        "max_cost_usd": max_cost_usd,
    }
    caps = {name: float(value) for name, value in given.items() if value is not None}
    _show_state(context, mission_id, await context.service.extend(mission_id, caps))


def _show_state(context: Context, mission_id: str, state: MissionState) -> None:
    from pursuit.cli import show
    from pursuit.service.queries import status_of

    screen = context.screen
    status = status_of(mission_id, state)
    screen.answer(status)
    screen.fact("mission", mission_id)
    screen.fact("status", status["status"])
    if text := show.why(status):
        screen.fact("why", text)
    ended = status["status"] in ENDED
    screen.hint(f"next: {context.command('report', mission_id) if ended else show.continue_command(context, status)}")


@command(app)
async def approvals(
    context: Context,
    *,
    mission_id: Annotated[str | None, typer.Argument(metavar="MISSION", help="Only those of this mission.")] = None,
) -> None:
    """Show the calls that wait for your approval."""
    from pursuit.service.approvals import Approvals

    screen = context.screen
    rows = await Approvals(context.service).open(mission_id)
    if screen.answer({"approvals": rows}):
        return
    for row in rows:
        screen.fact("question", row["approval_id"])
        screen.fact(_asker(row), row["session_id"])
        for line in str(row["description"]).splitlines():
            screen.plain(f"  {line}")
        screen.fact("expires", row["expires_at"])
    if rows:
        screen.hint(f"answer with: {context.command('approve', 'ID')}  or  {context.command('deny', 'ID')}")
    else:
        screen.hint("nothing waits for an answer")


@command(app, epilog="Example:  pursuit approve ID --for arguments")
async def approve(
    context: Context,
    *,
    approval_id: ApprovalId,
    width: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WIDTH",
            help="once, arguments (these arguments in this mission) or mission (this tool in this mission).",
        ),
    ] = "once",
    reason: ReasonOption = None,
) -> None:
    """Allow a call that waits; its mission continues when it runs again."""
    from pursuit.errors import Fault, ValidationFailed

    if width not in WIDTHS:
        raise ValidationFailed([Fault(field="--for", reason=f"{width!r} is not one of {', '.join(WIDTHS)}")])
    await _answer(context, approval_id, width, reason)


@command(app)
async def deny(context: Context, *, approval_id: ApprovalId, reason: ReasonOption = None) -> None:
    """Refuse a call that waits; its mission continues without it."""
    await _answer(context, approval_id, "denied", reason)


async def _answer(context: Context, approval_id: str, answer: Any, reason: str | None) -> None:
    from pursuit.service.approvals import Approvals

    row = await Approvals(context.service).answer(approval_id, answer, reason=reason)
    screen, asker = context.screen, _asker(row)
    screen.answer(row)
    screen.fact("denied" if answer == "denied" else "approved", row["tool"])
    screen.fact(asker, row["session_id"])
    if asker == "mission":
        resume = context.command("resume", row["session_id"])
        screen.hint(f"unless a server runs the mission, continue with: {resume}")
    elif answer != "denied":
        screen.hint("the client may make the call again now")


def _asker(row: Mapping[str, Any]) -> str:
    return "gateway" if str(row["session_id"]).startswith("gateway-") else "mission"


def ask_at_terminal(screen: Screen, row: Mapping[str, Any]) -> tuple[Permission, str | None] | None:
    """Asks the person at the terminal; None leaves the question open."""
    screen.plain("")
    for line in str(row["description"]).splitlines():
        screen.plain(clean(line))
    choices = "[y]es once, yes for these [a]rguments, yes for this [m]ission, [n]o, [l]ater"
    answers: dict[str, Permission] = {"y": "once", "a": "arguments", "m": "mission", "n": "denied"}
    while True:
        given = str(typer.prompt(choices, default="l", err=True)).strip().lower()[:1]
        if given == "l":
            return None
        if given in answers:
            return answers[given], None
