"""How the page writes the output of commands, and lays out a timeline; and the file of a shared mission."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_stage import Place, mission

from pursuit.page.tasks import plain
from pursuit.service.timeline import placed


def test_nothing_steers_the_terminal_and_a_progress_bar_is_its_last_state() -> None:
    assert plain("\x1b[1;92mgood\x1b[0m \x1b[2J\x1b]0;title\x07\x1b[12;3Hkept\x1b[?25l") == "good kept"
    assert plain("10 %\r55 %\r100 %\r") == "100 %"


def test_long_pauses_are_collapsed_and_calls_side_by_side_overlap() -> None:
    first, beside, late = placed([(100.0, 110.0), (105.0, 110.0), (9_000.0, 9_010.0)])
    assert (first.left, beside.left) == (0.0, pytest.approx(first.width / 2))
    assert late.left + late.width == pytest.approx(1.0)
    assert late.left - first.width < 0.07, "two hours take a small part of the width"
    assert placed([]) == []


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
