"""`pursuit task`: long commands with a durable record.

Ctrl-C stops a command that was started here; closing the terminal does not. The exit codes:

    0 … 255   the command's own; 128 + n if signal n ended it
    130       the task was cancelled
    129       the terminal was closed; the task continues
    4         the task is still running when the timeout ends
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
import typer
from typer.core import TyperCommand

from pursuit.cli.console import CommandAnswer, Fact, Hint, Part, Screen, TableRows, clean, counted, line
from pursuit.cli.context import Context, command, group, run, signals_to
from pursuit.cli.options import (
    ArgOption,
    ArgsJsonOption,
    CursorOption,
    LimitOption,
    check_choice,
    read_arguments,
    seconds_of,
    task_ids,
)
from pursuit.cli.progress import clock, redrawn
from pursuit.core.base_model import nearest
from pursuit.core.tasks import TASK_STATUSES, TaskState
from pursuit.errors import Fault, InvalidArgument, PathTraversal, TaskTerminal, ValidationFailed, advice
from pursuit.reports.wording import compact, figure, moment, seconds_between, span
from pursuit.runtime import Runtime
from pursuit.service.tasks import Tasks

if TYPE_CHECKING:
    from rich.console import Group

_DASHES = "pursuit.dashes"
CANCELLED = 130
STILL_WORKING = 4
BAR = 20
MAX_TITLE = 50
WIDTH = 120
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SHOWN_LINES = 20
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_FACTS = (
    ("task", "task_id"), ("kind", "kind"), ("title", "title"), ("requestor", "requestor"), ("status", "status"),
    ("message", "message"), ("current item", "current_item"),
)  # fmt: skip
_ENDED = ("task_id", "title", "status", "message")
_OPTIONS = {"unit_pattern": "--units", "failure_pattern": "--failures", "item_pattern": "--item"}
"""Options that are named differently from the arguments of `Tasks.run`."""

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID", autocompletion=task_ids, help="Task id (`pursuit task list`), a unique prefix, or `last`."
    ),
]
CommandName = typer.Argument(metavar="NAME | -- CMD…", help="A configured command, or any command after --.")

app = group(
    "task",
    no_args_is_help=True,
    epilog="Examples:  pursuit task run -- make -j4,  pursuit task list,  pursuit task tail -f ID",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A command to run: the name of a configured command, or the words of a command line."""

    words: Sequence[str]
    by_name: bool
    options: Mapping[str, Any]
    arguments: Sequence[str]
    args_json: str | None

    def check(self) -> None:
        """Refuses options of the other form, and extra words after a name."""
        faults: list[Fault] = []
        if self.by_name and len(self.words) > 1:
            reason = f"put -- before a command: {advice('pursuit task run -- {}', 'CMD')}"
            faults.append(Fault(field=self.words[1], reason=reason))
        if self.by_name:
            given = [_option(name) for name, value in self.options.items() if value is not None]
            faults += [
                Fault(field=name, reason="applies to `-- CMD…` only; a configured command sets its own")
                for name in given
            ]
        else:
            given = [("--arg", bool(self.arguments)), ("--args-json", self.args_json is not None)]
            faults += [
                Fault(field=name, reason="applies to configured commands only") for name, there in given if there
            ]
        if faults:
            raise ValidationFailed(faults, "wrong options; nothing was started")

    async def begin(self, tasks: Tasks) -> TaskState:
        if self.by_name:
            arguments = read_arguments(self.arguments, self.args_json)
            if self.words[0] not in tasks.commands:
                known = nearest(self.words[0], tasks.commands)
                raise InvalidArgument(
                    f"there is no command {self.words[0]!r} in the configuration{known} "
                    f"(write a program after --: {advice('pursuit task run -- {}', self.words[0])})"
                )
            return await tasks.call(self.words[0], arguments)
        options = {name: value for name, value in self.options.items() if value is not None}
        options["cwd"] = str(options.get("cwd", Path()).absolute())
        options["env"] = _environment(options.get("env", ()))
        return await tasks.run(self.words, **options)


