"""`pursuit problem`: goals packaged with their tools and their judge.

Owns: the commands and their options. Driving and judging are `problem_run`'s, what is shown is `show_problems`'.
Invariant: a command that only looks opens no ledger; over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from pursuit.cli import show_problems
from pursuit.cli.attempts import known
from pursuit.cli.console import Screen
from pursuit.cli.context import loaded
from pursuit.cli.options import (
    Common,
    ConfigOption,
    JsonOption,
    ModeOption,
    StateOption,
    attempt_ids,
    common,
    problem_ids,
    problem_kinds,
)
from pursuit.cli.serve import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    AllowHostOption,
    HostOption,
    HttpOption,
    PortOption,
    RequireTokenOption,
    http_door,
    told_on,
    without_http,
)
from pursuit.errors import Fault, UpstreamUnavailable, ValidationFailed
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import Catalogue
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import told_in

PANEL = "Problems"

DirOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--dir", metavar="DIR", show_default=False, help="A folder with problems, searched through; repeatable."
    ),
]
ProblemId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        show_default=False,
        autocompletion=problem_ids,
        help="A problem, as in `pursuit problem list`; or its file or folder.",
    ),
]

app = typer.Typer(
    help="Problems to try agents on: list, search, show, serve, attempt, compare.",
    no_args_is_help=True,
    epilog="Examples:  pursuit problem list,  pursuit problem attempt welded-beam,  pursuit problem compare ID",
)


@app.callback()
def group(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> None:
    """Problems to try agents on: list, search, show, serve, attempt, compare."""
    ctx.obj = common(ctx, config, state, json)


KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        show_default=False,
        autocompletion=problem_kinds,
        help="Only text, decision, optimization or mcp problems.",
    ),
]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", show_default=False, help="Only with this tag; repeatable, all count.")
]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    kind: KindOption = None,
    tag: TagOption = None,
    directory: DirOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """List the problems that there are."""
    return found_problems(common(ctx, config, state, json), directory or (), kind=kind, tags=tag or ())


@app.command()
def search(
    ctx: typer.Context,
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS…", show_default=False, help="All of these, in the id, the title, the summary or a tag."
        ),
    ],
    kind: KindOption = None,
    tag: TagOption = None,
    directory: DirOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Find problems by words, kind and tags, all of which must fit."""
    said = common(ctx, config, state, json)
    return found_problems(said, directory or (), words=" ".join(words), kind=kind, tags=tag or ())


@app.command()
def show(
    ctx: typer.Context,
    *,
    problem_id: ProblemId,
    no_citation: Annotated[bool, typer.Option("--no-citation", help="Leave the sources out.")] = False,
    directory: DirOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Print a problem's brief, as agents read it."""
    from pursuit.cli.attempts import chosen  # noqa: PLC0415 - commands import what they need

    return shown(common(ctx, config, state, json), chosen(problem_id, directory or ()), citations=not no_citation)


@app.command()
def validate(
    ctx: typer.Context,
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]…", show_default=False, help="Manifests or folders; else this folder."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Check manifests: every fault, and warnings, with file, field and reason."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.errors import ValidationFailed  # noqa: PLC0415 - commands import what they need
    from pursuit.problems.catalogue import discover, manifests_in  # noqa: PLC0415
    from pursuit.problems.secrecy import warnings_of  # noqa: PLC0415

    screen = Screen(common(ctx, config, state, json))
    places = paths or [Path()]
    found = discover(places)  # what is shipped has its ids, too
    if found.faults:
        count = len(found.faults)
        raise ValidationFailed(found.faults, f"{count} fault{'' if count == 1 else 's'} in the problems")
    own = {path.resolve() for place in places for path in manifests_in(place)}
    checked = [one for one in found.problems if one.path.resolve() in own]
    names = [one.problem_id for one in checked]
    if not names:
        where = ", ".join(map(str, places))
        raise ValidationFailed([], f"there is no problem.toml in {where}")
    warnings = [warning for one in checked for warning in warnings_of(one)]
    if screen.json:
        screen.document({"problems": names, "warnings": [warning.as_dict() for warning in warnings]})
    else:
        for warning in warnings:
            screen.note(f"warning: {warning}")
        screen.plain(f"{len(names)} problem{'' if len(names) == 1 else 's'}, no fault: {', '.join(names)}")
    return 0


@app.command()
def serve(
    ctx: typer.Context,
    *,
    problem_id: ProblemId,
    server_name: Annotated[
        str | None,
        typer.Option("--server-name", metavar="NAME", show_default=False, help="What the server calls itself."),
    ] = None,
    no_citation: Annotated[bool, typer.Option("--no-citation", help="Leave the sources out of the brief.")] = False,
    attempt: Annotated[
        str | None,
        typer.Option(
            "--attempt",
            metavar="ID",
            show_default=False,
            autocompletion=attempt_ids,
            help="Go on with this attempt; else a new one.",
        ),
    ] = None,
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", show_default=False, help="Who tries, for comparisons.")
    ] = "",
    mission: Annotated[
        str | None,
        typer.Option("--mission", metavar="ID", show_default=False, help="The mission that tries, for comparisons."),
    ] = None,
    http: HttpOption = False,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    allow_host: AllowHostOption = None,
    require_token: RequireTokenOption = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            show_default=False,
            help="debug, info, warning or error; else warning, and info with --http.",
        ),
    ] = None,
    directory: DirOption = None,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Serve a problem: to one agent over stdio, or to many over HTTP."""
    import logging  # noqa: PLC0415 - commands import what they need

    from pursuit.cli.attempts import (  # noqa: PLC0415
        Serving,
        checked_attempt,
        chosen,
        serving,
    )
    from pursuit.cli.context import conduct  # noqa: PLC0415
    from pursuit.cli.errors import Interrupted  # noqa: PLC0415
    from pursuit.errors import ValidationFailed  # noqa: PLC0415
    from pursuit.server import logs  # noqa: PLC0415

    said = common(ctx, config, state, json)
    faults = [] if http else without_http(ctx, said)
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was served")
    logs.configure(log_level or ("info" if http else "warning"), "text")
    problem = chosen(problem_id, directory or ())
    wanted = Serving(
        server_name=server_name,
        citations=not no_citation,
        attempt=checked_attempt(said, problem, attempt, label=label, mission=mission),
        label=label,
        mission=mission,
        mode=mode,
        door=http_door(said, host=host, port=port, allow_host=allow_host, require_token=require_token)
        if http
        else None,
        listening=told_on(said),
    )
    try:
        return conduct(lambda: serving(said, problem, wanted))
    except Interrupted as stop:
        logs.event(logging.getLogger(__name__), logging.INFO, "stopped", signal=stop.number)
        return 0


@app.command()
def attempt(
    ctx: typer.Context,
    *,
    problem_id: ProblemId,
    proposer: Annotated[
        str | None,
        typer.Option(
            "--proposer",
            metavar="WHO",
            show_default=False,
            help="search, script, client, sampling, or a model as provider:name; else the problem's baseline.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", show_default=False, help="Who tries; else the proposer.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", metavar="N", min=1, show_default=False, help="A cap.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="N", min=0.001, show_default=False, help="A cap.")
    ] = None,
    directory: DirOption = None,
    mode: ModeOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Run a mission on a problem, and score it."""
    from pursuit.cli.attempts import Attempting, chosen  # noqa: PLC0415

    said = common(ctx, config, state, json)
    problem = chosen(problem_id, directory or ())
    trying = Attempting(said, problem, proposer=proposer, label=label, mode=mode)
    return trying.run(max_iterations=max_iterations, max_seconds=max_seconds)


