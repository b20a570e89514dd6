"""Finds metrics in the output of a command, or in a file that it wrote: by pattern, or in JSON.

Pure. Invariant: what is kept of the values is bounded, however long the output is.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, cast, get_args

from pursuit.core.patterns import checked_pattern, follow, for_lines, line_matches

Take = Literal["last", "first", "min", "max", "all"]
TAKES: tuple[Take, ...] = get_args(Take)
NUMBER = "[0-9.eE+-]+|(?i:nan|inf)"
"""A number in a pattern. A pattern that does not match `nan` or `NaN` keeps the number before it."""
MOST_VALUES = 1_000
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
        """What it looks for, for people."""
        return f"pattern {self.pattern!r}" if self.pattern is not None else f"json {self.json!r}"


def checked_group(pattern: str) -> str:
    """The pattern itself if it compiles and has a group, else a ValueError that says why not."""
    checked_pattern(pattern)
    if for_lines(pattern).groups == 0:
        raise ValueError(f"{pattern!r} has no group; put the number in parentheses, as in 'loss=({NUMBER})'")
    return pattern


def as_number(value: object) -> float | None:
    """A finite number, also one that is written as text; None for anything else."""
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

    None among the values is a match that is no finite number: as the last one it is the end of what was known.
    """
    if take == "last":
        for value in values:
            kept = value
        return kept
    before = (kept or []) if take == "all" else [] if kept is None else [kept]
    numbers = chain(cast("list[float]", before), (value for value in values if value is not None))
    match take:
        case "all":
            return list(deque(numbers, maxlen=MOST_VALUES)) or None
        case "first":
            return next(numbers, None)
        case "min":
            return min(numbers, default=None)
        case "max":
            return max(numbers, default=None)


def matched(pattern: str, text: str, seconds: float = SECONDS) -> Iterator[str]:
    """The first group that took part in each match, or all of the match if the pattern has no group."""
    for found in line_matches(for_lines(pattern), text, seconds):
        yield next((group for group in found.groups() if group is not None), found[0])


def json_values(path: str, text: str, seconds: float = SECONDS) -> Iterator[Any]:
    """What the path finds in each line that is a JSON object. Raises `TimeoutError`."""
    until = time.process_time() + seconds
    for line in text.split("\n"):
        if not line.lstrip().startswith("{"):
            continue
        if time.process_time() > until:
            raise TimeoutError
        try:
            found = _at(path, json.loads(line), line)
        except (ValueError, RecursionError):
            continue
        if found is not None:
            yield found


def _at(path: str, document: Any, text: str) -> Any:
    """What the path finds in the document of this text: NaN where it finds `null`, None where it finds nothing."""
    found = follow(path, document)
    return follow(path, _with_nan(document)) if found is None and "null" in text else found


def _with_nan(value: Any) -> Any:
    """The document with NaN for `null`: for JMESPath, `null` and a key that is missing are the same."""
    if isinstance(value, dict):
        return {key: _with_nan(inner) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_nan(inner) for inner in cast("list[Any]", value)]
    return math.nan if value is None else value


class LogMetrics:
    """The metrics of a command so far; `found` can be stored and handed in again."""

    def __init__(self, rules: Sequence[MetricRule], found: Mapping[str, Any] | None = None) -> None:
        self.rules = rules
        self.found: dict[str, Any] = dict(found or {})
        self._not_numbers: dict[str, str] = {}

    def look(self, rule: MetricRule, text: str, seconds: float = SECONDS) -> None:
        """Looks for one metric in whole lines. Raises `TimeoutError` if that takes too long."""
        if rule.pattern is not None:
            self._take(rule, matched(rule.pattern, text, seconds))
        elif rule.json is not None:
            self._take(rule, json_values(rule.json, text, seconds))

    def look_in_file(self, rule: MetricRule, text: str) -> None:
        """The same in a whole file, which may also be one JSON document."""
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
        """Why a metric of the output has no value, for each that has none."""
        return [
            f"metric {rule.name}: {self._why(rule)}"
            for rule in self.rules
            if rule.name not in self.found and (rule.file is None or rule.name in self._not_numbers)
        ]

    def _why(self, rule: MetricRule) -> str:
        text = self._not_numbers.get(rule.name)
        if text is not None:
            return f"{rule.wants} finds {text!r}, which is not a finite number"
        return f"{rule.wants} finds nothing in the output"

    def _take(self, rule: MetricRule, values: Iterable[Any]) -> None:
        kept = taken(rule.take, self.found.get(rule.name), self._numbers(rule, values))
        if kept is not None:
            self.found[rule.name] = kept
        else:
            self.found.pop(rule.name, None)

    def _numbers(self, rule: MetricRule, values: Iterable[Any]) -> Iterator[float | None]:
        for value in values:
            number = as_number(value)
            if number is None:
                self._not_numbers[rule.name] = str(value)[:100]
            yield number
