"""What `pursuit problem` does with a problem: serve it, try it, compare tries, judge one again.

Owns: the way from the command's words to a problem, its attempt and its mission file. Does not judge.
Invariant: a mission on a problem is an ordinary mission with a file of its own beside the ledger, so that whatever
stops it, `pursuit resume` goes on with it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from pursuit.app import Runtime
from pursuit.errors import Fault, InvalidArgument, PursuitError, SessionNotFound, ValidationFailed
from pursuit.problems.attempts import Attempt, attempts_at, load_attempt, new_attempt_id
from pursuit.problems.catalogue import SHIPPED, Catalogue, discover
from pursuit.problems.comparing import attempt_row, ranked
from pursuit.problems.manifest import Manifest
from pursuit.problems.missions import Plan, as_toml, mission_for, proposer_for
from pursuit.problems.reading import read_manifest
from pursuit.problems.replay import replay
from pursuit.sandbox import Sandbox
from pursuit.surfaces.cli import show_problems
from pursuit.surfaces.cli.context import configuration_path, ledger_path, look
from pursuit.surfaces.cli.drive import Drive
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.output import check_output
from pursuit.surfaces.cli.progress import progress
from pursuit.surfaces.cli.reports import write_whole
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import EXIT
from pursuit.tools.configuration import Configuration, load_configuration
from pursuit.tools.policy import parse_mode

_ATTEMPT = re.compile(r"attempt-[A-Za-z0-9._-]{1,100}")
UNSOLVED = 3


def chosen(word: str, directories: Sequence[Path]) -> Manifest:
    """The problem that is meant: by its id, or by its file."""
    if word.endswith(".toml"):
        return read_manifest(Path(word))
    found = discover(directories)
    try:
        return Catalogue(found.problems).get(word)
    except PursuitError:
        if found.faults:  # it may be one of those that cannot be read
            raise ValidationFailed(found.faults, f"there is no problem {word[:100]!r}, and some have faults") from None
        raise


def checked_attempt(text: str | None) -> str | None:
    """An id for an attempt as it may be given on the command line."""
    if text is not None and not _ATTEMPT.fullmatch(text):
        raise ValidationFailed([Fault(field="--attempt", reason="must begin with attempt- and be a plain word")])
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a problem is to be served."""

    server_name: str | None
    citations: bool
    attempt: str | None
    label: str
    mode: str | None


async def serving(said: Common, problem: Manifest, wanted: Serving) -> int:
    """Serves a problem over standard input and output until that ends."""
    from pursuit.surfaces.mcp.problems.server import ProblemOptions, problem_server  # noqa: PLC0415 - the SDK is slow
    from pursuit.surfaces.mcp.stdio import serve_stdio  # noqa: PLC0415

    options = ProblemOptions(
        state=ledger_path(said),
        config=_configuration(said),
        mode=None if wanted.mode is None else parse_mode(wanted.mode),
        server_name=wanted.server_name,
        include_citation=wanted.citations,
        attempt_id=wanted.attempt,
        label=wanted.label,
    )
    await serve_stdio(problem_server(problem, options), any_text=True)
    return 0


def _configuration(said: Common) -> Configuration:
    path = configuration_path(said)
    return Configuration() if path is None else load_configuration(path)


