"""The views of tasks: the list, and a task with its live output."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from pursuit.core.tasks import TASK_STATUSES, TaskStatus
from pursuit.errors import InvalidArgument
from pursuit.page.app import Page, PageView

LINES: Final = 400
"""Maximum lines of displayed output; `pursuit task tail` shows all stored lines."""
MAX_LINE: Final = 2_000
ROWS: Final = 50
MAX_PAGES: Final = 20
TAIL_SECONDS: Final = 0.2
"""Seconds between looks at the output of a running command: its lines are in a file, not in the ledger."""


def add(page: Page) -> None:
    page.view("/tasks", _tasks, "tasks.html")
    page.view("/tasks/{task_id}", _task, "task.html", stream="task_id", every=TAIL_SECONDS)
    page.post("/tasks/{task_id}/cancel", _cancel, scope="tasks:*")


async def _tasks(view: PageView) -> dict[str, Any]:
    asked = view.query.get("status") or None
    status: TaskStatus | None = next((one for one in TASK_STATUSES if one == asked), None)
    if asked is not None and status is None:
        raise InvalidArgument(f"status {asked[:40]!r} is not one of {', '.join(TASK_STATUSES)}")
    calls, cursor = view.query.get("calls") == "1", view.query.get("cursor") or None
    rows: list[dict[str, Any]] = []
    for _ in range(MAX_PAGES):
        found = await view.page.runtime.tasks.list(status=status, cursor=cursor, limit=ROWS)
        # The short calls of missions are in their timelines; here they would hide everything else.
        rows += [row for row in found["tasks"] if calls or row["kind"] != "call" or "ended_at" not in row]
        cursor = found.get("next_cursor")
        if cursor is None or len(rows) >= ROWS:
            break
    wanted = {"statuses": TASK_STATUSES, "wanted": status or "", "calls": calls}
    return {"title": "Tasks", "tasks": rows, "next_cursor": cursor, **wanted}


async def _task(view: PageView) -> dict[str, Any]:
    tasks, task_id = view.page.runtime.tasks, view.path("task_id")
    task = await tasks.show(task_id)
    lines = await tasks.tail(task_id, LINES) if task["kind"] == "process" else []
    return {"title": task["title"][:80], "task": task, "lines": [plain(line) for line in lines]}


async def _cancel(view: PageView) -> Response:
    task_id = view.path("task_id")
    reason = view.form.get("reason", "").strip() or None
    await view.page.runtime.tasks.cancel(task_id, caller=view.session.caller, reason=reason)
    return view.redirect(f"/tasks/{task_id}")


_STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")
"""Control sequences of terminals, including colours."""


def plain(line: str) -> str:
    """A line of terminal output as text; keeps only the part after the last carriage return (progress bars)."""
    return _STEERING.sub("", line[:MAX_LINE].rstrip("\r").rpartition("\r")[2])
