"""The commands that drive missions: run, start, iterate, resume.

Owns: how a drive begins and what is said when it ends. The driving itself is the engine's.
Invariant: a signal leaves every mission recorded and resumable, and says how to go on.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pursuit.surfaces.cli.complete import mission_ids
from pursuit.surfaces.cli.options import (
    Common,
    ConfigOption,
    JsonOption,
    MissionId,
    ModeOption,
    StateOption,
    common,
)

if TYPE_CHECKING:
    from pursuit.app import Runtime
    from pursuit.surfaces.cli.screen import Screen

PANEL = "Start"
MissionFileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="A mission in TOML; `pursuit init` writes one.")
]


def run(
    ctx: typer.Context,
    file: MissionFileArgument,
    mode: ModeOption = "auto",
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Start the mission in a file and pursue it until it ends or waits."""
    from pursuit.surfaces.cli.drive import Drive, accept  # noqa: PLC0415 - commands import what they need

    drive = Drive(common(ctx, config, state, json), mode)

    async def work(runtime: Runtime) -> int:
        mission_id = await accept(drive, runtime, file)
        return await drive.to_the_end(runtime, mission_id)

    return drive.conduct(work)


def start(
    ctx: typer.Context,
    file: MissionFileArgument,
    mode: ModeOption = "auto",
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Accept the mission in a file without running it, and print its id."""
    from pursuit.surfaces.cli.drive import Drive, accept  # noqa: PLC0415 - commands import what they need

    drive = Drive(common(ctx, config, state, json), mode)

    async def work(runtime: Runtime) -> int:
        mission_id = await accept(drive, runtime, file)
        return drive.accepted(mission_id)

    return drive.conduct(work)
