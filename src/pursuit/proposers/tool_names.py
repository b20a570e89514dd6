"""The names of tools as language models' providers accept them.

Owns: the map there and back. Pure. Invariant: every name is at most 64 characters of `[A-Za-z0-9_-]`, begins with a
letter, and means one tool; the same tools always get the same names, in whatever order they come.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

LONGEST = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 10


class ToolNames:
    """`server.tool` is shown as `server__tool`; where that does not fit or is not unique, with a digest at its end."""

    def __init__(self, names: Iterable[str], *, reserved: Iterable[str] = ()) -> None:
        tools = sorted(set(names))
        taken = Counter(_plain(name) for name in tools)
        taken.update(reserved)
        self._shown = {name: self._free(name, taken) for name in tools}
        self._meant = {shown: name for name, shown in self._shown.items()}

    @staticmethod
    def _free(name: str, taken: Counter[str]) -> str:
        plain = _plain(name)
        if len(plain) <= LONGEST and taken[plain] == 1:
            return plain
        salt = 0
        while True:  # a tool may be called like another one's digest
            digest = hashlib.sha256(f"{salt}:{name}".encode(errors="replace")).hexdigest()[:_HASH]
            shown = f"{plain[: LONGEST - _HASH - 1]}_{digest}"
            if not taken[shown]:
                taken[shown] += 1
                return shown
            salt += 1

    def shown(self, name: str) -> str:
        """What a model is told instead of a tool's full name."""
        return self._shown.get(name) or _plain(name)[:LONGEST]

    def meant(self, shown: str) -> str | None:
        """The full name of the tool that a model means, also if it writes the full name itself."""
        return self._meant.get(shown) or (shown if shown in self._shown else None)

    def all(self) -> list[str]:
        """Every name that is shown."""
        return list(self._meant)


def _plain(name: str) -> str:
    plain = _ODD.sub("_", name.replace(".", "__"))
    return plain if plain[:1].isascii() and plain[:1].isalpha() else f"t_{plain}"
