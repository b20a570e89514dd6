"""Reads typed values out of a table that a person wrote, and notes every fault instead of stopping at the first.

Owns: the wording of type faults and of unknown keys. Does not know: which keys a table may have.
Invariant: a value that it hands out has the type that was asked for; whatever did not is in `faults`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pursuit.core.base_model import nearest
from pursuit.errors import Fault

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
        field = ".".join(part for part in (self.at, key) if part)
        self.faults.append(Fault(field=field, reason=reason, source=self.source))

    def only(self, known: Iterable[str]) -> None:
        """Every key outside `known` is a fault."""
        names = sorted(known)
        for key in self.table:
            if key not in names:
                self.fault(key, f"there is no such key here{nearest(key, names) or '; known: ' + ', '.join(names)}")

    def text(self, key: str) -> str | None:
        """A text that is not empty."""
        value = self.table.get(key)
        if value is None and key not in self.table:
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
        """A table of texts; its values may be secret, so that a fault never shows one."""
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

    def number(self, key: str, *, whole: bool = False, zero: bool = False) -> float | None:
        """A finite number above zero, or zero if that is allowed; whole if asked."""
        if key not in self.table:
            return None
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, f"must be a number, not {kind(value)}")
        elif not (value > 0 or (zero and value == 0)):
            self.fault(key, f"must be {'zero or more' if zero else 'above zero'}, not {value}")
        elif value > sys.float_info.max:
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
        return Fields(self.subtable(key), at=f"{self.at}.{key}", source=self.source, faults=self.faults)
