"""What the commands about tasks do: begin one, see it to its end, leave it, stop it.

Owns: the order of these for the command line, signals, and exit codes. Knows no typer.
Invariant: Ctrl-C stops the command that was run here, and nothing else does; the exit code is the command's own.

    0 … 255   the command's own; 128 + n if signal n ended it
    130       it was cancelled
    129       the terminal was closed; it goes on
    4         it still works, and the time to wait is over
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus as Started

from pursuit.core.base_model import nearest
from pursuit.core.tasks import TASK_STATUSES, TaskState, TaskStatus
from pursuit.errors import Fault, InvalidArgument, PathTraversal, TaskTerminal, ValidationFailed
from pursuit.service.tasks import Tasks
from pursuit.surfaces.cli import show_tasks
from pursuit.surfaces.cli.call_arguments import read_arguments
from pursuit.surfaces.cli.context import driving, loaded
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.task_progress import watching

CANCELLED = 130
STILL_WORKING = 4
_PARTS = {
    "--title": "title",
    "--total": "total",
    "--units": "unit_pattern",
    "--failures": "failure_pattern",
    "--item": "item_pattern",
    "--grace": "grace",
    "--heartbeat": "heartbeat",
    "--allow-parent-paths": "allow_parent_paths",
}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be run: a configured command by its name, or the words of one."""

    words: Sequence[str]
    by_name: bool
    parts: Mapping[str, Any]
    arguments: Sequence[str]
    args_json: str | None

    def check(self) -> None:
        """Refuses options that belong to the other way of saying it, and more than a name."""
        faults: list[Fault] = []
        if self.by_name and len(self.words) > 1:
            faults.append(Fault(field=self.words[1], reason="put -- before a command: pursuit task run -- CMD…"))
        if self.by_name:
            given = [name for name, value in self.parts.items() if value is not None]
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
                    f"(a program goes behind --: pursuit task run -- {self.words[0]})"
                )
            return await tasks.call(self.words[0], arguments)
        parts = {_PARTS[name]: value for name, value in self.parts.items() if value is not None and name in _PARTS}
        cwd: Path | None = self.parts["--cwd"]
        return await tasks.run(
            self.words, cwd=str((cwd or Path()).absolute()), env=_environment(self.parts["--env"] or ()), **parts
        )


def run_task(common: Common, wish: Wish, *, detach: bool) -> int:
    """Runs a command; its exit code."""
    wish.check()
    screen = Screen(common)
    try:
        loaded()
        return anyio.run(_run, common, screen, wish, detach)
    except PathTraversal:
        if not wish.by_name:
            screen.note("--allow-parent-paths allows it")
        raise
    except ValidationFailed as failed:
        options = {name: option for option, name in _PARTS.items()}
        faults = [replace(fault, field=options.get(fault.field, fault.field)) for fault in failed.faults]
        raise ValidationFailed(faults, failed.message) from None


async def _run(common: Common, screen: Screen, wish: Wish, detach: bool) -> int:
    async with driving(common) as runtime:
        state = await wish.begin(runtime.tasks)
        if detach:
            return await _left(runtime.tasks, screen, await runtime.tasks.started(state.task_id))
        return await _seen_to_its_end(runtime.tasks, screen, state.task_id)


async def _left(tasks: Tasks, screen: Screen, state: TaskState) -> int:
    """Tells the id of a task that goes on without us."""
    if screen.json:
        screen.document(await tasks.show(state.task_id))
    elif state.terminal:
        show_tasks.ended(screen, await tasks.show(state.task_id))
    else:
        screen.plain(state.task_id)
        screen.hint(f"follow it with: {screen.common.command('task', 'tail', '-f', state.task_id)}")
    return exit_code(state) if state.terminal else 0


