"""Finds metrics in the output of a command, or in a file that it wrote: by pattern, or in JSON.

Pure. Invariant: the number of values kept is limited, however long the output is.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, cast

from pursuit.core.patterns import Unfinished, checked_pattern, compiled, follow, line_matches

Take = Literal["last", "first", "min", "max", "all"]
NUMBER = "[0-9.eE+-]+|(?i:nan|inf)"
"""Matches a number. With a pattern that does not match `nan`, the number before a `nan` stays the last one."""
MAX_VALUES = 1_000
SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    """One metric: the group of a `pattern`, or the JMESPath `json` in JSON lines; in the output, or in a `file`."""

    name: str
    pattern: str | None = None
    json: str | None = None
    file: str | None = None
    take: Take = "last"

    @property
    def wants(self) -> str:
        return f"pattern {self.pattern!r}" if self.pattern is not None else f"json {self.json!r}"


def checked_group(pattern: str) -> str:
    """Returns the pattern if it compiles and has a group; raises ValueError with the reason otherwise."""
    checked_pattern(pattern)
    if compiled(pattern).groups == 0:
        raise ValueError(f"{pattern!r} has no group; put the number in parentheses, as in 'loss=({NUMBER})'")
    return pattern


def as_number(value: object) -> float | None:
    """The value as a finite number, also from text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def taken(take: Take, kept: Any, values: Iterable[float | None]) -> Any:
    """The metric after more values: a number, or the newest values as a list for `all`; None while there are none.

    None among the values is a match that is not a finite number: as the last value it clears the metric.
    """
    if take == "last":
        for value in values:
            kept = value
        return kept
    before = (kept or []) if take == "all" else [] if kept is None else [kept]
    numbers = chain(cast("list[float]", before), (value for value in values if value is not None))
    match take:
        case "all":
            return list(deque(numbers, maxlen=MAX_VALUES)) or None
        case "first":
            return next(numbers, None)
        case "min":
            return min(numbers, default=None)
        case "max":
            return max(numbers, default=None)


def matched(pattern: str, text: str, seconds: float = SECONDS) -> Iterator[str]:
    """The first group that took part in each match, or the whole match for a pattern without groups."""
    for found in line_matches(pattern, text, seconds):
        yield next((group for group in found.groups() if group is not None), found[0])


def json_values(path: str, text: str, seconds: float = SECONDS) -> Iterator[Any]:
    """The values of the path in each line that is a JSON object. Raises `Unfinished` if that takes too long."""
    until = time.process_time() + seconds
    for line in text.split("\n"):
        if not line.lstrip().startswith("{"):
            continue
        if time.process_time() > until:
            raise Unfinished(f"{path!r} took more than {seconds:g} s")
        try:
            found = _at(path, json.loads(line), line)
        except (ValueError, RecursionError):
            continue
        if found is not None:
            yield found


def in_lines(pattern: str | None, path: str | None, text: str, seconds: float) -> Iterator[Any]:
    """The values that a pattern, or else a JSON path, finds in whole lines."""
    return matched(pattern, text, seconds) if pattern is not None else json_values(path or "", text, seconds)


def _at(path: str, document: Any, text: str) -> Any:
    """The value of the path in the document of this text: NaN for `null`, None if nothing is found."""
    found = follow(path, document)
    return follow(path, _with_nan(document)) if found is None and "null" in text else found


def _with_nan(value: Any) -> Any:
    """The document with NaN for `null`: JMESPath does not distinguish `null` from a missing key."""
    if isinstance(value, dict):
        return {key: _with_nan(inner) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_nan(inner) for inner in cast("list[Any]", value)]
    return math.nan if value is None else value


class LogMetrics:
    """The metrics of a command so far; `found` can be stored and passed in again."""

    def __init__(self, rules: Sequence[MetricRule], found: Mapping[str, Any] | None = None) -> None:
        self.rules = rules
        self.found: dict[str, Any] = dict(found or {})
        self._not_numbers: dict[str, str] = {}

    def look(self, rule: MetricRule, text: str, seconds: float = SECONDS) -> None:
        """Looks for one metric in whole lines. Raises `Unfinished` if that takes too long."""
        self._take(rule, in_lines(rule.pattern, rule.json, text, seconds))

    def look_in_file(self, rule: MetricRule, text: str) -> None:
        """Looks for one metric in a whole file, which may be a single JSON document."""
        if rule.json is not None:
            try:
                found = _at(rule.json, json.loads(text), text)
            except (ValueError, RecursionError):
                pass
            else:
                self._take(rule, [] if found is None else [found])
                return
        self.look(rule, text)

    def notes(self) -> list[str]:
        """For each metric of the output without a value, the reason."""
        found: list[str] = []
        for rule in self.rules:
            text = self._not_numbers.get(rule.name)
            if rule.name not in self.found and (rule.file is None or text is not None):
                what = "nothing in the output" if text is None else f"{text!r}, which is not a finite number"
                found.append(f"metric {rule.name}: {rule.wants} finds {what}")
        return found

    def _take(self, rule: MetricRule, values: Iterable[Any]) -> None:
        numbers = list[float | None]()
        for value in values:
            numbers.append(as_number(value))
            if numbers[-1] is None:
                self._not_numbers[rule.name] = str(value)[:100]
        kept = taken(rule.take, self.found.get(rule.name), numbers)
        if kept is not None:
            self.found[rule.name] = kept
        else:
            self.found.pop(rule.name, None)
