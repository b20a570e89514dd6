"""One command's drive: accept, advance, and tell how it ended.

Owns: the order of these for the command line, the report's files, and what is said after a signal.
Knows no typer. Invariant: a mission that was begun is named in the answer, however the command ends.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from pursuit.cli import show
from pursuit.cli.console import EXIT, Screen, clean, line
from pursuit.cli.context import conduct, driving, existing_ledger, ledger_path
from pursuit.cli.control import ask_here
from pursuit.cli.errors import Interrupted, the_cause
from pursuit.cli.options import Common
from pursuit.cli.progress import progress
from pursuit.cli.reports import write_reports
from pursuit.cli.show_problems import ended_attempt
from pursuit.cli.tools import read_configuration, require_same
from pursuit.config.mission_file import load_mission_file
from pursuit.core.mission import CAPS, Proposal
from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.policy.rules import Mode, parse_mode
from pursuit.reports.wording import compact
from pursuit.runtime import Runtime, open_planner
from pursuit.service.approvals import Approvals

AT_ONCE = 8
MOST_ASKED = 3
"""Questions that a hint names; `pursuit approvals` shows them all."""
_WORST_FIRST = (1, 3, 4, 0)


class Drive:
    """What a driving command has in its hands."""

    def __init__(self, common: Common, mode: str | None) -> None:
        self.common = common
        self._mode: Mode | None = None if mode is None else parse_mode(mode)
        # Whoever drives says the mode: a copied command line must mean the same one.
        self._same_mode = () if mode is None else ("--mode", mode)
        self.screen = Screen(common)
        self._begun: list[str] = []

    def check(self, file: Path) -> None:
        """Refuses a wrong mission file, and a wrong place for the ledger, before a ledger is made for it."""
        ledger_path(self.common)
        load_mission_file(file)

    def conduct(self, work: Callable[[Runtime], Awaitable[int]], *, existing: bool = False) -> int:
        """Runs the work with a runtime; its exit code, or that of the signal which stopped it."""
        if existing:
            existing_ledger(self.common)

        async def opened() -> int:
            async with driving(self.common, self._mode) as runtime:
                return await work(runtime)

        try:
            return conduct(opened)
        except Interrupted as stop:
            return self._interrupted(stop.number)
        except Exception as error:
            if self._begun and isinstance(the_cause(error), LedgerUnavailable):
                self.screen.note(f"when it is put right, go on with: {self._resume()}")
            raise

    async def accept(self, runtime: Runtime, file: Path, session_id: str | None = None) -> str:
        """Starts the mission in a file, by an id that it has beforehand or a new one; its warnings are told at once."""
        with self.screen.busy("asking the servers for their tools"):
            started = await runtime.start_file(file, session_id=session_id)
        self._begun.append(started.session_id)
        for warning in started.warnings:
            self.screen.note(f"warning: {warning}")
        return started.session_id

    async def start(self, runtime: Runtime, file: Path) -> int:
        """Starts the mission in a file and leaves it at that."""
        mission_id = await self.accept(runtime, file)
        if self.screen.json:
            status = await runtime.service.status(mission_id)
            keys = ("session_id", "status", "warnings")
            self.screen.document({key: status[key] for key in keys})
        else:
            self.screen.plain(mission_id)
            status = await runtime.service.status(mission_id)
            self.screen.hint(f"pursue it with: {show.go_on(self.common, status)}")
        return 0

    async def pursue(self, runtime: Runtime, mission_id: str) -> int:
        """Drives one mission until it ends or waits, and tells."""
        await runtime.use_servers_of(mission_id)
        self._begun = [mission_id]
        async with progress(self.screen) as see:
            await runtime.service.run(mission_id, observer=see)
        while await self._answered_here(runtime, mission_id):
            async with progress(self.screen) as see:
                await runtime.service.run(mission_id, observer=see)
        return await self._tell(runtime, mission_id, {})

    async def _answered_here(self, runtime: Runtime, mission_id: str) -> bool:
        """Asks the person at the terminal what the mission waits for; whether every question got an answer."""
        if not (self.screen.rich and sys.stdin.isatty()):
            return False
        desk = Approvals(runtime.service)
        rows = await desk.open(mission_id)
        for row in rows:
            answer = await anyio.to_thread.run_sync(ask_here, self.screen, row, abandon_on_cancel=True)
            if answer is None:
                return False
            await desk.answer(row["approval_id"], answer[0], reason=answer[1])
        return bool(rows)

    async def iterate(self, runtime: Runtime, mission_id: str, iterations: int, proposal: Proposal | None) -> int:
        """Drives one mission by so many iterations, and tells."""
        await runtime.use_servers_of(mission_id)
        self._begun = [mission_id]
        async with progress(self.screen) as see:
            done = await runtime.service.iterate(mission_id, iterations=iterations, proposal=proposal, observer=see)
        return await self._tell(runtime, mission_id, {"iterations": done["iterations"]})

    async def pursue_all(self, runtime: Runtime) -> int:
        """Drives every interrupted mission, several side by side, and tells a line of each."""
        names = await runtime.service.interrupted()
        rows: dict[str, dict[str, Any]] = {}
        places = anyio.CapacityLimiter(AT_ONCE)

        async def one(name: str) -> None:
            async with places:
                rows[name] = await self._pursued(runtime, name)
                self._tell_row(rows[name])

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        if self.screen.json:
            self.screen.document({"missions": [rows[name] for name in names]})
        elif not names:
            self.screen.hint("no mission was interrupted")
        codes = {_code_of(row) for row in rows.values()}
        return next(code for code in _WORST_FIRST if code in {*codes, 0})

    async def _pursued(self, runtime: Runtime, mission_id: str) -> dict[str, Any]:
        self._begun.append(mission_id)
        self.screen.note(f"resuming {mission_id}")
        try:
            await runtime.use_servers_of(mission_id)
            await runtime.service.go_on(mission_id)
            status = await runtime.service.status(mission_id)
            files = await self._files(runtime, status)
        except Exception as error:  # one mission that cannot be driven must not stop the others
            cause = the_cause(error)
            if not isinstance(cause, PursuitError):
                raise
            return {"session_id": mission_id, "error": cause.as_dict()}
        finally:
            self._begun.remove(mission_id)
        keys = ("session_id", "status", "verdict", "verdict_reason", "waiting_for", "failure", "iteration_count")
        row = {key: status[key] for key in keys if key in status}
        return {**row, "why": show.why(status), **({"report_files": files} if files else {})}

    def _tell_row(self, row: dict[str, Any]) -> None:
        if self.screen.json:
            return
        error = row.get("error")
        words = f"{error['code']}: {error['message']}" if error else f"{row['status']}: {row['why']}".removesuffix(": ")
        self.screen.fact(row["session_id"], words)

    async def _tell(self, runtime: Runtime, mission_id: str, more: dict[str, Any]) -> int:
        status = await runtime.service.status(mission_id)
        files = await self._files(runtime, status)
        attempt = await ended_attempt(runtime, status)
        if self.screen.json:
            found = {} if attempt is None else {"attempt": attempt.as_dict()}
            self.screen.document({**status, **more, **found, **({"report_files": files} if files else {})})
        else:
            show.mission(self.screen, status)
            if attempt is not None:
                attempt.tell(self.screen)
            if files:
                self.screen.fact("report", files["html"])
            self.screen.hint(self.next_step(status) if attempt is None else attempt.next_step(self.common))
        return EXIT.get(status["status"], 0)

    async def _files(self, runtime: Runtime, status: dict[str, Any]) -> dict[str, str]:
        """Writes the final report's files; that they cannot be written is told and changes nothing else."""
        if status["status"] not in ("completed", "terminated"):
            return {}
        mission_id = status["session_id"]
        try:
            return write_reports(self.common, mission_id, await runtime.service.report(mission_id))
        except (InvalidArgument, OSError) as error:
            self.screen.note(f"the report stays in the ledger: {error}")
            return {}

    def next_step(self, status: dict[str, Any]) -> str:
        """The line that says what can be done now."""
        say, mission_id = self.common.command, status["session_id"]
        match (status["status"], status.get("waiting_for")):
            case ("completed" | "terminated", _):
                return f"see it again: {say('report', mission_id)}"
            case (_, "proposal"):
                words = ("iterate", mission_id, "--proposal", "FILE", *self._same_mode)
                return f"propose the next calls: {say(*words)}"
            case (_, "approval"):
                asked = [row["approval_id"] for row in status["pending_approvals"]]
                answers = " and ".join(say("approve", one) for one in asked[:MOST_ASKED])
                rest = f" (there are {len(asked)}: {say('approvals', mission_id)})" if len(asked) > MOST_ASKED else ""
                then = say("resume", mission_id, *self._same_mode)
                return f"it asks first: {answers or say('approvals', mission_id)}{rest}, or deny it; then {then}"
            case (_, "budget"):
                cap = next(name for name in CAPS if name.startswith(status["waiting_detail"]))
                more = say("extend", mission_id, f"--{cap.replace('_', '-')}", "N")
                return f"raise a cap: {more}, then {show.go_on(self.common, status, *self._same_mode)}"
            case _:
                return f"go on with: {show.go_on(self.common, status, *self._same_mode)}"

    def _resume(self) -> str:
        words = self._begun[-1:] if len(self._begun) == 1 else ["--all"]
        return self.common.command("resume", *words, *self._same_mode)

    def _interrupted(self, number: int) -> int:
        name = signal.Signals(number).name
        if self.screen.json:
            begun = list(dict.fromkeys(self._begun))
            document = {"interrupted": name, "resume": self._resume() if begun else None}
            self.screen.document({**({"session_id": begun[0]} if len(begun) == 1 else {"missions": begun}), **document})
        elif self._begun:
            self.screen.note(f"stopped by {name}; everything so far is recorded. Go on with: {self._resume()}")
        else:
            self.screen.note(f"stopped by {name}; nothing was started")
        return 128 + number


