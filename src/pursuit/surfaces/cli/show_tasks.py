"""Tasks on the screen: one, a list, how one ended, what one wrote.

Owns: which facts are shown, in which order, for a terminal and for a pipe. Reads the JSON of tasks and nothing else.
Invariant: a plain answer is one fact or one row a line; what a command wrote cannot steer the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.reports.wording import figure, moment, seconds_between, span
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import clean, line

STYLES = {
    "completed": "bold green",
    "failed": "bold red",
    "cancelled": "bold yellow",
    "input_required": "bold cyan",
    "working": "cyan",
}
MARKS = {"completed": "✓", "failed": "✗", "cancelled": "■"}
SHORT_ID = 13
SHOWN_LINES = 20
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_FACTS = (
    ("task", "task_id"), ("kind", "kind"), ("title", "title"), ("requestor", "requestor"), ("status", "status"),
    ("message", "message"), ("current item", "current_item"),
)  # fmt: skip


def listing(screen: Screen, page: Mapping[str, Any]) -> None:
    """Some tasks."""
    rows: Sequence[Mapping[str, Any]] = page["tasks"]
    if screen.json:
        screen.document(page)
        return
    if screen.rich and rows:
        screen.show(_table(rows, screen.console.width))
    else:
        for row in rows:
            cells = (row["task_id"], row["status"], units(row), moment(row["created_at"]), row["title"], _word(row))
            screen.plain("\t".join(line(cell) for cell in cells))
    if not rows:
        screen.hint("no tasks yet; `pursuit task run -- CMD` starts one")
    if "next_cursor" in page:
        screen.hint(f"there are more: --cursor {page['next_cursor']}")


def task(screen: Screen, record: Mapping[str, Any]) -> None:
    """Everything about one task."""
    if screen.json:
        screen.document(record)
        return
    for label, key in _FACTS:
        if key in record:
            screen.fact(label, record[key])
    _figures(screen, record)
    _details(screen, record, most=None)


def ended(screen: Screen, record: Mapping[str, Any]) -> None:
    """How a task ended."""
    if screen.json:
        screen.document(record)
    elif screen.rich:
        from rich.text import Text  # noqa: PLC0415 - rich loads only for a terminal

        status = record["status"]
        head = Text.assemble((f"{MARKS[status]} ", STYLES[status]), (line(record["title"], 80), "bold"), "  ")
        screen.show(head.append(line(record.get("message", status))))
        _details(screen, record, most=SHOWN_LINES)
        screen.hint(f"  {record['task_id']}")
    else:
        screen.fact("task", record["task_id"])
        screen.fact("status", record["status"])
        if "message" in record:
            screen.fact("message", record["message"])
        _figures(screen, record)
        _details(screen, record, most=SHOWN_LINES)


def output(screen: Screen, task_id: str, lines: Sequence[str]) -> None:
    """What a command wrote."""
    if screen.json:
        screen.document({"task_id": task_id, "lines": lines})
        return
    for text in lines:
        output_line(screen, text)


def output_line(screen: Screen, text: str) -> None:
    """One line of it; a terminal gets it without colours and whatever else would steer it."""
    if screen.json:
        screen.document({"line": text})
    else:
        screen.plain(clean(_ESCAPES.sub("", text)) if screen.rich else text.encode(errors="replace").decode())


def units(record: Mapping[str, Any]) -> str:
    """Units done, of how many."""
    done, total = record.get("units_done", 0), record.get("units_total")
    return f"{figure(done)}/{figure(total)}" if total else figure(done) if done else "-"


def _figures(screen: Screen, record: Mapping[str, Any]) -> None:
    if record.get("units_done") or "units_total" in record:
        screen.fact("units", units(record))
    if "exit_code" in record:
        screen.fact("exit code", record["exit_code"])
    screen.fact("created", moment(record["created_at"]))
    if "ended_at" in record:
        screen.fact("ended", moment(record["ended_at"]))
        screen.fact("took", span(seconds_between(record["created_at"], record["ended_at"])))


def _details(screen: Screen, record: Mapping[str, Any], *, most: int | None) -> None:
    """What else the result of a command says: why it failed, in its own words."""
    found: Mapping[str, Any] = record.get("result", {}).get("structuredContent") or {}
    for label, key in (("failure", "failure_lines"), ("stderr", "stderr_tail")):
        lines: Sequence[str] = found.get(key, ())
        for text in lines if most is None else lines[-most:]:
            screen.plain(f"{label}: {clean(_ESCAPES.sub('', text))}")
    if "disclaimer" in found:
        screen.fact("note", found["disclaimer"])


def _word(row: Mapping[str, Any]) -> str:
    return line(row.get("message", ""), 80)


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Any:
    from rich.table import Table  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    fixed = [
        (str(row["task_id"])[:SHORT_ID], row["status"], units(row), moment(row["created_at"]).removesuffix(" UTC"))
        for row in rows
    ]
    names = ("task", "status", "units", "created")
    widths = [max(len(name), *(len(row[place]) for row in fixed)) for place, name in enumerate(names)]
    rest = max(20, width - sum(widths) - 2 * len(widths))
    title = min(max(len(line(row["title"])) for row in rows), rest // 2)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, wide in zip((*names, "title", "last word"), (*widths, title, rest - title - 2), strict=True):
        table.add_column(name, no_wrap=True, width=wide, justify="right" if name == "units" else "left")
    for cells, row in zip(fixed, rows, strict=True):
        shown = (*cells, line(row["title"], title), line(row.get("message", ""), rest - title - 2))
        styles = ("", STYLES[row["status"]], "", "dim", "", "dim")
        table.add_row(*(Text(cell, style=style) for cell, style in zip(shown, styles, strict=True)))
    return table
