"""`pursuit problem`: goals packaged with their tools and their judge.

Commands that only look open no ledger. Over stdio nothing of ours goes to standard output.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pursuit.cli import serve as serving
from pursuit.cli.console import CommandAnswer, Note, counted
from pursuit.cli.context import Context, command, group
from pursuit.cli.options import ForceOption, ModeOption, attempt_ids, problem_ids, problem_kinds
from pursuit.errors import Fault, ValidationFailed

DirOption = Annotated[
    list[Path] | None,
    typer.Option("--dir", metavar="DIR", help="Folder to search for problems, with subfolders; repeatable."),
]
ProblemId = Annotated[
    str,
    typer.Argument(
        metavar="ID", autocompletion=problem_ids, help="Problem id (`pursuit problem list`), file or folder."
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", autocompletion=problem_kinds, help="Only text, decision, optimization, mcp or coding problems."
    ),
]
TagOption = Annotated[list[str] | None, typer.Option(help="Only problems with this tag; repeatable, all must match.")]
CitationOption = Annotated[bool, typer.Option("--no-citation", help="Leave the sources out of the brief.")]

app = group(
    "problem",
    "Problems to test agents on: list, search, show, serve, attempt, compare.",
    panel="Problems",
    no_args_is_help=True,
    epilog="Examples:  pursuit problem list,  pursuit problem attempt welded-beam,  pursuit problem compare ID",
)


_TrustOption = Annotated[bool, typer.Option("--trust", help="Trust what the problem starts; do not ask.")]


@command(app, "list", reads=True)
def list_problems(
    context: Context, *, kind: KindOption = None, tag: TagOption = None, directory: DirOption = None
) -> CommandAnswer:
    """List the problems."""
    from pursuit.cli.attempts import list_matching

    return list_matching(context, directory or (), kind=kind, tags=tag or ())


@command(app, reads=True)
def search(
    context: Context,
    *,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="Words in the id, the title, the summary or a tag; all must match."),
    ],
    kind: KindOption = None,
    tag: TagOption = None,
    directory: DirOption = None,
) -> CommandAnswer:
    """Find problems by words, kind and tags; all must match."""
    from pursuit.cli.attempts import list_matching

    return list_matching(context, directory or (), words=" ".join(words), kind=kind, tags=tag or ())


@command(app, reads=True)
def show(
    context: Context, *, problem_id: ProblemId, no_citation: CitationOption = False, directory: DirOption = None
) -> CommandAnswer:
    """Print a problem's brief, as agents read it."""
    from pursuit.cli.attempts import brief_of, find_problem
    from pursuit.problems.catalogue import workspaces_of

    problem = find_problem(problem_id, directory or ())
    if problem.server is not None:
        context.require_trust(*workspaces_of(problem))
    return brief_of(context, problem, citations=not no_citation)


@command(app, reads=True)
def validate(
    _context: Context,
    *,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH", help="Manifests or folders (default: this folder).")
    ] = None,
) -> CommandAnswer:
    """Check manifests: every fault and warning, with file, field and reason."""
    from pursuit.problems.catalogue import discover, manifests_in
    from pursuit.problems.secrecy import warnings_of

    places = paths or [Path()]
    found = discover(places)  # with the problems that we ship: an id must not be one of theirs
    if found.faults:
        raise ValidationFailed(found.faults, f"{counted(len(found.faults), 'fault')} in the problems")
    own = {path.resolve() for place in places for path in manifests_in(place)}
    checked = [one for one in found.problems if one.path.resolve() in own]
    names = [one.problem_id for one in checked]
    if not names:
        where = ", ".join(map(str, places))
        raise ValidationFailed([], f"there is no problem.toml in {where}")
    warnings = [warning for one in checked for warning in warnings_of(one)]
    return CommandAnswer(
        {"problems": names, "warnings": [warning.as_dict() for warning in warnings]},
        *(Note(f"warning: {warning}") for warning in warnings),
        f"{counted(len(names), 'problem')}, no fault: {', '.join(names)}",
    )


