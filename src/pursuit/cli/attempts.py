"""What `pursuit problem` does: find problems, serve one, run a mission on one, compare attempts, judge one again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from pursuit.cli import show_problems
from pursuit.cli.console import EXIT, CommandAnswer, Fact, Hint, Note, Screen
from pursuit.cli.context import Context, run
from pursuit.cli.drive import Drive
from pursuit.cli.errors import root_cause
from pursuit.cli.progress import progress
from pursuit.cli.reports import write_whole
from pursuit.cli.show_problems import ended_attempt
from pursuit.config.configuration import Configuration
from pursuit.config.files import as_toml
from pursuit.config.mission_file import load_mission_file
from pursuit.config.surroundings import SESSION_VARIABLE
from pursuit.core.attempts import AttemptState
from pursuit.core.mission import parse_mission
from pursuit.core.pick import rivals
from pursuit.core.proposing import settings_type
from pursuit.errors import (
    AttemptNotFound,
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    NotTrusted,
    ProblemNotFound,
    PursuitError,
    SessionNotFound,
    UpstreamUnavailable,
    ValidationFailed,
)
from pursuit.ledger.contract import Ledger
from pursuit.problems.attempts import (
    Attempt,
    checked_attempt_id,
    load_attempt,
    new_attempt_id,
    shared_attempt_id,
)
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import SHIPPED, Found, ProblemCatalogue, discover, manifests_in, workspaces_of
from pursuit.problems.comparison import attempt_row, replay, targets_of
from pursuit.problems.manifest import MANIFEST, Manifest
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.missions import (
    AGENTS,
    MACHINES,
    UNSOLVED,
    AgentsPlan,
    Plan,
    mission_for,
    mission_for_agents,
    proposer_for,
    server_of,
)
from pursuit.problems.repositories import changed_files, make_repository
from pursuit.problems.scoring import checked_submission, scored_event
from pursuit.problems.secrecy import judging_digest, revealed_in
from pursuit.runtime import OWN_FILES, Runtime
from pursuit.sandbox import Sandbox
from pursuit.service.comparison import compared
from pursuit.service.queries import new_mission_id, require_id

DEFAULT_SECONDS = 3_600.0
"""The time limit of a mission on a problem that has none."""
DEFAULT_ITERATIONS = 500
POLL_SECONDS = 0.05
PATIENCE = 30.0
"""Seconds to wait for another process that works on an attempt, in addition to the judge's own timeout."""


def _by_option(failed: ValidationFailed) -> ValidationFailed:
    """Reports faults of the proposer by the option `--proposer`: the person did not write the mission file."""
    own = ("proposer.kind", "proposer.model")
    faults = [Fault(field="--proposer", reason=one.reason) if one.field in own else one for one in failed.faults]
    named = any(one.field == "--proposer" for one in faults)
    return ValidationFailed(faults, "wrong options; nothing was started") if named else failed


