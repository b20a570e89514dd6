"""How the page writes the output of commands, and lays out the timeline of a shared file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place, mission

from pursuit.page.share import lay_out
from pursuit.page.tasks import ansi

ESC = "\x1b"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["plain <b>"], "plain &lt;b&gt;"),
        ([f"{ESC}[31mred{ESC}[0m out"], '<span class="a1">red</span> out'),
        ([f"{ESC}[1;92mgood{ESC}[22m{ESC}[39m."], '<span class="a10 bold">good</span>.'),
        ([f"{ESC}[41m{ESC}[4mon red"], '<span class="b1 under">on red</span>'),
        (
            [f"{ESC}[38;5;208morange{ESC}[38;2;0;0;255mblue"],
            '<span class="a11">orange</span><span class="a12">blue</span>',
        ),
        ([f"{ESC}[38:5:1mcolons"], '<span class="a1">colons</span>'),
        ([f"{ESC}[32mon", "on"], '<span class="a2">on</span>\n<span class="a2">on</span>'),
        ([f"{ESC}[2J{ESC}]0;title\x07{ESC}[12;3Hkept{ESC}[?25l"], "kept"),
        (["10 %\r55 %\r100 %\r"], "100 %"),
        ([f"{ESC}[;;;;m{ESC}[999;38m{ESC}[38;5mx{ESC}"], '<span class="a0">x</span>'),
        (["a\u202eb\x00c"], "a\ufffdb\ufffdc"),
    ],
)
def test_the_colours_of_a_terminal_are_classes_and_nothing_else_steers(lines: list[str], shown: str) -> None:
    assert str(ansi(lines)) == shown


def test_long_pauses_are_collapsed_and_calls_side_by_side_overlap() -> None:
    calls: list[dict[str, Any]] = [
        {"at": 100.0, "seconds": 10.0},
        {"at": 105.0, "seconds": 5.0},
        {"at": 9_000.0, "seconds": 10.0},
        {"outcome": "denied"},
    ]
    lay_out(calls)
    first, beside, late, _ = calls
    assert (first["left"], beside["left"]) == (0.0, pytest.approx(first["width"] / 2))
    assert late["left"] + late["width"] == pytest.approx(100.0)
    assert late["left"] - first["width"] < 7, "two hours take a small part of the width"
    lay_out([])


def test_a_shared_file_needs_a_name(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    place.write("m.toml", mission(target=100, iterations=1))
    place.run("run", "m.toml", "--mode", "auto")
    _, said = place.ask("report", "last", "--full", code=2)
    assert "-o FILE.html" in said
    place.ask("report", "last", "--full", "-o", "m.html")
    text = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "beam.evaluate" in text and "Poll the beam" in text
    assert (
        text.startswith("<!doctype html>")
        and "<script" not in text
        and "http://" not in text.replace("http://www.w3", "")
    )
    _, said = place.ask("report", "last", "--full", "-o", "m.html", code=2)
    assert "--force" in said
