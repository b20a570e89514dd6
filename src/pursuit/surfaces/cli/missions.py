"""The commands that drive missions: run, start, iterate, resume.

Owns: their arguments. What a drive does is `drive`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.complete import mission_ids
from pursuit.surfaces.cli.options import ConfigOption, JsonOption, MissionId, ModeOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.runtime import Runtime

PANEL = "Start"
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="A mission in TOML; `pursuit init` writes one.")
]


def run(
    ctx: typer.Context,
    *,
    file: FileArgument,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the first proposal and what policy would say; run and store nothing.")
    ] = False,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Start the mission in a file and pursue it until it ends or waits."""
    from pursuit.surfaces.cli.drive import Drive  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    if plan:
        from pursuit.surfaces.cli.plan import plan as show_plan  # noqa: PLC0415

        return show_plan(said, file, mode)
    drive = Drive(said, mode)
    drive.check(file)

    async def work(runtime: Runtime) -> int:
        return await drive.pursue(runtime, await drive.accept(runtime, file))

    return drive.conduct(work)


def start(
    ctx: typer.Context,
    *,
    file: FileArgument,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Accept the mission in a file without running it, and print its id."""
    from pursuit.surfaces.cli.drive import Drive  # noqa: PLC0415 - commands import what they need

    drive = Drive(common(ctx, config, state, json), mode)

    drive.check(file)

    async def work(runtime: Runtime) -> int:
        return await drive.start(runtime, file)

    return drive.conduct(work)


def iterate(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    iterations: Annotated[int, typer.Option("--iterations", "-n", metavar="N", help="How many at most.")] = 1,
    proposal: Annotated[
        str | None,
        typer.Option(
            "--proposal", metavar="FILE|-", show_default=False, help="What to do, as JSON, if the proposer is `client`."
        ),
    ] = None,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Drive a mission by a few iterations."""
    from pursuit.surfaces.cli.drive import Drive  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.proposal import read_proposal  # noqa: PLC0415

    drive = Drive(common(ctx, config, state, json), mode)
    wanted = None if proposal is None else read_proposal(proposal)

    async def work(runtime: Runtime) -> int:
        return await drive.iterate(runtime, mission_id, iterations, wanted)

    return drive.conduct(work, existing=True)


def resume(
    ctx: typer.Context,
    *,
    mission_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", show_default=False, autocompletion=mission_ids, help="A mission that has not ended."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mission whose driver stopped short.")] = False,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Go on with a mission that is pending, interrupted, paused or failed."""
    from pursuit.errors import InvalidArgument  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.drive import Drive  # noqa: PLC0415

    if (mission_id is None) != every:
        raise InvalidArgument("give a mission's ID, or --all", field="ID")
    drive = Drive(common(ctx, config, state, json), mode)

    async def work(runtime: Runtime) -> int:
        return await (drive.pursue_all(runtime) if mission_id is None else drive.pursue(runtime, mission_id))

    return drive.conduct(work, existing=True)


CODES = "Exit code:  0 completed,  3 terminated,  4 waiting or paused,  1 failed,  2 wrong input."


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=PANEL, epilog=CODES)(run)
    app.command(rich_help_panel=PANEL)(start)
    app.command(
        rich_help_panel=PANEL,
        epilog="""Example:  echo '{"tool_calls": [{"tool_name": "beam.evaluate", "args": {"h": 1}}]}' """
        "| pursuit iterate ID --proposal -",
    )(iterate)
    app.command(rich_help_panel=PANEL, epilog=CODES)(resume)
