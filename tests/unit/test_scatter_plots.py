"""Plots of attempts: axes that begin behind their labels, ticks where there are values, names and the target."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pursuit.reports.plots import LETTER, scatter_plot

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f"{SVG}text")


def test_no_label_begins_outside_of_the_picture() -> None:
    points = [(1.0, 2.7008571e-12, "one"), (9.0, 2.7008999e-12, "two")]
    found = texts(scatter_plot(points, label="error over calls", target=2.7009e-12))
    left = [(float(one.get("x", "0")), one.text or "") for one in found if one.get("text-anchor") == "end"]
    assert any("e-12" in words for _, words in left)
    assert all(x - LETTER * len(words) >= 0 for x, words in left)


def test_what_took_less_than_a_second_has_ticks_and_nothing_is_below_zero() -> None:
    said = [one.text or "" for one in texts(scatter_plot([(0.4, 3.0, "a")], label="x", whole=False))]
    assert {"0.1", "0.2", "0.3"} <= set(said)
    counted = [one.text or "" for one in texts(scatter_plot([(0.0, 3.0, "a")], label="x"))]
    assert "0" in counted and not any(re.match(r"-|\N{MINUS SIGN}", words) for words in counted)


def test_a_few_points_are_named_and_the_target_is() -> None:
    few = scatter_plot([(1.0, 3.0, "mine <b>"), (2.0, 4.0, "y" * 99)], label="x", target=3.5)
    said = [one.text or "" for one in texts(few)]
    assert "mine <b>" in said and "target 3.5" in said and "y" * 23 + "…" in said
    many = texts(scatter_plot([(float(n), 3.0, f"name {n}") for n in range(20)], label="x"))
    assert not any("name" in (one.text or "") for one in many)


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """The places of the texts beside points: left, top, right, bottom; those of the axes have anchors of their own."""
    found: list[tuple[float, float, float, float]] = []
    for one in texts(svg):
        words, x, y = one.text or "", float(one.get("x", "0")), float(one.get("y", "0"))
        wide = LETTER * len(words)
        left = {"end": x - wide, "middle": x - wide / 2}.get(one.get("text-anchor", "start"), x)
        found.append((left, y - 9, left + wide, y + 2))
    return found


def overlapping(svg: str) -> list[tuple[int, int]]:
    places = list(enumerate(boxes(svg)))
    return [
        (number, other)
        for number, (l1, t1, r1, b1) in places
        for other, (l2, t2, r2, b2) in places[number + 1 :]
        if l1 < r2 and l2 < r1 and t1 < b2 and t2 < b1
    ]


CLOSE = [
    (10.0, 1.0, "claude-haiku (attempt-1)"),
    (10.2, 1.01, "claude-opus (attempt-2)"),
    (10.4, 1.0, "gpt (attempt-3)"),
]


def test_names_of_points_that_lie_close_together_do_not_overlap() -> None:
    for points in (
        CLOSE,
        [(5.0, 1.0, f"agent {n} (attempt-{n})") for n in range(8)],
        [(float(n), 1.0, f"a long name of agent {n} (a)") for n in range(8)],
        [(9.9, 1.0, "at the target (a)"), (10.0, 1.0, "beside it (b)")],
        [(0.0, 0.0, "corner (a)"), (0.0, 1e6, "top (b)"), (10.0, 1e6, "right (c)")],
    ):
        svg = scatter_plot(points, label="x", target=1.0)
        assert overlapping(svg) == []
        assert all(left >= 0 and right <= 480 and top >= 0 for left, top, right, _ in boxes(svg))
    said = [one.text for one in texts(scatter_plot(CLOSE, label="x"))]
    assert {"claude-haiku", "claude-opus", "gpt"} <= set(said)
