"""Reports: hostile text stays text, plots hold at the edges, nothing is loaded from anywhere."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pursuit.reports import html, markdown
from pursuit.reports.markdown import inline
from pursuit.reports.plots import HEIGHT, MAX_POINTS, WIDTH, line_plot, nice_step, thin, value_axis
from pursuit.reports.report import Report
from pursuit.reports.wording import figure, moment, seconds, span, text

HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)></style></title></svg>\n\n# head\n```\n| a | b |\n'
    "</td> [x](http://evil.example) ![y](http://evil.example/i.png) <http://evil.example> `code` "
    "{{ 7 * 7 }} \u202e \ud800 \x00"
)


def render_html(report: dict[str, Any]) -> str:
    return html.render_html(Report.read(report))


def render_markdown(report: dict[str, Any]) -> str:
    return markdown.render_markdown(Report.read(report))


def full_report(word: str = "plain") -> dict[str, Any]:
    """A report with every key, where `word` stands wherever text can stand."""
    return {
        "format": "pursuit.report/1",
        "session_id": word,
        "directive": word,
        "status": word,
        "verdict": word,
        "verdict_reason": word,
        "reason_text": word,
        "created_at": word,
        "started_at": "2026-01-02T03:04:05+00:00",
        "ended_at": "2026-01-02T03:05:06Z",
        "criteria": [
            {
                "criterion_id": word,
                "kind": word,
                "required": index == 0,
                "status": ("met", word)[index],
                "description": word,
                "evidence": {word: [word, 1.5, None]},
                "source": {"tool": word, "call_id": word, "iteration": 3},
            }
            for index in range(2)
        ],
        "budget": {
            "max_iterations": 10,
            "on_exhausted": "stop",
            "used": {"iterations": 7, "wall_clock_seconds": 61.0},
        },
        "iteration_count": 7,
        "metrics": {
            word: {
                "points": [[0, 3.0], [1, 2.0], [2, 2.5]],
                "best": 2.0,
                "last": 2.5,
                "target": {"op": word, "target": 1.0},
            }
        },
        "calls": {
            "total": 2,
            "by_outcome": {word: 2},
            "by_tool": [{"tool": word, "calls": 2, "by_outcome": {word: 2}, "seconds": 0.5}],
        },
        "refused": [{"call_id": word, "iteration": 1, "tool": word, "outcome": "denied", "reason": word}],
        "unknown": [{"call_id": word, "iteration": 1, "tool": word, "reason": word}],
        "errors": [{"iteration": 1, "tool": word, "message": word}],
        "timeline": [
            {
                "iteration_index": 0,
                "verdict": "continue",
                "verdict_reason": word,
                "started_at": word,
                "ended_at": word,
                "calls": 2,
                "rationale": word,
            }
        ],
        "timeline_omitted": 5,
        "lessons": [word],
        "warnings": [word],
        "ledger": {"head_seq": 9, "head_hash": word, "root": word},
    }


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_text_adds_no_tag_and_no_attribute() -> None:
    plain, hostile = Page(render_html(full_report())), Page(render_html(full_report(HOSTILE)))
    assert "\x00" not in hostile.words and "\u202e" not in hostile.words and hostile.words.encode()
    assert "1 of 2 met" in plain.words and "7 of 10" in plain.words
    # The directive has several lines now, which is one paragraph more; all else is the same skeleton.
    extra = hostile.tags.copy()
    for tag in plain.tags:
        extra.remove(tag)
    assert extra == ["p"]
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    assert "<script>alert(1)</script>" in hostile.words
    assert "{{ 7 * 7 }}" in hostile.words


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = render_html(full_report(HOSTILE))
    seen = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name in {"src", "href", "srcset"} or name.startswith("on")]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(value for name, value in seen.attributes if value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; ")
    assert "script-src" not in policy


def test_many_metrics_end_in_a_table() -> None:
    values = {"best": None, "target": None}
    metrics = {f"m{index:02}": {"points": [[0, index]], **values, "last": index} for index in range(30)}
    page = render_html({**full_report(), "metrics": metrics})
    assert page.count("<svg") == 24
    assert "m29" in Page(page).words


# Markdown


def tokens(source: str) -> list[Any]:
    return [
        inner
        for token in MarkdownIt("commonmark").enable("table").parse(source)
        for inner in (token, *(token.children or ()))
    ]


def test_hostile_text_adds_no_markup_to_markdown() -> None:
    found = {token.type for token in tokens(render_markdown(full_report(HOSTILE)))}
    assert not found & {
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "fence",
        "code_block",
        "code_inline",
        "em_open",
    }


def test_markdown_tables_stay_whole() -> None:
    plain, hostile = (render_markdown(full_report(word)) for word in ("plain", HOSTILE))
    for kind in ("table_open", "tr_open", "td_open", "th_open", "heading_open", "list_item_open"):
        counts = [sum(token.type == kind for token in tokens(source)) for source in (plain, hostile)]
        assert counts[0] == counts[1] > 0, kind


@given(st.text())
def test_inline_text_reads_back_as_it_was(value: str) -> None:
    parsed = tokens(f"- {inline(value)}")
    expected = " ".join(text(value).split())
    assert "".join(token.content for token in parsed if token.type in {"text", "text_special"}) == expected
    assert sum(token.type == "list_item_open" for token in parsed) == 1


@pytest.mark.parametrize(
    "value", ["- x", "+ x", "1. x", "12) x", "===", "---", "# x", "> x", "| x", "www.evil.example"]
)
def test_openings_of_blocks_are_defused(value: str) -> None:
    assert "\\" in inline(value)
    assert [token.type for token in tokens(inline(value))][:1] == ["paragraph_open"]


# Plots


def drawn(svg: str) -> ElementTree.Element:
    """Parses the picture and checks that every coordinate lies inside it."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.get(name, 0)) <= WIDTH
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(element.get(name, 0)) <= HEIGHT
        for pair in element.get("points", "").split():
            x, y = (float(part) for part in pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    return root


def classes(svg: str) -> list[str]:
    return [element.get("class", "") for element in drawn(svg).iter()]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=30), finite | st.none(), finite | st.none())
