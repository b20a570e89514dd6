"""Reads TOML and JSON documents that a person wrote, and typed values out of their tables.

Whatever is in a file, the answer is data or `ValidationFailed` with the file's name. `Fields` collects all faults of a
table instead of stopping at the first.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pursuit.core.base_model import nearest
from pursuit.errors import Fault, ValidationFailed
from pursuit.ledger.opening import file_of, is_address

TOKENS_FILE, SESSIONS_FILE = "tokens.json", "page.json"
"""The files beside the ledger that say who is let in."""

W = TypeVar("W", bound=str)


def as_table(value: object) -> Mapping[str, Any] | None:
    """The value as a table with text keys, or nothing."""
    if not isinstance(value, Mapping):
        return None
    table = cast("Mapping[object, Any]", value)
    return cast("Mapping[str, Any]", table) if all(isinstance(key, str) for key in table) else None


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    ((list, tuple), "a list"),
    (Mapping, "a table"),
)


def kind(value: object) -> str:
    """What a person would call this value."""
    return next((word for types, word in _KINDS if isinstance(value, types)), type(value).__name__)


class Fields:
    """One table being read: `at` is where it stands in the file, `faults` collects what is wrong."""

    def __init__(self, table: Mapping[str, Any], *, at: str, source: str, faults: list[Fault]) -> None:
        self.table = table
        self.at = at
        self.source = source
        self.faults = faults

    def fault(self, key: str, reason: str) -> None:
        """Notes that this key is wrong."""
        self.faults.append(Fault(field=self._path(key), reason=reason, source=self.source))

    def _path(self, key: str) -> str:
        return ".".join(part for part in (self.at, key) if part)

    def only(self, known: Iterable[str]) -> None:
        """Notes each key outside of `known` as a fault."""
        names = sorted(known)
        for key in self.table:
            if key not in names:
                self.fault(key, f"there is no such key here{nearest(key, names) or '; known: ' + ', '.join(names)}")

    def text(self, key: str, *, needed: bool = False) -> str | None:
        """A text that is not empty."""
        value = self.table.get(key)
        if value is None and key not in self.table:
            if needed:
                self.fault(key, "is missing")
            return None
        if not isinstance(value, str):
            self.fault(key, f"must be a text, not {kind(value)}")
            return None
        if not value.strip():
            self.fault(key, "must not be empty")
            return None
        return value

    def word(self, key: str, known: Sequence[W], *, needed: bool = False) -> W | None:
        """One of these words."""
        word = self.text(key)
        if word is None:
            if needed and key not in self.table:
                self.fault(key, f"is missing; give one of {', '.join(known)}")
            return None
        found = next((one for one in known if one == word), None)
        if found is None:
            self.fault(key, f"{word[:100]!r} is none of {', '.join(known)}{nearest(word, known)}")
        return found

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts."""
        if key not in self.table:
            return None
        value = self.table[key]
        if not isinstance(value, list):
            hint = f'; write ["{value}"]' if isinstance(value, str) else ""
            self.fault(key, f"must be a list of texts, not {kind(value)}{hint}")
            return None
        items = cast("list[object]", value)
        for index, item in enumerate(items):
            if not isinstance(item, str):
                self.fault(f"{key}[{index}]", f"must be a text, not {kind(item)}")
        return tuple(item for item in items if isinstance(item, str))

    def text_map(self, key: str) -> dict[str, str]:
        """A table of texts. Its values may be secret: a fault never shows one."""
        table = self.subtable(key)
        for name, value in table.items():
            if not isinstance(value, str):
                self.fault(f"{key}.{name}", f"must be a text, not {kind(value)}; put it in quotes")
        return {name: value for name, value in table.items() if isinstance(value, str)}

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.table.get(key)
        if key in self.table and not isinstance(value, bool):
            self.fault(key, f"must be true or false, not {kind(value)}")
        return value if isinstance(value, bool) else None

    def number(self, key: str, *, whole: bool = False, zero: bool = False, negative: bool = False) -> float | None:
        """A finite number above zero, or zero, or any number if `negative` ones are allowed; whole if asked."""
        if key not in self.table:
            return None
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, f"must be a number, not {kind(value)}")
        elif negative and isinstance(value, float) and not math.isfinite(value):
            self.fault(key, f"must be a finite number, not {value}")
        elif not (negative or value > 0 or (zero and value == 0)):
            self.fault(key, f"must be {'zero or more' if zero else 'above zero'}, not {value}")
        elif abs(value) > sys.float_info.max:
            self.fault(key, "is too large")
        elif whole and value != int(value):
            self.fault(key, f"must be a whole number, not {value}")
        else:
            return value
        return None

    def amount(self, key: str) -> float:
        """A finite number that must be there; it may be zero."""
        value = self.table.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            self.fault(key, "is missing; give a number" if key not in self.table else "must be a number, 0 or more")
            return 0.0
        return float(value)

    def subtable(self, key: str) -> Mapping[str, Any]:
        """A table inside this one; empty where there is none."""
        if key not in self.table:
            return {}
        table = as_table(self.table[key])
        if table is None:
            self.fault(key, f"must be a table, not {kind(self.table[key])}")
        return table or {}

    def inside(self, key: str) -> Fields:
        """A reader for a table inside this one, with the same list of faults."""
        return Fields(self.subtable(key), at=self._path(key), source=self.source, faults=self.faults)

    def tables(self, key: str) -> Iterator[tuple[str, Fields]]:
        """A reader for each table of a table of tables, with its name; any other entry is a fault."""
        outer = self.inside(key)
        for name, value in outer.table.items():
            if as_table(value) is None:
                outer.fault(name, f"must be a table, not {kind(value)}")
            else:
                yield name, outer.inside(name)

    def rows(self, key: str, known: Iterable[str], most: int | None = None) -> list[Fields]:
        """A reader for each table of a list; any other entry is a fault, and so are too many (the first are read)."""
        given = self.table.get(key, [])
        if not isinstance(given, list):
            self.fault(key, f"must be a list of tables ([[{self._path(key)}]]), not {kind(given)}")
            return []
        entries = cast("list[object]", given)
        if most is not None and len(entries) > most:
            self.fault(key, f"has {len(entries)} tables; at most {most}")
        found: list[Fields] = []
        for place, entry in enumerate(entries[:most]):
            name, table = f"{key}[{place}]", as_table(entry)
            if table is None:
                self.fault(name, f"must be a table, not {kind(entry)}")
            else:
                found.append(Fields(table, at=self._path(name), source=self.source, faults=self.faults))
                found[-1].only(known)
        return found


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
