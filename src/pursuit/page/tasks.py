"""The views of tasks: the list, and one with its output as it comes, in the colours that its command wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from markupsafe import Markup
from starlette.responses import Response

from pursuit.core.tasks import TASK_STATUSES, TaskStatus
from pursuit.errors import InvalidArgument
from pursuit.page.app import Page, PageView
from pursuit.page.markup import environment
from pursuit.reports.wording import text

LINES: Final = 400
"""Lines of output that are shown; `pursuit task tail` has all that is kept."""
LONGEST_LINE: Final = 2_000
ROWS: Final = 50
MOST_PAGES: Final = 20
TAIL_SECONDS: Final = 0.2
"""How often the output of a running command is looked at: its lines are in a file, not in the ledger."""


def add(page: Page) -> None:
    """Adds the views."""
    cast("dict[str, Any]", environment().filters)["ansi"] = ansi  # pyright: ignore[reportUnknownMemberType] - untyped
    page.get("/tasks", _list)
    page.get("/tasks/live", _list_live)
    page.get("/tasks/{task_id}", _task)
    page.get("/tasks/{task_id}/live", _task_live)
    page.post("/tasks/{task_id}/cancel", _cancel, scope="tasks:*")


async def _list(view: PageView) -> Response:
    return view.render("tasks.html", title="Tasks", statuses=TASK_STATUSES, **await _tasks(view))


async def _list_live(view: PageView) -> Response:
    async def render() -> str:
        return view.text("_tasks.html", **await _tasks(view))

    return view.live(f"tasks {view.request.url.query}", render)


async def _tasks(view: PageView) -> dict[str, Any]:
    asked = view.query.get("status") or None
    status: TaskStatus | None = next((one for one in TASK_STATUSES if one == asked), None)
    if asked is not None and status is None:
        raise InvalidArgument(f"status {asked[:40]!r} is none of {', '.join(TASK_STATUSES)}")
    calls, cursor = view.query.get("calls") == "1", view.query.get("cursor") or None
    rows: list[dict[str, Any]] = []
    for _ in range(MOST_PAGES):
        found = await view.page.runtime.tasks.list(status=status, cursor=cursor, limit=ROWS)
        # The short calls of missions are in their timelines; here they would hide everything else.
        rows += [row for row in found["tasks"] if calls or row["kind"] != "call" or "ended_at" not in row]
        cursor = found.get("next_cursor")
        if cursor is None or len(rows) >= ROWS:
            break
    return {"tasks": rows, "next_cursor": cursor, "wanted": status or "", "calls": calls}


async def _task(view: PageView) -> Response:
    shown = await _shown(view)
    return view.render("task.html", title=shown["task"]["title"][:80], **shown)


async def _task_live(view: PageView) -> Response:
    async def render() -> str:
        return view.text("_task.html", **await _shown(view))

    task_id = view.path("task_id")
    return view.live(f"task {task_id}", render, stream=task_id, every=TAIL_SECONDS)


async def _shown(view: PageView) -> dict[str, Any]:
    tasks, task_id = view.page.runtime.tasks, view.path("task_id")
    task = await tasks.show(task_id)
    lines = await tasks.tail(task_id, LINES) if task["kind"] == "process" else []
    return {"task": task, "lines": lines}


async def _cancel(view: PageView) -> Response:
    task_id = view.path("task_id")
    reason = view.form.get("reason", "").strip() or None
    await view.page.runtime.tasks.cancel(task_id, caller=view.session.caller, reason=reason)
    return view.redirect(f"/tasks/{task_id}")


# Select Graphic Rendition, and everything else that steers a terminal, which is left out.
_STEERING = re.compile(r"\x1b\[([0-9;:]{0,40})m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")
_LEVELS = (0, 95, 135, 175, 215, 255)
"""The steps of the 6 x 6 x 6 cube of 256 colours."""
_MIDDLE = 128


def ansi(lines: Sequence[str]) -> Markup:
    """The lines of a terminal with their colours as classes: `a1` is red, `a12` bright blue, `b1` on red."""
    shown: list[Markup] = []
    classes: frozenset[str] = frozenset()
    for line in lines:
        # What comes after a carriage return replaces what was before, as a progress bar does.
        last = line[:LONGEST_LINE].rstrip("\r").rpartition("\r")[2]
        parts: list[Markup] = []
        place = 0
        for found in _STEERING.finditer(last):
            parts.append(_coloured(last[place : found.start()], classes))
            place = found.end()
            if found[1] is not None:
                classes = _after(classes, found[1])
        parts.append(_coloured(last[place:], classes))
        shown.append(Markup("").join(parts))
    return Markup("\n").join(shown)


def _coloured(part: str, classes: frozenset[str]) -> Markup:
    part = text(part)
    if not part or not classes:
        return Markup("{}").format(part)
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(classes)), part)


def _after(classes: frozenset[str], codes: str) -> frozenset[str]:
    """The classes after these codes of one sequence."""
    numbers = iter([int(code) if code.isdecimal() else 0 for code in codes.replace(":", ";").split(";")])
    kept = set(classes)
    for code in numbers:
        match code:
            case 0:
                kept.clear()
            case 1 | 4:
                kept.add("bold" if code == 1 else "under")
            case 22 | 24:
                kept.discard("bold" if code == 22 else "under")
            case 38 | 48:
                kind = "a" if code == 38 else "b"
                kept = {one for one in kept if one[:1] != kind or one == "bold"} | {f"{kind}{_nearest(numbers)}"}
            case 39 | 49:
                kind = "a" if code == 39 else "b"
                kept = {one for one in kept if one[:1] != kind or one == "bold"}
            case _ if 30 <= code <= 37 or 90 <= code <= 97:
                kept = {one for one in kept if one[:1] != "a"} | {f"a{code - (30 if code < 90 else 82)}"}
            case _ if 40 <= code <= 47 or 100 <= code <= 107:
                kept = {one for one in kept if one[:1] != "b" or one == "bold"}
                kept.add(f"b{code - (40 if code < 100 else 92)}")
            case _:
                pass
    return frozenset(kept)


def _nearest(numbers: Iterator[int]) -> int:
    """One of the 16 colours for `5;N` of 256 colours or `2;R;G;B`: the page has no others, so that all can be read."""
    if next(numbers, 0) == 2:
        rgb = (next(numbers, 0), next(numbers, 0), next(numbers, 0))
    else:
        number = next(numbers, 0)
        if number < 16:
            return number
        if number >= 232:
            rgb = (8 + 10 * (number - 232),) * 3
        else:
            number -= 16
            rgb = (_LEVELS[number // 36 % 6], _LEVELS[number // 6 % 6], _LEVELS[number % 6])
    colour = sum(bit for bit, level in zip((1, 2, 4), rgb, strict=True) if level >= _MIDDLE)
    return colour + 8 if max(rgb) > 200 and colour not in (0, 7) else colour
