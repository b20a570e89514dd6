"""Log lines go to standard error, one a record, and hold no credential."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pursuit.errors import InvalidArgument
from pursuit.server.logs import configure, event
from pursuit.server.tokens import PREFIX

NAMES = ("", "pursuit", "mcp", "uvicorn", "uvicorn.access")
HOSTILE = 'x\n12:00:00 info  forged\r\x1b[31m\x00\x85\u2028\u202e\ud800 "q" a=b'


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    levels = [one.level for one in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    root = loggers[0]
    root.handlers[:] = [one for one in root.handlers if type(one).__module__ != configure.__module__]


@contextmanager
def alone(form: str) -> Iterator[None]:
    """Logs without pytest's own record of it, which cannot be sent between its workers with such characters inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        configure("info", form)
        yield


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("pursuit.test")


def documents(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_one_object_a_line_on_standard_error(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    event(log, logging.INFO, "listening", url="http://127.0.0.1:1/mcp", count=3, ratio=0.5, odd=float("nan"), none=None)
    log.warning("plain %d", 7)
    out, err = capsys.readouterr()
    assert out == ""
    first, second = documents(err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("at"))
    assert first == {
        "level": "info",
        "logger": "pursuit.test",
        "event": "listening",
        "url": "http://127.0.0.1:1/mcp",
        "count": 3,
        "ratio": 0.5,
        "odd": "nan",
        "none": None,
    }
    assert (second["event"], second["level"]) == ("plain 7", "warning")


def test_text_is_a_line_for_people(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    event(log, logging.INFO, "listening", url="http://x/mcp", why="two words", empty="", many=[1, "a"])
    event(log, logging.DEBUG, "not shown")
    logging.getLogger("mcp.server").warning("odd")
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d info  listening url=http://x/mcp why="two words" empty="" many=\[1, "a"\]', first
    )
    assert second.endswith(" warn  odd logger=mcp.server")


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_value_breaks_or_forges_a_line(form: str, log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(form):
        event(log, logging.INFO, HOSTILE, **{"value": HOSTILE, HOSTILE: HOSTILE, "deep": {HOSTILE: [HOSTILE]}})
    err = capsys.readouterr().err
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    if form == "json":
        assert documents(err)[0]["value"] == HOSTILE


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_adds_no_line_of_its_own_making(
    form: str, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone(form):
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("failed")
    lines = capsys.readouterr().err[:-1].split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("    | ") for line in lines[1:])
    if form == "json":
        assert "ValueError" in json.loads(lines[0])["exception"]


def test_a_credential_in_other_text_is_redacted(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    token = f"{PREFIX}{'A' * 43}"
    for form in ("text", "json"):
        configure("info", form)
        event(log, logging.INFO, f"sent Authorization: Bearer hush and {token}", url=f"http://x/?t={token}")
        try:
            raise ValueError(token)
        except ValueError:
            log.exception("failed")
        err = capsys.readouterr().err
        assert token not in err
        assert "hush" not in err


def test_libraries_are_quiet_unless_faults_are_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in ("mcp.server", "uvicorn.error", "uvicorn.access")]
    configure("info", "text")
    for logger in loggers:
        logger.info("daily work")
    assert capsys.readouterr().err == ""
    configure("debug", "text")
    for logger in loggers:
        logger.info("daily work")
    assert capsys.readouterr().err.count("daily work") == 3


def test_configuring_again_writes_each_line_once(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug", "text")
    configure("error", "json")
    event(log, logging.WARNING, "not shown")
    event(log, logging.ERROR, "shown", event="mine", level="mine", logger="mine")
    (line,) = documents(capsys.readouterr().err)
    assert (line["event"], line["event_"], line["level"]) == ("shown", "mine", "error")


def test_a_value_that_cannot_be_shown_and_a_reader_that_has_gone_stop_nobody(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    configure("info", "json")
    event(log, logging.INFO, "said", value=Broken())
    assert "could not be written: RuntimeError" in capsys.readouterr().err

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(sys, "stderr", Gone())
    event(log, logging.INFO, "said")


@pytest.mark.parametrize(("level", "form"), [("loud", "text"), ("info", "xml")])
def test_a_wrong_setting_is_refused(level: str, form: str) -> None:
    with pytest.raises(InvalidArgument, match="use "):
        configure(level, form)