class _RemembersDashes(TyperCommand):
    """Remembers whether the words followed `--`, which the parser drops."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


@command(
    app,
    "run",
    cls=_RemembersDashes,
    epilog="Examples:  pursuit task run --units 'ok (\\d+)' -- make test,  pursuit task run train --arg jobs=8",
)
def run_task(
    context: Context,
    *,
    words: Annotated[list[str], CommandName],
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the task.")] = None,
    total: Annotated[float | None, typer.Option(metavar="N", help="Total number of work units.")] = None,
    units: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Each output line that matches counts as one unit.")
    ] = None,
    failures: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Output lines to show if the command fails.")
    ] = None,
    item: Annotated[str | None, typer.Option(metavar="PATTERN", help="Output that names the current item.")] = None,
    cwd: Annotated[Path | None, typer.Option(metavar="DIR", help="Working directory (default: this one).")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable to add; repeatable.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds from SIGTERM to SIGKILL (default 10).")
    ] = None,
    heartbeat: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds of silence before a heartbeat (default 30).")
    ] = None,
    allow_parent_paths: Annotated[
        bool, typer.Option("--allow-parent-paths", help="Allow arguments with a '..' path segment.")
    ] = False,
    arg: ArgOption = None,
    args_json: ArgsJsonOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the id and exit; the command keeps running.")
    ] = False,
) -> CommandAnswer | int:
    """Run a command as a task. Ctrl-C stops it; closing the terminal does not."""
    request = RunRequest(
        words=words,
        by_name=not context.click.meta[_DASHES],
        options={
            "title": title,
            "total": total,
            "unit_pattern": units,
            "failure_pattern": failures,
            "item_pattern": item,
            "cwd": cwd,
            "env": env,
            "grace": grace,
            "heartbeat": heartbeat,
            "allow_parent_paths": allow_parent_paths or None,
        },
        arguments=arg or (),
        args_json=args_json,
    )
    request.check()
    trusted = context.trust_here()
    screen = context.screen

    async def work() -> CommandAnswer | int:
        async with trusted.runtime() as runtime:
            state = await request.begin(runtime.tasks)
            if detach:
                return await _detach(runtime.tasks, screen, await runtime.tasks.started(state.task_id))
            return await _show_until_end(runtime.tasks, screen, state.task_id)

    try:
        return run(work)
    except PathTraversal:
        if not request.by_name:
            screen.note("--allow-parent-paths allows it")
        raise
    except ValidationFailed as failed:
        own = request.options
        faults = [replace(one, field=_option(one.field)) if one.field in own else one for one in failed.faults]
        raise ValidationFailed(faults, failed.message) from None


@command(app, "list", reads=True)
def list_tasks(
    context: Context,
    *,
    wanted: Annotated[
        str | None, typer.Option("--status", metavar="S", help="Only this status, such as working.")
    ] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = None,
) -> CommandAnswer:
    """List the tasks, newest first."""
    status = None if wanted is None else check_choice("--status", wanted, TASK_STATUSES)

    async def verb(runtime: Runtime) -> Mapping[str, Any]:
        await runtime.tasks.catch_up()
        return await runtime.tasks.list(status=status, cursor=cursor, limit=limit)

    page: Mapping[str, Any] = context.look(verb) if context.ledger_path.exists() else {"tasks": []}
    return CommandAnswer(page, _listing(context, page))


@command(app, reads=True)
async def show(context: Context, *, task_id: TaskId) -> CommandAnswer:
    """Show a task: its status, its progress and its result."""
    tasks = context.runtime.tasks
    await tasks.catch_up()
    record = await tasks.show(task_id)
    return CommandAnswer(record, whole_task(record))


@command(app, json_lines=True, reads=True)
async def tail(
    context: Context,
    *,
    task_id: TaskId,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of lines.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print each new line until the command has ended.")
    ] = False,
) -> CommandAnswer | None:
    """Show the last lines of a command's output. Ctrl-C stops following."""
    tasks, screen = context.runtime.tasks, context.screen
    if not follow:
        await tasks.catch_up()
        found = await tasks.tail(task_id, lines)
        return CommandAnswer({"task_id": task_id, "lines": found}, *(_output_line(screen, text) for text in found))
    async with tasks.kept_up(task_id), aclosing(tasks.follow(task_id, lines)) as output:
        async for text in output:
            screen.render(CommandAnswer({"line": text}, _output_line(screen, text)))
            if screen.unread:
                break
    return None


