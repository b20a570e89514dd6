"""What is found in lines: units once each, failure lines, the item, the message."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pursuit.core.patterns import line_matches
from pursuit.tasks.command import Command
from pursuit.tasks.progress_patterns import SECONDS, OutputProgress, Units


def signs(folder: Path, **patterns: str) -> OutputProgress:
    return OutputProgress(Command(argv=["x"], **patterns), Units(folder / "units"))


def test_a_unit_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    found = signs(tmp_path, unit_pattern=r"^done (\w+)")
    found.take(b"done a\ndone b\nnot done c\n")
    found.take(b"done a\ndone d again\n")
    assert (found.units.count, found.lines) == (3, 5)


def test_units_without_a_group_count_by_the_whole_match(tmp_path: Path) -> None:
    found = signs(tmp_path, unit_pattern=r"epoch \d+")
    found.take(b"epoch 1 loss 3\nepoch 1 loss 2\nepoch 2 loss 1\n")
    assert found.units.count == 2


def test_the_first_ten_failure_lines_are_kept_whole_and_once_each(tmp_path: Path) -> None:
    found = signs(tmp_path, failure_pattern="FAIL|ERROR")
    found.take(b"fine\n" + b"".join(b"x FAIL ERROR %d\n" % number for number in range(7)))
    found.take(b"".join(b"ERROR %d\n" % number for number in range(7, 20)))
    assert found.failures == [*(f"x FAIL ERROR {n}" for n in range(7)), "ERROR 7", "ERROR 8", "ERROR 9"]


def test_the_item_is_the_latest_and_the_message_the_last_line_that_says_something(tmp_path: Path) -> None:
    found = signs(tmp_path, item_pattern=r"building (\S+)")
    found.take(b"building one\nbuilding two\n\x1b[32mgood \xff\x1b[0m\n\n  \n\x1b[0m\n")
    assert (found.item, found.message) == ("two", "good \ufffd")
    found.take(b"\n" * 100_000)
    assert found.message == "good \ufffd"
    found.take(b"y" * 500 + b"\n")
    assert len(found.message) == 200


def test_a_match_never_goes_over_the_end_of_a_line() -> None:
    text = "a one\na\none a  two\n"
    assert [found[1] for found in line_matches(r"a\s+(\w+)", text, SECONDS)] == ["one", "two"]
    assert [found[0] for found in line_matches(r"^.*$", "x\ny\n", SECONDS)] == ["x", "y", ""]


def test_a_pattern_that_takes_too_long_is_switched_off_alone_and_stays_off(tmp_path: Path) -> None:
    command = Command(argv=["x"], unit_pattern=r"ok (\d+)", failure_pattern=r"((?:a|aa)+)+c", item_pattern=r"at (\w+)")
    found = OutputProgress(command, Units(tmp_path / "units"), seconds=0.05)
    began = time.process_time()
    (note,) = found.take(b"ok 1\nat one\n" + b"a" * 64 + b"b\nok 2\n")
    assert time.process_time() - began < 5
    assert note.startswith("failure_pattern was switched off")
    assert found.take(b"ok 3\naac\n" + b"a" * 64 + b"b\nat two\n") == []
    assert (found.units.count, found.item, found.failures, found.off) == (3, "two", [], ["failure_pattern"])
    again = OutputProgress(command, Units(tmp_path / "other"), off=found.off, seconds=0.05)
    assert again.take(b"aac\nok 1\n") == []
    assert (again.failures, again.units.count, again.notes) == ([], 1, [note])


def test_matches_that_go_over_many_lines_take_no_square_of_them(tmp_path: Path) -> None:
    found = OutputProgress(Command(argv=["x"], unit_pattern=r"a[^b]*"), Units(tmp_path / "units"), seconds=0.05)
    began = time.process_time()
    found.take(b"a\n" * 500_000)
    assert time.process_time() - began < 5


def test_long_output_is_looked_at_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    found = signs(tmp_path, unit_pattern=r"^n (\d+)$")
    found.take(b"".join(b"n %d\n" % number for number in range(50_000)))
    assert (found.units.count, found.lines) == (50_000, 50_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(0, 3_000)), st.lists(st.integers(0, 3_000)))
def test_units_that_were_not_marked_are_counted_again_after_a_crash(
    tmp_path: Path, marked: list[int], lost: list[int]
) -> None:
    path = tmp_path / "units"
    path.unlink(missing_ok=True)
    units = Units(path)
    units.add(map(str, marked))
    units.store()
    count = units.count
    assert count == len(set(marked))
    units.add(map(str, lost))
    units.store()
    again = Units(path, count=count)
    assert again.count == count
    again.add(map(str, lost))
    assert again.count == len({*marked, *lost})