class AttemptRun:
    """An attempt at a problem by a mission: `pursuit problem attempt`.

    The mission is an ordinary one with a file of its own beside the ledger, so `pursuit resume` continues it whatever
    stopped it. If it is refused, nothing stays behind.
    """

    def __init__(
        self, context: Context, problem: Manifest, *, proposer: str | None, label: str | None, mode: str | None
    ) -> None:
        self._context = context
        self._problem = problem
        self._proposer = proposer_for(problem, proposer)
        self._label = label or str(self._proposer.get("model") or self._proposer.get("kind"))
        self._mode = mode or "auto"
        self.attempt_id = new_attempt_id()
        self._mission_id = new_mission_id()  # chosen here because the mission's server needs it

    def run(self, *, max_iterations: int | None, max_seconds: float | None) -> int:
        """Creates the mission, runs it and returns its exit code."""
        drive = Drive(self._context, self._mode)
        table = self._mission(max_iterations, max_seconds)
        parse_mission({key: value for key, value in table.items() if key != "servers"}, source="the mission")
        file = self._context.folder_beside_ledger(OWN_FILES) / f"{self.attempt_id}.toml"
        write_whole(file, as_toml(table))
        begun: list[str] = []
        try:
            return drive.conduct(lambda runtime: self._work(runtime, drive, file, begun))
        except Exception as error:
            if begun:
                raise
            file.unlink(missing_ok=True)
            cause = root_cause(error)
            if isinstance(cause, ValidationFailed):
                raise _by_option(cause) from None
            raise

    async def _work(self, runtime: Runtime, drive: Drive, file: Path, begun: list[str]) -> int:
        mission_id = await drive.accept(runtime, load_mission_file(file), self._mission_id)
        begun.append(mission_id)
        ledger, by = runtime.runner.ledger, str(runtime.runner.caller)
        attempt = Attempt(
            ledger, time.time, self._problem, self.attempt_id, by=by, label=self._label, mission=mission_id
        )
        await attempt.open()
        if self._proposer.get("kind") not in AGENTS:  # one that waits for an agent prints the hint at once
            drive.screen.note(f"if this is stopped, {self._next_step(mission_id)}")
        async with progress(drive.screen) as see:
            await runtime.runner.run(mission_id, observer=see)
        status = await runtime.runner.status(mission_id)
        state = await load_attempt(ledger, self.attempt_id)
        row = attempt_row(self._problem, state, status.budget.as_json()["used"])
        ended = await ended_attempt(runtime, status)
        reason = None if ended is None else ended.reason or None
        drive.screen.render(show_problems.attempt(self._context, {**row, "why": reason}, status))
        if ended is None:
            blocked = status.waiting_for in ("approval", "budget")
            drive.screen.next_step(drive.next_step(status) if blocked else self._next_step(mission_id))
        return EXIT.get(status.status, 0)

    def _next_step(self, mission_id: str) -> str:
        """How to continue; `serve` gets the mode, which it does not take from the mission."""
        if self._proposer.get("kind") not in AGENTS:
            return f"continue with: {self._context.command('resume', mission_id)}"
        kind = settings_type(self._proposer)
        able = " that declares sampling" if kind is not None and kind.LENDS_MODEL else ""
        tools = f"its tools are {server_of(self.attempt_id)}.*"
        # The agent must not see other missions.
        serve = self._context.command("serve", "--mission", mission_id, "--mode", self._mode)
        client = f"an MCP client{able}, connected to: {serve}"
        return f"continue with mission_iterate of {mission_id} ({tools}) from {client}"

    def _mission(self, max_iterations: int | None, max_seconds: float | None) -> dict[str, Any]:
        """The mission; its server and its judge name the file of this problem, not its id."""
        shared = self._shared()
        name, own = str(self._problem.path), self.attempt_id
        # This command was allowed to start the problem; what it starts must not ask again.
        judge = ["-m", "pursuit", "problem", "replay", own, "--solved", "--problem", name, "--trust", *shared]
        whose = ["--mission", self._mission_id, f"--label={self._label}"]
        iterations, seconds = self._caps()
        plan = Plan(
            attempt_id=own,
            proposer=self._proposer,
            serve=["-m", "pursuit", "problem", "serve", name, "--attempt", own, "--trust", *whose, *shared],
            judge=[sys.executable, *judge],
            max_iterations=max_iterations or iterations,
            max_seconds=max_seconds or seconds,
        )
        return mission_for(self._problem, plan)

    def _shared(self) -> list[str]:
        """The options that lead another command to this ledger and configuration."""
        config = self._context.configuration_path
        own = ["--state", str(self._context.ledger_path.absolute())]
        return own if config is None else [*own, "--config", str(config)]

    def _caps(self) -> tuple[int, float]:
        """Iterations and seconds: the baseline's for proposers without an agent, else what the brief says."""
        baseline, most = self._problem.baseline, self._problem.budget.wall_seconds
        if baseline is None or self._proposer.get("kind") not in MACHINES:
            return DEFAULT_ITERATIONS, most or DEFAULT_SECONDS
        return baseline.max_iterations, min(baseline.max_wall_clock_seconds, most or DEFAULT_SECONDS)


