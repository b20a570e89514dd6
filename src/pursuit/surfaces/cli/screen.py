"""Where output goes: JSON, a terminal, or a plain pipe.

Owns: that choice and the three ways of printing. Knows no mission.
Invariant: with `--json` standard output holds JSON and nothing else; what is not the answer goes to standard error.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.text import clean, line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Screen:
    """One command's output."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self.json = common.json
        self.unread = False
        self.rich = not common.json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def console(self) -> Console:
        """The terminal; text is printed as it is, without markup."""
        from rich.console import Console  # noqa: PLC0415 - a pipe needs none of it

        return Console(markup=False, highlight=False, emoji=False)

    def document(self, data: Any) -> None:
        """One JSON document; indented where a person looks at it."""
        body = msgspec.json.encode(data)
        if sys.stdout.isatty():
            body = msgspec.json.format(body, indent=2)
        self.plain(body.decode())

    def plain(self, text: str) -> None:
        """A line of the answer, as it is. A reader that has gone changes no mission and no exit code."""
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.unread = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def fact(self, label: str, value: object) -> None:
        """One fact on one line of a plain answer."""
        self.plain(f"{label}: {line(value)}")

    def show(self, *things: RenderableType) -> None:
        """Something for the terminal."""
        for thing in things:
            self.console.print(thing)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Says on a terminal what is being waited for, as long as the block lasts."""
        return self.console.status(clean(text)) if self.rich else nullcontext()

    def note(self, text: str) -> None:
        """A word beside the answer. Nobody reading it must not stop a mission."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{clean(text)}\n")
            sys.stderr.flush()

    def hint(self, text: str) -> None:
        """What to do next, after an answer that is for a person."""
        if self.rich:
            from rich.text import Text  # noqa: PLC0415 - a pipe needs none of it

            self.show(Text(clean(text), style="dim"))
        else:
            self.note(text)