def _code_of(row: dict[str, Any]) -> int:
    """The exit code that one mission asks for; one that somebody else drives already is in good hands."""
    error = row.get("error")
    if error is None:
        return EXIT.get(row["status"], 0)
    return 0 if error["code"] == Conflict.code else 1


# `pursuit run --plan`: what a mission would do first.
# Invariant: no ledger is opened or made.

WORDS = {"allow": "allowed", "ask": "a person is asked first", "deny": "denied"}


def plan(said: Common, file: Path, mode: str | None) -> int:
    """Shows the first proposal and what policy would say; 1 if nothing can be proposed."""
    screen = Screen(said)
    found = conduct(lambda: _planned(said, screen, file, mode))
    _show(screen, found)
    return 1 if "failed" in found else 0


async def _planned(said: Common, screen: Screen, file: Path, mode: str | None) -> Mapping[str, Any]:
    loaded = load_mission_file(file)
    configuration = read_configuration(said)
    require_same(loaded.path, configuration, loaded.servers)
    with screen.busy("asking for the first proposal"):
        chosen = None if mode is None else parse_mode(mode)
        async with open_planner(configuration, mode=chosen, servers=loaded.servers) as planner:
            return await planner.plan(loaded.mission)


def _show(screen: Screen, found: Mapping[str, Any]) -> None:
    if screen.json:
        screen.document(found)
        return
    if found.get("rationale"):
        screen.plain(clean(found["rationale"]))
    for call in found["calls"]:
        ruling = f"{WORDS[call['decision']]} ({call['reason']})" if call["reason"] else WORDS[call["decision"]]
        screen.plain(line(f"{call['name']} {compact(call['args'])}: {ruling}"))
    if found.get("script") is not None:
        screen.plain(clean(found["script"]))
    for reason in found.get("failed", ()):
        screen.plain(f"no proposal: {line(reason)}")
    if found.get("waiting_for"):
        screen.plain(f"waits for {found['waiting_for']} before it does anything")
    elif not found["calls"] and found.get("script") is None and "failed" not in found:
        screen.plain("nothing to do in the first iteration")
    for warning in found["warnings"]:
        screen.note(f"warning: {warning}")
    used = found["used"]
    cost = "at a price that is not known" if used["cost_usd"] is None else f"for ${used['cost_usd']:.4g}"
    spent = f"; asking for it used {used['tokens']} tokens {cost}" if used["tokens"] else ""
    screen.hint(f"nothing was run or stored{spent}")