@example([(0.0, 1.7e293), (0.0, 3.6e-274)], None, None)
def test_any_finite_points_can_be_drawn(
    points: list[tuple[float, float]], best: float | None, target: float | None
) -> None:
    drawn(line_plot(sorted(points), label="m", best=best, target=target))


def test_points_that_are_no_finite_numbers_are_left_out() -> None:
    points = [[0, 1.0], [1, math.nan], [2, math.inf], [3, None], [8, 2.0]]
    page = render_html(
        {**full_report(), "metrics": {"m": {"points": points, "best": math.nan, "last": 2.0, "target": None}}}
    )
    line = re.search(r'class="line" points="([^"]*)"', page)
    assert line
    assert len(line[1].split()) == 2


def test_thinning_keeps_the_ends_the_extremes_and_the_best() -> None:
    points = [(float(index), math.sin(index / 50)) for index in range(20_000)]
    points[7_001], points[12_345] = (7_001.0, 9.0), (12_345.0, -9.0)
    kept = thin(points, keep=points[777][1])
    assert len(kept) <= MAX_POINTS
    assert {points[0], points[-1], points[7_001], points[12_345], points[777]} <= set(kept)
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([1, 1001], True), ([1, 1000], False), ([0, 1e6], False), ([-1, 1e6], False), ([2, 2], False)],
)
def test_the_scale_is_logarithmic_only_over_more_than_three_decades(values: list[float], logarithmic: bool) -> None:
    assert value_axis(values, None).logarithmic is logarithmic


def test_ticks_are_nice_and_differ() -> None:
    assert [words for _, words in value_axis([0, 10], None).ticks] == ["0", "5", "10"]
    for values in ([1.7248, 1.7249], [1e9, 1e9 + 5], [0.00001, 0.00002], [123456, 123999], [3, 30_000_000]):
        labels = [words for _, words in value_axis(values, None).ticks]
        assert len(labels) >= 2
        assert len(set(labels)) == len(labels)
    assert [nice_step(rough) for rough in (0.9, 1.1, 2.5, 7.0)] == [1, 2, 5, 10]


def test_a_target_is_inside_the_picture_and_drawn() -> None:
    assert "target" in classes(line_plot([(0, 1.0), (1, 2.0)], label="m", target=50.0))
    # A logarithmic axis has no place for zero.
    assert "target" not in classes(line_plot([(0, 1.0), (1, 1e5)], label="m", target=0.0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1.7578112635808552, "1.757811"),
        (29784.18, "29,784.18"),
        (1e12, "1e+12"),
        (None, "\u2013"),
        (4.0, "4"),
    ],
)
def test_numbers_for_people(value: Any, words: str) -> None:
    assert figure(value) == words


def test_times_for_people() -> None:
    assert [span(value) for value in (0.25, 5, 74, 3600, 90_061)] == ["250 ms", "5.0 s", "1 min 14 s", "1 h", "1 d 1 h"]
    assert moment("2026-01-02T04:04:05+01:00") == "2026-01-02 03:04:05 UTC"
    assert moment("yesterday") == "yesterday"
    assert json.loads(json.dumps(text({"a": 1}))) == '{"a": 1}'


@pytest.mark.parametrize(
    ("value", "level", "shown"),
    [
        (2.7008571488865134e-12, None, "2.700857e-12"),
        (2.7008999e-12, 2.7009e-12, "2.7008999e-12"),
        (2.7009e-12, 2.7009e-12, "2.7009e-12"),
        (264.5000000001, 264.5, "264.5000000001"),
        (264.22471, 264.5, "264.2247"),
        (1_234_567.25, 1_234_567, "1,234,567.2"),
        (-0.0, 0, "0"),
        (1e-9, 0, "1e-09"),
        (5, 5.0, "5"),
    ],
)
def test_a_number_reads_on_its_own_side_of_its_level(value: float, level: float | None, shown: str) -> None:
    assert figure(value, level) == shown


def test_times_in_a_column_have_three_digits() -> None:
    given = (0.0150282, 9.876, 12.34, 4567.8, None)
    assert [seconds(value) for value in given] == ["0.015", "9.88", "12.3", "4,568", "\u2013"]
