"""What `pursuit problem` does with a problem: serve it, compare tries, judge one again.

Owns: the way from a problem to its attempts; which problem is meant is `problem_named`'s. Does not judge.
Invariant: the problem that was named is the one that is served, compared and judged by.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from pursuit.config.configuration import Configuration, load_configuration
from pursuit.core.attempts import AttemptState
from pursuit.errors import (
    AttemptNotFound,
    InvalidArgument,
    LedgerUnavailable,
    PursuitError,
    SessionNotFound,
    ValidationFailed,
)
from pursuit.policy.rules import parse_mode
from pursuit.problems.attempts import Attempt, attempts_at, checked_attempt_id, load_attempt, shared_attempt_id
from pursuit.problems.catalogue import SHIPPED, manifests_in
from pursuit.problems.comparison import attempt_row, problem_row, replay, targets_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.missions import UNSOLVED
from pursuit.problems.reading import read_manifest
from pursuit.problems.scoring import scored_event
from pursuit.problems.secrecy import judging_digest
from pursuit.runtime import Runtime
from pursuit.sandbox import Sandbox
from pursuit.server.logs import event
from pursuit.service.queries import require_id
from pursuit.surfaces.cli import show_problems
from pursuit.surfaces.cli.context import configuration_path, ledger_path, look
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.output import check_output
from pursuit.surfaces.cli.problem_named import chosen, require_there
from pursuit.surfaces.cli.problem_settled import is_unsettled, settled
from pursuit.surfaces.cli.reports import write_whole
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import ENDED

if TYPE_CHECKING:
    from pursuit.server.serve import Door

_log = logging.getLogger(__name__)


def checked_attempt(
    said: Common, problem: Manifest, text: str | None, *, label: str = "", mission: str | None = None
) -> str | None:
    """An id for an attempt as it may be given on the command line: one of this problem, or of none yet.

    One of a mission begins with it: if the mission is there and the attempt is not, somebody was ended in between.
    """
    if mission is not None:
        require_id(mission)
    shared = text is None and problem.visibility.shared_attempt
    if text is None and not shared:
        return None
    attempt_id = shared_attempt_id(problem) if text is None else checked_attempt_id(text, "--attempt")

    async def looked_at(runtime: Runtime) -> None:
        ledger, by = runtime.service.ledger, str(runtime.service.caller)
        attempt = Attempt(ledger, time.time, problem, attempt_id, by=by, label=label, mission=mission)
        await attempt.check()
        if mission is not None and await ledger.row(mission) is not None:
            await attempt.open()

    if ledger_path(said).exists():
        try:
            look(said, looked_at)
        except InvalidArgument as error:
            if not shared:
                raise
            further = "all clients share it; with --attempt attempt-NAME they share a new one"
            raise InvalidArgument(f"{error.message}: {further}", attempt_id=attempt_id) from None
    return attempt_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a problem is to be served."""

    server_name: str | None
    citations: bool
    attempt: str | None
    label: str
    mode: str | None
    mission: str | None = None
    door: Door | None = None
    listening: Callable[[str], None] | None = None


async def serving(said: Common, problem: Manifest, wanted: Serving) -> int:
    """Serves a problem: over standard input and output until that ends, or at a door until it is stopped."""
    from pursuit.server.problems.server import ProblemOptions, problem_server  # noqa: PLC0415 - the SDK is slow
    from pursuit.server.stdio import serve_stdio  # noqa: PLC0415

    options = ProblemOptions(
        state=ledger_path(said),
        config=_configuration(said),
        mode=None if wanted.mode is None else parse_mode(wanted.mode),
        server_name=wanted.server_name,
        include_citation=wanted.citations,
        attempt_id=wanted.attempt,
        label=wanted.label,
        mission=wanted.mission,
    )
    if wanted.door is None:
        await serve_stdio(problem_server(problem, options), any_text=True)
        return 0
    from pursuit.server.http import serve_http  # noqa: PLC0415 - stdio starts without a web stack

    def tell(url: str) -> None:
        event(_log, logging.INFO, "listening", url=url)
        if wanted.listening is not None:
            wanted.listening(url)

    door = wanted.door
    await serve_http(
        problem_server(problem, options, many=True),
        host=door.host,
        port=door.port,
        tokens=door.tokens,
        allowed_hosts=door.allowed_hosts,
        any_text=True,
        listening=tell,
    )
    return 0


def _configuration(said: Common) -> Configuration:
    path = configuration_path(said)
    return Configuration() if path is None else load_configuration(path)


