"""What `pursuit problem` does with a problem: serve it, compare tries, judge one again.

Owns: the way from a problem to its attempts; which problem is meant is `problem_named`'s. Does not judge.
Invariant: the problem that was named is the one that is served, compared and judged by.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from pursuit.cli import show_problems
from pursuit.cli.console import ENDED, EXIT, Screen
from pursuit.cli.context import check_output, configuration_path, folder_beside_ledger, ledger_path, look
from pursuit.cli.drive import Drive
from pursuit.cli.errors import the_cause
from pursuit.cli.options import Common
from pursuit.cli.progress import progress
from pursuit.cli.reports import write_whole
from pursuit.cli.show_problems import attempt_reason, ended_attempt
from pursuit.config.configuration import Configuration, load_configuration
from pursuit.config.files import as_toml
from pursuit.core.attempts import AttemptState
from pursuit.core.mission import parse_mission
from pursuit.errors import (
    AttemptNotFound,
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    ProblemNotFound,
    PursuitError,
    SessionNotFound,
    ValidationFailed,
)
from pursuit.ledger.contract import Ledger
from pursuit.policy.rules import parse_mode
from pursuit.problems.attempts import (
    Attempt,
    attempts_at,
    checked_attempt_id,
    load_attempt,
    new_attempt_id,
    shared_attempt_id,
)
from pursuit.problems.catalogue import SHIPPED, Catalogue, Found, discover, manifests_in
from pursuit.problems.comparison import attempt_row, problem_row, replay, targets_of
from pursuit.problems.manifest import MANIFEST, Manifest
from pursuit.problems.missions import AGENTS, MACHINES, UNSOLVED, Plan, mission_for, proposer_for, server_of
from pursuit.problems.reading import read_manifest
from pursuit.problems.scoring import scored_event
from pursuit.problems.secrecy import judging_digest
from pursuit.runtime import Runtime
from pursuit.sandbox import Sandbox
from pursuit.server.logs import event
from pursuit.service.queries import new_mission_id, require_id

if TYPE_CHECKING:
    from pursuit.server.serve import Door


# One try of a problem by a mission: `pursuit problem attempt`.
# Invariant: a mission on a problem is an ordinary mission with a file of its own beside the ledger, so that whatever
# stops it, the command that is printed goes on with it; what is refused leaves nothing behind.

LONGEST = 3_600.0
"""Seconds of a mission on a problem that has no limit of its own."""


def _by_option(failed: ValidationFailed) -> ValidationFailed:
    """What is wrong with who proposes is said by the word that a person gave: no person wrote the mission file."""
    own = ("proposer.kind", "proposer.model")
    faults = [Fault(field="--proposer", reason=one.reason) if one.field in own else one for one in failed.faults]
    named = any(one.field == "--proposer" for one in faults)
    return ValidationFailed(faults, "wrong options; nothing was started") if named else failed


class Attempting:
    """One try of a problem by a mission."""

    def __init__(
        self, said: Common, problem: Manifest, *, proposer: str | None, label: str | None, mode: str | None
    ) -> None:
        self._said = said
        self._problem = problem
        self._proposer = proposer_for(problem, proposer)
        self._label = label or str(self._proposer.get("model") or self._proposer.get("kind"))
        self._mode = mode or "auto"
        self.attempt_id = new_attempt_id()
        self._mission_id = new_mission_id()  # made here, so that its server knows whose attempt it serves

    def run(self, *, max_iterations: int | None, max_seconds: float | None) -> int:
        """Makes the mission and drives it; the exit code is the mission's."""
        drive = Drive(self._said, self._mode)
        table = self._mission(max_iterations, max_seconds)
        parse_mission({key: value for key, value in table.items() if key != "servers"}, source="the mission")
        file = self._written(table)
        begun: list[str] = []
        try:
            return drive.conduct(lambda runtime: self._work(runtime, drive, file, begun))
        except Exception as error:
            if begun:
                raise
            file.unlink(missing_ok=True)
            cause = the_cause(error)
            if isinstance(cause, ValidationFailed):
                raise _by_option(cause) from None
            raise

    async def _work(self, runtime: Runtime, drive: Drive, file: Path, begun: list[str]) -> int:
        mission_id = await drive.accept(runtime, file, self._mission_id)
        begun.append(mission_id)
        ledger, by = runtime.service.ledger, str(runtime.service.caller)
        attempt = Attempt(
            ledger, time.time, self._problem, self.attempt_id, by=by, label=self._label, mission=mission_id
        )
        await attempt.open()
        if self._proposer.get("kind") not in AGENTS:  # who waits for an agent says so at once
            drive.screen.note(f"if this is stopped, {self._go_on(mission_id)}")
        await runtime.use_servers_of(mission_id)
        async with progress(drive.screen) as see:
            await runtime.service.run(mission_id, observer=see)
        status = await runtime.service.status(mission_id)
        state = await load_attempt(ledger, self.attempt_id)
        row = attempt_row(self._problem, state, status["budget"]["used"])
        ended = await ended_attempt(runtime, status)
        because = attempt_reason(status, ended.report) if ended is not None and status["status"] != "completed" else ""
        show_problems.attempt(drive.screen, {**row, "why": because or None}, status)
        if ended is None:
            first = status.get("waiting_for") in ("approval", "budget")  # something is to be done before
            drive.screen.hint(drive.next_step(status) if first else self._go_on(mission_id))
        return EXIT.get(status["status"], 0)

    def _go_on(self, mission_id: str) -> str:
        """What goes on with it; the mode is the driver's to say, and no mission remembers it."""
        mode = ("--mode", self._mode)
        if self._proposer.get("kind") not in AGENTS:
            return f"go on with: {self._said.command('resume', mission_id, *mode)}"
        able = " that declares sampling" if self._proposer["kind"] == "sampling" else ""
        tools = f"its tools are {server_of(self.attempt_id)}.*"
        serve = self._said.command("serve", "--mission", mission_id, *mode)  # no other one is the agent's to see
        return f"go on with mission_iterate of {mission_id} ({tools}) from an MCP client{able}, connected to: {serve}"

    def _mission(self, max_iterations: int | None, max_seconds: float | None) -> dict[str, Any]:
        """The mission: its server and its judge name the very file of this problem."""
        shared = ["--state", str(ledger_path(self._said).absolute())]
        config = configuration_path(self._said)
        if config is not None:
            shared += ["--config", str(config)]
        name, own = str(self._problem.path), self.attempt_id
        judge = ["-m", "pursuit", "problem", "replay", own, "--solved", "--problem", name, *shared]
        whose = ["--mission", self._mission_id, f"--label={self._label}"]
        iterations, seconds = self._caps()
        plan = Plan(
            attempt_id=own,
            proposer=self._proposer,
            serve=["-m", "pursuit", "problem", "serve", name, "--attempt", own, *whose, *shared],
            judge=[sys.executable, *judge],
            max_iterations=max_iterations or iterations,
            max_seconds=max_seconds or seconds,
        )
        return mission_for(self._problem, plan)

    def _caps(self) -> tuple[int, float]:
        """Iterations and seconds: those of a baseline are for what needs no agent; an agent has what its brief says."""
        baseline, most = self._problem.baseline, self._problem.budget.wall_seconds
        if baseline is None or self._proposer.get("kind") not in MACHINES:
            return 500, most or LONGEST
        return baseline.max_iterations, min(baseline.max_wall_clock_seconds, most or LONGEST)

    def _written(self, table: dict[str, Any]) -> Path:
        """Writes the mission file beside the ledger; where there can be no ledger, nothing is made."""
        folder = folder_beside_ledger(self._said, "problems")
        file = folder / f"{self.attempt_id}.toml"
        write_whole(file, as_toml(table))
        return file


