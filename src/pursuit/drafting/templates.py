"""Criteria that can be read off a directive without any model.

Owns: the phrases that mean something checkable. Pure and deterministic. Invariant: every draft names the words of the
directive that it was made of, so that a person can judge it; nothing is invented where no phrase is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pursuit.drafting.commands import argv_of
from pursuit.drafting.measures import wordset
from pursuit.drafting.numbers import read_numbers
from pursuit.drafting.paths import files
from pursuit.drafting.phrases import Doubt, clauses, slug
from pursuit.drafting.trends import trends

_BAD = (
    r"errors?|failures?|warnings?|bugs?|violations?|crashes|conflicts|vulnerabilities|regressions?|leaks?|timeouts?|"
    r"(?:failing|failed|broken|flaky|skipped|unhandled) \w+"
)
_ONE_BAD = rf"(?:(?!(?:more|less|fewer|longer|than|in|of|with|to|for|or|and)\b)[\w-]+\s+){{0,3}}?(?:{_BAD})"
_NONE = re.compile(
    rf"(?:\b(?:no|zero|without(?: any)?|free of)|(?<![\w.,-])0)\s+"
    rf"(?P<what>{_ONE_BAD}(?:(?:\s*,|\s+or|\s+and)\s+{_ONE_BAD})*)"
    r"\b(?!\s+(?:over|under|above|below|than|more|less|greater|longer|at|within|exceeding)\b)",
    re.I,
)
_GREEN = r"(?:(?:is|are|be|turns?|goes?|stays?)\s+)?(?:all\s+)?(?:green|passing|clean)"
_MUST = r"(?:(?:must|should|to|will|can|still|all|both|now)\s+)*"
_GOOD = (
    rf"{_MUST}(?:pass(?:es|ed|ing)?|succeeds?|{_GREEN}|(?:exits?|returns?) (?:with )?(?:code |status |exit code )?0)"
)
_COMMAND = r"`[^`\n]+`"
_BY = re.compile(rf"[\s,:(]*(?:(?:with|using|via|under|in|by|running|run)\s+)*(?P<command>{_COMMAND})", re.IGNORECASE)
_QUOTED = re.compile(rf"(?P<commands>{_COMMAND}(?:(?:\s*,\s*|\s*,?\s+and\s+){_COMMAND}){{0,9}})\s+{_GOOD}\b", re.I)
_TESTS = re.compile(
    rf"\b(?P<what>tests?(?: suite)?|builds?|linter|lint|type ?checks?|type checker)\s+{_GOOD}\b"
    r"|\bpass(?:es)?\s+(?:all\s+)?(?:the\s+|of the\s+|our\s+|unit\s+)*"
    r"(?P<also>tests?(?: suite)?|linter|type ?checks?)\b"
    r"|\b(?P<green>green|passing)\s+(?:unit\s+)?(?P<last>tests?(?: suite)?|builds?)\b",
    re.I,
)
_RUNNERS = {
    r"\bcargo\b|\brust\b": ["cargo", "test"],
    r"\bgo test\b|\bgolang\b": ["go", "test", "./..."],
    r"\bnpm\b|\bjest\b|\bnode\b": ["npm", "test"],
    r"\bmake test\b": ["make", "test"],
}
_KINDS = {"test": ["pytest", "-q"], "build": ["make"], "lint": ["ruff", "check", "."], "type": ["pyright"]}
_DONE = r"deployed|finished|done|completed?|approved|certified|ready|merged|published|released|confirmed|converged"
_EVENT = re.compile(
    rf"\b(?P<lead>until|have|once|wait for)\s+(?:the\s+|an?\s+)?(?P<what>(?:[\w-]+\s+){{1,3}}?)"
    rf"(?:(?:is|are|has|have|has been|have been|to be|gets?)\s+)?(?P<done>{_DONE})\b",
    re.I,
)
_VAGUE = wordset("it this that everything all they we you i work things something anything not is are be")
_ABSENT = re.compile(r"\s*(?:no|zero|without(?: any)?)\s+[a-z]", re.I)
_NAME_IT = "call the metric what your tool reports it as"
_ENDLESS = re.compile(r"\S{121,}")
"""No word of a person; looking for phrases in one would cost the square of its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A criterion as plain data, the words that it was made of, and where they stand."""

    row: dict[str, Any]
    said: str
    at: int = 0
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a directive says: criteria, and words that look like one and are none."""

    sketches: Sequence[Sketch]
    doubts: Sequence[Doubt]


def read(directive: str) -> Reading:
    """Every criterion that the known phrases give, in the order of the directive, under ids that are told apart."""
    directive = re.sub(r"[^\S\n]+", " ", _ENDLESS.sub("…", directive))
    numbers = read_numbers(directive)
    everything: list[Sketch | Doubt] = []
    for found in numbers.compared:
        row = {"criterion_id": found.metric.replace("_", "-"), "kind": "metric_threshold", "metric": found.metric}
        hint = _NAME_IT + ("; in percent, 0 to 100" if found.metric.endswith("_percent") else "")
        row |= {"op": found.op, "target": found.target}
        everything.append(Sketch(row=row, said=found.said, at=found.at, hint=hint))
    everything += [*_absences(directive), *_quoted(directive), *_events(directive)]
    everything += [one for one in _tests(directive) if not _within(one.at, numbers.counting)]
    everything += [_file(path, said, at) if not why else Doubt(said=said, reason=why, at=at)
                   for path, said, at, why in files(directive)]  # fmt: skip
    for trend in trends(directive):
        everything.append(trend if isinstance(trend, Doubt) else _trend(*trend))
    everything.sort(key=lambda one: one.at)
    doubts = [*numbers.doubts, *(one for one in everything if isinstance(one, Doubt))]
    doubts += _not_understood(directive, [one.at for one in (*everything, *doubts)])
    return Reading(
        sketches=_told_apart([one for one in everything if isinstance(one, Sketch)]),
        doubts=sorted(doubts, key=lambda doubt: doubt.at),
    )


