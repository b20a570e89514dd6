"""`pursuit problem`: goals packaged with their tools and their judge.

Read-only commands open no ledger. Over stdio, only MCP messages go to standard output.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import typer

from pursuit.cli import serve as serving
from pursuit.cli import show_problems
from pursuit.cli.attempts import AgentsRun, AttemptRun, open_attempt
from pursuit.cli.console import CommandAnswer, Fact, Note, counted
from pursuit.cli.context import Context, command, group, run
from pursuit.cli.options import ForceOption, ModeOption, attempt_ids, problem_ids, problem_kinds
from pursuit.cli.reports import write_whole
from pursuit.config.process_environment import SESSION_VARIABLE
from pursuit.config.trust import require_trusted
from pursuit.core.attempts import AttemptState
from pursuit.engine.journal import require_id
from pursuit.errors import (
    AttemptNotFound,
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    NotTrusted,
    ProblemNotFound,
    PursuitError,
    UpstreamUnavailable,
    ValidationFailed,
)
from pursuit.ledger.contract import Ledger
from pursuit.policy.rules import parse_mode
from pursuit.problems.attempts import Attempt, checked_attempt_id, load_attempt, new_attempt_id, shared_attempt_id
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import SHIPPED, ProblemCatalogue, discover, manifests_in, workspaces_of
from pursuit.problems.comparison import replay as judge_again
from pursuit.problems.comparison import targets_of
from pursuit.problems.manifest import MANIFEST, Manifest
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.missions import UNSOLVED
from pursuit.problems.repositories import changed_files
from pursuit.problems.scoring import checked_submission
from pursuit.problems.secrecy import judging_digest, revealed_in, warnings_of
from pursuit.reports.html import render_comparison
from pursuit.runtime import Runtime
from pursuit.sandbox.sandbox import Sandbox
from pursuit.service.audit import local_subject
from pursuit.service.comparison import compared

POLL_SECONDS = 0.05
PATIENCE = 30.0
"""Seconds to wait for another process that works on an attempt, beyond the judge's timeout."""

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
CitationOption = Annotated[bool, typer.Option("--no-citation", help="Omit the sources from the brief.")]

app = group(
    "problem",
    no_args_is_help=True,
    epilog="Examples:  pursuit problem list,  pursuit problem attempt welded-beam,  pursuit problem compare ID",
)


_TrustOption = Annotated[bool, typer.Option("--trust", help="Trust the problem without asking.")]


@command(app, "list", reads=True)
def list_problems(
    context: Context, *, kind: KindOption = None, tag: TagOption = None, directory: DirOption = None
) -> CommandAnswer:
    """List the problems."""
    return _matching(context, directory, kind=kind, tags=tag)


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
    return _matching(context, directory, words=" ".join(words), kind=kind, tags=tag)


def _matching(
    context: Context, directory: list[Path] | None, *, words: str = "", kind: str | None, tags: list[str] | None
) -> CommandAnswer:
    found = _discovered(directory or ())
    try:
        matching = found.search(words, kind=kind, tags=tags or ())
    except ValidationFailed as failed:
        faults = [Fault(field=f"--{fault.field}", reason=fault.reason) for fault in failed.faults]
        raise ValidationFailed(faults, "; ".join(map(str, faults))) from None
    for fault in found.faults:
        context.screen.note(f"left out: {fault}")
    return show_problems.listing([one.summary_row() for one in matching])


@command(app, reads=True)
def show(
    context: Context, *, problem_id: ProblemId, no_citation: CitationOption = False, directory: DirOption = None
) -> CommandAnswer:
    """Print a problem's brief, as agents read it."""
    problem = find_problem(problem_id, directory)
    if problem.server is not None:
        context.require_trust(*workspaces_of(problem))
    brief = run(_brief, context, problem, not no_citation)
    return CommandAnswer({**problem.summary_row(), "brief": brief}, brief.rstrip("\n"))


