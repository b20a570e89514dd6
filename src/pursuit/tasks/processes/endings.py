"""How a command ended, as a task's ending.

Owns: the words and the tool's result. Pure but for the tail of stderr that it is handed.
Invariant: everything that a person needs to go on is in it: exit code, units, last item, failure lines, stderr.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pursuit.core.tasks import TaskEnd
from pursuit.tasks.processes.command import Command
from pursuit.tasks.store import Ending

STDERR_LINES = 80
LONGEST_STDERR_LINE = 1_000
SIGNALLED = 128
"""Added to the number of a signal, as shells do, so that an exit code is never negative."""
NOT_KNOWN = (
    "its supervisor was ended, or the machine restarted, before the command did: its exit code is not known; what it "
    "wrote until then is in the log"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is known of a command's run when it is over. `code` is None if nobody knows it, and `-n` by signal n."""

    task_id: str
    command: Command
    code: int | None = None
    seconds: float
    done: int | None = None
    item: str | None = None
    failures: Sequence[str] = ()
    stderr: Sequence[str] = ()
    notes: Sequence[str] = ()
    mark: Mapping[str, Any] | None = None
    cancelled: bool = False


def ending_of(course: Course) -> Ending:
    """The task's end for it."""
    status: TaskEnd = "cancelled" if course.cancelled else "completed" if course.code == 0 else "failed"
    message = _said(course, status)
    body: dict[str, Any] = {"status": status, "task_id": course.task_id}
    if status != "completed":
        body["exit_code"] = exit_code(course.code)
        if course.code is not None and course.code < 0:
            body["signal"] = signal_name(-course.code)
    body |= {"units_done": course.done, "units_total": _whole(course.command.total), "last_item": course.item}
    if status == "failed":
        body |= {"failure_lines": list(course.failures), "stderr_tail": list(course.stderr)}
    body |= {"duration_seconds": round(course.seconds, 3), "notes": list(course.notes) or None}
    if status != "completed":
        body["disclaimer"] = course.command.disclaimer
    body = {key: value for key, value in body.items() if value is not None}
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": _text(message, course, status)}],
        "structuredContent": body,
    }
    return Ending(
        status=status,
        message=message,
        result=result if status == "completed" else {**result, "isError": True},
        exit_code=exit_code(course.code),
        done=course.done,
        item=course.item,
        mark=course.mark,
    )


def refusal_of(task_id: str, command: Command | None, why: str) -> Ending:
    """The end of a command that never ran."""
    why = why if command is None else command.redacted(why)
    body = {"status": "failed", "task_id": task_id, "reason": why}
    return Ending(
        status="failed",
        message=why,
        result={"content": [{"type": "text", "text": why}], "structuredContent": body, "isError": True},
    )


def exit_code(code: int | None) -> int | None:
    """The code as it is recorded: 128 + n for a command that signal n ended."""
    return SIGNALLED - code if code is not None and code < 0 else code


def signal_name(number: int) -> str:
    """The name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_words(seconds: float) -> str:
    """A duration for people: `4m12s`."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def _said(course: Course, status: TaskEnd) -> str:
    after = f"after {in_words(course.seconds)}"
    units = ""
    if course.done is not None:
        units = f", {course.done}" + (f" of {_whole(course.command.total)}" if course.command.total else "") + " units"
    if status == "cancelled":
        return f"cancelled {after}{units}"
    if course.code is None:
        return NOT_KNOWN
    if course.code < 0:
        return f"ended by {signal_name(-course.code)} {after}{units}"
    return f"exit code {course.code} {after}{units}"


def _text(message: str, course: Course, status: TaskEnd) -> str:
    parts = [f"{course.command.shown}: {message} ({course.task_id})"]
    if course.item is not None:
        parts.append(f"last item: {course.item}")
    if status == "failed":
        if course.failures:
            parts.append("failure lines:\n" + "\n".join(course.failures))
        if course.stderr:
            parts.append("the end of stderr:\n" + "\n".join(course.stderr))
    parts += course.notes
    if status != "completed" and course.command.disclaimer is not None:
        parts.append(course.command.disclaimer)
    return "\n\n".join(parts)


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number
