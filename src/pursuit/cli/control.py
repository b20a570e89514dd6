"""What the operator says to a mission, whoever drives it: pause, abort, complete, extend.

Owns: the four commands. Each is one word appended to the ledger; a driver hears it within a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.cli.options import Common, ConfigOption, JsonOption, MissionId, ReasonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.core.state import MissionState
    from pursuit.service import Service
if TYPE_CHECKING:
    from pursuit.cli.console import Screen
    from pursuit.core.events import Permission
    from pursuit.runtime import Runtime


PANEL = "Steer"
MOST = 2**53
"""What a mission file takes as a cap at most; a larger number has no exact float."""


def pause(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Stop a mission where it is; `pursuit resume` goes on at the same call."""
    return _say(common(ctx, config, state, json), mission_id, lambda s: s.pause(mission_id, reason=reason))


def abort(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """End a mission as terminated, also in the middle of a call."""
    return _say(common(ctx, config, state, json), mission_id, lambda s: s.abort(mission_id, reason=reason))


def complete(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """End a mission as completed, on your word."""
    return _say(common(ctx, config, state, json), mission_id, lambda s: s.complete(mission_id, reason=reason))


def extend(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    max_iterations: Annotated[
        int | None, typer.Option(metavar="N", max=MOST, show_default=False, help="Iterations.")
    ] = None,
    max_tool_calls: Annotated[
        int | None, typer.Option(metavar="N", max=MOST, show_default=False, help="Tool calls.")
    ] = None,
    max_wall_clock_seconds: Annotated[
        float | None, typer.Option(metavar="S", show_default=False, help="Seconds that a driver holds it.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", max=MOST, show_default=False, help="Tokens.")] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option(metavar="X", show_default=False, help="Cost in US dollars.")
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Raise the caps of a mission's budget: the new caps, not what is added; -1 is no cap."""
    given = {
        "max_iterations": max_iterations,
        "max_tool_calls": max_tool_calls,
        "max_wall_clock_seconds": max_wall_clock_seconds,
        "max_tokens": max_tokens,
        "max_cost_usd": max_cost_usd,
    }
    caps = {name: float(value) for name, value in given.items() if value is not None}
    return _say(common(ctx, config, state, json), mission_id, lambda s: s.extend(mission_id, caps))


def _say(said: Common, mission_id: str, word: Callable[[Service], Awaitable[MissionState]]) -> int:
    from pursuit.cli import show  # noqa: PLC0415
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415
    from pursuit.service.queries import status_of  # noqa: PLC0415

    async def verb(runtime: Runtime) -> MissionState:
        return await word(runtime.service)

    screen = Screen(said)
    status = status_of(mission_id, look(said, verb))
    if screen.json:
        screen.document(status)
        return 0
    screen.fact("mission", mission_id)
    screen.fact("status", status["status"])
    if text := show.why(status):
        screen.fact("why", text)
    ended = status["status"] in ("completed", "terminated")
    screen.hint(f"next: {said.command('report', mission_id) if ended else show.go_on(said, status)}")
    return 0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (pause, abort, complete):
        app.command(rich_help_panel=PANEL)(command)
    app.command(
        rich_help_panel=PANEL, epilog="Example:  pursuit extend ID --max-iterations 400,  then  pursuit resume ID"
    )(extend)


# Questions to the operator: approvals, approve, deny.
# Invariant: no answer is given but by the person at the keyboard, or by the words of a command.

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
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415
    from pursuit.service.approvals import Approvals  # noqa: PLC0415 - commands import what they need

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
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415
    from pursuit.service.approvals import Approvals  # noqa: PLC0415 - commands import what they need

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
    from pursuit.cli.console import clean  # noqa: PLC0415 - only who is asked pays for it

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


def register_approvals(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=PANEL)(approvals)
    app.command(rich_help_panel=PANEL, epilog="Example:  pursuit approve ID --for arguments")(approve)
    app.command(rich_help_panel=PANEL)(deny)
