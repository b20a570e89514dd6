"""The commands that run missions: demo, run, start, iterate, resume.

The answer names each started mission, even after a signal.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from pursuit.cli import show
from pursuit.cli.console import ENDED, EXIT, CommandAnswer, Fact, Hint, Note, Part, clean, line
from pursuit.cli.context import Context, Interrupted, command, conduct
from pursuit.cli.control import ask_at_terminal, people_words
from pursuit.cli.errors import root_cause
from pursuit.cli.options import MissionId, ModeOption, mission_ids, read_input
from pursuit.cli.progress import progress
from pursuit.cli.queries import follow
from pursuit.cli.reports import write_reports
from pursuit.cli.tools import require_same
from pursuit.config.configuration import TOML_NAME
from pursuit.config.files import STATE_VARIABLE, live_folder, parse_json, too_deep
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.trust import TrustedFolder, of_mission
from pursuit.core.approvals import Approval
from pursuit.core.budgets import most_requests
from pursuit.core.caps import BY_REASON
from pursuit.core.events import Permission
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.report import Status
from pursuit.engine.driver import RunOrder
from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable, PursuitError, ValidationFailed
from pursuit.policy.rules import parse_mode
from pursuit.reports.wording import compact
from pursuit.runtime import OWN_FILES, Runtime, first_proposal
from pursuit.service.approvals import Approvals

CONCURRENT_MISSIONS = 8
MAX_IN_HINT = 3
"""The number of questions in a hint; `pursuit approvals` shows all."""
_WORST_FIRST = (1, 3, 4, 0)
_DECISIONS = {"allow": "allowed", "ask": "asks a person first", "deny": "denied"}
EXIT_CODES = "Exit code:  0 completed,  3 terminated,  4 waiting or paused,  1 failed,  2 wrong input."

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Mission file in TOML (`pursuit init` writes one).")]

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Keep running while the mission waits for an approval or a larger budget."),
]

DetachOption = Annotated[
    bool, typer.Option("--detach", help="Let the workers of a ledger on PostgreSQL run it (`pursuit worker`).")
]

app = typer.Typer()


@command(app, epilog=EXIT_CODES)
def run(
    context: Context,
    *,
    file: FileArgument,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the first proposal and the policy's decisions; run and store nothing.")
    ] = False,
    wait: WaitOption = False,
    detach: DetachOption = False,
    mode: ModeOption = None,
) -> int | CommandAnswer:
    if plan:
        return plan_of(context, file, mode)
    if detach:
        return Drive(context, mode).start(file, detach=True)
    return Drive(context, mode, wait=wait).run(file)


@command(app)
def demo(context: Context) -> int:
    """Run the example of `pursuit init` in the folder .pursuit/demo; needs no key and no network.

    The folder has its own ledger. The command starts a new mission each time.
    """
    from pursuit.demo.example import write_example

    folder = Path(".pursuit", "demo")
    write_example(folder, force=True)
    os.environ.setdefault("PURSUIT_DEMO_DELAY_MS", "5")  # slow enough to be watched
    state = str(folder / ".pursuit" / "ledger.db") if STATE_VARIABLE in os.environ else None
    inner = Context(context.click, config=folder / TOML_NAME, state=state, json=context.json)
    code = Drive(inner, None).run(folder / "mission.toml")
    inner.screen.note(f"See it on the page:  {inner.command('page')}")
    return code


@command(app)
def start(context: Context, *, file: FileArgument, mode: ModeOption = None) -> int:
    """Record the mission in a file without running it here, and print its id; on PostgreSQL workers run it."""
    return Drive(context, mode).start(file)


@command(
    app,
    epilog="""Example:  echo '{"tool_calls": [{"tool_name": "beam.evaluate", "args": {"h": 1}}]}' """
    "| pursuit iterate ID --proposal -",
)
def iterate(
    context: Context,
    *,
    mission_id: MissionId,
    iterations: Annotated[int, typer.Option("--iterations", "-n", metavar="N", help="Maximum iterations.")] = 1,
    proposal: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Tool calls as JSON, if the proposer is `client`.")
    ] = None,
    mode: ModeOption = None,
) -> int:
    return Drive(context, mode).iterate(mission_id, iterations, None if proposal is None else read_proposal(proposal))


@command(app, epilog=EXIT_CODES)
def resume(
    context: Context,
    *,
    mission_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", autocompletion=mission_ids, help="A mission that has not ended, or ended as no_progress."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume all interrupted missions.")] = False,
    wait: WaitOption = False,
    detach: DetachOption = False,
    model: Annotated[str | None, typer.Option(metavar="PROVIDER:NAME", help="Use another language model.")] = None,
    mode: ModeOption = None,
) -> int:
    """Continue a mission that is pending, interrupted, paused, failed or ended as no_progress; its mode stays."""
    if (mission_id is None) != every:
        raise InvalidArgument("give a mission's ID, or --all", field="ID")
    if every and (wait or detach or model):
        option = "--wait" if wait else "--detach" if detach else "--model"
        raise InvalidArgument(f"{option} goes with one mission's ID, not with --all", field=option)
    drive = Drive(context, mode, wait=wait)
    return drive.resume_all() if mission_id is None else drive.resume(mission_id, model, detach=detach)


def read_proposal(place: str) -> Proposal:
    """Reads a proposal from a JSON file, or from standard input for `-`; each fault names the file."""
    text, source = read_input(place)
    try:
        return parse_proposal(parse_json(text, source=source))
    except RecursionError:
        raise too_deep(source) from None
    except ValidationFailed as failed:
        raise ValidationFailed([replace(one, source=one.source or source) for one in failed.faults]) from None


class Drive:
    def __init__(self, context: Context, mode: str | None, *, wait: bool = False) -> None:
        self.context = context
        self.screen = context.screen
        self._mode = mode
        self._wait = wait
        """Keep running while the mission waits for an answer from elsewhere."""
        self._begun: list[str] = []

    def run(self, file: Path) -> int:
        loaded = load_mission_file(file)

        async def work(runtime: Runtime) -> int:
            return await self._pursue(runtime, await self.accept(runtime, loaded))

        return self.conduct(work, of_mission(loaded))

    def start(self, file: Path, *, detach: bool = False) -> int:
        """Starts the mission in a file without running it here; workers of the ledger run it.

        With `detach`, a ledger that workers cannot share is refused.
        """
        loaded = load_mission_file(file)
        if detach:
            self.context.require_shared("--detach", _DETACHED)

        async def work(runtime: Runtime) -> int:
            mission_id = await self.accept(runtime, loaded, for_workers=True)
            placed = await runtime.runner.place(mission_id)
            status = await runtime.runner.status(mission_id)
            keys, data = ("session_id", "status", "warnings", "placement"), status.as_json()
            run = Hint(f"run it with: {show.continue_command(self.context, status)}")
            parts = self._placed(mission_id, status) if placed else (run,)
            return self.screen.render(
                CommandAnswer({key: data[key] for key in keys if key in data}, mission_id, *parts)
            )

        return self.conduct(work, of_mission(loaded))

    def resume(self, mission_id: str, model: str | None = None, *, detach: bool = False) -> int:
        """Continues one mission until it ends or waits, in its original policy mode.

        With `detach`, workers run it.
        """
        if detach:
            self.context.require_shared("--detach", _DETACHED)
        self._keep_mode(mission_id)

        async def work(runtime: Runtime) -> int:
            await runtime.use_servers_of(mission_id)
            if model is not None:
                await runtime.runner.resume(mission_id, model=model)
            if not detach:
                return await self._pursue(runtime, mission_id)
            await runtime.runner.hand_over(RunOrder(mission_id, resume=True, mode=self._mode))
            status = await runtime.runner.status(mission_id)
            return self.screen.render(CommandAnswer(status, mission_id, *self._placed(mission_id, status)))

        return self.conduct(work)

    def _placed(self, mission_id: str, status: Status) -> tuple[Part, ...]:
        drives = Note(status.placement or f"workers drive it: {self.context.command('workers')}")
        return drives, Hint(f"follow it with: {self.context.command('watch', mission_id)}")

    def resume_all(self) -> int:
        """Continues all interrupted missions, several at a time, each in its original policy mode."""
        modes = self.context.look(_interrupted_modes)
        if not modes:
            return self.screen.render(CommandAnswer({"missions": []}, Hint("no mission was interrupted")))
        self.context.trust_here()
        rows: dict[str, dict[str, Any]] = {}

        async def together(mode: str | None, names: Sequence[str]) -> None:
            async with self.context.trusted_runtime(mode) as runtime:
                await self._pursue_several(runtime, names, rows)

        async def work() -> int:
            async with anyio.create_task_group() as tasks:
                for mode in dict.fromkeys(modes.values()):
                    names = [name for name, kept in modes.items() if kept == mode]
                    if self._mode is None and mode is not None:
                        self._say_mode(mode, *names)
                    tasks.start_soon(together, self._mode or mode, names)
            codes = {_exit_code(row) for row in rows.values()}
            worst = next(code for code in _WORST_FIRST if code in codes)
            return self.screen.render(CommandAnswer({"missions": [rows[name] for name in modes]}, code=worst))

        return self._stoppable(lambda: conduct(work))

    def iterate(self, mission_id: str, iterations: int, proposal: Proposal | None) -> int:
        """Runs a few iterations of one mission, in its original policy mode."""
        self._keep_mode(mission_id)

        async def work(runtime: Runtime) -> int:
            await runtime.use_servers_of(mission_id)
            self._begun = [mission_id]
            async with progress(self.screen, live_folder(self.context.ledger_path)) as see:
                done = await runtime.runner.iterate(
                    mission_id, iterations=iterations, proposal=proposal, observer=see, mode=self._mode
                )
            return await self._finish(runtime, mission_id, {"iterations": done["iterations"]})

        return self.conduct(work)

    def _keep_mode(self, mission_id: str) -> None:
        """Uses the policy mode that the operator chose for the mission, unless this command sets one.

        Raises `SessionTerminal` with the next step if the mission has ended.
        """
        state = self.context.look(lambda runtime: runtime.runner.state(mission_id))
        if state.terminal and state.closed and not state.can_go_on:
            raise show.has_ended(self.context, mission_id, state)
        if self._mode is None and state.mode is not None:
            self._mode = state.mode
            self._say_mode(state.mode)

    def _say_mode(self, mode: str, *names: str) -> None:
        which = f"{', '.join(names)}: " if names else ""
        self.screen.note(f"{which}policy mode {mode}, as at the start; --mode changes it")

    def conduct(self, work: Callable[[Runtime], Awaitable[int]], *starts: TrustedFolder) -> int:
        """Runs the work with a runtime and returns its exit code, or the exit code of the signal that stopped it."""
        return self._stoppable(lambda: self.context.drive(work, self._mode, *starts))

    def _stoppable(self, work: Callable[[], int]) -> int:
        try:
            return work()
        except Interrupted as stop:
            return self._interrupted(stop.number)
        except Exception as error:
            if self._begun and isinstance(root_cause(error), LedgerUnavailable):
                self.screen.note(f"when the ledger is available again, continue with: {self._resume_command()}")
            raise

    async def accept(
        self, runtime: Runtime, file: MissionFile, session_id: str | None = None, *, for_workers: bool = False
    ) -> str:
        """Starts the mission in a trusted file, with this id or a new one, and prints its warnings."""
        with self.screen.busy("asking the servers for their tools"):
            started = await runtime.start_file(file, session_id=session_id, for_workers=for_workers, trusted=True)
        self._begun.append(started.session_id)
        for warning in started.warnings:
            self.screen.note(f"warning: {warning}")
        if (most := most_requests(file.mission)) is not None:
            self.screen.note(f"the budget allows at most {most:,} requests to the language model")
        return started.session_id

    async def _pursue(self, runtime: Runtime, mission_id: str) -> int:
        self._begun = [mission_id]
        await self._drive(runtime, mission_id)
        while await self._answered(runtime, mission_id):
            try:
                await self._drive(runtime, mission_id)
            except Exception as error:
                cause = root_cause(error)
                if not isinstance(cause, Conflict):
                    raise
                # Whoever answered elsewhere has resumed the mission there.
                self.screen.note(f"{cause.message}; following it")
                await follow(runtime.runner, mission_id, self.screen)
        return await self._finish(runtime, mission_id, {})

    async def _drive(self, runtime: Runtime, mission_id: str) -> None:
        async with progress(self.screen, live_folder(self.context.ledger_path)) as see:
            await runtime.runner.run(mission_id, observer=see, mode=self._mode)

    async def _answered(self, runtime: Runtime, mission_id: str) -> bool:
        """True if the mission can continue here: its questions were answered, at this terminal or elsewhere."""
        approvals, service = Approvals(runtime.runner), runtime.runner
        asked = False
        if self.screen.rich and sys.stdin.isatty() and "terminal" in service.channels:
            waiting = await approvals.open(mission_id)
            asked = bool(waiting)
            for one in waiting:
                asked = asked and await self._ask(approvals, one)
        state = await service.state(mission_id)
        if self._wait and state.waiting_for in ("approval", "budget"):
            if await approvals.open(mission_id) or state.waiting_for == "budget":
                self.screen.next_step(self.next_step(await service.status(mission_id)))
            state = await approvals.until_answered(mission_id)
        if state.waiting_for == "approval":  # continuing the mission settles expired questions
            return (asked or self._wait) and not await approvals.open(mission_id)
        return (asked or self._wait) and state.status == "running"

    async def _ask(self, approvals: Approvals, asked: Approval) -> bool:
        """Asks at the terminal until the question is answered here or elsewhere; returns whether it is answered."""
        answer: Permission | None = None
        mission_id, approval_id = asked.stream, asked.approval_id
        withdrawn = False

        async def withdraw() -> None:
            nonlocal withdrawn
            await approvals.until_answered(mission_id, approval_id)
            withdrawn = True
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(withdraw)
            answer = await ask_at_terminal(self.screen, asked, lambda: approvals.show(approval_id, stream=mission_id))
            tasks.cancel_scope.cancel()
        if withdrawn:
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # drops a partial answer to the settled question
            self.screen.plain(f"answered elsewhere: {await approvals.standing(mission_id, approval_id)}")
            return True
        if answer is None:
            return False
        try:
            answered = await approvals.answer(approval_id, answer)
        except (
            Conflict
        ) as taken:  # answered concurrently, or a second approval by the same person where another person must approve
            self.screen.note(taken.message)
        else:
            if answer != "denied" and (people := people_words(answered.approval)):
                self.screen.note(f"{people} approved")
        return True

    async def _pursue_several(self, runtime: Runtime, names: Sequence[str], rows: dict[str, dict[str, Any]]) -> None:
        places = anyio.CapacityLimiter(CONCURRENT_MISSIONS)

        async def one(name: str) -> None:
            async with places:
                rows[name] = row = await self._pursue_one(runtime, name)
            error = row.get("error")
            result = f"{error['code']}: {error['message']}" if error else f"{row['status']}: {row['why']}"
            self.screen.fact(name, result.removesuffix(": "))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)

    async def _pursue_one(self, runtime: Runtime, mission_id: str) -> dict[str, Any]:
        self._begun.append(mission_id)
        self.screen.note(f"resuming {mission_id}")
        try:
            await runtime.use_servers_of(mission_id)
            await runtime.runner.continue_run(mission_id)
            status = await runtime.runner.status(mission_id)
            files = await self._files(runtime, status)
        except Exception as error:  # a mission that fails to run must not stop the others
            cause = root_cause(error)
            if not isinstance(cause, PursuitError):
                raise
            self._begun.remove(mission_id)
            return {"session_id": mission_id, "error": cause.as_dict()}
        self._begun.remove(mission_id)  # kept after a signal, whose answer names it
        keys = ("session_id", "status", "verdict", "verdict_reason", "waiting_for", "failure", "iteration_count")
        data = status.as_json()
        row = {key: data[key] for key in keys if key in data}
        return {**row, "why": show.why(status), **({"report_files": files} if files else {})}

    async def _finish(self, runtime: Runtime, mission_id: str, more: dict[str, Any]) -> int:
        status = await runtime.runner.status(mission_id)
        files = await self._files(runtime, status)
        state, attempt = await runtime.runner.state(mission_id), None
        if state.file is not None and Path(state.file).parent.name == OWN_FILES:
            from pursuit.cli.show_problems import ended_attempt

            attempt = await ended_attempt(runtime, status)
        found = {} if attempt is None else {"attempt": attempt.as_dict()}
        parts: list[Part] = [show.mission(self.context, status)]
        if attempt is not None:
            parts.append(attempt.parts())
        if files:
            parts.append(Fact("report", files["html"]))
        ended = attempt is None and status.status == "terminated"
        way = show.way_on_from(self.context, mission_id, state) if ended else None
        step = self.next_step(status) if attempt is None else attempt.next_step(self.context)
        parts.append(Hint("; ".join(filter(None, (way, step)))))
        data = {**status.as_json(), **more, **found, **({"report_files": files} if files else {})}
        return self.screen.render(CommandAnswer(data, *parts, code=EXIT.get(status.status, 0)))

    async def _files(self, runtime: Runtime, status: Status) -> dict[str, str]:
        """Writes the files of the final report; a failure only prints a note."""
        if status.status not in ENDED:
            return {}
        mission_id = status.mission_id
        try:
            return write_reports(self.context, mission_id, await runtime.runner.report(mission_id))
        except (InvalidArgument, OSError) as error:
            self.screen.note(f"the report was not written to files; it is in the ledger: {error}")
            return {}

    def next_step(self, status: Status) -> str:
        say, mission_id = self.context.command, status.mission_id
        match (status.status, status.waiting_for):
            case ("completed" | "terminated", _):
                branch = None if status.workspace is None else status.workspace.branch
                take = "" if branch is None else f"apply its changes: {say('workspace', 'apply', mission_id)}; "
                return f"{take}show the report: {say('report', mission_id)}"
            case (_, "proposal"):
                return f"propose the next calls: {say('iterate', mission_id, '--proposal', 'FILE')}"
            case (_, "approval"):
                asked = [one.approval_id for one in status.pending_approvals]
                answers = " and ".join(say("approve", one) for one in asked[:MAX_IN_HINT])
                rest = f" (there are {len(asked)}: {say('approvals', mission_id)})" if len(asked) > MAX_IN_HINT else ""
                then = "it continues here" if self._wait else say("resume", mission_id)
                return f"approve or deny: {answers or say('approvals', mission_id)}{rest}; then {then}"
            case (_, "budget"):
                more = say("extend", mission_id, BY_REASON[status.waiting_detail or ""].option, "N")
                then = "it continues here" if self._wait else show.continue_command(self.context, status)
                return f"raise a cap: {more}, then {then}"
            case _:
                return f"continue with: {show.continue_command(self.context, status)}"

    def _resume_command(self) -> str:
        words = self._begun[-1:] if len(self._begun) == 1 else ["--all"]
        return self.context.command("resume", *words)

    def _interrupted(self, number: int) -> int:
        name, begun = signal.Signals(number).name, list(dict.fromkeys(self._begun))
        resume = self._resume_command() if begun else None
        which = {"session_id": begun[0]} if len(begun) == 1 else {"missions": begun}
        how = f"all progress is recorded; continue with: {resume}" if begun else "nothing was started"
        data = {**which, "interrupted": name, "resume": resume}
        self.screen.render(CommandAnswer(data, Note(f"stopped by {name}; {how}")))
        if self._begun and self.context.configuration.notify is not None:

            async def notify(runtime: Runtime) -> None:
                if runtime.notifier is not None:
                    await runtime.notifier.stopped(runtime.runner, self._begun)

            with suppress(Interrupted, PursuitError):
                self.context.drive(notify)
        return 128 + number


_DETACHED = "--detach hands a mission to workers, which need a shared ledger"


async def _interrupted_modes(runtime: Runtime) -> dict[str, str | None]:
    service = runtime.runner
    return {name: (await service.state(name)).mode for name in await service.interrupted()}


def _exit_code(row: dict[str, Any]) -> int:
    """The exit code for one mission; 0 if another process already drives it."""
    error = row.get("error")
    if error is None:
        return EXIT.get(row["status"], 0)
    return 0 if error["code"] == Conflict.code else 1


def plan_of(context: Context, file: Path, mode: str | None) -> CommandAnswer:
    """Shows the first proposal and the policy's decisions, without a ledger; exit code 1 without a proposal."""
    screen = context.screen
    loaded = load_mission_file(file)
    configuration = context.trusted_configuration(of_mission(loaded))
    require_same(loaded, configuration)

    async def work() -> Mapping[str, Any]:
        chosen = None if mode is None else parse_mode(mode)
        with screen.busy("asking for the first proposal"):
            return await first_proposal(configuration, context.ledger_path, loaded, mode=chosen)

    found = conduct(work)
    return CommandAnswer(found, _plan_parts(found), code=1 if "failed" in found else 0)


def _plan_parts(found: Mapping[str, Any]) -> Iterator[Part]:
    if found.get("rationale"):
        yield clean(found["rationale"])
    for call in found["calls"]:
        ruling = (
            f"{_DECISIONS[call['decision']]} ({call['reason']})" if call["reason"] else _DECISIONS[call["decision"]]
        )
        yield line(f"{call['name']} {compact(call['args'])}: {ruling}")
    if found.get("script") is not None:
        yield clean(found["script"])
    for reason in found.get("failed", ()):
        yield f"no proposal: {line(reason)}"
    if found.get("waiting_for"):
        yield f"waits for {found['waiting_for']} before the first call"
    elif not found["calls"] and found.get("script") is None and "failed" not in found:
        yield "nothing to do in the first iteration"
    for warning in found["warnings"]:
        yield Note(f"warning: {warning}")
    tokens, cost = found["used"]["tokens"], found["used"]["cost_usd"]
    price = "at an unknown price" if cost is None else f"for ${cost:.4g}"
    yield Hint("nothing was run or stored" + (f"; the proposal used {tokens} tokens {price}" if tokens else ""))
