"""What the commands of `pursuit task` do: run a task and show it, wait for it, cancel it, list tasks.

Ctrl-C stops a command that was run here; closing the terminal does not. The exit codes:

    0 … 255   the command's own; 128 + n if signal n ended it
    130       the task was cancelled
    129       the terminal was closed; the task continues
    4         the task still runs when the time to wait is over
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.abc import TaskStatus as Started

from pursuit.cli.console import STYLES, CommandAnswer, Fact, Forms, Hint, Part, Screen, TableRows, clean, line
from pursuit.cli.context import Context, run, stop_signals
from pursuit.cli.options import check_choice, read_arguments
from pursuit.cli.progress import clock
from pursuit.core.base_model import nearest
from pursuit.core.tasks import TASK_STATUSES, TaskState
from pursuit.errors import Fault, InvalidArgument, PathTraversal, TaskTerminal, ValidationFailed, advice
from pursuit.reports.wording import compact, figure, moment, seconds_between, span
from pursuit.service.tasks import Tasks

if TYPE_CHECKING:
    from rich.console import Group

    from pursuit.runtime import Runtime

REDRAW_SECONDS = 0.1
"""A terminal is redrawn at most ten times a second, however much the command writes."""
BAR = 20
MAX_TITLE = 50
WIDTH = 120
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


async def _show_progress(tasks: Tasks, screen: Screen, task_id: str) -> None:
    if screen.rich:
        await _in_place(tasks, screen, task_id)
        return
    last = ""
    async for state in tasks.store.follow(task_id):
        parts = [counted(state), line(state.message or "", 200)]
        progress = "  ".join(part for part in parts if part)
        if not state.terminal and progress not in ("", last) and not screen.json:
            last = progress
            screen.note(progress)


async def _in_place(tasks: Tasks, screen: Screen, task_id: str) -> None:
    from rich.live import Live

    latest = await tasks.get(task_id)
    with Live(console=screen.console, auto_refresh=False, transient=True) as live:

        async def redraw() -> None:
            count = 0
            while True:
                width = min(WIDTH, screen.console.width)
                live.update(progress_lines(latest, tasks.store.now(), width, _SPIN[count % len(_SPIN)]), refresh=True)
                count += 1
                await anyio.sleep(REDRAW_SECONDS)

        async with anyio.create_task_group() as group:
            group.start_soon(redraw)
            async for state in tasks.store.follow(task_id):
                latest = state
            group.cancel_scope.cancel()


def counted(state: TaskState) -> str:
    """Units done, of how many, and the share."""
    if state.total:
        return f"{figure(state.done)}/{figure(state.total)} {min(1.0, state.done / state.total):.0%}"
    return figure(state.done) if state.done else ""


def progress_lines(state: TaskState, now: float, width: int, mark: str) -> Group:
    """The task in two lines: how far and for how long, and what it said last."""
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
    if count := counted(state):
        head.append(f"  {count}")
    head.append(f"  {clock(now - state.created_at)}", "dim")
    if state.cancel is not None:
        head.append("  stopping", "yellow")
    said = state.message or ("starting" if state.seq <= 1 else "")
    item = f"{line(state.item, 40)}: " if state.item and state.item not in said else ""
    return Group(head, Text(f"  {line(f'{item}{said}', width - 2)}", style="dim", no_wrap=True, overflow="ellipsis"))


MARKS = {"completed": "✓", "failed": "✗", "cancelled": "■"}
SHOWN_LINES = 20
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_FACTS = (
    ("task", "task_id"), ("kind", "kind"), ("title", "title"), ("requestor", "requestor"), ("status", "status"),
    ("message", "message"), ("current item", "current_item"),
)  # fmt: skip
_ENDED = ("task_id", "status", "message")


def listing(context: Context, wanted: str | None, cursor: str | None, limit: int) -> CommandAnswer:
    """A page of tasks; an empty one if there is no ledger yet."""
    status = None if wanted is None else check_choice("--status", wanted, TASK_STATUSES)

    async def verb(runtime: Runtime) -> Mapping[str, Any]:
        await runtime.tasks.catch_up()
        return await runtime.tasks.list(status=status, cursor=cursor, limit=limit)

    page: Mapping[str, Any] = context.look(verb) if context.ledger_path.exists() else {"tasks": []}
    return CommandAnswer(page, _listing(context, page))


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
    """Everything about one task."""
    yield from (Fact(label, record[key]) for label, key in _FACTS if key in record)
    yield from (*_figures(record), *_details(record, most=None))


def _ended(screen: Screen, record: Mapping[str, Any]) -> CommandAnswer:
    """How a task ended, with its exit code."""
    piped = chain(
        (Fact(label, record[key]) for label, key in _FACTS if key in record and key in _ENDED),
        _figures(record),
        _details(record, most=SHOWN_LINES),
    )
    code = CANCELLED if record["status"] == "cancelled" else record.get("exit_code", record["status"] != "completed")
    return CommandAnswer(record, Forms(piped, lambda _width: _ended_rich(screen, record)), code=int(code))


def _ended_rich(screen: Screen, record: Mapping[str, Any]) -> Iterator[Part]:
    from rich.text import Text

    status = record["status"]
    head = Text.assemble((f"{MARKS[status]} ", STYLES[status]), (line(record["title"], 80), "bold"), "  ")
    yield head.append(line(record.get("message", status)))
    yield from _details(record, most=SHOWN_LINES)
    yield Hint(f"  its output: {screen.command('task', 'tail', record['task_id'])}")


def _output_line(screen: Screen, text: str) -> str:
    """A line of output as it is shown; a terminal gets it without escape sequences."""
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
    """What else the result of a command says: its metrics, and why it failed, in its own words."""
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


CANCELLED = 130
STILL_WORKING = 4
_OPTIONS = {"unit_pattern": "--units", "failure_pattern": "--failures", "item_pattern": "--item"}
"""Options whose names are not those of the arguments of `Tasks.run`."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run: a configured command by its name, or the words of a command."""

    words: Sequence[str]
    by_name: bool
    options: Mapping[str, Any]
    arguments: Sequence[str]
    args_json: str | None

    def check(self) -> None:
        """Refuses options that belong to the other form, and more than a name."""
        faults: list[Fault] = []
        if self.by_name and len(self.words) > 1:
            reason = f"put -- before a command: {advice('pursuit task run -- {}', 'CMD')}"
            faults.append(Fault(field=self.words[1], reason=reason))
        if self.by_name:
            given = [_option(name) for name, value in self.options.items() if value is not None]
            faults += [Fault(field=name, reason="is for `-- CMD…`; a configured command has its own") for name in given]
        else:
            given = [("--arg", bool(self.arguments)), ("--args-json", self.args_json is not None)]
            faults += [Fault(field=name, reason="is for a configured command") for name, there in given if there]
        if faults:
            raise ValidationFailed(faults, "wrong options; nothing was started")

    async def begin(self, tasks: Tasks) -> TaskState:
        """Starts it."""
        if self.by_name:
            arguments = read_arguments(self.arguments, self.args_json)
            if self.words[0] not in tasks.commands:
                known = nearest(self.words[0], tasks.commands)
                raise InvalidArgument(
                    f"there is no command {self.words[0]!r} in the configuration{known} "
                    f"(a program goes behind --: {advice('pursuit task run -- {}', self.words[0])})"
                )
            return await tasks.call(self.words[0], arguments)
        options = {name: value for name, value in self.options.items() if value is not None}
        options["cwd"] = str(options.get("cwd", Path()).absolute())
        options["env"] = _environment(options.get("env", ()))
        return await tasks.run(self.words, **options)


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def run_task(context: Context, request: RunRequest, *, detach: bool) -> CommandAnswer | int:
    """Runs a command as a task."""
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


