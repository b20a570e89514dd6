"""Reads a `problem.toml`.

Invariant: all faults of a file are reported together, each with file, field and reason; nothing is run.
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
from pursuit.core.base_model import faults_of, rules
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.files import not_a_file
from pursuit.problems.manifest import Manifest, digest_of, manifest_rules
from pursuit.problems.missions import check_proposer
from pursuit.problems.scorer import Reading, Wrong, is_unicode, table_of, texts_in
from pursuit.problems.secrecy import secret_assets

_DEEPEST_TABLE = 64
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reverse the direction of a text and so disguise it."""
_SHOWN = ("title", "summary", "statement", "citations", "submission", "scorer.metrics")
"""The keys of a manifest whose texts people and agents read."""


def read_manifest(path: Path) -> Manifest:
    wrong = not_a_file(path)
    if wrong is not None:
        raise unreadable(str(path), wrong)
    text = read_text(path)
    manifest, faults = parse_manifest(parse_toml(text, source=str(path)), path)
    if manifest is None or faults:
        count = len(faults)
        raise ValidationFailed(faults, f"{path} has {count} fault{'' if count == 1 else 's'}")
    return replace(manifest, digest=digest_of(text))


def _copied(value: object, depth: int = 0) -> Any:
    """Copies a value as a file holds it: lists for tuples, texts for paths. Raises `RecursionError` if too deep."""
    if depth > _DEEPEST_TABLE + 1:
        raise RecursionError
    match value:
        case PathLike():
            return fspath(cast("PathLike[str]", value))
        case Mapping():
            named = cast("Mapping[Any, object]", value).items()
            return {key: _copied(one, depth + 1) for key, one in named}
        case list() | tuple():
            return [_copied(one, depth + 1) for one in cast("list[object]", value)]
        case _:
            return value


def wrong_texts(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Each text that is not valid Unicode (a program may pass one), or that contains control characters."""
    for key, value in table.items():
        for at, text in texts_in(value, key):
            if not is_unicode(text):
                yield at, "is not valid Unicode: it contains half of a surrogate pair"
            elif at.startswith(_SHOWN) and (odd := _unprintable(text)) is not None:
                yield at, f"contains a character that cannot be printed: U+{ord(odd):04X}"


def _unprintable(text: str) -> str | None:
    if text.isprintable():
        return None
    return next(
        (one for one in text if one in _TURNING or (unicodedata.category(one) == "Cc" and one not in "\n\r\t")), None
    )


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Annotated[Manifest, rules(manifest_rules)])


def parse_manifest(table: Mapping[str, Any], path: Path) -> tuple[Manifest | None, list[Fault]]:
    given, wrong = dict[str, Any](), list[Wrong]()
    for key, value in table.items():
        try:
            given[key] = _copied(value)
        except RecursionError:
            wrong.append((key, f"is nested more than {_DEEPEST_TABLE} levels deep"))
    wrong += [*wrong_texts(given), *((key, "is not a known key") for key in ("path", "digest") if key in given)]
    reading = Reading(
        folder=path.resolve().parent,
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