# An attempt that somebody left in the middle of its end, brought to it.
# Invariant: nobody submits here; what was handed in to a problem's own server and never answered counts as the
# submission, as everywhere.

LOOK_EVERY = 0.05
PATIENCE = 30.0
"""Seconds for which another process is waited for, beside those that the judge may take."""


def is_unsettled(state: AttemptState) -> bool:
    """Whether something was handed in of which the judge has not spoken yet."""
    return state.scored is None and (state.taken is not None or state.claimed is not None)


async def settled(
    ledger: Ledger, problem: Manifest, state: AttemptState, *, path: Path, config: Configuration
) -> AttemptState:
    """The attempt once nobody is at it any more: with its submission and, where a tool judges, with its score.

    A judge that needs no server of the problem's is left to whoever asked. It comes back as it is after some time.
    """
    attempt = Attempt(ledger, time.time, problem, state.attempt_id)
    if not attempt.fits(state):
        return state
    with anyio.move_on_after(PATIENCE + problem.scorer.timeout):
        if problem.scorer.kind != "tool":
            await _left_alone(attempt)
        else:
            await _judged_by_tool(ledger, problem, state.attempt_id, path, config)
    return await load_attempt(ledger, state.attempt_id)


async def _left_alone(attempt: Attempt) -> None:
    """Returns when it is settled, or nobody is at it; what was claimed is the submission then."""
    while True:
        async with attempt.alone() as alone:
            if alone:
                await attempt.give_up()
        state = await attempt.refresh()
        if alone or state is None or not is_unsettled(state):
            return
        await anyio.sleep(LOOK_EVERY)


