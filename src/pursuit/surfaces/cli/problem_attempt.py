"""One try of a problem by a mission: `pursuit problem attempt`.

Owns: the mission's file and the order in which file, mission and attempt are made. Does not judge.
Invariant: a mission on a problem is an ordinary mission with a file of its own beside the ledger, so that whatever
stops it, the command that is printed goes on with it; what is refused leaves nothing behind.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pursuit.config.files import as_toml
from pursuit.core.mission import parse_mission
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.attempts import Attempt, load_attempt, new_attempt_id
from pursuit.problems.comparison import attempt_row
from pursuit.problems.manifest import Manifest
from pursuit.problems.missions import AGENTS, MACHINES, Plan, mission_for, proposer_for, server_of
from pursuit.runtime import Runtime
from pursuit.service.queries import new_mission_id
from pursuit.surfaces.cli import show_problems
from pursuit.surfaces.cli.attempt_end import ended_attempt, why
from pursuit.surfaces.cli.context import configuration_path, folder_beside_ledger, ledger_path
from pursuit.surfaces.cli.drive import Drive
from pursuit.surfaces.cli.failure import the_cause
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.progress import progress
from pursuit.surfaces.cli.reports import write_whole
from pursuit.surfaces.cli.text import EXIT

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
        because = why(status, ended.report) if ended is not None and status["status"] != "completed" else ""
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