@command(app)
def serve(
    context: Context,
    *,
    problem_id: ProblemId,
    server_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name that the server reports to clients.")
    ] = None,
    no_citation: CitationOption = False,
    attempt: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            autocompletion=attempt_ids,
            help="Continue this attempt (default: your last one, or a new one after its end).",
        ),
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="Name of the agent, for comparisons.")] = "",
    mission: Annotated[
        str | None, typer.Option(metavar="ID", help="Mission that makes the attempt, for comparisons.")
    ] = None,
    http: serving.HttpOption = False,
    host: serving.HostOption = serving.DEFAULT_HOST,
    port: serving.PortOption = serving.DEFAULT_PORT,
    allow_host: serving.AllowHostOption = None,
    require_token: serving.RequireTokenOption = True,
    socket: serving.SocketOption = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error (default: warning, with --http info).")
    ] = None,
    directory: DirOption = None,
    mode: ModeOption = None,
    trust: _TrustOption = False,
) -> None:
    """Serve a problem: to one agent over stdio, or to many over HTTP."""
    from pursuit.cli.attempts import check_attempt, find_problem
    from pursuit.policy.rules import parse_mode
    from pursuit.problems.catalogue import workspaces_of
    from pursuit.server import logs
    from pursuit.server.problems.server import NESTED, ProblemOptions, problem_server
    from pursuit.service.audit import local_subject

    if faults := serving.transport_faults(context, http=http, socket=socket):
        raise ValidationFailed(faults, "wrong options; nothing was served")
    over_http = http or socket is not None
    logs.configure(log_level or ("info" if over_http else "warning"), "text")
    problem = find_problem(problem_id, directory or ())
    if not trust:
        context.require_trust(*workspaces_of(problem))
    if over_http and problem.repository is not None and problem.scorer.isolation is None:
        reason = "its judge runs the code that clients submit; give it [scorer] isolation, or serve it over stdio"
        raise ValidationFailed([Fault(field="--http", reason=reason)], reason)
    attempt_id = check_attempt(context, problem, attempt, label=label, mission=mission)
    door = None
    if over_http:
        door = serving.http_door(
            context, host=host, port=port, allow_host=allow_host, require_token=require_token, socket=socket
        )
    # Over stdio an attempt is this user's, and of the agent that the operator names.
    own = f"{local_subject()} as {label}" if label else local_subject()
    options = ProblemOptions(
        state=context.ledger_path,
        config=context.configuration,
        mode=None if mode is None else parse_mode(mode),
        server_name=server_name,
        include_citation=not no_citation,
        attempt_id=attempt_id,
        label=label,
        mission=mission,
        subject=None if http or attempt_id or NESTED in os.environ else own,
    )

    async def work() -> None:
        if door is None:
            from pursuit.server.stdio import serve_stdio

            await serve_stdio(problem_server(problem, options), any_text=True)
        else:
            from pursuit.server.http import serve_http

            server = problem_server(problem, options, many=True)
            await serve_http(server, door, any_text=True, listening=serving.print_address(context, door))

    serving.serve_until_stopped(work)


@command(app)
def attempt(
    context: Context,
    *,
    problem_id: ProblemId,
    proposer: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="search, script, client, sampling, or a model as provider:name (default: the problem's baseline).",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name for comparisons (default: the proposer).")
    ] = None,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum iterations.")] = None,
    max_seconds: Annotated[float | None, typer.Option(metavar="N", min=0.001, help="Maximum seconds.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]COMMAND",
            help="Coding agent for a problem with a repository, such as 'qwen --acp'; several work side by side.",
        ),
    ] = None,
    inherit_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Variable or glob that the agents get too; repeatable.")
    ] = None,
    directory: DirOption = None,
    mode: ModeOption = None,
) -> int:
    """Run a mission on a problem, and score it."""
    from pursuit.cli.attempts import AgentsRun, AttemptRun, find_problem
    from pursuit.problems.catalogue import workspaces_of

    if agent and (proposer or label):
        fault = Fault(field="--agent", reason="is instead of --proposer; --label is the NAME in --agent NAME=COMMAND")
        raise ValidationFailed([fault], str(fault))
    problem = find_problem(problem_id, directory or ())
    context.trust_here(*workspaces_of(problem))
    if agent:
        run = AgentsRun(context, problem, agents=agent, inherit=inherit_env or (), mode=mode)
    else:
        run = AttemptRun(context, problem, proposer=proposer, label=label, mode=mode)
    return run.run(max_iterations=max_iterations, max_seconds=max_seconds)


@command(app)
def submit(
    context: Context,
    *,
    problem_id: ProblemId,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The repository with your changes.")] = Path(),
    label: Annotated[str, typer.Option(metavar="TEXT", help="Name for comparisons.")] = "",
    directory: DirOption = None,
    trust: _TrustOption = False,
) -> CommandAnswer | int:
    """Hand in a folder as an attempt at a coding problem, and score it."""
    from pursuit.cli.attempts import find_problem, submit_folder
    from pursuit.problems.catalogue import workspaces_of

    problem = find_problem(problem_id, directory or ())
    if not trust:
        context.require_trust(*workspaces_of(problem))
    return submit_folder(context, problem, folder, label=label, trust=trust)


@command(app, reads=True)
def compare(
    context: Context,
    *,
    problem_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID", autocompletion=problem_ids, help="Problem ids (`pursuit problem list`), files or folders."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write an HTML page with plots.")
    ] = None,
    force: ForceOption = False,
    directory: DirOption = None,
) -> CommandAnswer:
    """Compare the attempts at problems: score against calls, time and tokens."""
    from pursuit.cli.attempts import compare_attempts, find_problems

    return compare_attempts(context, find_problems(problem_ids, directory or ()), output, force=force)


@command(app)
def replay(
    context: Context,
    *,
    attempt_id: Annotated[str, typer.Argument(metavar="ATTEMPT", autocompletion=attempt_ids, help="Attempt id.")],
    solved: Annotated[
        bool, typer.Option("--solved", help="Report only by the exit code whether the problem is solved.")
    ] = False,
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Its problem, file or folder (default: found by the recorded id).")
    ] = None,
    directory: DirOption = None,
    trust: _TrustOption = False,
) -> CommandAnswer:
    """Judge an attempt again from its log, without its server."""
    from pursuit.cli.attempts import replay_attempt

    return replay_attempt(context, attempt_id, problem, directory or (), solved=solved, trust=trust)
