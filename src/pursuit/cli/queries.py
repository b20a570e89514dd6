"""The commands that look: status, list, history, watch, report, lessons.

Owns: their arguments. They work whatever is wrong with the configuration, and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import typer

from pursuit.cli import show
from pursuit.cli.console import Screen, line
from pursuit.cli.options import ConfigOption, JsonLinesOption, JsonOption, MissionId, StateOption, common
from pursuit.cli.progress import iteration_line, progress
from pursuit.core.events import (
    AnyEvent,
    IterationEnded,
    MissionCreated,
    MissionEnded,
    MissionFailed,
    OperatorWord,
    RunClaimed,
    WaitBegan,
)
from pursuit.core.report import iso
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase
from pursuit.service import Service
from pursuit.service.queries import SHOWN_STATUSES

if TYPE_CHECKING:
    from pursuit.runtime import Runtime


PANEL = "Look"
CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", metavar="C", show_default=False, help="The next page, as the last one named it."),
]


def status(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show how a mission stands: criteria with their evidence, budget, verdict."""
    from pursuit.cli import show  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service.status(mission_id)

    show.mission(Screen(said), look(said, verb))
    return 0


def list_missions(
    ctx: typer.Context,
    *,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--status", metavar="S", show_default=False, help="Only these, for example running or interrupted."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")] = 100,
    cursor: CursorOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """List the missions of the ledger, newest first."""
    from pursuit.cli import show  # noqa: PLC0415
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import NoLedger, look  # noqa: PLC0415
    from pursuit.config.files import STATE_VARIABLE  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)
    _check_status(wanted)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service.list(status=wanted, cursor=cursor, limit=limit)

    screen = Screen(said)
    page: dict[str, Any] = {"sessions": []}
    try:
        page = look(said, verb)
    except NoLedger as error:
        # Where nobody named a ledger, none is simply no missions yet; a name may be a slip of the pen.
        if said.state is not None or os.environ.get(STATE_VARIABLE):
            screen.note(f"note: {error.message}")
    show.listing(screen, page)
    return 0


def _check_status(wanted: str | None) -> None:
    from pursuit.core.base_model import nearest  # noqa: PLC0415 - commands import what they need
    from pursuit.errors import InvalidArgument  # noqa: PLC0415

    known = (*SHOWN_STATUSES, "forgotten")
    if wanted is not None and wanted not in known:
        advice = nearest(wanted, known) or f"; known: {', '.join(known)}"
        raise InvalidArgument(f"--status: {wanted!r} is no status{advice}", field="--status")


