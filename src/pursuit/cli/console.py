"""Renders what commands answer: as JSON, on a terminal, or for a plain pipe.

A command returns a `CommandAnswer`, and `Screen.render` prints it. With `--json` standard output holds JSON and nothing
else; what is not the answer goes to standard error. No text of a mission can steer a terminal: what is printed holds
no control characters.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pursuit.core.caps import BudgetUse

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
STYLES = {
    **dict.fromkeys(("completed", "solved"), "bold green"),
    **dict.fromkeys(("terminated", "cancelled", "interrupted"), "bold yellow"),
    **dict.fromkeys(("failed", "broken"), "bold red"),
    **dict.fromkeys(("waiting", "paused", "input_required"), "bold cyan"),
    **dict.fromkeys(("met", "ok", "reads", "no"), "green"),
    **dict.fromkeys(("inconclusive", "warning", "ended", "writes", "yes"), "yellow"),
    **dict.fromkeys(("unmet", "infeasible", "destroys", "denied"), "red"),
    **dict.fromkeys(("working", "open", "note"), "cyan"),
}
"""The style of a status, or of another word with a fixed meaning."""
MARKS = {"met": "\u2713", "unmet": "\u2717", "inconclusive": "?"}
EXIT = {"completed": 0, "terminated": 3, "waiting": 4, "paused": 4, "failed": 1}
"""The exit code of a command that drove a mission, by the status it left it in; any other status is 0."""

ENDED = ("completed", "terminated")
"""The statuses of a mission that is over."""


def counted(number: int, what: str) -> str:
    """A number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def clean(value: object) -> str:
    """Text without control characters."""
    return _CONTROL.sub("\ufffd", str(value))


def line(value: object, most: int | None = None) -> str:
    """Text on one line, cut to `most` characters."""
    flat = " ".join(clean(value).split())
    return flat if most is None or len(flat) <= most else f"{flat[: most - 1].rstrip()}\u2026"


def of_cap(used: str, cap: str | None) -> str:
    """`3 of 10`, or `3` without a cap."""
    return used if cap is None else f"{used} of {cap}"


def budget_parts(budget: BudgetUse) -> list[tuple[str, str, str | None, str | None]]:
    """Each part of a budget that has a cap or was used: its name, what was used, the cap, what is left."""
    from pursuit.core.caps import SHOWN
    from pursuit.reports.wording import figure, span

    found: list[tuple[str, str, str | None, str | None]] = []
    for cap in SHOWN:
        use, words = budget.caps[cap.name], span if cap.unit == "seconds" else figure
        if cap.of_models and use.limit is None and use.used == 0:
            continue
        label = cap.label.lower() + (" in USD" if cap.unit == "usd" else "")
        used, limit, left = (None if one is None else words(one) for one in (use.used, use.limit, use.left))
        found.append((label, used or "unknown", limit, left))
    return found


class Fact(NamedTuple):
    """One fact on one line."""

    label: str
    value: object


def facts_of(facts: Mapping[str, object]) -> Iterator[Fact]:
    """A fact for each label."""
    return starmap(Fact, facts.items())


class Note(NamedTuple):
    """A line on standard error."""

    text: str


class Styled:
    """A line of texts, some with a style on a terminal, which wraps it, so that it can be copied in one piece."""

    def __init__(self, *spans: str | tuple[str, str]) -> None:
        self.spans = spans


class Hint(NamedTuple):
    """What to do next."""

    text: str


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table on a terminal; for a pipe the cells, or those of `piped`, with tabs between them."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Container[str] = ()
    piped: Sequence[Sequence[object]] | None = None


@dataclass(frozen=True, slots=True)
class Forms:
    """The same in two forms: for a pipe, and for a terminal of a width."""

    piped: Iterable[Part]
    terminal: Callable[[int], Iterable[Part]]


Part: TypeAlias = "str | Fact | Note | Styled | Hint | TableRows | Forms | Iterator[Part] | RenderableType"
"""What a person reads of an answer: a line, or one of the above, or what rich can print, for a terminal."""


