"""Reads TOML and JSON documents that a person wrote.

Any content yields data or `ValidationFailed` with the file's name.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from pursuit.errors import Fault, ValidationFailed
from pursuit.ledger.opening import file_of, is_address

TOKENS_FILE, SESSIONS_FILE = "tokens.json", "page.json"
"""The files beside the ledger that control access."""
STATE_FILES = (TOKENS_FILE, SESSIONS_FILE, "http.token", "asking.key", "signatures.jsonl")
STATE_FOLDERS = ("locks", "tasks", "live", "workspaces", "problems", "reports")
"""Files and folders beside the ledger. A longer name with such a prefix belongs to the same file."""


def as_table(value: object) -> Mapping[str, Any] | None:
    """The value if it is a table with text keys, else None."""
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[object, Any]", value)
    return cast("Mapping[str, Any]", table) if all(isinstance(key, str) for key in table) else None


MAX_SHOWN = 100
_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")


MAX_BYTES = 16 * 1024 * 1024
"""Far above any hand-written file; keeps a wrong file from filling the memory."""


def read_text(path: Path) -> str:
    """Reads the file as text, without a byte order mark."""
    try:
        with path.open("rb") as file:
            return read_stream(file, str(path))
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise unreadable(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_stream(file: BinaryIO, source: str) -> str:
    body = file.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise unreadable(source, f"is larger than {MAX_BYTES:,} bytes")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(source, f"is not UTF-8 text (byte {error.start})") from None


def write_private(path: Path, body: str | bytes) -> None:
    """Atomically writes a file that only its owner can read."""
    # mkstemp makes the file readable by the owner only, whatever the umask is.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body if isinstance(body, bytes) else body.encode("utf-8", errors="replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        reason = f"is not valid TOML: {_PLACE.sub('', str(error))}"
        if place is not None and place[1]:
            raise unreadable(source, reason, int(place[1]), int(place[2]), text) from None
        lines = text.split("\n")
        raise unreadable(source, f"{reason} (at the end)", len(lines), len(lines[-1]) + 1, text) from None
    except ValueError as error:
        raise _beyond(source, "TOML", error) from None
    except RecursionError:
        raise too_deep(source) from None


def parse_json(text: str, *, source: str) -> object:
    """Parses a JSON text. A repeated key is a fault: `json` would drop the first value."""
    twice: list[Fault] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                twice.append(Fault(field=key, reason="is repeated in the same table", source=source))
            table[key] = value
        return table

    try:
        value: object = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise unreadable(source, f"is not valid JSON: {error.msg}", error.lineno, error.colno, text) from None
    except ValueError as error:
        raise _beyond(source, "JSON", error) from None
    except RecursionError:
        raise too_deep(source) from None
    if twice:
        raise ValidationFailed(twice)
    return value


def too_deep(source: str) -> ValidationFailed:
    return unreadable(source, "is nested too deeply")


def unreadable(
    source: str, reason: str, line: int | None = None, column: int | None = None, text: str | None = None
) -> ValidationFailed:
    """A fault of the whole document; `text` is the document, to show the line."""
    excerpt = None if text is None or line is None or column is None else _excerpt(text, line, column)
    fault = Fault(field="", reason=reason, source=source, line=line, column=column, excerpt=excerpt)
    return ValidationFailed([fault])


def _excerpt(text: str, line: int, column: int) -> str | None:
    lines = text.split("\n")
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return None
    begin = max(0, column - 1 - MAX_SHOWN // 2)
    shown = lines[line - 1].rstrip("\r").replace("\t", " ")[begin : begin + MAX_SHOWN]
    return f"{shown}\n{' ' * (column - 1 - begin)}^"


def _beyond(source: str, form: str, error: ValueError) -> ValidationFailed:
    # Python refuses numbers of thousands of digits; the text after its semicolon is advice for programmers.
    return unreadable(source, f"cannot be read as {form}: {str(error).partition(';')[0]}")


_DURATION = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def duration(text: str) -> float | None:
    """Converts `90`, `30m`, `12h` or `7d` to seconds; None for other texts."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]


STATE_VARIABLE = "PURSUIT_STATE"


def live_folder(state: Path) -> Path:
    """The folder beside the ledger for the streamed output of models."""
    return state.absolute().parent / "live"


def workspaces_folder(state: Path) -> Path:
    return state.absolute().parent / "workspaces"


def locate_state(state: Path | str | None, config: Path | None) -> Path:
    """The ledger's file: `state`, else `PURSUIT_STATE`, else `state` of the configuration, else beside it.

    Without a configuration it is in the user's data folder. A file there represents each PostgreSQL database.
    """
    if isinstance(state, Path):
        return state
    given = os.environ.get(STATE_VARIABLE) or None if state is None else state
    if given is not None:
        return file_of(given, databases_folder()) if is_address(given) else Path(given)
    if config is None:
        return user_ledger()
    if configured := _configured_state(config):
        if is_address(configured):
            return file_of(configured, databases_folder())
        return config.parent / Path(configured).expanduser()
    return config.parent / ".pursuit" / "ledger.db"


def _configured_state(config: Path) -> str | None:
    """`state` of a `pursuit.toml`; None if the file is unreadable, which later readers report."""
    if config.suffix != ".toml":
        return None
    try:
        found = tomllib.loads(config.read_text(encoding="utf-8")).get("state")
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) and found else None


def databases_folder() -> Path:
    """The folder in the user's data folder for the files beside PostgreSQL ledgers."""
    return user_ledger().parent / "postgres"


def user_ledger() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pursuit" / "ledger.db"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "pursuit" / "ledger.db"


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(table: Mapping[str, Any]) -> str:
    """Formats a table as TOML, one key per line, nested values inline."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # TOML shares JSON's escapes, but also escapes DEL and does not allow surrogate pairs (`ensure_ascii`).
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value) if math.isfinite(value) else str(value)
        case str():
            return _text(value)
        case Mapping():
            pairs = cast("Mapping[str, object]", value).items()
            return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in pairs) + " }"
        case list() | tuple():
            return "[" + ", ".join(_value(one) for one in cast("Sequence[object]", value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as TOML")