class AgentsRun(AttemptRun):
    """Attempts of coding agents at a problem with a repository, each in a worktree of its own.

    One agent is a mission, several are the children of one. Each attempt has the id of its mission.
    """

    def __init__(
        self, context: Context, problem: Manifest, *, agents: Sequence[str], inherit: Sequence[str], mode: str | None
    ) -> None:
        self._context = context
        self._problem = problem
        self._agents = [_agent(text, inherit) for text in agents]
        self._mode = mode or "auto"
        self._mission_id = new_mission_id()
        self.attempt_id = attempt_of_mission(self._mission_id)
        self._folder = context.folder_beside_ledger(OWN_FILES) / self.attempt_id

    async def _work(self, runtime: Runtime, drive: Drive, file: Path, begun: list[str]) -> int:
        try:
            await make_repository(self._problem, self._folder)
            mission_id = await drive.accept(runtime, load_mission_file(file), self._mission_id)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.with_suffix(".py").unlink(missing_ok=True)
            raise
        begun.append(mission_id)
        drive.screen.note(f"if this is stopped, continue with: {self._context.command('resume', mission_id)}")
        try:
            async with progress(drive.screen) as see:
                await runtime.runner.run(mission_id, observer=see)
        finally:
            with anyio.CancelScope(shield=True):
                await self._open_attempts(runtime)
        status = await runtime.runner.status(mission_id)
        found = await compared(runtime.runner, self._problem, [])
        mine = {one.session_id for one in (status.workspace and status.workspace.agents) or ()} or {mission_id}
        rows = [row for row in found["attempts"] if row["mission"] in mine]
        shown = show_problems.comparison([{**found, "attempts": rows, "agents": []}])
        compare = Hint(f"compare: {self._context.command('problem', 'compare', str(self._problem.path))}")
        code = EXIT.get(status.status, 0)
        return drive.screen.render(CommandAnswer({**status.as_json(), "attempts": rows}, shown, compare, code=code))

    async def _open_attempts(self, runtime: Runtime) -> None:
        """Opens the attempts of agents that handed nothing in, so that comparisons show them."""
        state = await runtime.runner.state(self._mission_id)
        children = [child.session_id for _, child in rivals(state)]
        for mission_id in children or [self._mission_id]:
            with suppress(SessionNotFound):  # it was called off before it began
                await _open_attempt(runtime, self._problem, mission_id)

    def _mission(self, max_iterations: int | None, max_seconds: float | None) -> dict[str, Any]:
        # Agents are told the command of a check: a file keeps the folder of the hidden tests out of it.
        words = ["problem", "submit", str(self._problem.path), "--trust", *self._shared()]
        launcher = self._folder.with_suffix(".py")
        write_whole(launcher, f"from pursuit.cli.main import main\n\nmain({words!r})\n")
        plan = AgentsPlan(
            agents=self._agents,
            repository=str(self._folder),
            submit=[sys.executable, str(launcher)],
            max_iterations=max_iterations,
            max_seconds=max_seconds or self._problem.budget.wall_seconds or DEFAULT_SECONDS,
        )
        return mission_for_agents(self._problem, plan)


def _agent(text: str, inherit: Sequence[str]) -> dict[str, Any]:
    """The table of an agent that is given as `[NAME=]COMMAND`."""
    name, equals, words = text.partition("=")
    named = bool(equals) and " " not in name.strip()
    try:
        command = shlex.split(words if named else text)
    except ValueError as error:
        raise ValidationFailed([Fault(field="--agent", reason=f"{text!r}: {error}")]) from None
    if not command:
        raise ValidationFailed([Fault(field="--agent", reason="needs a command, as in --agent 'qwen --acp'")])
    label = name.strip() if named else " ".join(command)
    return {"name": label[:100], "command": command, "inherit_env": list(inherit)}


def attempt_of_mission(mission_id: str) -> str:
    """The id of the attempt of a coding agent's mission."""
    return f"attempt-{mission_id.removeprefix('mission-')}"


async def _open_attempt(runtime: Runtime, problem: Manifest, mission_id: str) -> Attempt:
    """The attempt of a coding agent's mission; it began when the mission did."""
    service = runtime.runner
    state = await service.state(mission_id)
    label, by = state.mission.proposer.label, str(service.caller)
    attempt_id, began = attempt_of_mission(mission_id), state.created_at
    await Attempt(service.ledger, lambda: began, problem, attempt_id, by=by, label=label, mission=mission_id).open()
    return Attempt(service.ledger, time.time, problem, attempt_id, by=by, label=label, mission=mission_id)


def submit_folder(context: Context, problem: Manifest, folder: Path, *, label: str, trust: bool) -> CommandAnswer | int:
    """Hands in what a folder has of a problem's repository, once, and judges it; the exit code says if it is solved.

    The check of a mission submits for that mission, and prints nothing: its agent may read the output.
    """
    mission = os.environ.get(SESSION_VARIABLE)

    async def work(runtime: Runtime) -> dict[str, Any]:
        if mission is not None:
            attempt = await _open_attempt(runtime, problem, mission)
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


def is_unsettled(state: AttemptState) -> bool:
    """Whether something was submitted that is not judged yet."""
    return state.scored is None and (state.taken is not None or state.claimed is not None)


async def wait_until_settled(
    ledger: Ledger, problem: Manifest, state: AttemptState, *, path: Path, config: Configuration
) -> AttemptState:
    """The attempt after any process that works on it is done: with its submission and, if a tool judges, its score.

    Nothing is submitted here: what was sent to a problem's own server and never answered counts as the submission. A
    judge that does not need the problem's server is left to the caller. After a timeout the attempt is returned as is.
    """
    attempt = Attempt(ledger, time.time, problem, state.attempt_id)
    if not attempt.fits(state):
        return state
    with anyio.move_on_after(PATIENCE + problem.scorer.timeout):
        if problem.scorer.kind != "tool":
            await _wait_for_others(attempt)
        else:
            await _wait_for_tool(ledger, problem, state.attempt_id, path, config)
    return await load_attempt(ledger, state.attempt_id)