async def _judged_by_tool(
    ledger: Ledger, problem: Manifest, attempt_id: str, path: Path, config: Configuration
) -> None:
    """The tool is asked where the attempt is opened again; who is at it already is waited for."""
    from pursuit.server.problems.server import ProblemOptions, open_desk  # noqa: PLC0415 - the SDK is slow

    options = ProblemOptions(state=path, config=config, attempt_id=attempt_id)
    async with open_desk(problem, options) as desk:
        while is_unsettled(await load_attempt(ledger, attempt_id)):
            try:
                await desk.submitting.catch_up()
            except PursuitError:  # it cannot be opened; who asks is told why there is no score
                return
            await anyio.sleep(LOOK_EVERY)


# Which problem the words of a command mean.
# Invariant: a path means the very file that it leads to; an id means one problem or is a fault, also where two have
# it.


def chosen(word: str, directories: Sequence[Path]) -> Manifest:
    """The problem that is meant: by its id, its file or its folder; an id goes before a folder of that name."""
    return _meant(word, directories, [])


def all_chosen(words: Iterable[str], directories: Sequence[Path]) -> list[Manifest]:
    """The problems that are meant, each once; the names that mean none are told all at once."""
    looked: list[Found] = []
    problems: dict[Path, Manifest] = {}
    wrong: list[PursuitError] = []
    for word in words:
        try:
            one = _meant(word, directories, looked)
        except (ProblemNotFound, ValidationFailed) as error:
            if error.message not in [other.message for other in wrong]:
                wrong.append(error)
        else:
            problems.setdefault(one.path.resolve(), one)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        faults = [fault for error in wrong for fault in _faults(error)]
        raise ValidationFailed(list(dict.fromkeys(faults)), f"{len(wrong)} of these mean no problem")
    return list(problems.values())


def _faults(error: PursuitError) -> Sequence[Fault]:
    return error.faults if isinstance(error, ValidationFailed) else [Fault(field="", reason=error.message)]


def _meant(word: str, directories: Sequence[Path], looked: list[Found]) -> Manifest:
    path = Path(word)
    if word.endswith(".toml"):
        return read_manifest(path)
    if word and (word != path.name or word == ".."):  # no id has a slash, nor is one `.`
        return read_manifest(_manifest_in(path))
    if not looked:
        looked.append(known(directories))
    (found,) = looked
    twice = [one for one in found.faults if one.field == "problem_id" and one.reason.startswith(repr(word))]
    if twice:
        raise ValidationFailed(twice, f"{word!r} is the id of more than one problem; name the file that you mean")
    try:
        return Catalogue(found.problems).get(word)
    except ProblemNotFound:
        if word and _is_folder(path) and os.path.lexists(path / MANIFEST):
            return read_manifest(path / MANIFEST)
        if found.faults:  # it may be one of those that cannot be read
            raise ValidationFailed(found.faults, f"there is no problem {word[:100]!r}, and some have faults") from None
        raise


def _manifest_in(path: Path) -> Path:
    """The manifest that a path leads to; of a folder its own, and none further down."""
    if not _is_folder(path):
        return path
    if os.path.lexists(path / MANIFEST):
        return path / MANIFEST
    below = [str(one.parent) for one in manifests_in(path)][:3]
    hint = f"; there are some below it, such as {', '.join(below)}" if below else ""
    reason = f"there is no {MANIFEST} in this folder{hint}"
    raise ValidationFailed([Fault(field="", reason=reason, source=str(path))], f"{path}: {reason}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long for one
        return False


def known(directories: Sequence[Path]) -> Found:
    """What is shipped and what these folders have."""
    require_there(directories)
    return discover(directories)


def require_there(directories: Sequence[Path]) -> None:
    """Refuses a `--dir` that there is not."""
    reason = "there is no such file or directory"
    missing = [Fault(field=f"--dir {one}", reason=reason) for one in directories if not os.path.lexists(one)]
    if missing:
        raise ValidationFailed(missing, "; ".join(map(str, missing)))


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
        from pursuit.reports.html import render_comparison  # noqa: PLC0415 - the template engine loads when needed

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