def compared(said: Common, problems: Sequence[Manifest], output: Path | None, *, force: bool) -> int:
    """Shows the attempts at problems, and writes the page."""
    if output is not None:
        check_output(said, output, force=force)

    unreadable: list[str] = []

    async def read(runtime: Runtime) -> list[dict[str, Any]]:
        return [await _compared(runtime, problem, unreadable) for problem in problems]

    found: list[dict[str, Any]] = look(said, read)
    screen = Screen(said)
    if output is not None:
        from pursuit.reports.comparison import render_comparison  # noqa: PLC0415 - the template engine loads when needed

        write_whole(output, render_comparison(found))
        screen.note(f"wrote {output}")
    show_problems.comparison(screen, found)
    for why in unreadable:
        screen.note(f"left out: {why}")
    return 0


async def _compared(runtime: Runtime, problem: Manifest, unreadable: list[str]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    version = await anyio.to_thread.run_sync(judging_digest, problem)
    for state in await attempts_at(runtime.service.ledger, {problem.problem_id}, unreadable):
        spent: Mapping[str, Any] | None = None
        over = state.opened.mission is not None
        if state.opened.mission is not None:
            with suppress(SessionNotFound):  # forgotten since, and only what is over can be
                status = await runtime.service.status(state.opened.mission)
                spent, over = status["budget"]["used"], status["status"] in ENDED
        rows.append(attempt_row(problem, state, spent, version=version, mission_over=over, now=time.time()))
    return problem_row(problem, rows)


def replayed(said: Common, attempt_id: str, named: str | None, directories: Sequence[Path], *, solved: bool) -> int:
    """Judges an attempt again and shows what came out; the exit code says whether it is the same score.

    With `solved` the exit code is all that is told: it is what a mission asks, whose agent may read its answers. It
    waits for whoever is handing in or judging, and finishes what a process that died left.
    """
    try:
        found: dict[str, Any] = look(
            said, lambda runtime: _judged(said, runtime, attempt_id, named, directories, wait=solved)
        )
    except (AttemptNotFound, LedgerUnavailable):
        raise
    except PursuitError as error:
        if not solved:
            raise
        where = ["--problem", named] if named else [word for one in directories for word in ("--dir", str(one))]
        why = f"`{said.command('problem', 'replay', attempt_id, *where)}` says why"
        raise InvalidArgument(f"{attempt_id} cannot be judged ({error.code}); {why}") from None
    targets = found.pop("targets")
    screen = Screen(said)
    if screen.json:
        screen.document({"attempt_id": attempt_id, "solved": found["solved"]} if solved else found)
    elif not solved:
        show_problems.score(screen, found, targets)
        screen.fact("same as recorded", {True: "yes", False: "no", None: "no score was recorded"}[found["same"]])
        for note in found["notes"]:
            screen.note(note)
    if found["same"] is False:
        return 1
    return UNSOLVED if solved and not found["solved"] else 0


async def _judged(
    said: Common, runtime: Runtime, attempt_id: str, named: str | None, directories: Sequence[Path], *, wait: bool
) -> dict[str, Any]:
    ledger = runtime.service.ledger
    state = await load_attempt(ledger, attempt_id)
    problem = await anyio.to_thread.run_sync(_of_attempt, state, named, directories)
    if wait and is_unsettled(state):
        state = await settled(ledger, problem, state, path=ledger_path(said), config=_configuration(said))
    attempt = Attempt(ledger, time.time, problem, attempt_id)
    async with Sandbox() as sandbox, attempt.alone() as alone:
        serve = said.command("problem", "serve", str(problem.path), "--attempt", attempt_id)
        found = await replay(problem, state, sandbox, serve=serve)
        # Whoever took it did not live to judge it, or the judge failed; and nobody is at it now. Who waited has the
        # score written before it tells: of two the first counts.
        unscored = state.scored is None or state.scored.error is not None
        if (alone or wait) and unscored and found.same is None and attempt.fits(state) and found.judged is not None:
            version = await anyio.to_thread.run_sync(judging_digest, problem)
            await attempt.scored(scored_event(found.judged, at=time.time(), version=version))
        return {**found.as_dict(), "targets": targets_of(problem)}


def _of_attempt(state: AttemptState, named: str | None, directories: Sequence[Path]) -> Manifest:
    """The problem of an attempt: the one that is named, else of those with its id the one whose digest fits."""
    problem_id, digest = state.opened.problem_id, state.opened.manifest
    if named is not None:
        problem = chosen(named, directories)
        if problem.problem_id != problem_id:
            raise InvalidArgument(f"{state.attempt_id} is an attempt at {problem_id!r}, not at {problem.problem_id!r}")
        return problem
    require_there(directories)
    known: list[Manifest] = []
    for path in dict.fromkeys(path for folder in (SHIPPED, *directories) for path in manifests_in(folder)):
        with suppress(ValidationFailed):  # a faulty one is not it
            known.append(read_manifest(path))
    known = [one for one in known if one.problem_id == problem_id]
    if not known:
        raise InvalidArgument(
            f"the problem {problem_id!r} is not known here; name its file with --problem, or its folder with --dir"
        )
    return next((one for one in known if one.digest == digest), known[-1])