async def _wait_for_others(attempt: Attempt) -> None:
    """Returns when it is settled, or when no process works on it; what was claimed is the submission then."""
    while True:
        async with attempt.alone() as alone:
            if alone:
                await attempt.give_up()
        state = await attempt.refresh()
        if alone or state is None or not is_unsettled(state):
            return
        await anyio.sleep(POLL_SECONDS)


async def _wait_for_tool(ledger: Ledger, problem: Manifest, attempt_id: str, path: Path, config: Configuration) -> None:
    """Opens the attempt again so that the tool judges; waits for another process that works on it."""
    from pursuit.server.problems.server import ProblemOptions, open_problem

    options = ProblemOptions(state=path, config=config, attempt_id=attempt_id)
    async with open_problem(problem, options) as handler:
        while is_unsettled(await load_attempt(ledger, attempt_id)):
            try:
                await handler.submission.catch_up()
            except PursuitError:  # it cannot be opened; the caller reports why there is no score
                return
            await anyio.sleep(POLL_SECONDS)


def find_problem(word: str, directories: Sequence[Path]) -> Manifest:
    """The problem with this id, file or folder; an id wins over a folder of that name.

    A path means exactly the file it leads to. An id that two problems have is a fault.
    """
    return find_problems([word], directories)[0]


def find_problems(words: Iterable[str], directories: Sequence[Path]) -> list[Manifest]:
    """The problems of these words, each once; reports all unknown words at once."""
    look = cache(lambda: discover_all(directories))
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


def _find(word: str, look: Callable[[], Found]) -> Manifest:
    path = Path(word)
    if word.endswith(".toml"):
        return read_manifest(path)
    if word and (word != path.name or word == ".."):  # an id has no slash and is not `.`
        return read_manifest(_manifest_in(path))
    found = look()
    twice = [one for one in found.faults if one.field == "problem_id" and one.reason.startswith(repr(word))]
    if twice:
        raise ValidationFailed(twice, f"{word!r} is the id of more than one problem; name the file that you mean")
    try:
        return ProblemCatalogue(found.problems).get(word)
    except ProblemNotFound:
        if word and _is_folder(path) and os.path.lexists(path / MANIFEST):
            return read_manifest(path / MANIFEST)
        if found.faults:  # it may be one of those that cannot be read
            raise ValidationFailed(found.faults, f"there is no problem {word[:100]!r}, and some have faults") from None
        raise


def _manifest_in(path: Path) -> Path:
    """The manifest at a path: the file itself, or the one directly in a folder."""
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


def discover_all(directories: Sequence[Path]) -> Found:
    """The problems that are shipped and those in these folders."""
    require_directories(directories)
    return discover(directories)


def require_directories(directories: Sequence[Path]) -> None:
    """Refuses a `--dir` that does not exist."""
    reason = "there is no such file or directory"
    missing = [Fault(field=f"--dir {one}", reason=reason) for one in directories if not os.path.lexists(one)]
    if missing:
        raise ValidationFailed(missing, "; ".join(map(str, missing)))