@app.command()
def compare(
    ctx: typer.Context,
    *,
    problem_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID…",
            show_default=False,
            autocompletion=problem_ids,
            help="Problems, as in `pursuit problem list`; or their files or folders.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write one HTML page with plots."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    directory: DirOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Compare the attempts at problems: score against calls, time and tokens."""
    from pursuit.cli.attempts import all_chosen, compared  # noqa: PLC0415

    said = common(ctx, config, state, json)
    return compared(said, all_chosen(problem_ids, directory or ()), output, force=force)


@app.command()
def replay(
    ctx: typer.Context,
    *,
    attempt_id: Annotated[
        str,
        typer.Argument(metavar="ATTEMPT", show_default=False, autocompletion=attempt_ids, help="An attempt's id."),
    ],
    solved: Annotated[
        bool, typer.Option("--solved", help="Tell by the exit code alone whether it solved its problem.")
    ] = False,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem", metavar="ID", show_default=False, help="Its problem, file or folder; else by its id."
        ),
    ] = None,
    directory: DirOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Judge an attempt again from its log, without its server."""
    from pursuit.cli.attempts import replayed  # noqa: PLC0415 - commands import what they need

    return replayed(common(ctx, config, state, json), attempt_id, problem, directory or (), solved=solved)


def register(parent: typer.Typer) -> None:
    """Adds the commands."""
    parent.add_typer(app, name="problem", rich_help_panel=PANEL)


# What `pursuit problem` tells of problems without opening a ledger: which there are, and the brief of one.
# Invariant: a brief that is shown is the one that agents read, or says of the server that it was not asked.


def found_problems(
    said: Common, directories: Sequence[Path], *, words: str = "", kind: str | None = None, tags: Sequence[str] = ()
) -> int:
    """Shows the problems that fit; what cannot be read is told beside them."""
    screen = Screen(said)
    found = known(directories)
    try:
        fitting = Catalogue(found.problems).search(words, kind=kind, tags=tags)
    except ValidationFailed as failed:
        faults = [Fault(field=f"--{fault.field}", reason=fault.reason) for fault in failed.faults]
        raise ValidationFailed(faults, "; ".join(map(str, faults))) from None
    show_problems.listing(screen, [one.summary_row() for one in fitting])
    for fault in found.faults:
        screen.note(f"left out: {fault}")
    return 0


def shown(said: Common, problem: Manifest, *, citations: bool) -> int:
    """Shows the brief of a problem; its server, if it has one, is asked for its tools."""
    screen = Screen(said)
    loaded()
    brief = anyio.run(partial(_brief, problem, screen, citations=citations))
    if screen.json:
        screen.document({**problem.summary_row(), "brief": brief})
    else:
        screen.plain(brief.rstrip("\n"))
    return 0


async def _brief(problem: Manifest, screen: Screen, *, citations: bool) -> str:
    if problem.server is None:
        return write_brief(problem, citations=citations)
    from pursuit.server.problems.listing import asked_brief  # noqa: PLC0415 - the SDK is slow

    try:
        brief, offer = await asked_brief(problem, citations=citations)
    except UpstreamUnavailable as error:
        screen.note(f"without its tools: {error.message}")
        return write_brief(problem, citations=citations)
    if faults := offer.faults():
        raise ValidationFailed(faults, f"{problem.problem_id} cannot be worked at")
    seen = json.dumps([tool for one in offer.definitions if (tool := offer.shown(one)) is not None], ensure_ascii=False)
    for reason in told_in(seen, problem):
        screen.note(f"warning: what its server says of its tools {reason}")
    return brief
