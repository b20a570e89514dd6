"""A table that a program hands in, as a file would have it.

Owns: which values of Python stand for those of TOML: tuples for lists, paths for texts, any mapping for a table. Pure.
Invariant: what comes out is made of new dicts and lists, and holds itself nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, cast

from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.plain_data import DEEPEST


def as_given(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table; raises `ValidationFailed` for what holds itself or is nested without end."""
    return {key: _plain(value, key, ()) for key, value in table.items()}


def _plain(value: object, at: str, around: tuple[int, ...]) -> Any:
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if not isinstance(value, Mapping | list | tuple):
        return value
    if id(cast("object", value)) in around or len(around) > DEEPEST:
        held = "holds itself" if len(around) <= DEEPEST else f"is nested more than {DEEPEST} levels deep"
        raise ValidationFailed([Fault(field=at.partition(".")[0].partition("[")[0], reason=held)])
    inside = (*around, id(cast("object", value)))
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, object]", value).items()
        return {key: _plain(one, f"{at}.{key}", inside) for key, one in named}
    return [_plain(one, f"{at}[{place}]", inside) for place, one in enumerate(cast("list[object]", value))]
