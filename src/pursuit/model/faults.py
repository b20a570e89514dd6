"""Turns what pydantic says of a wrong input into faults that a person can act on.

Owns: the translation. Knows nothing of any one model. Invariant: no fault is lost (past a bound it is counted), none
is said twice, and what is said is short however long the input was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pursuit.errors import Fault
from pursuit.model.spelling import nearest

WHOLE = "(input)"
HALF_A_CHARACTER = "must be valid Unicode text; it holds half of a surrogate pair"
MOST_FAULTS = 500
MOST_HINTS = 100
LONGEST_KEY = 100
LONGEST_REASON = 1_000

_A_DICTIONARY = "must be a dictionary (an object in JSON, a table in TOML)"
_PLAIN = {
    "model_type": _A_DICTIONARY,
    "model_attributes_type": _A_DICTIONARY,
    "mapping_type": _A_DICTIONARY,
    "dict_type": _A_DICTIONARY,
    "string_unicode": HALF_A_CHARACTER,
    "union_tag_not_found": "needs a `kind`",
    "missing": "is missing; it must be given",
}


def faults_of(error: ValidationError, model: type[BaseModel], *, source: str | None = None) -> list[Fault]:
    """Every fault in a pydantic error, with the path as the user wrote it; past a bound only how many more."""
    found: dict[tuple[str, str], Fault] = {}
    items = error.errors(include_url=False)
    for place, item in enumerate(items[:MOST_FAULTS]):
        field, keys = _walk(model, item["loc"])
        reason = _reason(item, keys if place < MOST_HINTS else ())
        line, column = _place(item.get("ctx") or {})
        found.setdefault((field, reason), Fault(field=field, reason=reason, source=source, line=line, column=column))
    if len(items) > MOST_FAULTS:
        more = f"there are {len(items) - MOST_FAULTS} more faults; mend these first"
        found["", more] = Fault(field=WHOLE, reason=more, source=source)
    return list(found.values())


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[str, list[str]]:
    """The path as the user wrote it, and the keys that are known where it ends.

    `('criteria', 0, 'metric_threshold', 'op')` is `criteria[0].op`: union tags are not the user's words.
    """
    path = ""
    here, keys = [model], list(model.model_fields)
    for item in loc:
        if isinstance(item, int):
            path += f"[{item}]"
            continue
        tagged = [candidate for candidate in here if _tag(candidate) == item]
        if len(here) > 1 and tagged:
            here = tagged
            continue
        path += f".{_short(item)}" if path else _short(item)
        keys = [key for candidate in here for key in candidate.model_fields]
        here = [inner for candidate in here for inner in _models_of(candidate, item)]
    return path or WHOLE, keys


def _short(key: str) -> str:
    return _cut(key, LONGEST_KEY) or '""'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _reason(item: ErrorDetails, keys: Sequence[str]) -> str:
    kind, message, ctx = item["type"], item["msg"], item.get("ctx") or {}
    match kind:
        case _ if kind in _PLAIN:
            reason = _PLAIN[kind]
        case "extra_forbidden":
            reason = f"is not a known key{nearest(str(item['loc'][-1]), keys, most=1)}"
        case "union_tag_invalid":
            expected, tag = str(ctx.get("expected_tags", "")), str(ctx.get("tag", ""))
            known = [word.strip(" '") for word in expected.split(",")]
            whole = item["input"]
            kind = cast("Mapping[str, Any]", whole).get("kind") if isinstance(whole, Mapping) else tag
            given = f"kind {_cut(tag, LONGEST_KEY)!r} is not" if isinstance(kind, str) else "kind must be"
            reason = f"{given} one of {expected}{nearest(tag, known, most=1)}"
        case "value_error":
            reason = message.removeprefix("Value error, ")
        case _:
            reason = (message[:1].lower() + message[1:]).replace(" after validation", "")
    return _cut(reason, LONGEST_REASON)


def _place(ctx: Mapping[str, Any]) -> tuple[int | None, int | None]:
    error = ctx.get("error")
    return getattr(error, "line", None), getattr(error, "column", None)


def _tag(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return cast("str | None", kind.default) if kind is not None else None


def _models_of(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    info = model.model_fields.get(field)
    return [] if info is None else _models_in(info.annotation)


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
