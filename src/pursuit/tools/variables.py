"""Environment variables in what an operator wrote: `${NAME}` and `${NAME:-default}`.

Owns: how they are expanded, and which values must not be shown afterwards. Does not know: servers or commands.
Invariant: what a variable brought is among the secrets; a very short value is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

SHORTEST_SECRET = 6
"""Blanking `80` or `true` would spoil every message."""
SECRETIVE = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def filled(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with its variables, and the names of those that are not set and have no default."""
    missing: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        variable, default = match.group(1), cast("str | None", match.group(2))
        if variable in environ:
            return environ[variable]
        if default is None:
            missing.append(variable)
        return default or ""

    return VARIABLE.sub(value_of, text), missing


def brought(texts: Iterable[str | None], environ: Mapping[str, str]) -> list[str]:
    """The values of the variables that these texts name."""
    names = {match[1] for text in texts if text for match in VARIABLE.finditer(text)}
    return [environ[name] for name in names if name in environ]


def secret_entries(said: Mapping[str, str], full: Mapping[str, str]) -> list[str]:
    """The values of a table that came from a variable or stand under a name that says so."""
    return [full[key] for key, value in said.items() if VARIABLE.search(value) or SECRETIVE.search(key)]


def secret_words(words: Iterable[str]) -> list[str]:
    """What stands behind an option whose name says that it is secret: `--token=VALUE`, or `--token VALUE`."""
    found: list[str] = []
    for option, following in pairwise((*words, "")):
        name, equals, value = option.partition("=")
        if name.startswith("-") and SECRETIVE.search(name):
            found.append(value if equals else following)
    return found


def as_secrets(values: Iterable[str]) -> tuple[str, ...]:
    """What must not be shown, longest first; a key of several lines is also blanked line by line."""
    parts = {part.strip() for value in values for part in (value, *value.splitlines())}
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST_SECRET), key=lambda part: (-len(part), part)))