@command(app)
async def cancel(
    context: Context,
    *,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option(help="Reason; recorded with the task.")] = None,
) -> CommandAnswer:
    """Stop a task with every process that it started, and wait until they are gone."""
    tasks, screen = context.runtime.tasks, context.screen
    await tasks.catch_up()
    state = await tasks.get(task_id)
    if state.terminal:
        raise TaskTerminal(f"{task_id} has ended: {state.status}", task_id=task_id, status=state.status)
    with screen.busy(f"stopping {task_id}"):
        await tasks.cancel(task_id, reason=reason)
        await tasks.wait(task_id)
    done = _ended(screen, await tasks.show(task_id))
    done.code = 0  # the requested end
    return done


@command(app, reads=True)
async def wait(
    context: Context,
    *,
    task_id: TaskId,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop waiting after this time, with exit code 4.")
    ] = None,
) -> CommandAnswer:
    """Wait until a task has ended; exits with the command's own exit code. Ctrl-C leaves the task running."""
    tasks, screen = context.runtime.tasks, context.screen
    with anyio.move_on_after(timeout):
        async with tasks.kept_up(task_id):
            await _show_progress(tasks, screen, task_id)
    state = await tasks.get(task_id)
    record = await tasks.show(task_id)
    if state.terminal:
        return _ended(screen, record)
    screen.note(f"{task_id} is still {state.status}")
    return CommandAnswer(record, code=STILL_WORKING)


@command(app, epilog="Example:  pursuit task prune --keep 20 --older-than 12h")
def prune(
    context: Context,
    *,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep the newest N (default: as configured).")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Age: 30m, 12h, 7d or seconds (default: as configured).")
    ] = None,
) -> CommandAnswer:
    """Delete ended tasks and their output. A running task is never deleted."""
    age = None if older_than is None else seconds_of(older_than)
    context.existing_ledger()
    removed = context.drive(lambda runtime: runtime.tasks.prune(keep=keep, older_than=age))
    return CommandAnswer({"removed": removed}, Fact("removed", counted(len(removed), "task")))


async def _detach(tasks: Tasks, screen: Screen, state: TaskState) -> CommandAnswer:
    record = await tasks.show(state.task_id)
    if state.terminal:
        return _ended(screen, record)
    tail = Hint(f"follow it with: {screen.command('task', 'tail', '-f', state.task_id)}")
    return CommandAnswer(record, state.task_id, tail)


async def _show_until_end(tasks: Tasks, screen: Screen, task_id: str) -> CommandAnswer | int:
    stopping = False
    shown = anyio.CancelScope()

    async def stop(number: int) -> None:
        nonlocal stopping
        if number == signal.SIGHUP:
            shown.cancel()
            return
        if stopping:
            screen.note(f"left before it stopped; if it still runs: {screen.command('task', 'cancel', task_id)}")
            os._exit(128 + number)
        stopping = True
        screen.note(f"stopping {task_id}; press again to leave immediately")
        await tasks.cancel(task_id, reason=signal.Signals(number).name)

    async with signals_to(stop):
        with shown:
            await _show_progress(tasks, screen, task_id)
    if shown.cancelled_caught:
        return 128 + signal.SIGHUP
    return _ended(screen, await tasks.show(task_id))


async def _show_progress(tasks: Tasks, screen: Screen, task_id: str) -> None:
    if screen.rich:
        await _in_place(tasks, screen, task_id)
        return
    last = ""
    async for state in tasks.store.follow(task_id):
        parts = [_share_done(state), line(state.message or "", 200)]
        progress = "  ".join(part for part in parts if part)
        if not state.terminal and progress not in ("", last) and not screen.json:
            last = progress
            screen.note(progress)


async def _in_place(tasks: Tasks, screen: Screen, task_id: str) -> None:
    latest = await tasks.get(task_id)
    spin = cycle(_SPIN)
    async with redrawn(screen, lambda wide: progress_lines(latest, tasks.store.now(), min(WIDTH, wide), next(spin))):
        async for state in tasks.store.follow(task_id):
            latest = state


def _share_done(state: TaskState) -> str:
    if state.total:
        return f"{figure(state.done)}/{figure(state.total)} {min(1.0, state.done / state.total):.0%}"
    return figure(state.done) if state.done else ""


