"""The values that pass between a script and its driver, and from the sandbox into the ledger: JSON of bounded size.

Invariant: what `as_json` returns can be encoded by every JSON encoder that we use.
"""

from __future__ import annotations

import ast
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pursuit.core.base_model import nearest
from pursuit.core.patterns import SyntaxProblem, checked_script

MAX_DEPTH = 100
MAX_INTEGER = 2**63
MAX_TEXT = 2_000


class NotJsonError(ValueError):
    """The value is not JSON; the text says which part of it."""


def as_json(value: object, depth: int = 0) -> Any:
    """A copy of the value in plain JSON types (a tuple becomes a list), or `NotJsonError`."""
    if depth > MAX_DEPTH:
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value)
        case int():
            if not -MAX_INTEGER <= value < MAX_INTEGER:
                raise NotJsonError(f"an integer of {value.bit_length()} bits is not JSON")
            return value
        case float():
            if not math.isfinite(value):
                raise NotJsonError(f"{value} is not JSON")
            return value
        case list() | tuple():
            return [as_json(item, depth + 1) for item in cast("list[object]", value)]
        case dict():
            return {_key(key): as_json(item, depth + 1) for key, item in cast("dict[object, object]", value).items()}
        case _:
            raise NotJsonError(f"a {type(value).__name__} is not JSON")


def canonical(value: object) -> str:
    """The one text of a JSON value: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """The text, cut with a mark when it is too long."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def rendered(value: object) -> str:
    """A value that is not JSON, as a short text."""
    try:
        return bounded(repr(value))
    except (ValueError, RecursionError):
        # Python refuses to write out a huge integer or a very deep list.
        return f"<{type(value).__name__}>"


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJsonError("a text with half a surrogate pair is not JSON") from None
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise NotJsonError(f"a dict with a key of type {type(key).__name__} is not JSON")
    return _text(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """One run: the source, the tools it may name (server, tool, parameters in order), its state, seed and time."""

    source: str
    tools: Mapping[str, Mapping[str, Sequence[str]]]
    state: Mapping[str, Any]
    seed: int
    now: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """A call that the script waits for. `index` counts the calls of the run from 0."""

    index: int
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFailure:
    """The answer to a call that failed: a `RuntimeError` with this message in the script."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The script waits for all of these: one call, or those of a `gather`."""

    calls: tuple[ScriptCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The script has ended. `memory` is the old one if the new one cannot be kept; then `error` says why."""

    memory: dict[str, Any]
    observed: tuple[tuple[str, Any], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    printed: str = ""


Step = Calls | Finished


MODULES = frozenset({
    "asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "posixpath", "random", "re", "sys", "time",
    "tomllib", "typing", "unicodedata",
})  # fmt: skip
"""The modules that a script can import."""


def missing_modules(source: str) -> list[SyntaxProblem]:
    """The imports at the top of a valid script that the sandbox does not have; one inside a `try` may be missing."""
    found: list[SyntaxProblem] = []
    for node in ast.parse(source).body:
        match node:
            case ast.Import(names=names):
                wanted = [one.name for one in names]
            case ast.ImportFrom(module=str(name), level=0):
                wanted = [name]
            case _:
                continue
        for name in wanted:
            if name.partition(".")[0] not in MODULES:
                known = nearest(name, MODULES) or f"; it has {', '.join(sorted(MODULES))}"
                reason = f"the sandbox has no module {name!r}, and no package can be installed in it{known}"
                found.append(SyntaxProblem(reason, node.lineno, node.col_offset + 1))
    return found


def check_script(source: str) -> SyntaxProblem | None:
    """Why a script can never run (reason, line, column), or None. Runs no part of it."""
    try:
        checked_script(source)
    except SyntaxProblem as problem:
        return problem
    return None
