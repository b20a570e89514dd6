"""Turns what pydantic says of a wrong input into faults that a person can act on.

Owns: the translation. Knows nothing of any one model. Invariant: no fault is lost, none is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError

from pursuit.errors import Fault
from pursuit.model.spelling import nearest

_UNION_FIELDS = frozenset({"criteria", "proposer", "checkpoint_cadence"})


def faults_of(error: ValidationError, model: type[BaseModel], *, source: str | None = None) -> list[Fault]:
    """Every fault in a pydantic error, with the path as the user wrote it."""
    found: dict[tuple[str, str], Fault] = {}
    for item in error.errors(include_url=False):
        loc = item["loc"]
        field = path_of(loc)
        reason = _reason(item["type"], item["msg"], loc, item.get("ctx") or {}, model)
        line, column = _place(item.get("ctx") or {})
        found.setdefault((field, reason), Fault(field=field, reason=reason, source=source, line=line, column=column))
    return list(found.values())


def path_of(loc: Sequence[int | str]) -> str:
    """`('criteria', 0, 'metric_threshold', 'op')` is `criteria[0].op`: union tags are not the user's words."""
    parts: list[str] = []
    tag_next = False
    for place, item in enumerate(loc):
        if isinstance(item, int):
            parts.append(f"[{item}]")
            continue
        if tag_next and place < len(loc) and (place == 0 or _is_tag_place(loc, place)):
            tag_next = False
            continue
        parts.append(item if not parts else f".{item}")
        tag_next = item in _UNION_FIELDS
    return "".join(parts) or "(input)"


def _is_tag_place(loc: Sequence[int | str], place: int) -> bool:
    before = loc[place - 1]
    return before in _UNION_FIELDS or (isinstance(before, int) and place >= 2 and loc[place - 2] == "criteria")


def _reason(kind: str, message: str, loc: Sequence[int | str], ctx: Mapping[str, Any], model: type[BaseModel]) -> str:
    match kind:
        case "missing":
            return "is missing; it must be given"
        case "extra_forbidden":
            return f"is not a known key{nearest(str(loc[-1]), _keys_at(model, loc), most=1)}"
        case "union_tag_invalid":
            expected = str(ctx.get("expected_tags", ""))
            tag = str(ctx.get("tag", ""))
            known = [word.strip(" '") for word in expected.split(",")]
            return f"kind {tag!r} is not one of {expected}{nearest(tag, known, most=1)}"
        case "union_tag_not_found":
            return "needs a `kind`"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return message[:1].lower() + message[1:]


def _place(ctx: Mapping[str, Any]) -> tuple[int | None, int | None]:
    error = ctx.get("error")
    return getattr(error, "line", None), getattr(error, "column", None)


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The keys that the model with the unknown key has, found by walking the location."""
    candidates: list[type[BaseModel]] = [model]
    for item in loc[:-1]:
        if isinstance(item, int):
            continue
        nested = [inner for candidate in candidates for inner in _models_of(candidate, item)]
        tagged = [candidate for candidate in candidates if _tag(candidate) == item]
        candidates = nested or tagged or candidates
    return [key for candidate in candidates for key in candidate.model_fields]


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
