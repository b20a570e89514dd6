"""The command line of a configured command: words with places for values.

Owns: how words are read and filled, and which values may not stand in them. Does not know: types, processes or files.
Invariant: a filled template has the words that its author wrote, each as one word whatever stands in it; there is no
shell. A value never makes an option of a word that was none, and never climbs out of a folder unless that is allowed.

    ["make", "-j{jobs}", ["--log", "{log}"], "{verbose}", "{targets}"]

A list inside the list stands or falls together: without a value for `{log}` there is no `--log` either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

from pursuit.tools.parameters import Parameter, word_of

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
# `..` as a whole segment: at either side an end, or something that no name has; and glued to an option, as in `-I..`.
_CLIMB = re.compile(r"(?:^|[^\w.+~-]|^-{1,2}\w*)\.\.(?=$|[^\w.+~-])")
OPTIONS_END = "--"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter's value goes."""

    name: str


Word = tuple[str | Place, ...]
Group = tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An argv; each group stands or falls together."""

    groups: tuple[Group, ...]

    @property
    def names(self) -> frozenset[str]:
        """Every parameter that has a place."""
        return frozenset(name for group in self.groups for name in places(group))

    def fill(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """The words for values that fit their parameters; a value of None is one that is absent."""
        words: list[str] = []
        for group in self.groups:
            words += _filled(group, values, parameters)
        return words

    def chosen(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """Only those words that values went into; the others are their author's own."""
        some = (tuple(word for word in group if places((word,))) for group in self.groups)
        return [word for group in some for word in _filled(group, values, parameters)]

    def options(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
        """The parameters whose value would begin a word with a dash and so be read as an option."""
        found: list[str] = []
        for word in (word for group in self.groups for word in group):
            if word == (OPTIONS_END,):
                break
            found += _dashed(word, values, parameters)
        return list(dict.fromkeys(found))


def places(group: Group) -> list[str]:
    """The parameters of a group, in order."""
    return [part.name for word in group for part in word if isinstance(part, Place)]


def read_word(text: str) -> Word:
    """One word as parts; `{{` and `}}` are braces. Raises ValueError that says what is wrong."""
    parts: list[str | Place] = []
    end = 0
    for found in _PART.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        if found[0] in ("{{", "}}"):
            parts.append(found[0][0])
        elif found[1]:
            parts.append(Place(found[1].strip()))
        else:
            raise ValueError(f"has a lone {found[0]!r}; write {{name}} for a parameter and {{{{ or }}}} for a brace")
    parts.append(text[end:])
    return tuple(_joined(parts))


def _joined(parts: Sequence[str | Place]) -> list[str | Place]:
    """The parts with neighbouring texts put together and empty ones left out."""
    joined: list[str | Place] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return joined


def _filled(group: Group, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
    names = places(group)
    if any(values.get(name) is None or values[name] is False for name in names):
        return []
    several = next((name for name in names if parameters[name].kind == "array"), None)
    if several is None:
        return [_spelled(word, values, parameters) for word in group]
    return [
        _spelled(word, {**values, several: item}, parameters)
        for item in cast("Sequence[Any]", values[several])
        for word in group
    ]


def _dashed(word: Word, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> list[str]:
    """The parameter whose value begins this word, if it begins it with a dash; an empty one lets the next begin it."""
    for part in word:
        if isinstance(part, str):
            break
        texts = _texts(values.get(part.name), parameters[part.name])
        if any(text.startswith("-") for text in texts):
            return [part.name]
        if "" not in texts:
            break
    return []


def _spelled(word: Word, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> str:
    return "".join(
        part if isinstance(part, str) else _spelling(values[part.name], parameters[part.name].flag) for part in word
    )


def _spelling(value: Any, flag: str | None) -> str:
    return flag or "" if value is True else word_of(value)


def _texts(value: Any, parameter: Parameter) -> list[str]:
    """The texts of a value that a caller chose freely; `-1` is an option to most programs, too."""
    inner = parameter.items or parameter if parameter.kind == "array" else parameter
    if inner.kind == "boolean" or inner.allow_options or "enum" in inner.rules or value is None:
        return []
    return [word_of(item) for item in cast("Sequence[Any]", value)] if parameter.kind == "array" else [word_of(value)]


def climbs(word: str) -> bool:
    """Whether a `..` segment stands in it: as a path, behind a `=`, in a list of paths, escaped for an address."""
    return _CLIMB.search(word) is not None or ("%" in word and _CLIMB.search(unquote(word)) is not None)
