"""The supervisor's parts where a real disk or system would have to fail: no byte is lost without a count."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pursuit.processes.subreaper import start_time, subreaping, this_process
from pursuit.processes.tree import ProcessIdentity, ProcessInfo, Root, members_of
from pursuit.tasks.command import Command
from pursuit.tasks.reader import LOG, Reader
from pursuit.tasks.runner import tail_of
from pursuit.tasks.supervisor import (
    ChildProcess,
    Stream,
    segment_name,
    write_once,
)


def child(folder: Path, **limits: int) -> tuple[ChildProcess, Stream]:
    request: dict[str, Any] = {"id": "x", "folder": str(folder), "segment": 10, "unread": 1_000, **limits}
    one = ChildProcess(request)
    stream = Stream(one, "out", -1)
    one.streams.append(stream)
    return one, stream


def read(folder: Path) -> list[str]:
    reader = Reader(folder, Command(argv=["x"]), {})
    while not reader.finished:
        reader.step(last=True)
    return tail_of(folder, LOG, 100)


def test_a_disk_that_refuses_for_a_while_leaves_a_gap_of_a_known_size(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    one, stream = child(folder)
    stream.take(memoryview(b"a\nb\nc\nd\n12"))
    folder.rename(tmp_path / "away")
    stream.take(memoryview(b"345\n678\n"))
    (tmp_path / "away").rename(folder)
    stream.take(memoryview(b"e\nf\n"))
    one.code = 0
    one.note_end()
    assert one.noted
    gap = "[8 bytes of output are missing here: the limit of unread output was reached]"
    assert read(folder) == ["a", "b", "c", "d", "12", gap, "e", "f"]


def test_an_end_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    one, stream = child(tmp_path)
    stream.take(memoryview(b"kept"))
    one.code = 0
    (tmp_path / "exit.new").mkdir()  # in its way
    one.note_end()
    assert not one.noted
    (tmp_path / "exit.new").rmdir()
    one.note_end()
    assert one.noted
    assert read(tmp_path) == ["kept"]


def test_what_was_read_makes_room_again(tmp_path: Path) -> None:
    one, stream = child(tmp_path, unread=30)
    stream.take(memoryview(b"x" * 50))
    assert (one._unread(), stream.dropped) == (30, 20)
    for number in (1, 2):
        (tmp_path / segment_name("out", number)).unlink()
    one.looked = 0.0
    stream.take(memoryview(b"y" * 5))
    assert (one._unread(), stream.dropped) == (15, 0)
    assert (tmp_path / (segment_name("out", 4) + ".gap")).read_text() == '{"dropped": 20}'


@pytest.mark.parametrize("subreaper", [True, False])
def test_a_command_that_was_given_up_between_fork_and_exec_does_not_run(tmp_path: Path, subreaper: bool) -> None:
    """Its supervisor was killed there, and the next process has settled its task."""
    one, _ = child(tmp_path)
    request = {"argv": ["touch", str(tmp_path / "ran")], "cwd": "/", "env": dict(os.environ)}
    unraised = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_once(one.path("meta"), {"refused": "given up"})
    with pytest.raises(subprocess.SubprocessError):
        one.start(request, this_process(), unraised, subreaping() if subreaper else None)
    assert {path.name for path in tmp_path.iterdir()} == {"meta"}
    (tmp_path / "meta").unlink()
    one.start(request, this_process(), unraised, subreaping() if subreaper else None)
    assert one.process.wait() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"meta", "ran"}
    for stream in one.streams[1:]:
        os.close(stream.descriptor)


def test_a_process_that_was_given_the_number_later_is_another(tmp_path: Path) -> None:
    me = os.getpid()
    start = start_time(me)
    assert ProcessIdentity(pid=me, start=start).lives
    assert not ProcessIdentity(pid=me, start="1").lives
    assert not ProcessIdentity(pid=me, start=start, boot="another boot").lives
    assert not ProcessIdentity(pid=2**22 + 1, start=start).lives
    assert start_time(2**22 + 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the first process of all reaps them at once")
def test_a_zombie_does_not_live() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        start = start_time(process.pid)
        assert start is not None
        assert not ProcessIdentity(pid=process.pid, start=start).lives


def test_who_belongs_to_a_command() -> None:
    root = Root(tag="mine", leader=ProcessIdentity(pid=100, start="5"), subreaper=ProcessIdentity(pid=99, start="5"))
    everybody = [
        ProcessInfo(100, 1, 100, 100, "5"),
        ProcessInfo(101, 100, 100, 100, "6"),  # in the group
        ProcessInfo(102, 1, 102, 102, "7", "mine"),  # left the group, carries the tag
        ProcessInfo(103, 102, 103, 103, "8"),  # its child, without a tag
        ProcessInfo(200, 1, 200, 200, "5", "other"),
        ProcessInfo(201, 200, 200, 200, "5"),
    ]
    assert {one.pid for one in members_of(everybody, root)} == {100, 101, 102, 103}
    # Without a group or an environment of ours: by the subreaper, and because it was seen before.
    orphans = [
        ProcessInfo(99, 1, 9, 9, "5"),
        ProcessInfo(104, 99, 104, 104, "8"),
        ProcessInfo(105, 1, 105, 105, "8"),
        ProcessInfo(106, 105, 9, 9, "9"),
    ]
    assert {one.pid for one in members_of(orphans, root)} == {104}
    assert {one.pid for one in members_of(orphans, root, {(105, "8"), (106, "5")})} == {104, 105, 106}
    assert {one.pid for one in members_of(orphans, root, {(105, "7")})} == {104}
    # The numbers of another boot mean nothing.
    before = Root(
        tag="mine",
        leader=ProcessIdentity(pid=100, start="5", boot="another"),
        subreaper=ProcessIdentity(pid=99, start="5", boot="another"),
    )
    assert {one.pid for one in members_of([*everybody, *orphans], before)} == {102, 103}
    # Another process has the number of the subreaper by now.
    assert members_of([ProcessInfo(99, 1, 9, 9, "7"), *orphans[1:]], root) == []
    # Another leads a group of that number by now.
    stranger = [ProcessInfo(100, 1, 100, 100, "9"), ProcessInfo(101, 100, 100, 100, "9"), *everybody[2:]]
    assert {one.pid for one in members_of(stranger, root)} == {102, 103}


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc")
def test_both_ways_to_look_at_processes_see_the_same() -> None:
    from pursuit.processes.tree import _from_proc, _from_ps

    (by_proc,) = [one for one in _from_proc() if one.pid == os.getpid()]
    (by_ps,) = [one for one in _from_ps() if one.pid == os.getpid()]
    assert (by_proc.parent, by_proc.group) == (by_ps.parent, by_ps.group) == (os.getppid(), os.getpgrp())
    assert by_ps.start
