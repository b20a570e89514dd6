"""Plots of attempts: axes that begin behind their labels, and ticks where there are values."""

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
