"""A task while it runs: two lines that change in place, or a line for each piece of news.

Owns: what is shown and how often. Reads the task's record and changes nothing.
Invariant: a terminal is redrawn at most ten times a second, however much the command writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from pursuit.core.tasks import TaskState
from pursuit.reports.wording import figure
from pursuit.service.tasks import Tasks
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import line

if TYPE_CHECKING:
    from rich.console import Group

REDRAW_SECONDS = 0.1
BAR = 20
LONGEST_TITLE = 50
WIDTH = 120
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


async def watching(tasks: Tasks, screen: Screen, task_id: str) -> None:
    """Shows a task until it has ended."""
    if screen.rich:
        await _in_place(tasks, screen, task_id)
        return
    told: str | None = None
    async for state in tasks.store.follow(task_id):
        said = news(state)
        if not state.terminal and said and said != told and not screen.json:
            told = said
            screen.note(said)


async def _in_place(tasks: Tasks, screen: Screen, task_id: str) -> None:
    from rich.live import Live  # noqa: PLC0415 - rich loads only for a terminal

    latest = await tasks.get(task_id)
    with Live(console=screen.console, auto_refresh=False, transient=True) as live:

        async def redraw() -> None:
            count = 0
            while True:
                width = min(WIDTH, screen.console.width)
                live.update(drawn(latest, tasks.store.now(), width, _SPIN[count % len(_SPIN)]), refresh=True)
                count += 1
                await anyio.sleep(REDRAW_SECONDS)

        async with anyio.create_task_group() as group:
            group.start_soon(redraw)
            async for state in tasks.store.follow(task_id):
                latest = state
            group.cancel_scope.cancel()


def news(state: TaskState) -> str:
    """How far it is, in one line."""
    parts = [counted(state), line(state.message or "", 200)]
    return "  ".join(part for part in parts if part)


def counted(state: TaskState) -> str:
    """Units done, of how many, and the share."""
    if state.total:
        return f"{figure(state.done)}/{figure(state.total)} {min(1.0, state.done / state.total):.0%}"
    return figure(state.done) if state.done else ""


def drawn(state: TaskState, now: float, width: int, mark: str) -> Group:
    """The task in two lines: how far and for how long, and what it said last."""
    from rich.console import Group  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"{mark} ", "cyan")
    head.append(line(state.title, LONGEST_TITLE), "bold")
    if state.total:
        full = round(BAR * min(1.0, state.done / state.total))
        head.append("  ")
        head.append("━" * full, "green")
        head.append("━" * (BAR - full), "bright_black")
    if count := counted(state):
        head.append(f"  {count}")
    head.append(f"  {elapsed(now - state.created_at)}", "dim")
    if state.cancel is not None:
        head.append("  stopping", "yellow")
    said = state.message or ("starting" if state.seq <= 1 else "")
    item = f"{line(state.item, 40)}: " if state.item and state.item not in said else ""
    return Group(head, Text(f"  {line(f'{item}{said}', width - 2)}", style="dim", no_wrap=True, overflow="ellipsis"))


def elapsed(seconds: float) -> str:
    """A span that grows while one looks at it: `4m12s`."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3_600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m{left:02d}s"
    return f"{minutes}m{left:02d}s" if minutes else f"{left}s"
