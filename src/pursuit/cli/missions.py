"""The commands that drive missions: run, start, iterate, resume.

Owns: their arguments. What a drive does is `drive`'s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.options import ConfigOption, JsonOption, MissionId, ModeOption, StateOption, common, mission_ids
from pursuit.config.files import parse_json, too_deep, unreadable
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.errors import Fault, ValidationFailed

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
    from pursuit.cli.drive import Drive  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    if plan:
        from pursuit.cli.drive import plan as show_plan  # noqa: PLC0415

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
    from pursuit.cli.drive import Drive  # noqa: PLC0415 - commands import what they need

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
    from pursuit.cli.drive import Drive  # noqa: PLC0415 - commands import what they need

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
    from pursuit.cli.drive import Drive  # noqa: PLC0415
    from pursuit.errors import InvalidArgument  # noqa: PLC0415 - commands import what they need

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


# A proposal from a file or from standard input.
# Invariant: what is wrong is told with its file and place.

STDIN = "-"
MOST_BYTES = 16 * 1024 * 1024


def read_proposal(place: str) -> Proposal:
    """The proposal in a JSON file, or in standard input for `-`."""
    source = "standard input" if place == STDIN else place
    text = _read(place, source)
    try:
        return parse_proposal(parse_json(text, source=source))
    except RecursionError:
        raise too_deep(source) from None
    except ValidationFailed as failed:
        raise ValidationFailed([_placed(fault, source) for fault in failed.faults]) from None


def _read(place: str, source: str) -> str:
    try:
        if place == STDIN:
            body = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                body = file.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise unreadable(source, f"is larger than {MOST_BYTES:,} bytes")
        return body.decode()
    except UnicodeDecodeError:
        raise unreadable(source, "is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise unreadable(source, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _placed(fault: Fault, source: str) -> Fault:
    if fault.source is not None:
        return fault
    return Fault(field=fault.field, reason=fault.reason, source=source, line=fault.line, column=fault.column)
