"""`pursuit workspace`: shows, applies or removes the changes of a mission's coding agent."""

from __future__ import annotations

from typing import Annotated

import typer

from pursuit.cli.console import CommandAnswer, counted
from pursuit.cli.context import Context, command, group
from pursuit.cli.options import MissionId
from pursuit.service.workspaces import apply_result, drop_workspace, turn_diff, whole_diff

app = group(
    "workspace",
    no_args_is_help=True,
    epilog="Examples:  pursuit workspace diff last,  pursuit workspace apply ID,  git merge pursuit/ID",
)


@command(app, reads=True)
async def diff(
    context: Context,
    *,
    mission_id: MissionId,
    turn: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Show only the recorded changes of this iteration, counted from 0."),
    ] = None,
) -> CommandAnswer:
    """Show the changes of a mission so far, without changes to protected files."""
    service = context.service
    body = await (whole_diff(service, mission_id) if turn is None else turn_diff(service, mission_id, turn))
    text = body.decode(errors="replace")
    return CommandAnswer({"session_id": mission_id, "diff": text}, text.rstrip("\n") if text else "no changes")


@command(app)
async def apply(
    context: Context,
    *,
    mission_id: MissionId,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Apply even if the mission is not completed.")
    ] = False,
) -> CommandAnswer:
    """Apply all changes to your files, or none if that fails. Nothing is committed."""
    done = await apply_result(context.service, mission_id, unfinished=unfinished)
    return CommandAnswer(done, f"{counted(len(done['applied']), 'file')} changed in {done['path']}")


@command(app)
async def drop(context: Context, *, mission_id: MissionId) -> CommandAnswer:
    """Remove the worktree and the snapshots of a mission. Its branch, if any, remains."""
    done = await drop_workspace(context.service, mission_id)
    return CommandAnswer(done, f"removed {done['dropped']}")
