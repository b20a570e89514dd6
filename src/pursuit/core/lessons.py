"""The lessons of an ended mission, and the text by which later missions find them. Pure and deterministic.

Invariants: every lesson follows from the ledger; their number and length are limited, and each is one line; arguments
named like secrets are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pursuit.core.audit import redacted
from pursuit.core.best import Best
from pursuit.core.criteria import MetricThreshold, describe
from pursuit.core.events import CallRefused
from pursuit.core.history import CallRow
from pursuit.core.series import holds
from pursuit.core.state import MissionState
from pursuit.core.truncate import cut_text, cut_to

MAX_LESSONS = 24
MAX_LESSON = 400
_ARGS = 160
_WHY = 140
_WHYS = 2
_TOOLS = 6
_HEAD = 3
"""The number of lines of a text before its lessons."""


Whys = dict[str, Counter[str]]
"""The number of times that each reason occurred, by tool."""


def lessons_of(state: MissionState, ended: Sequence[CallRow], no_proposal: Counter[str]) -> list[str]:
    """One line for each result: successes with their arguments, criteria never met, failures with reasons, denials.

    `no_proposal` counts the reasons why the proposer proposed nothing.
    """
    found = [*_of_criteria(state, {call.call_id: call for call in ended}), *_of_calls(ended)]
    if no_proposal:
        found.append(f"The proposer failed {_times(no_proposal.total())}: {_reasons(no_proposal)}.")
    if state.stop is not None and state.stop.reason:
        found.append(f"The operator ended it: {_line(state.stop.reason, _WHY)}.")
    return [_line(lesson, MAX_LESSON) for lesson in found[:MAX_LESSONS]]


def _of_criteria(state: MissionState, calls: Mapping[str, CallRow]) -> Iterator[str]:
    for criterion in state.mission.criteria if state.iteration_count else ():
        met = criterion.criterion_id in state.ever_met
        best = state.best_points.of(criterion.criterion_id)
        if best is not None and isinstance(criterion, MetricThreshold):
            yield f"{describe(criterion)} was {_best(criterion, best, met=met)}."
            continue
        why, result = "", state.results.get(criterion.criterion_id)
        if result is not None and (source := result.source) is not None:
            call = calls.get(source.call_id)  # that the value comes from
            given = f" with {_compact(call.args)}" if call is not None and call.args else ""
            why = f", from {source.tool}{given} in iteration {source.iteration + 1}"
        elif result is not None and not met:
            evidence: dict[str, Any] = result.evidence or {}
            said = evidence.get("error") or evidence.get("reason")
            why = f": {_line(str(said), _WHY)}" if said else ""
        yield f"{describe(criterion)} was {'met' if met else 'never met'}{why}."


def _best(criterion: MetricThreshold, best: Best, *, met: bool) -> str:
    """The best value that satisfies the other limits, with its arguments. Points that violate one are left out."""
    point = best.point
    if point is None:
        return f"{'met only' if met else 'never met, and reported only'} by calls that violate other limits"
    how = "met" if met and holds(criterion, point.value) else "never met"
    kept = " with all limits kept" if best.infeasible is not None else ""
    given = f" with {_compact(point.args)}" if point.args else ""
    by = f"from {point.tool}{given} in iteration {point.iteration + 1}"
    return f"{how}{kept}: the best {point.metric} was {point.value:g}, {by}"


def _of_calls(ended: Sequence[CallRow]) -> Iterator[str]:
    failed, denied, unknown = Whys(), Whys(), Counter[str]()
    for call in ended:
        if isinstance(call.end, CallRefused) and call.outcome == "denied":
            denied.setdefault(call.tool, Counter())[call.end.reason] += 1
        elif call.settled is not None and call.outcome in ("failed", "timed_out"):
            failed.setdefault(call.tool, Counter())[call.error or call.outcome] += 1
        elif call.outcome == "unknown":
            unknown[call.tool] += 1
    tried = Counter(call.tool for call in ended if call.settled is not None) if failed else Counter[str]()
    for tool, whys in _worst(failed):
        yield f"{tool} failed {whys.total()} of {tried[tool]} times: {_reasons(whys)}."
    for tool, whys in _worst(denied):
        yield f"{tool} was denied {_times(whys.total())}: {_reasons(whys)}."
    for tool, count in sorted(unknown.items()):
        yield f"{tool} ended with an unknown outcome {_times(count)}: check its effects before you try again."


def _worst(by_tool: Whys) -> list[tuple[str, Counter[str]]]:
    """The tools with the most reasons; ties are ordered by name."""
    return sorted(by_tool.items(), key=lambda item: (-item[1].total(), item[0]))[:_TOOLS]


def _reasons(whys: Counter[str]) -> str:
    """The most frequent reasons; ties are in order of first occurrence."""
    shown = [f"{_line(why, _WHY)} ({_times(count)})" for why, count in whys.most_common(_WHYS)]
    return "; ".join([*shown, f"{len(whys) - _WHYS} other reasons"] if len(whys) > _WHYS else shown)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _compact(args: Mapping[str, Any]) -> str:
    shown = cut_to(redacted(args), _ARGS, lambda value: len(msgspec.json.encode(value)))
    return msgspec.json.encode(shown).decode()


def _line(text: str, most: int) -> str:
    return cut_text(" ".join(text.encode(errors="replace").decode().replace("\0", " ").split()), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    goal: str
    ending: str
    about: str
    lessons: tuple[str, ...]


def remembered(report: Mapping[str, Any]) -> str:
    """The text by which a mission is found: its goal, its end, its subject and its lessons."""
    about = [row["description"] for row in report["criteria"]]
    about += [row["tool"] for row in report["calls"]["by_tool"]]
    head = (report["directive"], f"{report['status']}: {report['verdict_reason']}", "; ".join(about))
    return "\n".join([*(_line(one, 10 * MAX_LESSON) for one in head), *report["lessons"]])


def recollected(text: str) -> Recollection:
    """Parses such a text; never fails, but a text in another form gives less."""
    lines: Sequence[str] = [*text.split("\n"), *("" for _ in range(_HEAD))]
    goal, ending, about = lines[:_HEAD]
    return Recollection(goal=goal, ending=ending, about=about, lessons=tuple(filter(None, lines[_HEAD:])))
