"""Logs of a server process: one event per line, on standard error, as text or JSON.

Invariant: nothing goes to standard output; a record is one line that values cannot break or forge (exceptions add
marked lines); apparent credentials are redacted.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, Literal, cast, get_args

from pursuit.errors import InvalidArgument
from pursuit.upstream.fixed_patterns import PLAIN_VALUE, SECRET_TEXT

Form = Literal["text", "json"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
REDACTED: Final = "[redacted]"

_FIELDS = "pursuit_fields"
_SHORT = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn", logging.ERROR: "error"}


def event(logger: logging.Logger, level: int, message: str, /, **fields: Any) -> None:
    """Logs one event with its fields: `event(log, logging.INFO, "listening", url=url)`."""
    logger.log(level, "%s", message, extra={_FIELDS: fields})


def configure(level: str, form: str) -> None:
    """Sends all log records of this process to standard error; a repeated call replaces the configuration."""
    if level not in LEVELS:
        raise InvalidArgument(f"{level!r} is not a log level; use {', '.join(LEVELS)}", level=level)
    if form not in get_args(Form):
        raise InvalidArgument(f"{form!r} is not a log format; use {' or '.join(get_args(Form))}", form=form)
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _ToStandardError)]:
        root.removeHandler(handler)
    handler = _ToStandardError()
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    root.addHandler(handler)
    number = LEVELS[level]
    logging.getLogger("pursuit").setLevel(number)
    # Libraries log their routine work, session ids included, at info: that is for debugging.
    for name in ("mcp", "uvicorn", "uvicorn.access"):
        logging.getLogger(name).setLevel(number if number == logging.DEBUG else max(number, logging.WARNING))


class _ToStandardError(logging.Handler):
    """Writes to the current standard error; a closed pipe does not stop missions."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - the boundary: a value that cannot be shown stops no work
            line = f"a log record of {_escape(record.name)} could not be written: {type(error).__name__}"
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        ours = {"at": at, "level": record.levelname.lower(), "logger": record.name, "event": _mask(record.getMessage())}
        if record.exc_info:
            ours["exception"] = _mask(self.formatException(record.exc_info))
        # A field cannot replace a key of the record.
        fields = {f"{key}_" if key in ours else key: value for key, value in _fields(record).items()}
        return json.dumps({**ours, **fields}, default=str, allow_nan=False)


class _TextLines(logging.Formatter):
    """`12:03:44 info  listening url=http://127.0.0.1:8000/mcp`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = _SHORT.get(record.levelno, record.levelname.lower())
        fields = _fields(record)
        if record.name.partition(".")[0] != "pursuit":
            fields["logger"] = record.name
        words = [f"{at} {level:<5}", _escape(_mask(record.getMessage()))]
        words += [f"{_escape(key)}={_shown(value)}" for key, value in fields.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            lines += [f"    | {_escape(line)}" for line in _mask(self.formatException(record.exc_info)).splitlines()]
        return "\n".join(lines)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given: Mapping[str, Any] = getattr(record, _FIELDS, {})
    return {key: _safe(value) for key, value in given.items()}


def _safe(value: Any) -> Any:
    """The value as plain JSON, with credentials redacted."""
    if isinstance(value, Mapping):
        return {str(key): _safe(one) for key, one in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(one) for one in cast("list[Any]", value)]
    plain = value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))
    return value if plain else _mask(str(value))


def _mask(text: str) -> str:
    return SECRET_TEXT.sub(lambda found: f"{found[1] or ''}{REDACTED}", text)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        plain = PLAIN_VALUE.fullmatch(value) is not None and value.isprintable()
        return value if plain else _escape(json.dumps(value, ensure_ascii=False))
    return _escape(json.dumps(value, ensure_ascii=False, default=str))


def _escape(text: str) -> str:
    """Text on one line, with control characters escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