def history(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    full: Annotated[bool, typer.Option("--full", help="With calls, observations and criteria.")] = False,
    cursor: CursorOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show the iterations of a mission, a hundred a page."""
    from pursuit.cli import show  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service.history(mission_id, full=full, cursor=cursor)

    show.history(Screen(said), look(said, verb), full=full)
    return 0


def watch(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonLinesOption = False,
) -> int:
    """Follow a mission, whichever process drives it, until it ends or is interrupted; Ctrl-C leaves."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415 - commands import what they need

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> None:
        await follow(runtime.service, mission_id, Screen(said))

    look(said, verb)
    return 0


def report(
    ctx: typer.Context,
    *,
    mission_id: MissionId,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="html|md|json", show_default=False, help="Else by the file's name, else Markdown."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write it there, not to the screen."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Show the report of a mission, the final one if it has ended."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import check_output, look  # noqa: PLC0415
    from pursuit.cli.reports import format_of, show_report  # noqa: PLC0415

    said = common(ctx, config, state, json)
    wanted = format_of(form, output, as_json=said.json)
    if output is not None:
        check_output(said, output, force=force)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service.report(mission_id)

    show_report(Screen(said), mission_id, look(said, verb), wanted, output)
    return 0


def lessons(
    ctx: typer.Context,
    *,
    words: Annotated[list[str], typer.Argument(metavar="WORDS…", show_default=False, help="What it was about.")],
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many missions at most.")
    ] = 10,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Find what ended missions learned, the best match first."""
    from pursuit.cli import show  # noqa: PLC0415 - commands import what they need
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import look  # noqa: PLC0415

    said = common(ctx, config, state, json)

    async def verb(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service.lessons(" ".join(words), limit=limit)

    show.lessons(Screen(said), look(said, verb))
    return 0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel=PANEL)(status)
    app.command("list", rich_help_panel=PANEL, epilog="Example:  pursuit list --status running --limit 10")(
        list_missions
    )
    app.command(rich_help_panel=PANEL)(history)
    app.command(rich_help_panel=PANEL)(watch)
    app.command(rich_help_panel=PANEL, epilog="Example:  pursuit report ID -o report.html")(report)
    app.command(rich_help_panel=PANEL, epilog="Example:  pursuit lessons checkout latency")(lessons)


# `pursuit watch`: a mission from outside, event by event.
# Invariant: it ends when the mission has ended, also if that was long ago, and not at an end that was taken back;
# and when the process that drove the mission is gone.

LOOK_SECONDS = 1.0

_PHASES: dict[str, Phase] = {
    "RunClaimed": "propose",
    "ModelAsked": "propose",
    "ModelAnswered": "propose",
    "IterationEnded": "decided",
    "WaitBegan": "waiting",
    "MissionEnded": "ended",
}


async def follow(service: Service, mission_id: str, screen: Screen) -> None:
    """Shows everything that has happened and that happens, until the end."""
    head = (await service.state(mission_id)).seq
    seen = 0
    interrupted = False

    async def await_interruption() -> None:
        nonlocal interrupted
        while not interrupted:
            # Twice, a look apart: a server takes up a background run half a second after its last driver left it.
            before = await _is_left(service, mission_id, seen)
            await anyio.sleep(LOOK_SECONDS)
            interrupted = before and await _is_left(service, mission_id, seen)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks, _shown(screen, mission_id) as see:
        tasks.start_soon(await_interruption)
        async for event, state in service.watch(mission_id):
            see(event, state)
            seen = state.seq
            if _over(state, head) or screen.unread:
                break
        tasks.cancel_scope.cancel()
    if screen.rich:
        show.mission(screen, await service.status(mission_id))
    elif interrupted:
        status = await service.status(mission_id)
        if screen.json:
            screen.document({key: status[key] for key in ("session_id", "status", "resume") if key in status})
        else:
            screen.plain(f"interrupted: {show.why(status)}; resume it with: {show.go_on(screen.common, status)}")


async def _is_left(service: Service, mission_id: str, seen: int) -> bool:
    """Whether everything has been shown and no process goes on with it."""
    return await service.is_stopped_short(mission_id) and (await service.state(mission_id)).seq <= seen


@asynccontextmanager
async def _shown(screen: Screen, mission_id: str) -> AsyncGenerator[Callable[[AnyEvent, MissionState], None]]:
    """Shows each event: in place on a terminal, else one line for each."""
    if screen.rich:
        async with progress(screen) as see:
            yield lambda event, state: see(mission_id, _PHASES.get(type(event).__name__, "execute"), state)
        return

    def tell(event: AnyEvent, state: MissionState) -> None:
        if screen.json:
            screen.document(_event_row(event, state.seq))
        elif text := _event_line(event, state):
            screen.plain(f"{iso(event.at)}\t{text}")

    yield tell


def _over(state: MissionState, head: int) -> bool:
    """Whether this is the end: one that lies before the head when we began was taken back later."""
    return state.terminal and state.closed and state.seq >= head


def _event_row(event: AnyEvent, seq: int) -> dict[str, Any]:
    body = msgspec.to_builtins(event)
    return {"seq": seq, "type": type(event).__name__, **body, "at": iso(event.at)}


def _event_line(event: AnyEvent, state: MissionState) -> str | None:
    match event:
        case IterationEnded():
            return iteration_line(state)
        case MissionEnded():
            return f"{event.status} ({event.reason})"
        case WaitBegan():
            return f"waiting for {event.waiting_for}"
        case OperatorWord():
            return f"{type(event).__name__} by {line(event.by)}" + (f": {line(event.reason)}" if event.reason else "")
        case MissionCreated():
            return "created"
        case RunClaimed():
            return f"driven by process {event.pid} on {line(event.host)}"
        case MissionFailed():
            return f"failed: {line(event.error, 200)}"
        case _:
            return None
