"""Criteria that can be read off a directive without any model.

Owns: the phrases that mean something checkable. Pure and deterministic. Invariant: every draft names the words of the
directive that it was made of, so that a person can judge it; nothing is invented where no phrase is known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pursuit.drafting.numbers import comparisons, slug

_BAD = r"errors?|failures?|warnings?|bugs?|violations?|crashes|conflicts|vulnerabilities|regressions?|leaks?|timeouts?"
_NONE = re.compile(rf"\b(?:no|zero|without(?: any)?)\s+(?P<what>(?:[\w-]+\s+)?(?:{_BAD}))\b", re.I)
_GREEN = r"(?:is|are|be|turns?|goes?)\s+(?:all\s+)?(?:green|passing|clean)"
_GOOD = rf"pass(?:es|ed|ing)?|succeeds?|{_GREEN}|exits? (?:with )?0"
_QUOTED = re.compile(rf"`(?P<command>[^`\n]+)`\s+(?:{_GOOD})\b", re.I)
_TESTS = re.compile(
    rf"\b(?P<what>tests?(?: suite)?|builds?|linter|lint|type ?checks?|type checker)\s+(?:all\s+)?(?:{_GOOD})\b", re.I
)
_RUNNERS = {
    r"\bcargo\b|\brust\b": ["cargo", "test"],
    r"\bgo test\b|\bgolang\b": ["go", "test", "./..."],
    r"\bnpm\b|\bjest\b|\bnode\b": ["npm", "test"],
    r"\bmake test\b": ["make", "test"],
}
_KINDS = {"test": ["pytest", "-q"], "build": ["make"], "lint": ["ruff", "check", "."], "type": ["pyright"]}
_PATH = r"[`\"']?(?P<path{0}>(?:[\w.~-]+/)*[\w-][\w.-]*\.[a-z]\w{{0,7}}|(?:[\w.~-]+/)+[\w.-]+)[`\"']?"
_FILE = re.compile(
    _PATH.format(1)
    + r"\s+(?:exists?|is\s+(?:there|written|created|present|produced|generated))\b"
    + r"|\b(?:create|write|produce|generate|save)\b(?:\s+(?:a|the|it|them|file|report|results?|to|as|in|into))*\s+"
    + _PATH.format(2),
    re.I,
)
_TREND = re.compile(
    r"\b(?P<what>[\w-]+(?:\s+[\w-]+)?)\s+(?:is|are|keeps?|stays?)\s+"
    r"(?P<way>decreasing|falling|going down|increasing|rising|going up)\b",
    re.I,
)
_DONE = r"deployed|finished|done|completed?|approved|certified|ready|merged|published|released|confirmed|converged"
_EVENT = re.compile(
    rf"\b(?:until|have|once|wait for)\s+(?:the\s+|an?\s+)?(?P<what>(?:[\w-]+\s+){{1,3}}?)"
    rf"(?:(?:is|are|has been|have been|to be)\s+)?(?P<done>{_DONE})\b",
    re.I,
)
_TREND_POINTS = 5
_ENDLESS = re.compile(r"\S{121,}")
"""No word of a person; looking for phrases in one would cost the square of its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A criterion as plain data, the words that it was made of, and where they stand."""

    row: dict[str, Any]
    said: str
    at: int = 0
    hint: str = ""


def sketches(directive: str) -> list[Sketch]:
    """Every criterion that the known phrases give, in the order of the directive, under ids that are told apart."""
    directive = _ENDLESS.sub("…", directive)
    everything = [*_numbers(directive), *_absences(directive), *_commands(directive), *_files(directive)]
    everything += [*_trends(directive), *_events(directive)]
    taken: dict[str, int] = {}
    named: list[Sketch] = []
    for sketch in sorted(everything, key=lambda sketch: sketch.at):
        name = str(sketch.row["criterion_id"])
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            sketch.row["criterion_id"] = f"{name}-{taken[name]}"
        named.append(sketch)
    return named


def _numbers(directive: str) -> Iterator[Sketch]:
    for found in comparisons(directive):
        row: dict[str, Any] = {"kind": "metric_threshold", "metric": found.metric, "op": found.op}
        row = {"criterion_id": found.metric.replace("_", "-"), **row, "target": found.target}
        yield Sketch(row=row, said=found.said, at=found.at, hint="call the metric what your tool reports it as")


def _absences(directive: str) -> Iterator[Sketch]:
    for found in _NONE.finditer(directive):
        name = slug(found["what"])
        row = {"criterion_id": f"no-{name.replace('_', '-')}", "kind": "metric_threshold", "metric": name}
        hint = "call the metric what your tool reports it as"
        yield Sketch(row={**row, "op": "==", "target": 0}, said=found[0], at=found.start(), hint=hint)


def _commands(directive: str) -> Iterator[Sketch]:
    for found in _QUOTED.finditer(directive):
        try:
            argv = shlex.split(found["command"])
        except ValueError:  # a quote that is never closed
            continue
        if argv:
            yield _command(f"{slug(argv[0]) or 'command'}-passes", argv, found, "")
    for found in _TESTS.finditer(directive):
        what = next(kind for kind in _KINDS if found["what"].lower().startswith(kind))
        argv = _KINDS[what]
        if what == "test":
            argv = next((argv for words, argv in _RUNNERS.items() if re.search(words, directive, re.I)), argv)
        hint = f"a guess: put in the command that says whether {found[0].lower()}"
        yield _command(f"{what}-passes" if what != "test" else "tests-pass", argv, found, hint)


def _command(name: str, argv: list[str], found: re.Match[str], hint: str) -> Sketch:
    row = {"criterion_id": name, "kind": "check", "command": argv, "expect": {"exit_code": 0}}
    return Sketch(row=row, said=found[0], at=found.start(), hint=hint)


def _files(directive: str) -> Iterator[Sketch]:
    for found in _FILE.finditer(directive):
        path = found["path1"] or found["path2"]
        name = f"{slug(path).replace('_', '-')[:100]}-exists"
        row = {"criterion_id": name, "kind": "check", "command": ["test", "-s", path], "expect": {"exit_code": 0}}
        hint = "the path is relative to the mission file; -s: it is there and not empty"
        yield Sketch(row=row, said=found[0], at=found.start(), hint=hint)


def _trends(directive: str) -> Iterator[Sketch]:
    for found in _TREND.finditer(directive):
        name = slug(found["what"].removeprefix("the "))
        down = found["way"].lower() in ("decreasing", "falling", "going down")
        direction = "decreasing" if down else "increasing"
        row = {"criterion_id": f"{name.replace('_', '-')}-{direction}", "kind": "metric_trend", "metric": name}
        row |= {"direction": direction, "window": 10, "min_points": _TREND_POINTS}
        hint = "call the metric what your tool reports it as"
        yield Sketch(row=row, said=found[0], at=found.start(), hint=hint)


def _events(directive: str) -> Iterator[Sketch]:
    for found in _EVENT.finditer(directive):
        name = slug(f"{found['what']} {found['done']}")
        row = {"criterion_id": name.replace("_", "-"), "kind": "event", "event_name": name}
        yield Sketch(row=row, said=found[0], at=found.start(), hint="call the event what your tool reports it as")
