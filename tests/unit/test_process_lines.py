"""Pieces of output become whole, bounded lines without secrets, wherever they were cut."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pursuit.tasks.command import blanked
from pursuit.tasks.reader import CUT, LONGEST, LineCutter


def fed(pieces: list[bytes], secrets: tuple[str, ...] = ()) -> bytes:
    cutter = LineCutter(blanked(secrets))
    return b"".join([*map(cutter.feed, pieces), cutter.rest()])


def expected(text: bytes) -> bytes:
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return lines if lines.endswith(b"\n") or not lines else lines + b"\n"


@given(st.lists(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff", b"\xc3\xa9"]), max_size=8).map(b"".join)))
@example([b"\r", b"\n"])
@example([b"a\r", b"\nb"])
@example([b"\r", b""])
def test_lines_do_not_depend_on_where_the_output_was_cut(pieces: list[bytes]) -> None:
    assert fed(pieces) == expected(b"".join(pieces))


@given(st.lists(st.integers(1, 40_000), max_size=8), st.booleans())
def test_a_long_line_is_cut_with_a_mark_and_the_next_one_is_whole(sizes: list[int], ended: bool) -> None:
    total = sum(sizes)
    pieces = [b"x" * size for size in sizes]
    out = fed([*pieces, b"\nnext" + (b"\n" if ended else b"")])
    first = b"x" * total if total <= LONGEST else b"x" * LONGEST + CUT
    assert out == first + b"\nnext\n"


def test_what_is_held_is_bounded_whatever_comes() -> None:
    cutter = LineCutter()
    out = b"".join(cutter.feed(b"x" * 30_000) for _ in range(100))
    assert out == b"x" * LONGEST + CUT + b"\n"
    assert cutter.held <= LONGEST
    assert cutter.feed(b"still\nnew\n") == b"new\n"


def test_a_cut_leaves_no_half_of_a_character() -> None:
    out = fed(["é".encode() * LONGEST, b"\n"])
    assert out.decode().startswith("é" * (LONGEST // 2 - 1))


@given(st.integers(0, 12), st.integers(LONGEST - 20, LONGEST + 20))
def test_no_secret_is_left_whole_or_half_at_any_cut(at: int, before: int) -> None:
    secret = "hunter2hunter"
    text = b"x" * before + secret.encode()
    for tail in (b"\n", b"y" * 100_000):
        out = fed([text[: before + at], text[before + at :] + tail], (secret,))
        assert b"hun" not in out


def test_each_line_of_a_secret_with_several_counts() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----\n"
    out = fed([b"got MIIEvQIBADANBg\n", b"and kqhkiG9w0BAQ\n"], (key,))
    assert out == b"got ***\nand ***\n"