async def _brief(context: Context, problem: Manifest, citations: bool) -> str:
    if problem.server is None:
        return write_brief(problem, citations=citations)
    from pursuit.server.problems.listing import asked_brief

    screen = context.screen
    try:
        brief, offer = await asked_brief(problem, citations=citations)
    except UpstreamUnavailable as error:
        screen.note(f"without its tools: {error.message}")
        return write_brief(problem, citations=citations)
    if faults := offer.faults():
        raise ValidationFailed(faults, f"agents cannot use {problem.problem_id}")
    seen = json.dumps([tool for one in offer.definitions if (tool := offer.shown(one)) is not None], ensure_ascii=False)
    for reason in revealed_in(seen, problem):
        screen.note(f"warning: the tool descriptions of its server: {reason}")
    return brief


@command(app, reads=True)
def validate(
    _context: Context,
    *,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH", help="Manifests or folders (default: this folder).")
    ] = None,
) -> CommandAnswer:
    """Check manifests: every fault and warning, with file, field and reason; lists the tools of trusted servers."""
    places = paths or [Path()]
    found = discover(places)  # includes the shipped problems: an id must not repeat theirs
    if found.faults:
        raise ValidationFailed(found.faults, f"{counted(len(found.faults), 'fault')} in the problems")
    own = {path.resolve() for place in places for path in manifests_in(place)}
    checked = [one for one in found if one.path.resolve() in own]
    names = [one.problem_id for one in checked]
    if not names:
        where = ", ".join(map(str, places))
        raise ValidationFailed([], f"no problem.toml found in {where}")
    faults, unchecked = run(_server_faults, checked)
    if faults:
        raise ValidationFailed(faults, f"{counted(len(faults), 'fault')} in the servers of the problems")
    warnings = [*(warning for one in checked for warning in warnings_of(one)), *unchecked]
    return CommandAnswer(
        {"problems": names, "warnings": [warning.as_dict() for warning in warnings]},
        *(Note(f"warning: {warning}") for warning in warnings),
        f"{counted(len(names), 'problem')}, no fault: {', '.join(names)}",
    )