async def _seen_to_its_end(tasks: Tasks, screen: Screen, task_id: str) -> int:
    left = False

    async def listen(*, task_status: Started[None]) -> None:
        nonlocal left
        heard = 0
        with anyio.open_signal_receiver(*_signals()) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    left = True
                    group.cancel_scope.cancel()
                    return
                heard += 1
                if heard > 1:
                    screen.note(f"left while it stops; if it still runs: pursuit task cancel {task_id}")
                    os._exit(128 + number)
                screen.note(f"stopping {task_id}; once more leaves at once")
                await tasks.cancel(task_id, reason=signal.Signals(number).name)

    async with anyio.create_task_group() as group:
        await group.start(listen)
        await watching(tasks, screen, task_id)
        group.cancel_scope.cancel()
    if left:
        return 128 + signal.SIGHUP
    state = await tasks.get(task_id)
    show_tasks.ended(screen, await tasks.show(task_id))
    return exit_code(state)


async def wait_for_task(tasks: Tasks, screen: Screen, word: str, timeout: float | None) -> int:
    """Waits for a task of any process; the command's exit code."""
    task_id = await tasks.named(word)
    with anyio.move_on_after(timeout):
        async with tasks.kept_up(task_id):
            await watching(tasks, screen, task_id)
    state = await tasks.get(task_id)
    if state.terminal:
        show_tasks.ended(screen, await tasks.show(task_id))
        return exit_code(state)
    if screen.json:
        screen.document(await tasks.show(task_id))
    screen.note(f"{task_id} is still {state.status}")
    return STILL_WORKING


async def cancel_task(tasks: Tasks, screen: Screen, word: str, reason: str | None) -> None:
    """Stops a task and waits until all of it is gone."""
    task_id = await tasks.named(word)
    await tasks.catch_up()
    state = await tasks.get(task_id)
    if state.terminal:
        raise TaskTerminal(f"{task_id} has ended: {state.status}", task_id=task_id, status=state.status)
    with screen.busy(f"stopping {task_id}"):
        await tasks.cancel(task_id, reason=reason)
        await tasks.wait(task_id)
    show_tasks.ended(screen, await tasks.show(task_id))


async def tail_task(tasks: Tasks, screen: Screen, word: str, lines: int, *, follow: bool) -> None:
    """Shows the last lines, and the next ones if that is wanted."""
    task_id = await tasks.named(word)
    if not follow:
        await tasks.catch_up()
        show_tasks.output(screen, task_id, await tasks.tail(task_id, lines))
        return
    async with tasks.kept_up(task_id), aclosing(tasks.follow(task_id, lines)) as told:
        async for text in told:
            show_tasks.output_line(screen, text)
            if screen.unread:
                return


def exit_code(state: TaskState) -> int:
    """The exit code that a task's end stands for."""
    if state.status == "cancelled":
        return CANCELLED
    if state.exit_code is not None:
        return state.exit_code
    return 0 if state.status == "completed" else 1


def status_named(word: str | None) -> TaskStatus | None:
    """A status by its name. Raises `InvalidArgument`."""
    if word is None or word in TASK_STATUSES:
        return word
    advice = nearest(word, TASK_STATUSES) or f"; known: {', '.join(TASK_STATUSES)}"
    raise InvalidArgument(f"--status: {word!r} is no status{advice}", field="--status")


def seconds_of(text: str) -> float:
    """`90`, `30m`, `12h` or `7d` in seconds. Raises `InvalidArgument`."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f"--older-than: {text!r} is no time; write 30m, 12h, 7d or seconds", field="--older-than")
    return float(found[1]) * _UNITS[found[2]]


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [Fault(field=f"--env {name}", reason="write NAME=VALUE") for name, mark, _ in split if not mark or not name]
    if wrong:
        raise ValidationFailed(wrong, "wrong options; nothing was started")
    return {name: value for name, _, value in split}


def _signals() -> list[signal.Signals]:
    """What stops it or lets it be left; a hang-up that was told to be ignored (`nohup`) stays ignored."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