def _not_understood(directive: str, places: Sequence[int]) -> Iterator[Doubt]:
    """What should not be, in words of which nothing was made: "no downtime"."""
    for clause in clauses(directive):
        begins = clause.at + len(clause.text) - len(clause.text.lstrip())
        told = any(at == clause.at or begins <= at <= clause.at + len(clause.text) for at in places)
        if _ABSENT.match(clause.text) and not told:
            why = "what would show it is not known here; say it as a number or as a command that passes"
            yield Doubt(said=clause.said, reason=why, at=clause.at)


def _told_apart(sketches: Sequence[Sketch]) -> list[Sketch]:
    taken: dict[str, int] = {}
    for sketch in sketches:
        name = str(sketch.row["criterion_id"])
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            sketch.row["criterion_id"] = f"{name}-{taken[name]}"
    return list(sketches)


def _within(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _absences(directive: str) -> Iterator[Sketch]:
    for found in _NONE.finditer(directive):
        if re.search(
            r"\b(?:at (?:least|most)|than|over|under|above|below|exactly|[<>=≤≥])\s*$", directive[: found.start()]
        ):
            continue
        for what in re.split(r"\s*,\s+|\s+or\s+|\s+and\s+", found["what"]):
            name = slug(what)
            row = {"criterion_id": f"no-{name.replace('_', '-')}", "kind": "metric_threshold", "metric": name}
            yield Sketch(row={**row, "op": "==", "target": 0}, said=found[0], at=found.start(), hint=_NAME_IT)


def _quoted(directive: str) -> Iterator[Sketch | Doubt]:
    for found in _QUOTED.finditer(directive):
        for command in re.findall(_COMMAND, found["commands"]):
            argv = argv_of(command.strip("`"))
            if isinstance(argv, str):
                yield Doubt(said=command, reason=argv, at=found.start())
                continue
            shell = argv[-1] == command.strip("`") and len(argv) > 2
            name = slug(command.split()[0]) if shell else slug(argv[0])
            hint = "run by a shell; it passes only if every part of it does" if shell else ""
            yield _command(f"{name[:60] or 'command'}-passes", argv, found, hint)


def _tests(directive: str) -> Iterator[Sketch]:
    for found in _TESTS.finditer(directive):
        said = (found["what"] or found["also"] or found["last"]).lower()
        what = next(kind for kind in _KINDS if said.startswith(kind))
        named = _BY.match(directive, found.end())
        meant = argv_of(named["command"].strip("`")) if named is not None else ""
        if not isinstance(meant, str):
            yield _command(f"{what}-passes" if what != "test" else "tests-pass", meant, found, "")
            continue
        argv = _KINDS[what]
        if what == "test":
            argv = next((argv for words, argv in _RUNNERS.items() if re.search(words, directive, re.I)), argv)
        hint = f"a guess: put in the command that says whether {found[0].lower()}"
        yield _command(f"{what}-passes" if what != "test" else "tests-pass", argv, found, hint)


def _command(name: str, argv: list[str], found: re.Match[str], hint: str) -> Sketch:
    row = {"criterion_id": name, "kind": "check", "command": argv, "expect": {"exit_code": 0}}
    return Sketch(row=row, said=found[0], at=found.start(), hint=hint)


def _file(path: str, said: str, at: int) -> Sketch:
    name = f"{slug(path).replace('_', '-')[:100]}-exists"
    command = ["sh", "-c", f"test -s {path}"] if path.startswith("~/") else ["test", "-s", path]
    row = {"criterion_id": name, "kind": "check", "command": command, "expect": {"exit_code": 0}}
    relative = "" if path.startswith(("/", "~/")) else "the path is relative to the mission file; "
    return Sketch(row=row, said=said, at=at, hint=f"{relative}-s: it is there and not empty")


def _trend(metric: str, direction: str, said: str, at: int) -> Sketch:
    name = f"{metric}-{direction}".replace("_", "-")
    row = {"criterion_id": name, "kind": "metric_trend", "metric": metric, "direction": direction}
    return Sketch(row=row | {"window": 10, "min_points": 5}, said=said, at=at, hint=_NAME_IT)


def _events(directive: str) -> Iterator[Sketch | Doubt]:
    for found in _EVENT.finditer(directive):
        words = found["what"].lower().split()
        if found["lead"].lower() == "once" and not re.search(r"\w\s+$", directive[: found.start()]):
            why = "it says when to begin something, not what should come of it"
            yield Doubt(said=found[0], reason=why, at=found.start())
        elif _VAGUE & set(words):
            yield Doubt(
                said=found[0],
                reason="it does not say what; name it (until the deployment is finished)",
                at=found.start(),
            )
        else:
            name = slug(f"{found['what']} {found['done']}")
            row = {"criterion_id": name.replace("_", "-"), "kind": "event", "event_name": name}
            yield Sketch(row=row, said=found[0], at=found.start(), hint="call the event what your tool reports it as")
