"""The operator's commands: pause, abort, complete and extend a mission; show and answer approval requests.

Each is recorded at once, whichever process runs the mission; that process sees it within a quarter of a second. An
approval is answered only by the person at the keyboard or by one of these commands.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.console import ENDED, Screen, clean
from pursuit.cli.context import Context, command
from pursuit.cli.options import MissionId, ReasonOption, mission_ids

if TYPE_CHECKING:
    from pursuit.core.events import Permission
    from pursuit.core.state import MissionState

PANEL = "Steer"
MAX_CAP = 2**53
"""The largest cap that a mission file takes: a larger number has no exact float."""
WIDTHS = ("once", "arguments", "mission")

USAGE = 2
ApprovalIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Approval ids (`pursuit approvals`), or their beginnings.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every question that is open.")]
ApprovalsOf = Annotated[
    str | None,
    typer.Option("--mission", metavar="ID", autocompletion=mission_ids, help="Every open question of this mission."),
]

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
    from pursuit.cli import show
    from pursuit.errors import SessionTerminal

    caps = {name: float(value) for name, value in given.items() if value is not None}
    try:
        state = await context.service.extend(mission_id, caps)
    except SessionTerminal:
        raise show.has_ended(context, mission_id, await context.service.state(mission_id)) from None
    _show_state(context, mission_id, state)


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
    from pursuit.reports.wording import moment
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
        screen.fact("expires", moment(row["expires_at"]))
    if rows:
        words = " (or --all)" if len(rows) > 1 else ""
        screen.hint(f"answer with: {context.command('approve', 'ID')}{words}  or  {context.command('deny', 'ID')}")
    else:
        screen.hint("nothing waits for an answer")


@command(app, epilog="Examples:  pursuit approve ID --for arguments,  pursuit approve --all")
async def approve(
    context: Context,
    *,
    approval_ids: ApprovalIds = None,
    every: AllOption = False,
    mission_id: ApprovalsOf = None,
    width: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WIDTH",
            help="once, arguments (these arguments in this mission) or mission (this tool in this mission).",
        ),
    ] = "once",
    reason: ReasonOption = None,
) -> int:
    """Allow calls that wait; their missions continue when they run again."""
    from pursuit.errors import Fault, ValidationFailed

    if width not in WIDTHS:
        raise ValidationFailed([Fault(field="--for", reason=f"{width!r} is not one of {', '.join(WIDTHS)}")])
    wanted = await _questions(context, approval_ids, mission_id, every=every)
    return await _answer(context, wanted, width, reason, named=bool(approval_ids))


@command(app)
async def deny(
    context: Context,
    *,
    approval_ids: ApprovalIds = None,
    every: AllOption = False,
    mission_id: ApprovalsOf = None,
    reason: ReasonOption = None,
) -> int:
    """Refuse calls that wait; their missions continue without them."""
    wanted = await _questions(context, approval_ids, mission_id, every=every)
    return await _answer(context, wanted, "denied", reason, named=bool(approval_ids))


async def _questions(
    context: Context, approval_ids: Sequence[str] | None, mission_id: str | None, *, every: bool
) -> list[str]:
    """The questions that are meant: by their ids, all that are open, or those of one mission."""
    from pursuit.errors import InvalidArgument
    from pursuit.service.approvals import Approvals

    if [bool(approval_ids), every, mission_id is not None].count(True) != 1:
        raise InvalidArgument("give IDs of questions, or --all, or --mission ID", field="ID")
    approvals = Approvals(context.service)
    if approval_ids:
        return list(dict.fromkeys([await approvals.find(word) for word in approval_ids]))
    return [row["approval_id"] for row in await approvals.open(mission_id)]


async def _answer(context: Context, wanted: Sequence[str], answer: Any, reason: str | None, *, named: bool) -> int:
    """Answers each question; one that cannot be answered does not keep the others from their answer."""
    from pursuit.errors import Conflict, PursuitError
    from pursuit.service.approvals import Approvals

    screen, approvals = context.screen, Approvals(context.service)
    rows: list[dict[str, Any]] = []
    refused: list[PursuitError] = []
    for approval_id in wanted:
        try:
            rows.append(await approvals.answer(approval_id, answer, reason=reason))
        except PursuitError as error:
            # Not named by its id: a wider answer, or another person, was faster.
            if named or not isinstance(error, Conflict):
                refused.append(error)
    if len(wanted) == 1 and refused:
        raise refused[0]
    several = {"approvals": rows, **({"refused": [one.as_dict() for one in refused]} if refused else {})}
    screen.answer(rows[0] if named and len(wanted) == 1 else several)
    for row in rows:
        screen.fact("denied" if answer == "denied" else "approved", row["tool"])
        screen.fact(_asker(row), row["session_id"])
    if not screen.json:
        for error in refused:
            screen.note(f"error: {error.message}")
    if not wanted:
        screen.hint("nothing waits for an answer")
    for mission_id in dict.fromkeys(row["session_id"] for row in rows if _asker(row) == "mission"):
        screen.hint(f"if no process waits for the answer, continue with: {context.command('resume', mission_id)}")
    if answer != "denied" and any(_asker(row) == "gateway" for row in rows):
        screen.hint("the client may make the call again now")
    return USAGE if refused else 0


def _asker(row: Mapping[str, Any]) -> str:
    return "gateway" if str(row["session_id"]).startswith("gateway-") else "mission"


_ANSWERS: dict[str, Permission] = {"y": "once", "a": "arguments", "m": "mission", "n": "denied"}
_LONGEST_LINE = 4096


async def ask_at_terminal(screen: Screen, row: Mapping[str, Any]) -> Permission | None:
    """Asks the person at the terminal; None leaves the question open.

    It reads in the event loop, so cancelling it leaves no thread behind that would take the next line.
    """
    import os

    import anyio

    screen.plain("")
    for line in str(row["description"]).splitlines():
        screen.plain(clean(line))
    while True:
        typer.echo("[y]es once, yes for these [a]rguments, yes for this [m]ission, [n]o, [l]ater [l]: ", nl=False)
        try:
            await anyio.wait_readable(sys.stdin)
        except anyio.get_cancelled_exc_class():
            typer.echo()  # what is said next has a line of its own
            raise
        typed = os.read(sys.stdin.fileno(), _LONGEST_LINE).decode(errors="replace")
        if not typed:  # the end of the input
            typer.echo()
        given = typed.strip().lower()[:1]
        if given in ("l", ""):
            return None
        if given in _ANSWERS:
            return _ANSWERS[given]
