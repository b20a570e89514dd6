"""`pursuit problem attempt`: runs a mission on a problem, or several coding agents."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from pursuit.cli import show_problems
from pursuit.cli.console import EXIT, CommandAnswer, Hint
from pursuit.cli.context import Context
from pursuit.cli.errors import root_cause
from pursuit.cli.missions import Drive
from pursuit.cli.progress import progress
from pursuit.cli.reports import write_whole
from pursuit.cli.show_problems import ended_attempt
from pursuit.config.files import as_toml
from pursuit.config.mission_file import load_mission_file
from pursuit.core.mission import parse_mission
from pursuit.core.pick import rivals
from pursuit.core.proposing import settings_type
from pursuit.errors import Fault, SessionNotFound, ValidationFailed
from pursuit.problems.attempts import Attempt, load_attempt, new_attempt_id
from pursuit.problems.comparison import attempt_row
from pursuit.problems.manifest import Manifest
from pursuit.problems.missions import (
    AGENTS,
    MACHINES,
    Plan,
    mission_for,
    mission_for_agents,
    proposer_for,
    server_of,
)
from pursuit.problems.repositories import make_repository
from pursuit.runtime import OWN_FILES, Runtime
from pursuit.service.comparison import compared
from pursuit.service.queries import new_mission_id

DEFAULT_SECONDS = 3_600.0
"""The time limit of a mission if its problem sets none."""
DEFAULT_ITERATIONS = 500


def _by_option(failed: ValidationFailed) -> ValidationFailed:
    """Reports faults of the proposer under `--proposer`, because the user did not write the mission file."""
    own = ("proposer.kind", "proposer.model")
    faults = [Fault(field="--proposer", reason=one.reason) if one.field in own else one for one in failed.faults]
    named = any(one.field == "--proposer" for one in faults)
    return ValidationFailed(faults, "wrong options; nothing was started") if named else failed


class AttemptRun:
    """An attempt at a problem by a mission: `pursuit problem attempt`.

    The mission is an ordinary mission with its own file beside the ledger, so `pursuit resume` always continues it.
    A refused mission leaves nothing behind.
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
        if self._proposer.get("kind") not in AGENTS:  # a mission that waits for an agent prints the hint immediately
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
        """How to continue. `serve` is given the mode because it does not read it from the mission."""
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
        """The mission table; its server and its judge refer to the problem by file, not by id."""
        shared = self._shared()
        name, own = str(self._problem.path), self.attempt_id
        # The user trusted the problem for this command; its child processes must not ask again.
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
        config = self._context.configuration_path
        own = ["--state", str(self._context.ledger_path.absolute())]
        return own if config is None else [*own, "--config", str(config)]

    def _caps(self) -> tuple[int, float]:
        """Iterations and seconds: the baseline's for proposers without an agent, else those of the brief."""
        baseline, most = self._problem.baseline, self._problem.budget.wall_seconds
        if baseline is None or self._proposer.get("kind") not in MACHINES:
            return DEFAULT_ITERATIONS, most or DEFAULT_SECONDS
        return baseline.max_iterations, min(baseline.max_wall_clock_seconds, most or DEFAULT_SECONDS)


class AgentsRun(AttemptRun):
    """Attempts of coding agents at a problem with a repository, each in its own worktree.

    A single agent runs as a mission; several agents run as children of one mission. An attempt has its mission's id.
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
        found = await compared(runtime.runner, self._problem)
        mine = {one.session_id for one in (status.workspace and status.workspace.agents) or ()} or {mission_id}
        rows = [row for row in found["attempts"] if row["mission"] in mine]
        shown = show_problems.comparison([{**found, "attempts": rows, "agents": []}])
        compare = Hint(f"compare: {self._context.command('problem', 'compare', str(self._problem.path))}")
        code = EXIT.get(status.status, 0)
        return drive.screen.render(CommandAnswer({**status.as_json(), "attempts": rows}, shown, compare, code=code))

    async def _open_attempts(self, runtime: Runtime) -> None:
        """Opens attempts for agents that submitted nothing, so that comparisons show them."""
        state = await runtime.runner.state(self._mission_id)
        children = [child.session_id for _, child in rivals(state)]
        for mission_id in children or [self._mission_id]:
            with suppress(SessionNotFound):  # cancelled before it began
                await open_attempt(runtime, self._problem, mission_id)

    def _mission(self, max_iterations: int | None, max_seconds: float | None) -> dict[str, Any]:
        # Agents see the command of a check. A launcher file keeps the folder of the hidden tests out of that command.
        words = ["problem", "submit", str(self._problem.path), "--trust", *self._shared()]
        launcher = self._folder.with_suffix(".py")
        write_whole(launcher, f"from pursuit.cli.main import main\n\nmain({words!r})\n")
        return mission_for_agents(
            self._problem,
            self._agents,
            copy=str(self._folder),
            submit=[sys.executable, str(launcher)],
            max_iterations=max_iterations,
            max_seconds=max_seconds or self._problem.budget.wall_seconds or DEFAULT_SECONDS,
        )


def _agent(text: str, inherit: Sequence[str]) -> dict[str, Any]:
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
    return f"attempt-{mission_id.removeprefix('mission-')}"


async def open_attempt(runtime: Runtime, problem: Manifest, mission_id: str) -> Attempt:
    """The attempt of a coding agent's mission; both have the same start time."""
    service = runtime.runner
    state = await service.state(mission_id)
    label, by = state.mission.proposer.label, str(service.caller)
    attempt_id, began = attempt_of_mission(mission_id), state.created_at
    await Attempt(service.ledger, lambda: began, problem, attempt_id, by=by, label=label, mission=mission_id).open()
    return Attempt(service.ledger, time.time, problem, attempt_id, by=by, label=label, mission=mission_id)
