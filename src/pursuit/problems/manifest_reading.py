"""Reads a `problem.toml`.

Invariant: every fault of a file at once, each with file, field and reason; nothing is run.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError

from pursuit.config.files import parse_toml, read_text, unreadable
from pursuit.core.base_model import cut_short, faults_of, rules
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.files import not_a_file
from pursuit.problems.manifest import Manifest, digest_of, manifest_rules
from pursuit.problems.missions import check_proposer
from pursuit.problems.scorer import Reading, Wrong, is_unicode, table_of, texts_in
from pursuit.problems.secrecy import secret_assets

_DEEPEST_TABLE = 64
_LONGEST_PLACE = 100
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a text, so that it reads other than it is."""
_SHOWN = ("title", "summary", "statement", "citations", "submission", "scorer.metrics")
"""The parts of a manifest that people and agents read."""


def read_manifest(path: Path) -> Manifest:
    """The problem in a file, or `ValidationFailed` with every fault."""
    wrong = not_a_file(path)
    if wrong is not None:
        raise unreadable(str(path), wrong)
    text = read_text(path)
    manifest, faults = parse_manifest(parse_toml(text, source=str(path)), path)
    if manifest is None or faults:
        count = len(faults)
        raise ValidationFailed(faults, f"{path} has {count} fault{'' if count == 1 else 's'}")
    return replace(manifest, digest=digest_of(text))


def plain_copy(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[Wrong]]:
    """The table as a file would have it: lists for tuples, texts for paths.

    What holds itself or is nested too deeply is left out, and told.
    """
    found, wrong = dict[str, Any](), list[Wrong]()
    for key, value in table.items():
        cut: list[Wrong] = []
        found[key] = _copied(value, key, (), cut)
        wrong += [(cut_short(place, _LONGEST_PLACE), reason) for place, reason in cut[:1]]
    return found, wrong


def _copied(value: object, at: str, around: tuple[int, ...], cut: list[tuple[str, str]]) -> Any:
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if not isinstance(value, Mapping | list | tuple):
        return value
    own = id(cast("object", value))
    if own in around or len(around) > _DEEPEST_TABLE:
        cut.append((at, "holds itself" if own in around else f"is nested more than {_DEEPEST_TABLE} levels deep"))
        return {}
    inside = (*around, own)
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, object]", value).items()
        return {key: _copied(one, f"{at}.{key}", inside, cut) for key, one in named}
    return [_copied(one, f"{at}[{place}]", inside, cut) for place, one in enumerate(cast("list[object]", value))]


def wrong_texts(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Each text that is no Unicode (a program may pass one), or that a screen would obey, not show."""
    for key, value in table.items():
        for at, text in texts_in(value, key):
            if not is_unicode(text):
                yield at, "is no valid Unicode; it holds half of a surrogate pair"
            elif at.startswith(_SHOWN) and (odd := _unprintable(text)) is not None:
                yield at, f"has a character that cannot be printed: U+{ord(odd):04X}"


def _unprintable(text: str) -> str | None:
    """The first character that cannot be shown, but for the ends of lines and tabs."""
    if text.isprintable():
        return None
    return next(
        (one for one in text if one in _TURNING or (unicodedata.category(one) == "Cc" and one not in "\n\r\t")), None
    )


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Annotated[Manifest, rules(manifest_rules)])


def parse_manifest(
    table: Mapping[str, Any], path: Path, *, confined: bool = True
) -> tuple[Manifest | None, list[Fault]]:
    """The problem in a table, and its faults; no problem if there are any."""
    given, wrong = plain_copy(table)
    wrong += [*wrong_texts(given), *((key, "is not a known key") for key in ("path", "digest") if key in given)]
    reading = Reading(
        folder=path.resolve().parent,
        confined=confined,
        has_server="server" in given,
        citation_mode=table_of(given, "visibility").get("citation_mode", "summary"),
        check_proposer=check_proposer,
    )
    manifest, faults = None, list[Fault]()
    try:
        manifest = _adapter().validate_python({**given, "path": path.resolve(), "digest": ""}, context=reading)
        wrong += secret_assets(manifest)
    except ValidationError as error:
        faults += faults_of(error, Manifest, source=str(path))
    faults += [Fault(field=field, reason=reason, source=str(path)) for field, reason in wrong]
    return (None if faults else manifest), list(dict.fromkeys(faults))
