"""Lifts metrics and events out of a tool's result, which is plain JSON.

No I/O, and a clock only to give up on rules that take too long: what is lifted is stored with the call, so it is never
lifted again. Invariant: an error result yields nothing, whatever its form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, cast

from pursuit.core.log_metrics import as_number, json_values, matched, taken
from pursuit.core.mission import ObserveRule
from pursuit.core.patterns import MAX_TEXT, SECONDS, ProcessorTime, Unfinished, find, follow

MAX_EVENTS = 256
MAX_LEAVES = 1_024
MAX_DEPTH = 32
ALL_RULES_SECONDS = 0.1
NUMBER = (int, float)


def lift(
    tool: str, result: Mapping[str, Any], rules: Sequence[ObserveRule] = (), log: str = ""
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics and the events in one result (MCP's JSON form); `log` is what the command behind it wrote."""
    if result.get("isError"):
        return {}, []
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    for body in _bodies(result):
        found = body.get("metrics")
        if isinstance(found, dict):
            for name, value in cast("dict[str, Any]", found).items():
                kept = numbers_only(value)
                if kept is not None:
                    metrics[str(name)] = kept
        events.extend(_events(body.get("events")))
        if isinstance(found, dict) or isinstance(body.get("events"), list):
            break  # what it reports as null is not taken from elsewhere
    if rules:
        _apply(rules, tool, _Read(result, log), metrics)
    return metrics, events[:MAX_EVENTS]


def numbers_only(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value with its finite numbers only, up to a depth; None if nothing is left."""
    if isinstance(value, NUMBER):
        return _finite(value)
    if depth == 0:
        return None
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        kept = {str(key): inner for key, item in pairs if (inner := numbers_only(item, depth - 1)) is not None}
        return kept or None
    if isinstance(value, list | tuple):
        items = [numbers_only(item, depth - 1) for item in cast("Sequence[Any]", value)]
        return items if any(item is not None for item in items) else None
    return None


def _finite(value: float) -> float | None:
    """The number itself; None for a boolean and for what no floating point number can hold."""
    try:
        return None if isinstance(value, bool) or not math.isfinite(value) else value
    except OverflowError:
        return None


def leaves(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Every number with its dotted path: `{"scores": [{"f1": 1}]}` is `scores.0.f1`."""
    found: list[tuple[str, float]] = []
    for name, value in metrics.items():
        _gather(value, name, found)
    return found


def _gather(value: Any, path: str, found: list[tuple[str, float]]) -> None:
    if len(found) >= MAX_LEAVES:
        return
    if isinstance(value, NUMBER):
        found.append((path, value))
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _gather(item, f"{path}.{key}", found)
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            _gather(item, f"{path}.{place}", found)


def source_matches(pattern: str | None, tool: str) -> bool:
    """Whether a tool's values count under a source glob; without a glob those of every tool do."""
    return pattern is None or fnmatchcase(tool, pattern)


def text_of(result: Mapping[str, Any]) -> str:
    """The text blocks of a result, joined."""
    return "\n".join(_texts(result))


def value_of(result: Mapping[str, Any]) -> Any:
    """The value in a result: structured content (unwrapped), else JSON text, else text."""
    structured = result.get("structuredContent")
    if isinstance(structured, Mapping):
        body = cast("Mapping[str, Any]", structured)
        return body["result"] if set(body) == {"result"} else body
    if structured is not None:
        return structured
    text = text_of(result)
    parsed = _json(text)
    return text if parsed is None else parsed


def _bodies(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The mappings in a result that may contain `metrics` and `events`, the best first."""
    structured = result.get("structuredContent")
    if isinstance(structured, dict):
        body = cast("dict[str, Any]", structured)
        yield body
        inner = body.get("result")
        if isinstance(inner, str):
            inner = _json(inner)
        if isinstance(inner, dict):
            yield cast("dict[str, Any]", inner)
    for text in _texts(result):
        parsed = _json(text)
        if isinstance(parsed, dict):
            yield cast("dict[str, Any]", parsed)


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """The text blocks of a result, whatever else it contains."""
    content = result.get("content")
    for block in cast("list[object]", content) if isinstance(content, list | tuple) else ():
        if isinstance(block, Mapping):
            known = cast("Mapping[str, Any]", block)
            if known.get("type") == "text":
                yield str(known.get("text", ""))


def _json(text: str) -> Any:
    head = text.lstrip()[:1]
    if head not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _events(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, list):
        for item in cast("list[Any]", found):
            if isinstance(item, dict):
                event = cast("dict[str, Any]", item)
                if isinstance(event.get("event_name"), str):
                    yield dict(event)


def _apply(rules: Sequence[ObserveRule], tool: str, read: _Read, metrics: dict[str, Any]) -> None:
    """What the operator's own rules find, until their time is used up."""
    patience = ProcessorTime(ALL_RULES_SECONDS)
    for rule in rules:
        if patience.over:
            break
        if not source_matches(rule.tool, tool):
            continue
        matches, value = _by_rule(rule, read)
        if value is not None:
            metrics[rule.metric] = value
        elif matches:  # what it finds is no number, and no other number takes its place
            metrics.pop(rule.metric, None)


def _by_rule(rule: ObserveRule, read: _Read) -> tuple[bool, Any]:
    """Whether a rule finds something, and its value, in the log before the result; a slow one finds nothing."""
    try:
        said = list(map(as_number, _in_log(rule, read.log))) if read.log else []
        if said:
            return True, taken(rule.take or "last", None, said)
        said = list(map(as_number, _in_result(rule, read)))
        return bool(said), taken(rule.take or "first", None, said)
    except (Unfinished, TimeoutError):
        return False, None


def _in_log(rule: ObserveRule, log: str) -> Iterable[Any]:
    if rule.jmespath is not None:
        return json_values(rule.jmespath, log, SECONDS)
    return matched(rule.regex or "", log, SECONDS)


def _in_result(rule: ObserveRule, read: _Read) -> Iterable[Any]:
    if rule.jmespath is not None:
        value = follow(rule.jmespath, read.value)
        if rule.take is not None and isinstance(value, list):
            return cast("list[Any]", value)
        return [] if value is None else [value]
    if rule.take is not None:
        return matched(rule.regex or "", read.text[:MAX_TEXT], SECONDS)
    match = find(rule.regex or "", read.text)
    return [match.group(1 if match.re.groups else 0)] if match else []


class _Read:
    """A result as the rules read it; each view is made once."""

    def __init__(self, result: Mapping[str, Any], log: str) -> None:
        self._result = result
        self.log = log[-MAX_TEXT:]

    @cached_property
    def value(self) -> Any:
        return value_of(self._result)

    @cached_property
    def text(self) -> str:
        return text_of(self._result) or json.dumps(self._result.get("structuredContent"))
