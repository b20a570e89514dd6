"""Reads TOML and JSON documents that a person wrote.

Whatever is in a file, the answer is data or `ValidationFailed` with the file's name.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pursuit.errors import Fault, ValidationFailed
from pursuit.ledger.opening import file_of, is_address

TOKENS_FILE, SESSIONS_FILE = "tokens.json", "page.json"
"""The files beside the ledger that say who is let in."""
STATE_FILES = (TOKENS_FILE, SESSIONS_FILE, "http.token", "asking.key", "signatures.jsonl")
STATE_FOLDERS = ("locks", "tasks", "live", "workspaces", "problems", "reports")
"""What there may be beside the ledger. Files whose names begin with the name of such a file belong to it."""


def as_table(value: object) -> Mapping[str, Any] | None:
    """The value as a table with text keys, or nothing."""
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[object, Any]", value)
    return cast("Mapping[str, Any]", table) if all(isinstance(key, str) for key in table) else None


MOST_SHOWN = 100
_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")


def read_text(path: Path) -> str:
    """The file as text, without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(str(path), f"is not UTF-8 text (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise unreadable(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The table of a TOML text."""
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
    """The value of a JSON text. A repeated key is a fault: plain JSON would drop the first one."""
    twice: list[Fault] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                twice.append(Fault(field=key, reason="stands twice in the same table", source=source))
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
    """The document has too many levels."""
    return unreadable(source, "is nested too deeply")


def unreadable(
    source: str, reason: str, line: int | None = None, column: int | None = None, text: str | None = None
) -> ValidationFailed:
    """One fault of the document as a whole; `text` is the document, to show the line."""
    excerpt = None if text is None or line is None or column is None else _excerpt(text, line, column)
    fault = Fault(field="", reason=reason, source=source, line=line, column=column, excerpt=excerpt)
    return ValidationFailed([fault])


def _excerpt(text: str, line: int, column: int) -> str | None:
    """The line, or the part of a long one around the column, and a mark under it."""
    lines = text.split("\n")
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return None
    begin = max(0, column - 1 - MOST_SHOWN // 2)
    shown = lines[line - 1].rstrip("\r").replace("\t", " ")[begin : begin + MOST_SHOWN]
    return f"{shown}\n{' ' * (column - 1 - begin)}^"


def _beyond(source: str, form: str, error: ValueError) -> ValidationFailed:
    # Python refuses numbers of thousands of digits; what follows its semicolon is advice for programmers.
    return unreadable(source, f"cannot be read as {form}: {str(error).partition(';')[0]}")


STATE_VARIABLE = "PURSUIT_STATE"


def live_folder(state: Path) -> Path:
    """Where the words of models are while they are spoken, beside the ledger."""
    return state.absolute().parent / "live"


def workspaces_folder(state: Path) -> Path:
    """Where the workspaces of agents are, beside the ledger."""
    return state.absolute().parent / "workspaces"


def locate_state(state: Path | str | None, config: Path | None) -> Path:
    """The ledger's file: as given, or `PURSUIT_STATE`, or `state` of the configuration, or beside it.

    Without a configuration it is in the user's data folder. An address of PostgreSQL has a file there that stands for
    the database.
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
    """`state` of a `pursuit.toml`; a file that cannot be read has none, and who needs the rest of it says so."""
    if config.suffix != ".toml":
        return None
    try:
        found = tomllib.loads(config.read_text(encoding="utf-8")).get("state")
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) and found else None


def databases_folder() -> Path:
    """Where the user's data folder has what lies beside ledgers on PostgreSQL."""
    return user_ledger().parent / "postgres"


def user_ledger() -> Path:
    """The ledger in the user's own data folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pursuit" / "ledger.db"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "pursuit" / "ledger.db"


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(table: Mapping[str, Any]) -> str:
    """A table as TOML, one key on each line, what is inside written inline."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML also wants DEL escaped, and has no surrogate pairs (`ensure_ascii`).
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
            raise TypeError(f"{type(value).__name__} has no form in TOML")