class CommandAnswer:
    """What a command answers: `data` is the JSON document, `parts` are for people, `code` is the exit code."""

    def __init__(self, data: Any, *parts: Part, code: int = 0) -> None:
        self.data = data
        self.parts = parts
        self.code = code


class Screen:
    """The output of one command."""

    def __init__(self, *, json: bool, command: Callable[..., str]) -> None:
        self.json = json
        self.command = command
        """Writes a command line for a person to copy, as `Context.command` does."""
        self.unread = False
        self.rich = not json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def console(self) -> Console:
        """The terminal; text is printed as it is, without markup."""
        return self._console()

    def _console(self, width: int | None = None) -> Console:
        from rich.console import Console

        return Console(markup=False, highlight=False, emoji=False, width=width)

    def render(self, answer: CommandAnswer) -> int:
        """Prints an answer, and returns its exit code."""
        if self.json:
            self.document(answer.data)
        else:
            self._print(iter(answer.parts))
        return answer.code

    def _print(self, part: Part) -> None:
        match part:
            case str():
                self.plain(part)
            case Fact(label, value):
                self.fact(label, value)
            case Note(text):
                self.note(text)
            case Hint(text):
                self.hint(text)
            case Styled():
                self._styled(part.spans)
            case TableRows(columns) if self.rich and columns:
                self._table(part)
            case TableRows():
                for row in part.cells if part.piped is None else part.piped:
                    self.plain("\t".join(line(cell) for cell in row))
            case Forms():
                self._print(iter(part.terminal(self.console.width) if self.rich else part.piped))
            case Iterator():
                for one in part:
                    self._print(one)
            case _:
                self.console.print(part)

    def document(self, data: Any) -> None:
        """Prints one JSON document; indented on a terminal."""
        import msgspec

        body = msgspec.json.encode(data, enc_hook=lambda value: value.as_json())
        if sys.stdout.isatty():
            body = msgspec.json.format(body, indent=2)
        self.plain(body.decode())

    def plain(self, text: str) -> None:
        """Prints a line of the answer. A reader that is gone changes neither the mission nor the exit code."""
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.unread = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def fact(self, label: str, value: object) -> None:
        """Prints one fact on one line, unless the answer is JSON."""
        if not self.json:
            self.plain(f"{label}: {line(value)}")

    def _table(self, part: TableRows) -> None:
        """Only the last column is cut; a row wider than the terminal wraps there."""
        from rich.table import Table
        from rich.text import Text

        columns, rows, gap = part.columns, part.cells, 2
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
        for name in columns:
            table.add_column(name, justify="right" if name in part.right else "left", no_wrap=True)
        taken = sum(max(len(row[place]) for row in (columns, *rows)) + gap for place in range(len(columns) - 1))
        room = max(12, self.console.width - taken)
        for row in rows:
            cells = [*map(line, row[:-1]), line(row[-1], room)]
            # `waiting for approval` has the style of `waiting`, `no*` that of `no`.
            table.add_row(*(Text(cell, style=STYLES.get(cell.partition(" for ")[0].rstrip("*"), "")) for cell in cells))
        if taken + room > self.console.width:  # an id that is cut cannot be copied, so no other column shrinks
            self._console(width=taken + room).print(table)
        else:
            self.console.print(table)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Shows on a terminal what the command waits for, for as long as the block lasts."""
        return self.console.status(clean(text)) if self.rich else nullcontext()

    def note(self, text: str) -> None:
        """Prints a line on standard error. A reader that is gone must not stop a mission."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{clean(text)}\n")
            sys.stderr.flush()

    def _styled(self, spans: Iterable[str | tuple[str, str]]) -> None:
        if self.rich:
            from rich.text import Text

            self.console.print(Text.assemble(*spans), soft_wrap=True)
        else:
            self.plain("".join(one if isinstance(one, str) else one[0] for one in spans))

    def hint(self, text: str) -> None:
        """Prints what to do next, unless the answer is JSON."""
        if self.rich:
            self._styled([(clean(text), "dim")])
        elif not self.json:
            self.note(text)

    def next_step(self, text: str) -> None:
        """Prints how to continue a mission; with JSON on standard error, where programs' logs keep it."""
        if self.json:
            self.note(text)
        else:
            self.hint(text)