def check_attempt(
    context: Context, problem: Manifest, text: str | None, *, label: str = "", mission: str | None = None
) -> str | None:
    """The id of the attempt to serve: the one given, of this problem or new; the shared one; or None for a new one.

    The attempt of a mission is opened here if a process ended between the start of the mission and of the attempt.
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


def compare_attempts(
    context: Context, problems: Sequence[Manifest], output: Path | None, *, force: bool
) -> CommandAnswer:
    """The attempts at problems; also writes the page."""
    if output is not None:
        context.check_output(output, force=force)

    unreadable: list[str] = []

    async def read(runtime: Runtime) -> list[dict[str, Any]]:
        return [await compared(runtime.runner, problem, unreadable) for problem in problems]

    found = context.look(read)
    if output is not None:
        from pursuit.reports.html import render_comparison

        write_whole(output, render_comparison(found))
        context.screen.note(f"wrote {output}")
    for why in unreadable:
        context.screen.note(f"left out: {why}")
    return CommandAnswer({"problems": found}, show_problems.comparison(found))


def replay_attempt(
    context: Context, attempt_id: str, named: str | None, directories: Sequence[Path], *, solved: bool, trust: bool
) -> CommandAnswer:
    """Judges an attempt again; the exit code says whether it is the recorded one.

    With `solved` only the exit code tells the result: a mission asks this way, and its agent may read the output. It
    waits for a process that submits or judges, and finishes what a process that died left.
    """
    try:
        found = context.look(
            lambda runtime: _judge(context, runtime, attempt_id, named, directories, wait=solved, trust=trust)
        )
    except (AttemptNotFound, LedgerUnavailable, NotTrusted):
        raise
    except PursuitError as error:
        if not solved:
            raise
        where = ["--problem", named] if named else [word for one in directories for word in ("--dir", str(one))]
        why = f"`{context.command('problem', 'replay', attempt_id, *where)}` says why"
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
    if wait and is_unsettled(state):
        path, config = context.ledger_path, context.configuration
        state = await wait_until_settled(ledger, problem, state, path=path, config=config)
    attempt = Attempt(ledger, time.time, problem, attempt_id)
    async with Sandbox() as sandbox, attempt.alone() as alone:
        serve = context.command("problem", "serve", str(problem.path), "--attempt", attempt_id)
        found = await replay(problem, state, sandbox, serve=serve)
        # The process that took the submission died before it judged, or the judge failed, and no process works on it
        # now. With `wait` the score is recorded before it is reported: of two, the first counts.
        unscored = state.scored is None or state.scored.error is not None
        if (alone or wait) and unscored and found.same is None and attempt.fits(state) and found.judged is not None:
            version = await anyio.to_thread.run_sync(judging_digest, problem)
            await attempt.scored(scored_event(found.judged, at=time.time(), version=version))
        return {**found.as_dict(), "targets": targets_of(problem)}


def _of_attempt(state: AttemptState, named: str | None, directories: Sequence[Path]) -> Manifest:
    """The problem of an attempt: the one that is named, else the one with its id, preferably with its digest."""
    problem_id, digest = state.opened.problem_id, state.opened.manifest
    if named is not None:
        problem = find_problem(named, directories)
        if problem.problem_id != problem_id:
            raise InvalidArgument(f"{state.attempt_id} is an attempt at {problem_id!r}, not at {problem.problem_id!r}")
        return problem
    require_directories(directories)
    known: list[Manifest] = []
    for path in dict.fromkeys(path for folder in (SHIPPED, *directories) for path in manifests_in(folder)):
        with suppress(ValidationFailed):  # a manifest with faults cannot be the one
            known.append(read_manifest(path))
    known = [one for one in known if one.problem_id == problem_id]
    if not known:
        raise InvalidArgument(
            f"the problem {problem_id!r} is not known here; name its file with --problem, or its folder with --dir"
        )
    return next((one for one in known if one.digest == digest), known[-1])


def list_matching(
    context: Context,
    directories: Sequence[Path],
    *,
    words: str = "",
    kind: str | None = None,
    tags: Sequence[str] = (),
) -> CommandAnswer:
    """The problems that match; notes those that cannot be read."""
    found = discover_all(directories)
    try:
        matching = ProblemCatalogue(found.problems).search(words, kind=kind, tags=tags)
    except ValidationFailed as failed:
        faults = [Fault(field=f"--{fault.field}", reason=fault.reason) for fault in failed.faults]
        raise ValidationFailed(faults, "; ".join(map(str, faults))) from None
    for fault in found.faults:
        context.screen.note(f"left out: {fault}")
    return show_problems.listing([one.summary_row() for one in matching])


def brief_of(context: Context, problem: Manifest, *, citations: bool) -> CommandAnswer:
    """The brief of a problem as agents read it; its server, if it has one, is asked for its tools."""
    brief = run(partial(_brief, problem, context.screen, citations=citations))
    return CommandAnswer({**problem.summary_row(), "brief": brief}, brief.rstrip("\n"))


async def _brief(problem: Manifest, screen: Screen, *, citations: bool) -> str:
    if problem.server is None:
        return write_brief(problem, citations=citations)
    from pursuit.server.problems.listing import asked_brief

    try:
        brief, offer = await asked_brief(problem, citations=citations)
    except UpstreamUnavailable as error:
        screen.note(f"without its tools: {error.message}")
        return write_brief(problem, citations=citations)
    if faults := offer.faults():
        raise ValidationFailed(faults, f"{problem.problem_id} cannot be worked at")
    seen = json.dumps([tool for one in offer.definitions if (tool := offer.shown(one)) is not None], ensure_ascii=False)
    for reason in revealed_in(seen, problem):
        screen.note(f"warning: what its server says of its tools {reason}")
    return brief