def progress_lines(state: TaskState, now: float, width: int, mark: str) -> Group:
    """The task in two lines: progress and duration, then the last message."""
    from rich.console import Group
    from rich.text import Text

    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"{mark} ", "cyan")
    head.append(line(state.title, MAX_TITLE), "bold")
    if state.total:
        full = round(BAR * min(1.0, state.done / state.total))
        head.append("  ")
        head.append("━" * full, "green")
        head.append("━" * (BAR - full), "bright_black")
    if count := _share_done(state):
        head.append(f"  {count}")
    head.append(f"  {clock(now - state.created_at)}", "dim")
    if state.cancel is not None:
        head.append("  stopping", "yellow")
    said = state.message or ("starting" if state.seq <= 1 else "")
    item = f"{line(state.item, 40)}: " if state.item and state.item not in said else ""
    return Group(head, Text(f"  {line(f'{item}{said}', width - 2)}", style="dim", no_wrap=True, overflow="ellipsis"))


def _listing(context: Context, page: Mapping[str, Any]) -> Iterator[Part]:
    rows: Sequence[Mapping[str, Any]] = page["tasks"]
    heads = [(row["task_id"], row["status"], _units(row), moment(row["created_at"])) for row in rows]
    texts = [(row["title"], row.get("message", "")) for row in rows]
    if rows:
        yield TableRows(
            ("task", "status", "units", "created", "title", "last line"),
            [(*head, line(title, MAX_TITLE), said) for head, (title, said) in zip(heads, texts, strict=True)],
            right=("units",),
            piped=[(*head, title, line(said, 80)) for head, (title, said) in zip(heads, texts, strict=True)],
        )
    else:
        yield Hint(f"no tasks yet; `{context.command('task', 'run', '--', 'CMD')}` starts one")
    if "next_cursor" in page:
        yield Hint(f"there are more: --cursor {page['next_cursor']}")


def whole_task(record: Mapping[str, Any]) -> Iterator[Part]:
    yield from (Fact(label, record[key]) for label, key in _FACTS if key in record)
    yield from (*_figures(record), *_details(record, most=None))


def _ended(screen: Screen, record: Mapping[str, Any]) -> CommandAnswer:
    code = CANCELLED if record["status"] == "cancelled" else record.get("exit_code", record["status"] != "completed")
    facts = (Fact(label, record[key]) for label, key in _FACTS if key in record and key in _ENDED)
    output = Hint(f"its output: {screen.command('task', 'tail', record['task_id'])}")
    parts = (facts, _figures(record), _details(record, most=SHOWN_LINES), output)
    return CommandAnswer(record, *parts, code=int(code))


def _output_line(screen: Screen, text: str) -> str:
    """A line of output for display; escape sequences are removed for a terminal."""
    return clean(_ESCAPES.sub("", text)) if screen.rich else text.encode(errors="replace").decode()


def _units(record: Mapping[str, Any]) -> str:
    done, total = record.get("units_done", 0), record.get("units_total")
    return f"{figure(done)}/{figure(total)}" if total else figure(done) if done else "-"


def _figures(record: Mapping[str, Any]) -> Iterator[Part]:
    if record.get("units_done") or "units_total" in record:
        yield Fact("units", _units(record))
    if "exit_code" in record:
        yield Fact("exit code", record["exit_code"])
    yield Fact("created", moment(record["created_at"]))
    if "ended_at" in record:
        yield Fact("ended", moment(record["ended_at"]))
        yield Fact("took", span(seconds_between(record["created_at"], record["ended_at"])))


def _details(record: Mapping[str, Any], *, most: int | None) -> Iterator[Part]:
    """Further details of a command's result: its metrics and its error output."""
    found: Mapping[str, Any] = record.get("result", {}).get("structuredContent") or {}
    metrics: Mapping[str, Any] = found.get("metrics") or {}
    for name, value in metrics.items():
        yield Fact(f"metric {name}", compact(value))
    for note in cast("Sequence[Any]", found.get("notes") or ()):
        yield Fact("note", note)
    for label, key in (("failure", "failure_lines"), ("stderr", "stderr_tail")):
        lines: Sequence[str] = found.get(key, ())
        for text in lines if most is None else lines[-most:]:
            yield f"{label}: {clean(_ESCAPES.sub('', text))}"
    if "disclaimer" in found:
        yield Fact("note", found["disclaimer"])


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [Fault(field=f"--env {name}", reason="write NAME=VALUE") for name, mark, _ in split if not mark or not name]
    if wrong:
        raise ValidationFailed(wrong, "wrong options; nothing was started")
    return {name: value for name, _, value in split}