async def _server_faults(problems: Sequence[Manifest]) -> tuple[list[Fault], list[Fault]]:
    """The faults of the problems' servers, and a warning for each server that is not trusted or cannot be reached."""
    from pursuit.server.problems.listing import server_faults

    faults: list[Fault] = []
    unchecked: list[Fault] = []
    for one in problems:
        if one.server is None:
            continue
        try:
            require_trusted(workspaces_of(one))
            faults += await server_faults(one, one.server)
        except (NotTrusted, UpstreamUnavailable) as error:
            reason = f"its tools were not checked: {error.message}"
            unchecked.append(Fault(field="server", reason=reason, source=str(one.path)))
    return faults, unchecked


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
            help="Continue this attempt (default: your last attempt, or a new one if it has ended).",
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
    from pursuit.server import logs
    from pursuit.server.problems.server import NESTED, ProblemOptions, problem_server

    if faults := serving.transport_faults(context, http=http, socket=socket):
        raise ValidationFailed(faults, "wrong options; nothing was served")
    over_http = http or socket is not None
    logs.configure(log_level or ("info" if over_http else "warning"), "text")
    problem = _trusted(context, problem_id, directory, trust=trust)
    if over_http and problem.repository is not None and problem.scorer.isolation is None:
        reason = "its judge runs code from clients; configure [scorer] isolation, or serve it over stdio"
        raise ValidationFailed([Fault(field="--http", reason=reason)], reason)
    attempt_id = _attempt_to_serve(context, problem, attempt, label=label, mission=mission)
    door = None
    if over_http:
        door = serving.http_door(
            context, host=host, port=port, allow_host=allow_host, require_token=require_token, socket=socket
        )
    # Over stdio an attempt belongs to this user and to the agent that `--label` names.
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

            await serve_stdio(problem_server(problem, options))
        else:
            from pursuit.server.http import serve_http

            server = problem_server(problem, options, many=True)
            await serve_http(server, door, listening=serving.print_address(context, door))

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
        list[str] | None, typer.Option(metavar="NAME", help="Variable or glob to pass to the agents; repeatable.")
    ] = None,
    directory: DirOption = None,
    mode: ModeOption = None,
) -> int:
    """Run a mission on a problem, and score it."""
    if agent and (proposer or label):
        fault = Fault(
            field="--agent", reason="replaces --proposer and --label; write --agent NAME=COMMAND to set a label"
        )
        raise ValidationFailed([fault], str(fault))
    problem = find_problem(problem_id, directory)
    context.trust_here(*workspaces_of(problem))
    if agent:
        attempt = AgentsRun(context, problem, agents=agent, inherit=inherit_env or (), mode=mode)
    else:
        attempt = AttemptRun(context, problem, proposer=proposer, label=label, mode=mode)
    return attempt.run(max_iterations=max_iterations, max_seconds=max_seconds)


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
    """Submit a folder as an attempt at a coding problem, and score it."""
    problem = _trusted(context, problem_id, directory, trust=trust)
    mission = os.environ.get(
        SESSION_VARIABLE
    )  # prints nothing when run as a mission's check: the agent may read the output

    async def work(runtime: Runtime) -> dict[str, Any]:
        if mission is not None:
            attempt = await open_attempt(runtime, problem, mission)
        else:
            by = str(runtime.runner.caller)
            attempt = Attempt(runtime.runner.ledger, time.time, problem, new_attempt_id(), by=by, label=label)
        if (await attempt.open()).taken is None:
            files = await anyio.to_thread.run_sync(changed_files, problem, folder)
            await attempt.submit(checked_submission(problem, {"files": files}))
        return await _judge(context, runtime, attempt.attempt_id, str(problem.path), (), wait=True, trust=trust)

    found = context.drive(work) if mission is None else context.look(work)
    targets, code = found.pop("targets"), 0 if found["solved"] else UNSOLVED
    return CommandAnswer(found, show_problems.score(found, targets), code=code) if mission is None else code


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
    problems = find_problems(problem_ids, directory)
    if output is not None:
        context.check_output(output, force=force)

    async def read(runtime: Runtime) -> list[dict[str, Any]]:
        return [await compared(runtime.runner, problem) for problem in problems]

    found = context.look(read)
    if output is not None:
        write_whole(output, render_comparison(found))
        context.screen.note(f"wrote {output}")
    return CommandAnswer({"problems": found}, show_problems.comparison(found))


@command(app)
def replay(
    context: Context,
    *,
    attempt_id: Annotated[str, typer.Argument(metavar="ATTEMPT", autocompletion=attempt_ids, help="Attempt id.")],
    solved: Annotated[
        bool, typer.Option("--solved", help="Print nothing; the exit code tells if the problem is solved.")
    ] = False,
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Problem id, file or folder (default: the recorded id).")
    ] = None,
    directory: DirOption = None,
    trust: _TrustOption = False,
) -> CommandAnswer:
    """Judge an attempt again from its log, without its server."""
    # Missions run this with --solved, and their agents may read the output. The command waits for a process that
    # submits or judges, and finishes the work of a process that died.
    try:
        found = context.look(
            lambda runtime: _judge(context, runtime, attempt_id, problem, directory or (), wait=solved, trust=trust)
        )
    except (AttemptNotFound, LedgerUnavailable, NotTrusted):
        raise
    except PursuitError as error:
        if not solved:
            raise
        where = ["--problem", problem] if problem else [word for one in directory or () for word in ("--dir", str(one))]
        why = f"`{context.command('problem', 'replay', attempt_id, *where)}` shows the reason"
        raise InvalidArgument(f"{attempt_id} cannot be judged ({error.code}); {why}") from None
    targets, same = found.pop("targets"), found["same"]
    if solved:
        code = 1 if same is False else 0 if found["solved"] else UNSOLVED
        return CommandAnswer({"attempt_id": attempt_id, "solved": found["solved"]}, code=code)
    recorded = Fact("same as recorded", {True: "yes", False: "no", None: "no score was recorded"}[same])
    notes = map(Note, found["notes"])
    return CommandAnswer(found, show_problems.score(found, targets), recorded, notes, code=1 if same is False else 0)


