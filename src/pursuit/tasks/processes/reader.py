"""Reads what the keeper spooled: into the log, for the signs in it, up to a mark that is worth writing down.

Owns: the way of a byte from the spool to the log. Knows no loop and no ledger: it is called from a thread, one call at
a time. Invariant: a reader made from a mark gives, with what was read up to that mark, every line once and in order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pursuit.tasks.processes.command import Command, blanked
from pursuit.tasks.processes.identity import read_json
from pursuit.tasks.processes.keeper import STREAMS
from pursuit.tasks.processes.lines import LineCutter
from pursuit.tasks.processes.log import BOUND, Log
from pursuit.tasks.processes.signs import Signs
from pursuit.tasks.processes.spool import Gap, Spool
from pursuit.tasks.processes.units import Units

CHUNK = 1 << 20
STEP = 4
"""Chunks that one step reads at most, so that marks come in between."""
FRESH = 1_000_000_000
LOG, ERRORS = "log", "errors"
ERRORS_BOUND = 2 * 1024 * 1024


class _Track:
    """One stream: its spool, its lines, and where the first byte lies that is in no line yet."""

    def __init__(self, folder: Path, name: str, command: Command, mark: Mapping[str, Any]) -> None:
        number, offset, skipping = cast("tuple[int, int, bool]", mark.get(name, (1, 0, False)))
        self.name = name
        self.spool = Spool(folder, name, number=number, offset=offset)
        self.cutter = LineCutter(blanked(command.secrets), skipping=skipping)
        self.at = (number, offset)
        self.taken = 0

    def read(self) -> bytes | None:
        """The next whole lines, perhaps none; None if there is nothing to read."""
        piece = self.spool.read(CHUNK)
        if piece is None:
            return None
        self.taken += len(piece) if isinstance(piece, bytes) else 1
        if isinstance(piece, Gap):
            lines = self.cutter.rest() + _gap_line(piece)
            self.cutter.skipping = False
        else:
            lines = self.cutter.feed(piece)
        held = self.cutter.held
        if not isinstance(piece, bytes) or held <= len(piece):
            self.at = (self.spool.number, self.spool.offset - held)
        return lines

    @property
    def mark(self) -> tuple[int, int, bool]:
        number, offset = self.at
        return number, offset, self.cutter.skipping


class Reader:
    """The output of one command from a mark on; `exit` is how it ended once all of it was read."""

    def __init__(self, folder: Path, command: Command, mark: Mapping[str, Any], *, bound: int = BOUND) -> None:
        self._folder = folder
        self._place = str(folder)
        self._tracks = [_Track(folder, name, command, mark) for name in STREAMS]
        self._log = Log(folder, LOG, bound=bound)
        self._errors = Log(folder, ERRORS, bound=min(bound, ERRORS_BOUND))
        self._log.cut(mark.get("log", 0))
        self._errors.cut(mark.get("errors", 0))
        units = Units(folder / "units", count=mark.get("units", 0))
        self.signs = Signs(command, units, off=mark.get("off", ()))
        self.signs.lines = mark.get("lines", 0)
        self.signs.failures = list(mark.get("failures", ()))
        self._taken_at_mark = 0
        self._changed = 0
        self.exit: Mapping[str, Any] | None = None
        self.finished = False

    @property
    def taken(self) -> int:
        """Bytes that were read from the spool."""
        return sum(track.taken for track in self._tracks)

    @property
    def unmarked(self) -> int:
        """Bytes that were read since the last mark."""
        return self.taken - self._taken_at_mark

    def step(self, *, last: bool = False) -> bool:
        """Reads a bounded piece; False if there was nothing left. `last`: nobody writes any more."""
        ended = read_json(self._folder / "exit")  # asked first: it is written after the last byte
        for _ in range(STEP):
            moved = [self._advance(track) for track in self._tracks]
            if not any(moved):
                break
        else:
            return True
        if ended is not None or last:
            for track in self._tracks:
                self._take(track, track.cutter.rest())
            self.exit, self.finished = ended, True
        return False

    def has_news(self) -> bool:
        """Whether a step may do something, at the price of a look: a file is new, or has grown."""
        changed = os.stat(self._place).st_mtime_ns  # noqa: PTH116 - done very often, for which paths are too slow
        # Two files that come within a tick of the clock leave the same time: what is fresh always counts.
        fresh = changed != self._changed or time.time_ns() - changed < FRESH
        self._changed = changed
        return fresh or any(track.spool.has_grown() for track in self._tracks)

    def mark(self) -> dict[str, Any]:
        """Where to go on after a crash. Raises `OSError` if the disk refuses."""
        self.signs.units.store()
        self._taken_at_mark = self.taken
        return {
            "log": self._log.position,
            "errors": self._errors.position,
            "lines": self.signs.lines,
            "units": self.signs.units.count,
            **({"failures": list(self.signs.failures)} if self.signs.failures else {}),
            **({"off": list(self.signs.off)} if self.signs.off else {}),
            **{track.name: list(track.mark) for track in self._tracks},
        }

    def discard(self, mark: Mapping[str, Any]) -> None:
        """Removes the spool before a mark that is durable."""
        for track in self._tracks:
            track.spool.discard(mark[track.name][0])

    def _advance(self, track: _Track) -> bool:
        lines = track.read()
        if lines is None:
            return False
        self._take(track, lines)
        return True

    def _take(self, track: _Track, lines: bytes) -> None:
        self._log.append(lines)
        if track.name == "err":
            self._errors.append(lines)
        for note in self.signs.take(lines):
            self._log.append(f"[{note}]\n".encode())


def _gap_line(gap: Gap) -> bytes:
    return f"[{gap.dropped} bytes of output are missing here: more lay unread than may]\n".encode()
