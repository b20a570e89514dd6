"""Copies the supervisor's spool into the log, finds progress in it, and gives marks to resume from.

It is called from a thread, one call at a time. Invariant: a reader continued from a mark reads each line after that
mark once and in order.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from pursuit.processes.tree import ProcessIdentity, Root
from pursuit.tasks.command import Command, blanked
from pursuit.tasks.progress_patterns import OutputProgress, Units
from pursuit.tasks.supervisor import STREAMS, segment_name

UNREADABLE = "its supervisor's record cannot be read, as after a loss of power; its exit code is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta(Root):
    supervisor: ProcessIdentity
    at: float


def read_meta(folder: Path) -> Meta | str | None:
    """The command in the folder, the reason why it was not started, or None if nothing is recorded yet."""
    body = read_json(folder / "meta")
    if body is None:
        return None
    if "refused" in body:
        return str(body["refused"])
    try:
        return msgspec.convert({**body, "tag": folder.name, "leader": body}, Meta)
    except msgspec.ValidationError:
        return UNREADABLE


def read_identity(path: Path) -> ProcessIdentity | None:
    """The process that a file names; None if the file does not exist or cannot be read."""
    try:
        return msgspec.convert(read_json(path), ProcessIdentity | None)
    except msgspec.ValidationError:
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The table in a file; None if the file does not exist, and empty if it cannot be read."""
    try:
        # Python's parser, which accepts the lone surrogates that represent bytes in arguments.
        body: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}  # a loss of power leaves files that are empty, or have old content
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def ended_at(folder: Path) -> float | None:
    """When the command in this folder ended, as its supervisor recorded; None without a record, as while it runs."""
    return (read_json(folder / "exit") or {}).get("at")


@dataclass(frozen=True, slots=True)
class SpoolGap:
    """The number of bytes that were dropped here because too many were unread."""

    dropped: int


class Spool:
    """Reads a stream's spool from a segment and an offset on: each byte once and in order, or a `SpoolGap`."""

    def __init__(self, folder: Path, stream: str, *, number: int = 1, offset: int = 0) -> None:
        self._folder = folder
        self._place = str(folder)
        self._stream = stream
        kept = (path.name.split(".")[1] for path in folder.glob(f"{stream}.[0-9]*"))
        self._kept = min([int(name) for name in kept if name.isdigit()], default=number)
        self.number = number
        self.offset = offset

    def read(self, most: int) -> bytes | SpoolGap | None:
        """The next piece of a segment; None if there is nothing yet."""
        while True:
            # Checked first: the next segment begins after the last byte of this one.
            over = any(self._path(self.number + 1, gap=gap).exists() for gap in (False, True))
            data = b""
            with contextlib.suppress(FileNotFoundError), self._path(self.number).open("rb", buffering=0) as file:
                file.seek(self.offset)
                data = file.read(most)
            if data:
                self.offset += len(data)
                return data
            gap = read_json(self._path(self.number, gap=True))
            if gap is None and not over:
                return None
            self.number, self.offset = self.number + 1, 0
            if gap is not None:
                return SpoolGap(int(gap.get("dropped", 0)))

    def has_more(self) -> bool:
        """True if `read` gives something now. It is called very often, and pathlib would be too slow."""
        here, after = (
            f"{self._place}/{segment_name(self._stream, number)}" for number in (self.number, self.number + 1)
        )
        with contextlib.suppress(FileNotFoundError):
            if os.stat(here).st_size > self.offset:  # noqa: PTH116
                return True
        return any(os.path.exists(path) for path in (f"{here}.gap", after, f"{after}.gap"))  # noqa: PTH110

    def discard(self, number: int) -> None:
        while self._kept < number:
            for gap in (False, True):
                self._path(self._kept, gap=gap).unlink(missing_ok=True)
            self._kept += 1

    def _path(self, number: int, *, gap: bool = False) -> Path:
        return self._folder / (segment_name(self._stream, number) + (".gap" if gap else ""))


LONGEST = 64 * 1024
CUT = " … [the rest of this line, which is longer than 64 KiB, is omitted]".encode()
_BLANK = b"***"


