"""The lessons of an ended mission, and the text by which later missions find them. Pure and deterministic.

Invariants: every lesson follows from the ledger; their number and length are bounded, each is one line; an argument
that is named like a secret is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from pursuit.core.audit import redacted
from pursuit.core.best import Best
from pursuit.core.criteria import Criterion, MetricThreshold, describe
from pursuit.core.events import CallRefused
from pursuit.core.history import CallRow
from pursuit.core.series import holds
from pursuit.core.state import MissionState
from pursuit.core.truncate import cut_text, cut_to

MOST = 24
LONGEST = 400
_ARGS = 160
_WHY = 140
_WHYS = 2
_TOOLS = 6
_HEAD = 3
"""The lines of a text before its lessons."""


@dataclass(slots=True)
class _Gathered:
    """What the calls came to."""

    calls: dict[str, CallRow]
    tried: Counter[str] = field(default_factory=Counter[str])
    bad: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    refused: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    unknown: Counter[str] = field(default_factory=Counter[str])


def lessons_of(state: MissionState, ended: Sequence[CallRow], no_proposal: Counter[str]) -> list[str]:
    """What worked with which arguments, what never did, what failed and why, what was not allowed.

    `no_proposal` counts the reasons for which the proposer proposed nothing.
    """
    sources = {result.source.call_id for result in state.results.values() if result.source is not None}
    gathered = _gather(ended, sources)
    found = [*_of_criteria(state, gathered), *_of_calls(gathered), *_of_the_end(state, no_proposal)]
    return [_line(lesson, LONGEST) for lesson in found[:MOST]]


def _gather(ended: Sequence[CallRow], wanted: Set[str]) -> _Gathered:
    gathered = _Gathered({call.call_id: call for call in ended if call.call_id in wanted})
    for call in ended:
        outcome = call.outcome or ""
        if isinstance(call.end, CallRefused):
            if outcome == "denied":
                gathered.refused.setdefault(call.tool, Counter())[call.end.reason] += 1
        elif outcome in ("failed", "timed_out"):
            gathered.bad.setdefault(call.tool, Counter())[call.error or outcome] += 1
        elif outcome == "unknown":
            gathered.unknown[call.tool] += 1
    if gathered.bad:
        gathered.tried.update(call.tool for call in ended if call.settled is not None)
    return gathered


def _of_criteria(state: MissionState, gathered: _Gathered) -> Iterator[str]:
    if state.iteration_count == 0:
        return
    for criterion in state.mission.criteria:
        met = criterion.criterion_id in state.ever_met
        best = state.best_points.of(criterion.criterion_id)
        head = f"{describe(criterion)} was {'met' if met else 'never met'}"
        if best is not None and isinstance(criterion, MetricThreshold):
            yield f"{describe(criterion)} was {_best(criterion, best, met=met)}."
        else:
            yield f"{head}{_because(state, criterion, gathered, met=met)}."


def _best(criterion: MetricThreshold, best: Best, *, met: bool) -> str:
    """The best value that keeps the other limits, with its arguments. What violates one is never recommended."""
    point = best.point
    if point is None:
        return f"{'met only' if met else 'never met, and reported only'} by calls that violate other limits"
    how = "met" if met and holds(criterion, point.value) else "never met"
    kept = " with all limits kept" if best.infeasible is not None else ""
    given = f" with {_compact(point.args)}" if point.args else ""
    by = f"from {point.tool}{given} in iteration {point.iteration + 1}"
    return f"{how}{kept}: the best {point.metric} was {point.value:g}, {by}"


def _because(state: MissionState, criterion: Criterion, gathered: _Gathered, *, met: bool) -> str:
    """What decided a criterion that is not a threshold."""
    result = state.results.get(criterion.criterion_id)
    if result is None:
        return ""
    if result.source is not None:
        return f", {_by(gathered, result.source.tool, result.source.call_id, result.source.iteration)}"
    evidence: Any = result.evidence
    if met or not isinstance(evidence, dict):
        return ""
    given = cast("dict[str, Any]", evidence)
    why = given.get("error") or given.get("reason")
    return f": {_line(str(why), _WHY)}" if why else ""


def _by(gathered: _Gathered, tool: str, call_id: str, iteration: int) -> str:
    """The call that a value comes from."""
    call = gathered.calls.get(call_id)
    given = f" with {_compact(call.args)}" if call is not None and call.args else ""
    return f"from {tool}{given} in iteration {iteration + 1}"


def _of_calls(gathered: _Gathered) -> Iterator[str]:
    for tool, whys in _worst(gathered.bad):
        yield f"{tool} failed {whys.total()} of {gathered.tried[tool]} times: {_reasons(whys)}."
    for tool, whys in _worst(gathered.refused):
        yield f"{tool} was denied {_times(whys.total())}: {_reasons(whys)}."
    for tool, count in sorted(gathered.unknown.items()):
        yield f"{tool} has an unknown outcome {_times(count)}: check what it did before you try again."


def _of_the_end(state: MissionState, no_proposal: Counter[str]) -> Iterator[str]:
    if no_proposal:
        yield f"The proposer failed {_times(no_proposal.total())}: {_reasons(no_proposal)}."
    if state.stop is not None and state.stop.reason:
        yield f"The operator ended it: {_line(state.stop.reason, _WHY)}."


def _worst(by_tool: Mapping[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    """The tools with the most, by name where they have equally many."""
    return sorted(by_tool.items(), key=lambda item: (-item[1].total(), item[0]))[:_TOOLS]


def _reasons(whys: Counter[str]) -> str:
    """The most frequent reasons, the earliest first where equally frequent."""
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
    """What the text of an ended mission says."""

    goal: str
    ending: str
    about: str
    lessons: tuple[str, ...]


def remembered(report: Mapping[str, Any]) -> str:
    """The text by which a mission is found: its goal, how it ended, what it was about, and its lessons."""
    about = [row["description"] for row in report["criteria"]]
    about += [row["tool"] for row in report["calls"]["by_tool"]]
    head = (report["directive"], f"{report['status']}: {report['verdict_reason']}", "; ".join(about))
    return "\n".join([*(_line(one, 10 * LONGEST) for one in head), *report["lessons"]])


def recollected(text: str) -> Recollection:
    """What such a text says; a text of another form gives less, and never fails."""
    lines: Sequence[str] = [*text.split("\n"), *("" for _ in range(_HEAD))]
    goal, ending, about = lines[:_HEAD]
    return Recollection(goal=goal, ending=ending, about=about, lessons=tuple(filter(None, lines[_HEAD:])))
