"""Renders the answers of commands: as JSON, on a terminal, or for a plain pipe.

A command returns a `CommandAnswer`, and `Screen.render` prints it. With `--json`, standard output holds only JSON;
notes go to standard error. Control characters are removed, so text of a mission cannot control the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pursuit.core.truncate import clean, line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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
"""The style of a status or of another fixed word."""
MARKS = {"met": "\u2713", "unmet": "\u2717", "inconclusive": "?"}
EXIT = {"completed": 0, "terminated": 3, "waiting": 4, "paused": 4, "failed": 1}
"""The exit code of a command that drove a mission, by the mission's status; any other status is 0."""

ENDED = ("completed", "terminated")
"""The statuses of an ended mission."""


def counted(number: int, what: str) -> str:
    """A number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def of_cap(used: str, cap: str | None) -> str:
    """`3 of 10`, or `3` without a cap."""
    return used if cap is None else f"{used} of {cap}"


class Fact(NamedTuple):
    label: str
    value: object


def facts_of(facts: Mapping[str, object]) -> Iterator[Fact]:
    return starmap(Fact, facts.items())


class Note(NamedTuple):
    """A line on standard error."""

    text: str


class Styled:
    """A line of texts, some styled; the terminal wraps it, so that it can be copied in one piece."""

    def __init__(self, *spans: str | tuple[str, str]) -> None:
        self.spans = spans


class Hint(NamedTuple):
    text: str


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table on a terminal; for a pipe, the cells (or those of `piped`) separated by tabs."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Container[str] = ()
    piped: Sequence[Sequence[object]] | None = None


@dataclass(frozen=True, slots=True)
class Forms:
    """The same content in two forms: for a pipe, and for a terminal of a given width."""

    piped: Iterable[Part]
    terminal: Callable[[int], Iterable[Part]]


Part: TypeAlias = "str | Fact | Note | Styled | Hint | TableRows | Forms | Iterator[Part] | RenderableType"
"""A part of an answer for people: a line, one of the above, or, for a terminal, a rich renderable."""


class CommandAnswer:
    """The answer of a command: `data` is the JSON document, `parts` are for people, `code` is the exit code."""

    def __init__(self, data: Any, *parts: Part, code: int = 0) -> None:
        self.data = data
        self.parts = parts
        self.code = code


class Screen:
    def __init__(self, *, json: bool, command: Callable[..., str]) -> None:
        self.json = json
        self.command = command
        """Returns a command line to copy, like `Context.command`."""
        self.unread = False
        self.rich = not json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def console(self) -> Console:
        return self._console()

    def _console(self, width: int | None = None) -> Console:
        from rich.console import Console

        return Console(markup=False, highlight=False, emoji=False, width=width)

    def render(self, answer: CommandAnswer) -> int:
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
        import msgspec

        body = msgspec.json.encode(data, enc_hook=lambda value: value.as_json())
        if sys.stdout.isatty():
            body = msgspec.json.format(body, indent=2)
        self.plain(body.decode())

    def plain(self, text: str) -> None:
        """Prints a line of the answer. A closed pipe changes neither the mission nor the exit code."""
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.unread = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def fact(self, label: str, value: object) -> None:
        if not self.json:
            self.plain(f"{label}: {line(value)}")

    def _table(self, part: TableRows) -> None:
        """Cuts only the last column; a row that is still wider than the terminal wraps."""
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
        if taken + room > self.console.width:  # a truncated id cannot be copied, so no other column shrinks
            self._console(width=taken + room).print(table)
        else:
            self.console.print(table)

    def busy(self, text: str) -> AbstractContextManager[object]:
        return self.console.status(clean(text)) if self.rich else nullcontext()

    def note(self, text: str) -> None:
        """Prints a line on standard error. A closed pipe must not stop a mission."""
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
        if self.rich:
            self._styled([(clean(text), "dim")])
        elif not self.json:
            self.note(text)

    def next_step(self, text: str) -> None:
        """Prints how to continue a mission; with `--json`, on standard error."""
        if self.json:
            self.note(text)
        else:
            self.hint(text)