class LineCutter:
    """Turns pieces into whole lines of at most `LONGEST` bytes, without secrets or parts of secrets.

    The last `held` bytes of its input are not part of a line yet.
    """

    def __init__(self, secrets: Sequence[str] = (), *, skipping: bool = False) -> None:
        self._secrets = [secret.encode("utf-8", "surrogateescape") for secret in secrets]
        self._margin = max((len(secret) for secret in self._secrets), default=0)
        self._held: bytes = b""
        self.skipping = skipping
        """True while the rest of a too long line is skipped."""

    @property
    def held(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        r"""Whole lines, each with its end, as `\n`."""
        data = self._held + data if self._held else data
        self._held = b""
        if data.endswith(b"\r"):  # it may be half of a line end
            data, self._held = data[:-1], b"\r"
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        self._held = rest + self._held
        if self.skipping and whole:
            whole, self.skipping = whole[whole.index(b"\n") + 1 :], False
        if self.skipping:
            self._held = self._held[-1:] if self._held.endswith(b"\r") else b""
        lines = self._bounded(self._blank(whole))
        if len(self._held) > LONGEST + self._margin:
            # The end of the line may be part of a secret.
            shown = self._blank(self._held)[: -self._margin or None]
            lines += _whole_characters(shown[:LONGEST]) + CUT + b"\n"
            self._held, self.skipping = b"\r" if self._held.endswith(b"\r") else b"", True
        return lines

    def rest(self) -> bytes:
        rest, self._held = self._held, b""
        if not rest or self.skipping:
            return b""
        return self._bounded(self._blank(rest.removesuffix(b"\r")) + b"\n")

    def _blank(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, _BLANK)
        return data

    def _bounded(self, lines: bytes) -> bytes:
        """Cuts lines that are too long; the usual case costs one search for each 64 KiB."""
        place, size = 0, len(lines)
        while size - place > LONGEST:
            end = lines.rfind(b"\n", place, place + LONGEST + 1)
            if end < 0:
                return b"".join(self._cut(line) for line in lines.splitlines(keepends=True))
            place = end + 1
        return lines

    @staticmethod
    def _cut(line: bytes) -> bytes:
        end = b"\n" if line.endswith(b"\n") else b""
        if len(line) - len(end) <= LONGEST:
            return line
        return _whole_characters(line[:LONGEST]) + CUT + end


def _whole_characters(text: bytes) -> bytes:
    """Removes an incomplete character at the end; bytes that are not UTF-8 stay."""
    for count in range(1, 4):
        if text[-count : len(text) - count + 1] >= b"\xc0":
            return text[:-count]
    return text


BOUND = 64 * 1024 * 1024
BLOCK = 256 * 1024


class CommandLog:
    """Writes a log of bounded size; one writer for each log at a time.

    Positions count all bytes ever appended; at least the newest `bound` / 2 of them are kept, in order.
    """

    def __init__(self, folder: Path, name: str, *, bound: int = BOUND) -> None:
        self._folder = folder
        self._name = name
        self._half = max(1, bound // 2)
        self._starts = [start for start, _ in halves(folder, name)]
        self.position = log_end(folder, name)
        self.lost = 0
        """Bytes that could not be written to the disk."""

    def append(self, data: bytes) -> None:
        """Adds whole lines; drops the older half when the newer one is full. A full disk loses only these lines."""
        if not data:
            return
        try:
            if not self._starts or self.position - self._starts[-1] >= self._half:
                self._starts.append(self.position)
                while len(self._starts) > 2:
                    _path(self._folder, self._name, self._starts.pop(0)).unlink(missing_ok=True)
            path = _path(self._folder, self._name, self._starts[-1])
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self._write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            self.lost += len(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Writes all of it or nothing; raises `OSError`. A part would be a line that the command never wrote."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            if len(view) < len(data):
                os.ftruncate(descriptor, self.position - self._starts[-1])
            raise
        self.position += len(data)

    def cut(self, position: int) -> None:
        for start, path in halves(self._folder, self._name):
            if start >= position:
                path.unlink()
            elif path.stat().st_size > position - start:
                os.truncate(path, position - start)
        self._starts = [start for start, _ in halves(self._folder, self._name)]
        if log_end(self._folder, self._name) != position:
            # Earlier bytes were dropped, or never reached the disk: positions still count them.
            self._starts.append(position)
        self.position = position


def halves(folder: Path, name: str) -> list[tuple[int, Path]]:
    """The files of a log with the positions of their first bytes, oldest first."""
    return sorted((int(path.name.rpartition(".")[2]), path) for path in folder.glob(f"{name}.[0-9]*"))


def log_end(folder: Path, name: str) -> int:
    for start, path in reversed(halves(folder, name)):
        try:
            return start + path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def read_log(folder: Path, name: str, position: int, most: int = BLOCK) -> tuple[bytes, int]:
    """Bytes from a position on and the position after them; skips bytes that were dropped before the read."""
    for start, path in halves(folder, name):
        try:
            size = path.stat().st_size
            if start + size <= position:
                continue
            begin = max(start, position)
            with path.open("rb") as file:
                file.seek(begin - start)
                data = file.read(most)
            return data, begin + len(data)
        except FileNotFoundError:
            continue
    return b"", position


def tail_position(folder: Path, name: str, lines: int) -> int:
    end = place = log_end(folder, name)
    found = 0
    for start, path in reversed(halves(folder, name)):
        while place > start:
            begin = max(start, place - BLOCK)
            with path.open("rb") as file:
                file.seek(begin - start)
                block = file.read(place - begin)
            ends = block.count(b"\n") - (place == end)  # no line begins after the last line end
            if found + ends >= lines:
                return begin + _nth_end(block, found + ends - lines) + 1
            found, place = found + ends, begin
    return place


def left_out(folder: Path, name: str, place: int, lines: int) -> str | None:
    """A line that tells how much of the requested output is not kept; None if nothing is missing.

    `place` is the position where the last `lines` lines begin.
    """
    first = next((start for start, _path in halves(folder, name)), 0)
    if not lines or place > first or not first:
        return None
    return f"[the first {first:,} bytes of the output are not kept; the setting task_log_mb keeps more]"


def _nth_end(block: bytes, number: int) -> int:
    place = -1
    for _ in range(number + 1):
        place = block.index(b"\n", place + 1)
    return place


def _path(folder: Path, name: str, start: int) -> Path:
    return folder / f"{name}.{start:015d}"


CHUNK = 1 << 20
STEP = 4
"""Maximum chunks in one step, to allow marks in between."""
LOG, ERRORS = "log", "errors"
ERRORS_BOUND = 2 * 1024 * 1024


class _Track:
    """One stream: its spool, its lines, and the position of the first byte that is not in a line yet."""

    def __init__(self, folder: Path, name: str, command: Command, mark: Mapping[str, Any]) -> None:
        number, offset, skipping = cast("tuple[int, int, bool]", mark.get(name, (1, 0, False)))
        self.name = name
        self.spool = Spool(folder, name, number=number, offset=offset)
        self.cutter = LineCutter(blanked(command.secrets), skipping=skipping)
        self.at = (number, offset)
        self.taken = 0

    def read(self) -> bytes | None:
        """The next whole lines, possibly empty; None if there is nothing to read."""
        piece = self.spool.read(CHUNK)
        if piece is None:
            return None
        self.taken += len(piece) if isinstance(piece, bytes) else 1
        if isinstance(piece, SpoolGap):
            missing = f"[{piece.dropped} bytes of output are missing here: the limit of unread output was reached]\n"
            lines = self.cutter.rest() + missing.encode()
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
    """The output of one command from a mark on; `exit` is set once all of it was read."""

    def __init__(self, folder: Path, command: Command, mark: Mapping[str, Any], *, bound: int = BOUND) -> None:
        self._folder = folder
        self._place = str(folder)
        self._tracks = [_Track(folder, name, command, mark) for name in STREAMS]
        self._log = CommandLog(folder, LOG, bound=bound)
        self._errors = CommandLog(folder, ERRORS, bound=min(bound, ERRORS_BOUND))
        self._log.cut(mark.get("log", 0))
        self._errors.cut(mark.get("errors", 0))
        units = Units(folder / "units", count=mark.get("units", 0))
        self.progress = OutputProgress(command, units, off=mark.get("off", ()))
        self.progress.lines = mark.get("lines", 0)
        self.progress.failures = list(mark.get("failures", ()))
        self.progress.metrics.found = dict(mark.get("metrics", {}))
        self._taken_at_mark = 0
        self.exit: Mapping[str, Any] | None = None
        self.finished = False

    @property
    def taken(self) -> int:
        return sum(track.taken for track in self._tracks)

    @property
    def unmarked(self) -> int:
        return self.taken - self._taken_at_mark

    def step(self, *, last: bool = False) -> bool:
        """Reads a bounded piece; False if there was nothing left. With `last`, no process writes any more."""
        ended = read_json(self._folder / "exit")  # checked first: it is written after the last byte
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
        return os.path.exists(f"{self._place}/exit") or any(track.spool.has_more() for track in self._tracks)  # noqa: PTH110

    def mark(self) -> dict[str, Any]:
        """The position to resume from after a crash. Raises `OSError` if it cannot be written."""
        self.progress.units.store()
        self._taken_at_mark = self.taken
        return {
            "log": self._log.position,
            "errors": self._errors.position,
            "lines": self.progress.lines,
            "units": self.progress.units.count,
            **({"failures": list(self.progress.failures)} if self.progress.failures else {}),
            **({"metrics": dict(self.progress.metrics.found)} if self.progress.metrics.found else {}),
            **({"off": list(self.progress.off)} if self.progress.off else {}),
            **{track.name: list(track.mark) for track in self._tracks},
        }

    def discard(self, mark: Mapping[str, Any]) -> None:
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
        for note in self.progress.take(lines):
            self._log.append(f"[{note}]\n".encode())