async def _detach(tasks: Tasks, screen: Screen, state: TaskState) -> CommandAnswer:
    """The id of a task that continues without us, or how it ended already."""
    record = await tasks.show(state.task_id)
    if state.terminal:
        return _ended(screen, record)
    tail = Hint(f"follow it with: {screen.command('task', 'tail', '-f', state.task_id)}")
    return CommandAnswer(record, state.task_id, tail)


async def _show_until_end(tasks: Tasks, screen: Screen, task_id: str) -> CommandAnswer | int:
    left = False

    async def listen(*, task_status: Started[None]) -> None:
        nonlocal left
        stops = 0
        with anyio.open_signal_receiver(*stop_signals()) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    left = True
                    group.cancel_scope.cancel()
                    return
                stops += 1
                if stops > 1:
                    screen.note(f"left while it stops; if it still runs: {screen.command('task', 'cancel', task_id)}")
                    os._exit(128 + number)
                screen.note(f"stopping {task_id}; once more leaves at once")
                await tasks.cancel(task_id, reason=signal.Signals(number).name)

    async with anyio.create_task_group() as group:
        await group.start(listen)
        await _show_progress(tasks, screen, task_id)
        group.cancel_scope.cancel()
    if left:
        return 128 + signal.SIGHUP
    return _ended(screen, await tasks.show(task_id))


async def wait_for_task(tasks: Tasks, screen: Screen, task_id: str, timeout: float | None) -> CommandAnswer:
    """Waits for a task of any process."""
    with anyio.move_on_after(timeout):
        async with tasks.kept_up(task_id):
            await _show_progress(tasks, screen, task_id)
    state = await tasks.get(task_id)
    record = await tasks.show(task_id)
    if state.terminal:
        return _ended(screen, record)
    screen.note(f"{task_id} is still {state.status}")
    return CommandAnswer(record, code=STILL_WORKING)


async def cancel_task(tasks: Tasks, screen: Screen, task_id: str, reason: str | None) -> CommandAnswer:
    """Stops a task and waits until all its processes are gone."""
    await tasks.catch_up()
    state = await tasks.get(task_id)
    if state.terminal:
        raise TaskTerminal(f"{task_id} has ended: {state.status}", task_id=task_id, status=state.status)
    with screen.busy(f"stopping {task_id}"):
        await tasks.cancel(task_id, reason=reason)
        await tasks.wait(task_id)
    done = _ended(screen, await tasks.show(task_id))
    done.code = 0  # it ended as it was told to
    return done


async def tail_task(tasks: Tasks, screen: Screen, task_id: str, lines: int, *, follow: bool) -> CommandAnswer | None:
    """The last lines of output; with `follow` it prints them, and the next ones."""
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


def seconds_of(text: str, field: str = "--older-than") -> float:
    """`90`, `30m`, `12h` or `7d` in seconds. Raises `InvalidArgument`."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f"{field}: {text!r} is not a time; write 30m, 12h, 7d or seconds", field=field)
    return float(found[1]) * _UNITS[found[2]]


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [Fault(field=f"--env {name}", reason="write NAME=VALUE") for name, mark, _ in split if not mark or not name]
    if wrong:
        raise ValidationFailed(wrong, "wrong options; nothing was started")
    return {name: value for name, _, value in split}