async def _judge(
    context: Context,
    runtime: Runtime,
    attempt_id: str,
    named: str | None,
    directories: Sequence[Path],
    *,
    wait: bool,
    trust: bool,
) -> dict[str, Any]:
    ledger = runtime.runner.ledger
    state = await load_attempt(ledger, attempt_id)
    problem = await anyio.to_thread.run_sync(_of_attempt, state, named, directories)
    if not trust:
        await anyio.to_thread.run_sync(context.require_trust, *workspaces_of(problem))
    if wait and _unsettled(state):
        state = await _settled(context, ledger, problem, state)
    attempt = Attempt(ledger, time.time, problem, attempt_id)
    async with Sandbox() as sandbox, attempt.alone() as alone:
        serve = context.command("problem", "serve", str(problem.path), "--attempt", attempt_id)
        found = await judge_again(problem, state, sandbox, serve=serve)
        # The process that accepted the submission died before judging it, or the judge failed, and no process works
        # on it now. With `wait`, the score is recorded before it is reported; the first recorded score counts.
        unscored = state.scored is None or state.scored.error is not None
        if (alone or wait) and unscored and found.same is None and attempt.fits(state):
            version = await anyio.to_thread.run_sync(judging_digest, problem)
            await attempt.record(found.judged.event(at=time.time(), version=version))
        return {**found.as_dict(), "targets": targets_of(problem)}


def _unsettled(state: AttemptState) -> bool:
    """True if a submission is not judged yet."""
    return state.scored is None and (state.taken is not None or state.claimed is not None)


async def _settled(context: Context, ledger: Ledger, problem: Manifest, state: AttemptState) -> AttemptState:
    """Waits for other processes to finish with the attempt; returns it with its submission and any tool's score.

    Submits nothing: an unanswered submission to a problem's own server counts as the submission. The caller runs judges
    that do not need the problem's server. After a timeout, returns the attempt unchanged.
    """
    attempt = Attempt(ledger, time.time, problem, state.attempt_id)
    if not attempt.fits(state):
        return state
    with anyio.move_on_after(PATIENCE + problem.scorer.timeout):
        if problem.scorer.kind != "tool":
            await _wait_for_others(attempt)
        else:
            await _wait_for_tool(context, ledger, problem, state.attempt_id)
    return await load_attempt(ledger, state.attempt_id)


async def _wait_for_others(attempt: Attempt) -> None:
    """Returns when the attempt is settled, or when no process works on it; its claim then counts as the submission."""
    while True:
        async with attempt.alone() as alone:
            if alone:
                await attempt.give_up()
        state = await attempt.refresh()
        if alone or state is None or not _unsettled(state):
            return
        await anyio.sleep(POLL_SECONDS)


async def _wait_for_tool(context: Context, ledger: Ledger, problem: Manifest, attempt_id: str) -> None:
    """Reopens the attempt so that the tool judges it; waits for other processes that work on it."""
    from pursuit.server.problems.server import ProblemOptions, open_problem

    options = ProblemOptions(state=context.ledger_path, config=context.configuration, attempt_id=attempt_id)
    async with open_problem(problem, options) as handler:
        while _unsettled(await load_attempt(ledger, attempt_id)):
            try:
                await handler.submission.catch_up()
            except PursuitError:  # cannot be opened; the caller reports the missing score
                return
            await anyio.sleep(POLL_SECONDS)


def _trusted(context: Context, word: str, directory: Sequence[Path] | None, *, trust: bool) -> Manifest:
    problem = find_problem(word, directory)
    if not trust:
        context.require_trust(*workspaces_of(problem))
    return problem


def find_problem(word: str, directories: Sequence[Path] | None) -> Manifest:
    """Returns the problem with this id, file or folder; an id takes precedence over a folder of that name.

    A path means exactly that file. A duplicate id is a fault.
    """
    return find_problems([word], directories)[0]


