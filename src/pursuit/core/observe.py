"""Extracts metrics and events from a tool's result, which is plain JSON.

No I/O; a clock is used only to give up on slow rules. The values are stored with the call, so they are never extracted
again. Invariant: an error result yields nothing, whatever its form.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, cast

from pursuit.core.log_metrics import as_number, in_lines, matched, taken
from pursuit.core.mission import ObserveRule
from pursuit.core.patterns import MAX_TEXT, SECONDS, Unfinished, find, follow

MAX_EVENTS = 256
MAX_LEAVES = 1_024
MAX_DEPTH = 32
ALL_RULES_SECONDS = 0.25
NUMBER = (int, float)
TABLE = (dict,)
MAX_NUMBER = sys.float_info.max


def lift(
    tool: str, result: Mapping[str, Any], rules: Sequence[ObserveRule] = (), log: str = ""
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics and events in one result (in MCP's JSON form); `log` is the output of the command behind it."""
    if result.get("isError"):
        return {}, []
    body: Any = result.get("structuredContent")
    if not rules and type(body) in TABLE and "events" not in body and "metrics" in body and _is_flat(body["metrics"]):
        return body["metrics"], []
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
            break  # a metric reported as null is not taken from another place
    if rules:
        _apply(rules, tool, _Read(result, log), metrics)
    return metrics, events[:MAX_EVENTS]


def _is_flat(found: Any) -> bool:
    """True for a table of finite numbers, the usual case, which is kept unchanged."""
    if type(found) not in TABLE:
        return False
    for value in found.values():
        if type(value) not in NUMBER or not -MAX_NUMBER <= value <= MAX_NUMBER:
            return False
    return found != {}


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
    """The number; None for a boolean, and for a number that does not fit a float."""
    try:
        return None if isinstance(value, bool) or not math.isfinite(value) else value
    except OverflowError:
        return None


def leaves(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Every number by its dotted path: `{"scores": [{"f1": 1}]}` becomes `scores.0.f1`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if type(value) is float and len(found) < MAX_LEAVES:
            found[name] = value
        else:
            _gather(value, name, found)
    return found


def _gather(value: Any, path: str, found: dict[str, float]) -> None:
    if len(found) >= MAX_LEAVES:
        return
    if isinstance(value, NUMBER):
        found[path] = value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _gather(item, f"{path}.{key}", found)
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            _gather(item, f"{path}.{place}", found)


def source_matches(pattern: str | None, tool: str) -> bool:
    """True if a tool's values count under a source glob; without a glob, every tool's values count."""
    return pattern is None or fnmatchcase(tool, pattern)


def text_of(result: Mapping[str, Any]) -> str:
    """The text blocks of a result, joined."""
    return "\n".join(_texts(result))


def value_of(result: Mapping[str, Any] | str | None) -> Any:
    """The value in a result: structured content (unwrapped), else JSON text, else text. A preview stays as it is."""
    if not isinstance(result, Mapping):
        return result
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
    """Adds the values that the operator's rules find, until their time is used up."""
    until = time.thread_time() + ALL_RULES_SECONDS
    for rule in rules:
        if time.thread_time() >= until:
            break
        if not source_matches(rule.tool, tool):
            continue
        matches, value = _by_rule(rule, read)
        if value is not None:
            metrics[rule.metric] = value
        elif matches:  # it found something other than a number; no other number replaces it
            metrics.pop(rule.metric, None)


def _by_rule(rule: ObserveRule, read: _Read) -> tuple[bool, Any]:
    """Applies a rule to the log, then to the result: whether it matched, and the value. Slow rules do not match."""
    try:
        said = list(map(as_number, in_lines(rule.regex, rule.jmespath, read.log, SECONDS))) if read.log else []
        if said:
            return True, taken(rule.take or "last", None, said)
        said = list(map(as_number, _in_result(rule, read)))
        return bool(said), taken(rule.take or "first", None, said)
    except Unfinished:
        return False, None


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
