"""The arguments of a call as they stand on a command line.

Owns: the way from `--arg` and `--args-json` to one object. Knows no schema. Invariant: all faults at once; the value
after a `=` is JSON where it parses and else the text itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from pursuit.config.files import as_table, kind, parse_json, unreadable
from pursuit.errors import Fault, ValidationFailed

STDIN = "-"
MOST_BYTES = 16 * 1024 * 1024


def read_arguments(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """The object of `--args-json` with every `--arg` put into it."""
    faults: list[Fault] = []
    arguments: dict[str, Any] = {}
    if whole is not None:
        try:
            arguments = _object(_stdin() if whole == STDIN else whole)
        except ValidationFailed as failed:
            faults.extend(failed.faults)
    seen: set[str] = set()
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key:
            faults.append(Fault(field=f"--arg {pair}", reason="write KEY=VALUE"))
        elif key in seen:
            faults.append(Fault(field=f"--arg {key}", reason="is given twice"))
        else:
            arguments[key] = value_of(text)
        seen.add(key)
    if faults:
        raise ValidationFailed(faults, "the arguments cannot be read; nothing was called")
    return arguments


def value_of(text: str) -> Any:
    """JSON where it parses, else the text."""
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.encode(errors="replace").decode()


def _object(text: str) -> dict[str, Any]:
    value = parse_json(text, source="--args-json")
    table = as_table(value)
    if table is None:
        raise unreadable("--args-json", f"must be an object, not {kind(value)}")
    return dict(table)


def _stdin() -> str:
    body = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise unreadable("standard input", f"is larger than {MOST_BYTES:,} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise unreadable("standard input", "is not UTF-8 text") from None
