"""What the operator says to a mission, whoever drives it: pause, abort, complete, extend.

Owns: the four commands. Each is one word appended to the ledger; a driver hears it within a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.options import (
    Common,
    ConfigOption,
    JsonOption,
    MissionId,
    ReasonOption,
    StateOption,
    common,
)

if TYPE_CHECKING:
    from pursuit.core.state import MissionState
    from pursuit.service import Service

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
    from pursuit.runtime import Runtime  # noqa: PLC0415 - commands import what they need
    from pursuit.service.queries import status_of  # noqa: PLC0415
    from pursuit.surfaces.cli import show  # noqa: PLC0415
    from pursuit.surfaces.cli.context import look  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415

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
