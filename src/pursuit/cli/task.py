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
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

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
from pursuit.core.base_model import nearest
from pursuit.core.tasks import TASK_STATUSES, TaskState
from pursuit.errors import Fault, InvalidArgument, PathTraversal, TaskTerminal, ValidationFailed, advice
from pursuit.reports.wording import compact, figure, moment, seconds_between, span
from pursuit.runtime import Runtime
from pursuit.service.tasks import Tasks

_DASHES = "pursuit.dashes"
CANCELLED = 130
STILL_WORKING = 4
BAR = 20
MAX_TITLE = 50
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
    given = {
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
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    by_name, screen = not context.click.meta[_DASHES], context.screen
    faults: list[Fault] = []
    if by_name and len(words) > 1:
        reason = f"put -- before a command: {advice('pursuit task run -- {}', 'CMD')}"
        faults.append(Fault(field=words[1], reason=reason))
    why = "applies to `-- CMD…` only; a configured command sets its own"
    faults += [Fault(field=_option(name), reason=why) for name in options if by_name]
    forms = [("--arg", arg), ("--args-json", args_json is not None)]
    why = "applies to configured commands only"
    faults += [Fault(field=name, reason=why) for name, there in forms if there and not by_name]
    if faults:
        raise ValidationFailed(faults, "wrong options; nothing was started")
    context.trust_here()

    async def work() -> CommandAnswer | int:
        async with context.trusted_runtime() as runtime:
            tasks = runtime.tasks
            if by_name:
                state = await _begin_configured(tasks, words[0], read_arguments(arg or (), args_json))
            else:
                plain: dict[str, Any] = {"cwd": str((cwd or Path()).absolute()), "env": _environment(env or ())}
                state = await tasks.run(words, **{**options, **plain})
            if detach:
                return await _detach(tasks, screen, await tasks.started(state.task_id))
            return await _show_until_end(tasks, screen, state.task_id)

    try:
        return run(work)
    except PathTraversal:
        if not by_name:
            screen.note("--allow-parent-paths allows it")
        raise
    except ValidationFailed as failed:
        faults = [replace(one, field=_option(one.field)) if one.field in given else one for one in failed.faults]
        raise ValidationFailed(faults, failed.message) from None


async def _begin_configured(tasks: Tasks, name: str, arguments: Mapping[str, Any]) -> TaskState:
    if name not in tasks.commands:
        raise InvalidArgument(
            f"there is no command {name!r} in the configuration{nearest(name, tasks.commands)} "
            f"(write a program after --: {advice('pursuit task run -- {}', name)})"
        )
    return await tasks.call(name, arguments)


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
    facts = (Fact(label, record[key]) for label, key in _FACTS if key in record)
    return CommandAnswer(record, facts, _figures(record), _details(record, most=None))


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
    """The task on one line of the terminal: progress, duration, and the last message."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = BarColumn(BAR, style="bright_black", complete_style="green")
    title, count, said = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("title", "count", "said"))
    latest = await tasks.get(task_id)
    columns = (SpinnerColumn(style="cyan"), title, bar, count, TimeElapsedColumn(), said)
    with Progress(*columns, console=screen.console, transient=True) as shown:
        row = shown.add_task("", total=None, title=line(latest.title, MAX_TITLE), count="", said="")
        shown.tasks[row].start_time = shown.get_time() - (tasks.store.now() - latest.created_at)
        async for state in tasks.store.follow(task_id):
            item = f"{line(state.item, 40)}: " if state.item and state.item not in (state.message or "") else ""
            told = "stopping" if state.cancel is not None else state.message or ("starting" if state.seq <= 1 else "")
            said = line(f"{item}{told}", 200)
            shown.update(row, completed=state.done, total=state.total, count=_share_done(state), said=said)


def _share_done(state: TaskState) -> str:
    if state.total:
        return f"{figure(state.done)}/{figure(state.total)} {min(1.0, state.done / state.total):.0%}"
    return figure(state.done) if state.done else ""


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
