"""`pursuit workspace`: what the agent of a mission changed; take it over, or remove it."""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.cli.console import CommandAnswer, counted
from pursuit.cli.context import Context, command, group
from pursuit.cli.options import MissionId

app = group(
    "workspace",
    "Show, take over or remove what the agent of a mission changed.",
    panel="Steer",
    no_args_is_help=True,
    epilog="Examples:  pursuit workspace diff last,  pursuit workspace apply ID,  git merge pursuit/ID",
)


@command(app, reads=True)
async def diff(
    context: Context,
    *,
    mission_id: MissionId,
    turn: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only the turn of this iteration (from 0), as recorded.")
    ] = None,
) -> CommandAnswer:
    """Show what a mission changed so far, without changes to protected files."""
    from pursuit.service.workspaces import turn_diff, whole_diff

    service = context.service
    body = await (whole_diff(service, mission_id) if turn is None else turn_diff(service, mission_id, turn))
    text = body.decode(errors="replace")
    return CommandAnswer({"session_id": mission_id, "diff": text}, text.rstrip("\n") if text else "no changes")


@command(app)
async def apply(
    context: Context,
    *,
    mission_id: MissionId,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Also if the mission is not completed.")] = False,
) -> CommandAnswer:
    """Apply the result to your own files, all of it or nothing. Nothing is committed."""
    from pursuit.service.workspaces import apply_result

    done = await apply_result(context.service, mission_id, unfinished=unfinished)
    return CommandAnswer(done, f"{counted(len(done['applied']), 'file')} changed in {done['path']}")


@command(app)
async def drop(context: Context, *, mission_id: MissionId) -> CommandAnswer:
    """Remove the worktree and the snapshots of a mission. Its branch, if it has one, stays."""
    from pursuit.service.workspaces import drop_workspace

    done = await drop_workspace(context.service, mission_id)
    return CommandAnswer(done, f"removed {done['dropped']}")
