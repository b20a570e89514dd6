"""The commands that drive missions: run, start, iterate, resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.console import CommandAnswer
from pursuit.cli.context import Context, command
from pursuit.cli.options import MissionId, ModeOption, mission_ids, read_input
from pursuit.errors import InvalidArgument, ValidationFailed

if TYPE_CHECKING:
    from pursuit.core.mission import Proposal

PANEL = "Start"
EXIT_CODES = "Exit code:  0 completed,  3 terminated,  4 waiting or paused,  1 failed,  2 wrong input."

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Mission file in TOML (`pursuit init` writes one).")]

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Stay while the mission waits for an approval or a budget that is given elsewhere."),
]

DetachOption = Annotated[
    bool, typer.Option("--detach", help="Leave it to the workers of a ledger on PostgreSQL (`pursuit worker`).")
]

app = typer.Typer()


@command(app, epilog=EXIT_CODES)
def run(
    context: Context,
    *,
    file: FileArgument,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the first proposal and the policy's decisions; run and store nothing.")
    ] = False,
    wait: WaitOption = False,
    detach: DetachOption = False,
    mode: ModeOption = None,
) -> int | CommandAnswer:
    """Start the mission in a file and run it until it ends or waits."""
    from pursuit.cli.drive import Drive, plan_of

    if plan:
        return plan_of(context, file, mode)
    if detach:
        return Drive(context, mode).start(file, detach=True)
    return Drive(context, mode, wait=wait).run(file)


@command(app)
def start(context: Context, *, file: FileArgument, mode: ModeOption = None) -> int:
    """Record the mission in a file without running it here, and print its id; on PostgreSQL workers run it."""
    from pursuit.cli.drive import Drive

    return Drive(context, mode).start(file)


@command(
    app,
    epilog="""Example:  echo '{"tool_calls": [{"tool_name": "beam.evaluate", "args": {"h": 1}}]}' """
    "| pursuit iterate ID --proposal -",
)
def iterate(
    context: Context,
    *,
    mission_id: MissionId,
    iterations: Annotated[int, typer.Option("--iterations", "-n", metavar="N", help="Maximum iterations.")] = 1,
    proposal: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="The calls to make, as JSON, if the proposer is `client`.")
    ] = None,
    mode: ModeOption = None,
) -> int:
    """Run a few iterations of a mission."""
    from pursuit.cli.drive import Drive

    return Drive(context, mode).iterate(mission_id, iterations, None if proposal is None else read_proposal(proposal))


@command(app, epilog=EXIT_CODES)
def resume(
    context: Context,
    *,
    mission_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", autocompletion=mission_ids, help="One that has not ended, or ended as no_progress."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mission whose process stopped before its end.")] = False,
    wait: WaitOption = False,
    detach: DetachOption = False,
    model: Annotated[str | None, typer.Option(metavar="PROVIDER:NAME", help="Ask another language model.")] = None,
    mode: ModeOption = None,
) -> int:
    """Continue a mission that is pending, interrupted, paused, failed or ended as no_progress, in its own mode."""
    from pursuit.cli.drive import Drive

    if (mission_id is None) != every:
        raise InvalidArgument("give a mission's ID, or --all", field="ID")
    if every and (wait or detach or model):
        option = "--wait" if wait else "--detach" if detach else "--model"
        raise InvalidArgument(f"{option} goes with one mission's ID, not with --all", field=option)
    drive = Drive(context, mode, wait=wait)
    return drive.resume_all() if mission_id is None else drive.resume(mission_id, model, detach=detach)


def read_proposal(place: str) -> Proposal:
    """The proposal in a JSON file, or in standard input for `-`; each fault names the file."""
    from pursuit.config.files import parse_json, too_deep
    from pursuit.core.mission import parse_proposal

    text, source = read_input(place)
    try:
        return parse_proposal(parse_json(text, source=source))
    except RecursionError:
        raise too_deep(source) from None
    except ValidationFailed as failed:
        raise ValidationFailed([replace(one, source=one.source or source) for one in failed.faults]) from None