def find_problems(words: Iterable[str], directories: Sequence[Path] | None) -> list[Manifest]:
    """Returns the problems of these words, without duplicates; reports all unknown words together."""
    look = cache(lambda: _discovered(directories or ()))
    problems: dict[Path, Manifest] = {}
    wrong: list[PursuitError] = []
    for word in words:
        try:
            one = _find(word, look)
        except (ProblemNotFound, ValidationFailed) as error:
            if error.message not in [other.message for other in wrong]:
                wrong.append(error)
        else:
            problems.setdefault(one.path.resolve(), one)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        faults: list[Fault] = []
        for error in wrong:
            faults += error.faults if isinstance(error, ValidationFailed) else [Fault(field="", reason=error.message)]
        raise ValidationFailed(list(dict.fromkeys(faults)), f"{len(wrong)} of these are not problems")
    return list(problems.values())


def _find(word: str, look: Callable[[], ProblemCatalogue]) -> Manifest:
    path = Path(word)
    if word.endswith(".toml"):
        return read_manifest(path)
    if word and (word != path.name or word == ".."):  # an id contains no slash and is not `.`
        return read_manifest(path / MANIFEST)
    found = look()
    twice = [one for one in found.faults if one.field == "problem_id" and one.reason.startswith(repr(word))]
    if twice:
        raise ValidationFailed(twice, f"{word!r} is the id of more than one problem; name the file that you mean")
    try:
        return found.get(word)
    except ProblemNotFound:
        if word and os.path.lexists(path / MANIFEST):
            return read_manifest(path / MANIFEST)
        if found.faults:
            why = f"problem {word[:100]!r} was not found; some problem files are invalid, and it may be one of them"
            raise ValidationFailed(found.faults, why) from None
        raise


def _discovered(directories: Sequence[Path]) -> ProblemCatalogue:
    _require(directories)
    return discover(directories)


def _require(directories: Sequence[Path]) -> None:
    reason = "the file or directory does not exist"
    missing = [Fault(field=f"--dir {one}", reason=reason) for one in directories if not os.path.lexists(one)]
    if missing:
        raise ValidationFailed(missing, "; ".join(map(str, missing)))


def _attempt_to_serve(
    context: Context, problem: Manifest, text: str | None, *, label: str = "", mission: str | None = None
) -> str | None:
    """Returns the id of the attempt to serve: the given id, the shared id, or None for a new attempt.

    Opens the attempt of a mission whose process died before it opened the attempt.
    """
    if mission is not None:
        require_id(mission)
    shared = text is None and problem.visibility.shared_attempt
    if text is None and not shared:
        return None
    attempt_id = shared_attempt_id(problem) if text is None else checked_attempt_id(text, "--attempt")

    async def check(runtime: Runtime) -> None:
        ledger, by = runtime.runner.ledger, str(runtime.runner.caller)
        attempt = Attempt(ledger, time.time, problem, attempt_id, by=by, label=label, mission=mission)
        await attempt.check()
        if mission is not None and await ledger.row(mission) is not None:
            await attempt.open()

    if context.ledger_path.exists():
        try:
            context.look(check)
        except InvalidArgument as error:
            if not shared:
                raise
            further = "all clients share it; with --attempt attempt-NAME they share a new one"
            raise InvalidArgument(f"{error.message}: {further}", attempt_id=attempt_id) from None
    return attempt_id


def _of_attempt(state: AttemptState, named: str | None, directories: Sequence[Path]) -> Manifest:
    """Returns the problem of an attempt: the named problem, else that with its id, preferably with its digest."""
    problem_id, digest = state.opened.problem_id, state.opened.manifest
    if named is not None:
        problem = find_problem(named, directories)
        if problem.problem_id != problem_id:
            raise InvalidArgument(f"{state.attempt_id} is an attempt at {problem_id!r}, not at {problem.problem_id!r}")
        return problem
    _require(directories)
    known: list[Manifest] = []
    for path in dict.fromkeys(path for folder in (SHIPPED, *directories) for path in manifests_in(folder)):
        with suppress(ValidationFailed):  # a manifest with faults cannot match
            known.append(read_manifest(path))
    known = [one for one in known if one.problem_id == problem_id]
    if not known:
        raise InvalidArgument(f"unknown problem {problem_id!r}; name its file with --problem, or its folder with --dir")
    return next((one for one in known if one.digest == digest), known[-1])