class Attempting:
    """One try of a problem by a mission."""

    def __init__(
        self,
        said: Common,
        problem: Manifest,
        *,
        proposer: str | None,
        label: str | None,
        mode: str | None,
        directories: Sequence[Path],
    ) -> None:
        self._said = said
        self._problem = problem
        self._proposer = proposer_for(problem, proposer)
        self._label = label or str(self._proposer.get("model") or self._proposer.get("kind"))
        self._mode = mode or "auto"
        self._directories = directories
        self.attempt_id = new_attempt_id()

    def run(self, *, max_iterations: int | None, max_seconds: float | None) -> int:
        """Makes the mission and drives it; the exit code is the mission's."""
        drive = Drive(self._said, self._mode)
        file = self._file(max_iterations, max_seconds)
        drive.check(file)

        async def work(runtime: Runtime) -> int:
            mission_id = await drive.accept(runtime, file)
            ledger = runtime.service.ledger
            by = str(runtime.service.caller)
            attempt = Attempt(
                ledger, time.time, self._problem, self.attempt_id, by=by, label=self._label, mission=mission_id
            )
            await attempt.open()
            await runtime.use_servers_of(mission_id)
            async with progress(drive.screen) as see:
                await runtime.service.run(mission_id, observer=see)
            status = await runtime.service.status(mission_id)
            state = await load_attempt(ledger, self.attempt_id)
            row = attempt_row(self._problem, state, status["budget"]["used"])
            show_problems.attempt(drive.screen, row, status)
            if status["status"] not in ("completed", "terminated"):
                drive.screen.hint(f"go on with: {self._said.command('resume', mission_id)}")
            return EXIT.get(status["status"], 0)

        return drive.conduct(work)

    def _file(self, max_iterations: int | None, max_seconds: float | None) -> Path:
        """Writes the mission file beside the ledger."""
        ledger = ledger_path(self._said).absolute()
        folder = ledger.parent / "problems"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shared = [
            "--state",
            str(ledger),
            *(word for one in self._directories for word in ("--dir", str(one.resolve()))),
        ]
        config = configuration_path(self._said)
        if config is not None:
            shared += ["--config", str(config)]
        name = str(self._problem.path)
        judging = [*shared, *self._beside()]
        baseline = self._problem.baseline
        plan = Plan(
            attempt_id=self.attempt_id,
            proposer=self._proposer,
            serve=["-m", "pursuit", "problem", "serve", name, "--attempt", self.attempt_id, *shared],
            judge=[sys.executable, "-m", "pursuit", "problem", "replay", self.attempt_id, "--solved", *judging],
            max_iterations=max_iterations or (baseline.max_iterations if baseline else 500),
            max_seconds=max_seconds or (baseline.max_wall_clock_seconds if baseline else 3_600.0),
        )
        file = folder / f"{self.attempt_id}.toml"
        write_whole(file, as_toml(mission_for(self._problem, plan)))
        return file

    def _beside(self) -> list[str]:
        """Where the judge finds a problem that was named by its file and lies in none of the folders."""
        own = self._problem.path.resolve().parent
        known = (SHIPPED, *self._directories)
        return [] if any(own.is_relative_to(folder.resolve()) for folder in known) else ["--dir", str(own)]


def compared(said: Common, problems: Sequence[Manifest], output: Path | None, *, force: bool) -> int:
    """Shows the attempts at problems, and writes the page."""
    if output is not None:
        check_output(said, output, force=force)

    async def read(runtime: Runtime) -> list[dict[str, Any]]:
        return [await _compared(runtime, problem) for problem in problems]

    found: list[dict[str, Any]] = look(said, read)
    screen = Screen(said)
    if output is not None:
        from pursuit.reports.comparison import render_comparison  # noqa: PLC0415 - the template engine loads when needed

        write_whole(output, render_comparison(found))
        screen.note(f"wrote {output}")
    show_problems.comparison(screen, found)
    return 0


async def _compared(runtime: Runtime, problem: Manifest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for state in await attempts_at(runtime.service.ledger, {problem.problem_id}):
        spent: Mapping[str, Any] | None = None
        if state.opened.mission is not None:
            with suppress(SessionNotFound):  # forgotten since
                spent = (await runtime.service.status(state.opened.mission))["budget"]["used"]
        rows.append(attempt_row(problem, state, spent))
    head = {"problem_id": problem.problem_id, "title": problem.title}
    return {**head, "metric": problem.primary.name, "target": problem.primary.target, "attempts": ranked(rows)}


def replayed(said: Common, attempt_id: str, directories: Sequence[Path], *, solved: bool) -> int:
    """Judges an attempt again and shows what came out; the exit code says whether it is the same score."""

    async def judged(runtime: Runtime) -> dict[str, Any]:
        state = await load_attempt(runtime.service.ledger, attempt_id)
        problem = await anyio.to_thread.run_sync(chosen_of, state.opened.problem_id, state.opened.manifest, directories)
        async with Sandbox() as sandbox:
            return (await replay(problem, state, sandbox)).as_dict()

    found: dict[str, Any] = look(said, judged)
    screen = Screen(said)
    if screen.json:
        screen.document(found)
    else:
        show_problems.score(screen, found)
        screen.fact("same as recorded", "yes" if found["same"] else "no")
        for note in found["notes"]:
            screen.note(note)
    if not found["same"]:
        return 1
    return UNSOLVED if solved and not found["solved"] else 0


def chosen_of(problem_id: str, digest: str, directories: Sequence[Path]) -> Manifest:
    """The problem of an attempt; of several files with that id the one whose digest fits."""
    known = [one for one in discover(directories).problems if one.problem_id == problem_id]
    if not known:
        raise InvalidArgument(f"the problem {problem_id!r} is not known here; name its folder with --dir")
    return next((one for one in known if one.digest == digest), known[0])
