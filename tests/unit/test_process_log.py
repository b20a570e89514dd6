"""The log: bounded, cut back, tailed; and the reader that fills it, exactly once from any mark."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pursuit.core.log_metrics import MetricRule
from pursuit.tasks.command import Command
from pursuit.tasks.reader import LOG, CommandLog, Reader, left_out, log_end, read_log, tail_position
from pursuit.tasks.runner import tail_of
from pursuit.tasks.supervisor import segment_name


def everything(folder: Path, position: int = 0, most: int = 1 << 20) -> bytes:
    data = b""
    while True:
        piece, position = read_log(folder, LOG, position, most)
        if not piece:
            return data
        data += piece


def test_lines_that_the_disk_took_half_of_are_lost_whole(tmp_path: Path) -> None:
    log = CommandLog(tmp_path, LOG)
    log.append(b"before\n")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # the rest of a write is refused, as by a full disk
        log.append(b"never\n" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (log.lost, log.position) == (60, 7)
    log.append(b"after\n")
    assert everything(tmp_path) == b"before\nafter\n"
    assert log.position == log_end(tmp_path, LOG) == 13


def test_a_log_keeps_the_newest_half_at_least_and_never_more_than_its_bound(tmp_path: Path) -> None:
    log = CommandLog(tmp_path, LOG, bound=1_000)
    for number in range(1_000):
        log.append(b"line %04d\n" % number)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_000 + 20
    kept = everything(tmp_path, most=7).splitlines()
    assert kept == [b"line %04d" % number for number in range(1_000 - len(kept), 1_000)]
    assert 50 <= len(kept) <= 102
    assert log.position == 10_000


@pytest.mark.parametrize("position", [0, 5, 500, 640, 995, 1_000])
def test_a_log_goes_on_from_where_it_was_cut(tmp_path: Path, position: int) -> None:
    log = CommandLog(tmp_path, LOG, bound=1_000)
    log.append(b"a" * 600)
    log.append(b"b" * 400)
    log.cut(position)
    log = CommandLog(tmp_path, LOG, bound=1_000)
    log.cut(position)
    log.append(b"c\n")
    assert everything(tmp_path) == (b"a" * 600 + b"b" * 400)[:position] + b"c\n"
    assert log.position == log_end(tmp_path, LOG) == position + 2


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(0, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_the_tail_is_the_last_lines(tmp_path: Path, sizes: list[int], wanted: int) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    log = CommandLog(tmp_path, LOG, bound=20_000)
    lines = ["x" * size for size in sizes]
    for line in lines:
        log.append(line.encode() + b"\n")
    assert tail_of(tmp_path, LOG, wanted) == lines[len(lines) - min(wanted, len(lines)) :]
    assert read_log(tmp_path, LOG, tail_position(tmp_path, LOG, 0))[0] == b""


def spooled(folder: Path, name: str, text: bytes, chance: random.Random) -> None:
    """Segments as a supervisor would leave them."""
    number = 0
    while text:
        number, size = number + 1, chance.randint(1, max(1, len(text)))
        (folder / segment_name(name, number)).write_bytes(text[:size])
        text = text[size:]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_reading_from_any_mark_gives_every_line_once_and_in_order(tmp_path: Path, seed: int) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    chance = random.Random(seed)
    out = b"".join(b"done %d %s\n" % (n, b"x" * chance.choice([0, 9, 90_000])) for n in range(chance.randint(0, 40)))
    spooled(tmp_path, "out", out, chance)
    spooled(tmp_path, "err", b"e\r\nf\r" * chance.randint(0, 9), chance)
    rules = [MetricRule(name="done", pattern=r"done (\d+)")]
    command = Command(argv=["x"], unit_pattern=r"done (\d+)", metrics=rules)
    reader = Reader(tmp_path, command, {})
    while reader.step():
        pass
    (tmp_path / "exit").write_text('{"code": 0, "at": 1}')
    reader.step()
    whole, units, lines = everything(tmp_path), reader.progress.units.count, reader.progress.lines
    metrics = reader.progress.metrics.found

    for path in [*tmp_path.glob("log*"), *tmp_path.glob("errors*"), tmp_path / "units", tmp_path / "exit"]:
        path.unlink(missing_ok=True)
    mark: dict[str, Any] = {}
    for _ in range(6):  # each reader is one that was killed after its last mark
        reader = Reader(tmp_path, command, mark)
        for _ in range(chance.randint(0, 3)):
            track = chance.choice(reader._tracks)
            reader._advance(track)
            if chance.random() < 0.5:
                mark = json.loads(json.dumps(reader.mark()))
                reader.discard(mark)
    (tmp_path / "exit").write_text('{"code": 0, "at": 1}')
    reader = Reader(tmp_path, command, mark)
    while not reader.finished:
        reader.step()
    again = everything(tmp_path)
    assert sorted(again.splitlines()) == sorted(whole.splitlines())
    assert [line for line in again.splitlines() if line.startswith(b"done")] == [
        line for line in whole.splitlines() if line.startswith(b"done")
    ]
    assert (reader.progress.units.count, reader.progress.lines) == (units, lines)
    assert reader.progress.metrics.found == metrics


def test_a_gap_is_told_where_it_happened(tmp_path: Path) -> None:
    (tmp_path / segment_name("out", 1)).write_bytes(b"before\nhalf")
    (tmp_path / (segment_name("out", 2) + ".gap")).write_text('{"dropped": 12}')
    (tmp_path / segment_name("out", 3)).write_bytes(b"rest\nafter\n")
    (tmp_path / "exit").write_text('{"code": 0, "at": 1}')
    reader = Reader(tmp_path, Command(argv=["x"]), {})
    while not reader.finished:
        reader.step()
    lines = tail_of(tmp_path, LOG, 10)
    assert lines == [
        "before",
        "half",
        "[12 bytes of output are missing here: the limit of unread output was reached]",
        "rest",
        "after",
    ]
    reader.discard(reader.mark())
    assert [path.name for path in tmp_path.glob("out.*")] == [segment_name("out", 3)]


def test_what_is_not_kept_of_a_log_is_told(tmp_path: Path) -> None:
    log = CommandLog(tmp_path, LOG, bound=1_000)
    for number in range(300):
        log.append(f"line {number:04}\n".encode())
    everything = tail_position(tmp_path, LOG, 1_000)
    said = left_out(tmp_path, LOG, everything, 1_000)
    assert said is not None and f"the first {everything:,} bytes" in said
    assert left_out(tmp_path, LOG, tail_position(tmp_path, LOG, 10), 10) is None
