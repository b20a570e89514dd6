"""What a mission did, call by call and in numbers, for views that show a part of a long history.

A part is found by halving the stream and read alone, so it costs the same in a mission of ten iterations and in one of
ten thousand. What needs the whole history (plots, the course of the budget) is folded once and then only continued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from pursuit.core.audit import masked
from pursuit.core.budgets import budget_use
from pursuit.core.caps import CAPS, BudgetUse, CapUse
from pursuit.core.criteria import MetricThreshold
from pursuit.core.events import (
    AnyEvent,
    ApprovalAnswered,
    CallIntended,
    CallRefused,
    CallSettled,
    IterationEnded,
    Outcome,
)
from pursuit.core.fold import advance
from pursuit.core.history import CallRow, History, ModelTurn, decoded
from pursuit.core.observe import leaves, source_matches
from pursuit.core.progress import SIGNIFICANT, Trend
from pursuit.core.report import Status, iso
from pursuit.core.state import TERMINAL, CallRecord, MissionState
from pursuit.errors import InvalidArgument
from pursuit.ledger.contract import StoredEvent
from pursuit.reports.plots import thin
from pursuit.service.service import Service

ROWS = 100
"""Rows of one part of a timeline."""
_CHUNK = 1_000
_PROBE = 32
_LOOK_AHEAD = 2_000
"""Events after a part in which a call of it may settle."""
_LOOK_BACK = 4_000
"""Events before a call in which the previous call of its tool is looked for."""
MOST_METRICS = 24
MOST_BUCKETS = 300
MOST_COURSES = 16
IDLE_SECONDS = 10.0
"""A pause that is at least so long, and longer than all work of the part together, is collapsed."""


@dataclass(slots=True, kw_only=True)
class Course:
    """A mission in numbers, up to the event `seq`."""

    seq: int = 0
    tools: dict[str, tuple[str, int, int]] = field(default_factory=dict[str, tuple[str, int, int]])
    points: dict[tuple[str, str], list[tuple[int, int, float]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[int, int, float]]]
    )
    """The values by metric and tool, each with its iteration and the place of its call there."""
    calls: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """For each iteration the calls that went well, those that failed, and the others."""
    spent: list[tuple[int, BudgetUse]] = field(default_factory=list[tuple[int, BudgetUse]])
    """For each ended iteration its number, and what was used of each cap up to its end."""
    state: MissionState | None = None

    def extend(self, stored: Sequence[StoredEvent]) -> None:
        """Adds the next events."""
        for event in decoded(stored):
            self._take(event)
        self.seq = stored[-1].seq

    def _take(self, event: AnyEvent) -> None:
        self.state = advance(self.state, event)
        match event:
            case CallIntended():
                self.tools[event.call_id] = (event.tool, event.iteration, event.order)
            case CallSettled():
                self._settled(event)
            case CallRefused():
                self.calls.setdefault(event.iteration, [0, 0, 0])[2] += 1
            case IterationEnded():
                self.spent.append((event.iteration, budget_use(self.state)))
            case _:
                pass

    def _settled(self, event: CallSettled) -> None:
        tool, iteration, order = self.tools.pop(event.call_id, ("", event.iteration, 0))
        place = 0 if event.outcome == "ok" else 1 if event.outcome in ("failed", "timed_out") else 2
        self.calls.setdefault(iteration, [0, 0, 0])[place] += 1
        for name, value in leaves(event.metrics):
            self.points.setdefault((name, tool), []).append((iteration, order, value))


class Timelines:
    """The histories of the missions of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._courses: OrderedDict[str, Course] = OrderedDict()

    async def mission(self, mission_id: str) -> MissionNow:
        """A mission as an operator looks at it: its status, with trends, what is left of the budget, and what it does.

        Nothing here reads the history, so it costs the same however long that is.
        """
        status = await self._service.status(mission_id)
        state = await self._service.state(mission_id)
        under_way = state.open is not None and status.status in _UNDER_WAY
        calls = [one for one in state.open.calls.values() if one.outcome is None] if state.open and under_way else []
        return MissionNow(
            status=status,
            trends={one.criterion_id: _trend(state, one) for one in state.thresholds},
            gauges=_gauges(status.budget, live=status.status == "running"),
            rationale=None if state.open is None else state.open.proposed.rationale,
            calls=calls,
            model=state.conversation.asked_of if state.conversation.asking is not None else None,
        )

    async def course(self, mission_id: str) -> dict[str, Any]:
        """The metrics and the budget of a mission over its iterations, thinned to what a plot can show."""
        state = await self._service.state(mission_id)
        course = await self._course(mission_id)
        return {
            "session_id": mission_id,
            "live": not state.terminal,
            "metrics": _metric_rows(state, course),
            "budget": _budget_rows(state, course),
            "calls": _buckets(course),
        }

    async def _course(self, mission_id: str) -> Course:
        # Taken out while it is continued: two readers at once would count the same events twice.
        course = self._courses.pop(mission_id, None) or Course()
        while events := await self._service.ledger.read(mission_id, course.seq, 10 * _CHUNK):
            course.extend(events)
            if len(events) < 10 * _CHUNK:
                break
        self._courses[mission_id] = course
        if len(self._courses) > MOST_COURSES:
            self._courses.popitem(last=False)
        return course

    async def part(
        self,
        mission_id: str,
        *,
        first: int | None = None,
        last: int | None = None,
        after: int | None = None,
        before: int | None = None,
    ) -> TimelinePart:
        """Rows of calls: from iteration `first` on, those that begin `after` or `before` an event, or the newest.

        `last` is the last iteration that is wanted.
        """
        status = (await self._service.status(mission_id)).status
        row = await self._service.ledger.row(mission_id)
        head = row.head.seq if row is not None else 0
        if first is None and after is None:
            history, rows = await self._backward(mission_id, before or head + 1)
            more = before is not None and before <= head
        else:
            at = after if after is not None else await self._before(mission_id, first or 0, head)
            history, rows, more = await self._forward(mission_id, at, last)
        begun = bool(rows) and (rows[0].iteration > 0 or rows[0].order > 0)
        return TimelinePart(
            session_id=mission_id,
            rows=[replace(one, state=_state(one.outcome, status, waits=one.waits)) for one in rows],
            bands={one.iteration: history.iterations[one.iteration].ended for one in rows},
            older=rows[0].seq if begun else None,
            newer=rows[-1].seq if rows and more else None,
        )

    async def call(self, mission_id: str, call_id: str, iteration: int) -> dict[str, Any]:
        """One call whole: its proposal, the policy's word, arguments, result, and the previous call of its tool."""
        status = await self._service.status(mission_id)
        row = await self._service.ledger.row(mission_id)
        head = row.head.seq if row is not None else 0
        at = await self._before(mission_id, iteration, head)
        history = History()
        call: CallRow | None = None
        async for stored in self._read(mission_id, at, head):
            history.extend([stored])
            one = history.iterations.get(iteration)
            call = None if one is None else one.calls.get(call_id)
            if call is not None and (call.end is not None or max(history.iterations) > iteration):
                break
        if call is None:
            raise InvalidArgument(f"{mission_id} has no call {call_id[:80]!r} in iteration {iteration + 1}")
        found: dict[str, Any] = {"call_id": call_id, "iteration": iteration, "session_id": mission_id}
        found |= {"tool": call.tool, "args": masked(call.args), "at": iso(call.said.at)}
        found |= _proposal(history, call) | _policy(call)
        if call.intended is not None:
            intended = call.intended
            found |= {"purpose": intended.purpose, "attempt": intended.attempt}
            found |= {"task": intended.task, "criterion_id": intended.criterion_id}
        if call.settled is not None:
            found |= await self._outcome(call.settled)
        found |= {"waits": call.waits, "state": _state(call.outcome, status.status, waits=call.waits)}
        return {**found, "previous": await self._previous(mission_id, call)}

    async def _outcome(self, event: CallSettled) -> dict[str, Any]:
        """What a call came to, with a large result from its blob."""
        result, blob = event.result, None
        if event.blob is not None:
            blob = await self._service.ledger.blob(event.blob)
            result = event.preview if blob is None else _parsed(blob)
        change: dict[str, Any] | None = None
        if event.change is not None:
            body = None if event.change.diff is None else await self._service.ledger.blob(event.change.diff)
            shown = (body or b"").decode(errors="replace")
            change = {"files": event.change.files, "protected": event.change.protected, "diff": shown}
        return {
            "outcome": event.outcome,
            "ended_at": iso(event.at),
            "seconds": event.seconds,
            "result": masked(result),
            "bytes": None if blob is None else len(blob),
            "error": event.error,
            "metrics": event.metrics,
            "used": event.used or {},
            "change": change,
        }

    async def _previous(self, mission_id: str, call: CallRow) -> dict[str, Any] | None:
        """The call of the same tool before this one, if it is not too far back."""
        start = max(0, call.seq - 1 - _LOOK_BACK)
        stored = await self._service.ledger.read(mission_id, start, call.seq - 1 - start)
        history = History.read(one for one in stored if one.type in ("CallIntended", "CallSettled"))
        same = [one for one in history.calls if one.tool == call.tool and one.call_id != call.call_id and one.settled]
        before = max(same, key=lambda one: one.seq, default=None)
        if before is None or before.settled is None:
            return None
        row = {"call_id": before.call_id, "iteration": before.iteration, "args": masked(before.args)}
        return {**row, **await self._outcome(before.settled)}

    async def _before(self, mission_id: str, iteration: int, head: int) -> int:
        """How many events come before the first one of an iteration, found by halving."""
        low, high = 0, head
        while low < high:
            middle = (low + high) // 2
            at, found = await self._iteration_after(mission_id, middle, head)
            if found is not None and found < iteration:
                low = at
            else:
                high = middle
        return low

    async def _iteration_after(self, mission_id: str, seq: int, head: int) -> tuple[int, int | None]:
        """The number of the first event after `seq` that belongs to an iteration, and that iteration."""
        while seq < head:
            events = await self._service.ledger.read(mission_id, seq, _PROBE)
            for stored, event in zip(events, decoded(events), strict=True):
                if (iteration := getattr(event, "iteration", None)) is not None:
                    return stored.seq, iteration
            seq += max(1, len(events))
        return head, None

    async def _read(self, mission_id: str, after: int, head: int) -> AsyncGenerator[StoredEvent]:
        while after < head:
            events = await self._service.ledger.read(mission_id, after, min(_CHUNK, head - after))
            for stored in events:
                yield stored
            if not events:
                return
            after = events[-1].seq

    async def _forward(self, mission_id: str, after: int, last: int | None) -> tuple[History, list[TimelineRow], bool]:
        """The rows that begin after an event, and whether more of them follow."""
        history, start = History(), after
        while True:
            events = await self._service.ledger.read(mission_id, after, _CHUNK)
            history.extend(events)
            rows = [row for row in timeline_rows(history) if last is None or row.iteration <= last]
            after = events[-1].seq if events else after
            done = len(rows) >= ROWS and all(row.outcome for row in rows[:ROWS])
            if len(events) < _CHUNK or done or after > start + ROWS + _LOOK_AHEAD:
                return history, rows[:ROWS], len(rows) > ROWS

    async def _backward(self, mission_id: str, before: int) -> tuple[History, list[TimelineRow]]:
        """The newest rows that begin before an event; a call of them may settle after it."""
        start, size = before - 1, 4 * ROWS
        history, rows = History(), list[TimelineRow]()
        while start > 0 and len(rows) < ROWS:
            start, size, history = max(0, start - size), 2 * size, History()
            async for stored in self._read(mission_id, start, before - 1):
                history.extend([stored])
            rows = timeline_rows(history)
        if not all(row.outcome for row in rows):
            history.extend(await self._service.ledger.read(mission_id, before - 1, _LOOK_AHEAD))
            rows = [row for row in timeline_rows(history) if row.seq < before]
        return history, rows[-ROWS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A call, a question to a model or a script that failed, from its beginning to its end.

    `state` is the outcome, or what the mission does while there is none.
    """

    seq: int
    kind: str
    iteration: int
    order: int
    name: str
    started: float
    call_id: str = ""
    ended: float | None = None
    seconds: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    waits: bool = False
    purpose: str = "proposal"
    attempt: int = 1
    tokens: float | None = None
    cost: float | None = None
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePart:
    """A part of a timeline; `older` and `newer` are the events that continue it."""

    session_id: str
    rows: list[TimelineRow]
    bands: Mapping[int, IterationEnded | None]
    """The end of each iteration of the rows."""
    older: int | None
    newer: int | None


def timeline_rows(history: History) -> list[TimelineRow]:
    """The rows in the order of their beginnings."""
    rows = [_call_row(call) for call in history.calls]
    for one in history.iterations.values():
        rows += _turn_rows(one.turns)
        if one.script is not None and one.script.error:
            at, error = one.script.at, one.script.error
            row = TimelineRow(
                seq=one.script_seq, kind="script", iteration=one.index, order=0, name="script", started=at
            )
            rows.append(replace(row, outcome="failed", error=error))
    return sorted(rows, key=lambda row: row.seq)


def _call_row(call: CallRow) -> TimelineRow:
    intended, end = call.intended, call.settled
    used = {} if end is None else end.used or {}
    return TimelineRow(
        seq=call.seq,
        kind="call",
        iteration=call.iteration,
        order=getattr(call.said, "order", 0),
        name=call.tool,
        started=call.at if intended is None else intended.at,
        call_id=call.call_id,
        ended=None if call.end is None else call.end.at,
        seconds=None if end is None else end.seconds,
        outcome=call.outcome,
        error=call.error,
        waits=call.waits,
        purpose="proposal" if intended is None else intended.purpose,
        attempt=1 if intended is None else intended.attempt,
        tokens=used.get("max_tokens"),
        cost=used.get("max_cost_usd"),
    )


def _turn_rows(turns: Sequence[ModelTurn]) -> list[TimelineRow]:
    """A row for each question; one that was sent again is one row, from the first sending to the last answer."""
    rows: dict[tuple[int, str], TimelineRow] = {}
    for turn in turns:
        asked, answered = turn.asked, turn.answered
        key, name = (asked.attempt, asked.purpose), asked.model or "model"
        row = rows.get(key) or TimelineRow(
            seq=turn.seq, kind="model", iteration=asked.iteration, order=asked.attempt, name=name, started=asked.at
        )
        if answered is not None:
            row = replace(
                row,
                outcome="ok" if answered.error is None else "failed",
                ended=answered.at,
                seconds=answered.seconds,
                error=answered.error,
                tokens=answered.tokens,
                cost=answered.cost_usd,
            )
        rows[key] = row
    return list(rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePlace:
    """Where a row lies on a line of time from 0 to 1; `idle` are the seconds of a gap before it."""

    left: float
    width: float
    idle: float | None = None


def placed(spans: Sequence[tuple[float, float]]) -> list[TimelinePlace]:
    """The places of these spans of time, by their beginnings, on one line in which idle gaps are collapsed."""
    work = sum(max(0.0, end - start) for start, end in spans)
    least = max(IDLE_SECONDS, work)
    shift, latest = 0.0, spans[0][0] if spans else 0.0
    moved: list[tuple[float, float, float | None]] = []
    for start, end in spans:
        idle = start - latest if start - latest > least else None
        shift += idle or 0.0
        latest = max(latest, end)
        moved.append((start - shift, max(start, end) - shift, idle))
    first = min((start for start, _, _ in moved), default=0.0)
    whole = max((end for _, end, _ in moved), default=0.0) - first or 1.0
    return [
        TimelinePlace(left=(start - first) / whole, width=max(0.002, (end - start) / whole), idle=idle)
        for start, end, idle in moved
    ]


SHOWN_VALUES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLine:
    """The last values of a threshold's metric; `word` says whether they get closer to its target."""

    values: Sequence[float]
    target: float
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGauge:
    """A cap with what was used of it, and when it is used up at this rate; the `first` one is used up before others."""

    use: CapUse
    left_seconds: float | None
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionNow:
    """A mission as an operator looks at it, with the calls that run, or the model that is asked."""

    status: Status
    trends: Mapping[str, TrendLine]
    gauges: Sequence[BudgetGauge]
    rationale: str | None
    calls: Sequence[CallRecord]
    model: str | None


def _trend(state: MissionState, threshold: MetricThreshold) -> TrendLine:
    """The last values of a threshold's metric, and whether they get closer to its target."""
    values = [point.value for point in state.series.points(threshold.metric, threshold.source)][-SHOWN_VALUES:]
    side = {"<": 1.0, "<=": 1.0, ">": -1.0, ">=": -1.0}.get(threshold.op)
    away = [abs(one - threshold.target) if side is None else side * (one - threshold.target) for one in values]
    found = Trend(away)
    word = "getting closer" if found.z >= SIGNIFICANT else "moving away" if found.z <= -SIGNIFICANT else "level"
    return TrendLine(values=values, target=threshold.target, word=word if len(values) > 1 else "")


_UNDER_WAY = ("running", "waiting")
"""The statuses in which a call without an outcome runs; a mission can wait for a task that runs."""


def _state(outcome: Outcome | None, status: str, *, waits: bool) -> str:
    """The outcome of a call, or what it does while it has none; how it ended is unknown if its driver has gone."""
    if outcome is not None:
        return outcome
    if waits:
        return "skipped" if status in TERMINAL else "waiting"
    return "running" if status in _UNDER_WAY else "unknown"


def _gauges(budget: BudgetUse, *, live: bool) -> list[BudgetGauge]:
    """Each cap with what was used of it and, while the mission runs, when it is used up at this rate."""
    seconds = budget.caps["max_wall_clock_seconds"].used or 0
    left = {
        name: seconds * (1 - use.share) / use.share
        for name, use in budget.caps.items()
        if live and use.share is not None and 0 < use.share < 1 and seconds > 0
    }
    soonest = min(left, key=lambda name: left[name], default=None)
    return [
        BudgetGauge(use=use, left_seconds=left.get(name), first=name == soonest)
        for name, use in budget.caps.items()
        if use.limit is not None or use.used
    ]


def _proposal(history: History, call: CallRow) -> dict[str, Any]:
    """Who proposed a call, and why."""
    one = history.iterations[call.iteration]
    if one.proposed is None:
        return {}
    further = [part for part in one.continued if any(planned.call_id == call.call_id for planned in part.calls)]
    row = {"proposer": one.proposed.proposer, "script": one.proposed.script}
    return {"proposal": {**row, "rationale": (further[-1] if further else one.proposed).rationale}}


def _policy(call: CallRow) -> dict[str, Any]:
    """Why a call was refused, or what a person was asked and answered."""
    row: dict[str, Any] = {}
    if isinstance(call.end, CallRefused):
        row = {"outcome": call.end.outcome, "purpose": call.end.purpose, "policy": f"Refused: {call.end.reason}"}
    if call.question is None:
        return row
    asked = call.question.asked
    row["asked"] = {"approval_id": asked.approval_id, "reason": asked.reason, "at": iso(asked.at)}
    if (end := call.question.end) is not None:
        answer, by, event = end
        reason = event.reason if isinstance(event, ApprovalAnswered) else None
        row["answer"] = {"answer": answer, "by": by, "reason": reason, "at": iso(event.at)}
    return row


def _parsed(blob: bytes) -> Any:
    try:
        return msgspec.json.decode(blob)
    except msgspec.DecodeError:
        return blob.decode(errors="replace")


def _metric_rows(state: MissionState, course: Course) -> list[dict[str, Any]]:
    """Those with a target come first."""
    thresholds = {one.metric: one for one in sorted(state.thresholds, key=lambda one: one.required)}
    names = sorted({name for name, _tool in course.points}, key=lambda name: (name not in thresholds, name))
    rows: list[dict[str, Any]] = []
    for name in names[:MOST_METRICS]:
        criterion: MetricThreshold | None = thresholds.get(name)
        source = None if criterion is None else criterion.source
        found = [
            point
            for (metric, tool), values in course.points.items()
            if metric == name and source_matches(source, tool)
            for point in values
        ]
        if not found:
            continue
        found.sort(key=lambda point: point[:2])
        points = thin([(float(at + 1), value) for at, _, value in found])
        target = None if criterion is None else {"op": criterion.op, "target": criterion.target}
        rows.append({"metric": name, "points": points, "target": target})
    return rows


def _budget_rows(state: MissionState, course: Course) -> list[dict[str, Any]]:
    """What is left of each cap after each iteration, as a share of it."""
    rows: list[dict[str, Any]] = []
    for name, cap in CAPS.items():
        if (limit := state.cap(name)) is None:
            continue
        used = [(float(at + 1), amount) for at, one in course.spent if (amount := one.caps[name].used) is not None]
        points = thin([(at, max(0.0, 1 - amount / limit)) for at, amount in used], most=MOST_BUCKETS)
        rows.append({"name": cap.used, "cap": limit, "points": points})
    return rows


def _buckets(course: Course) -> dict[str, Any]:
    """How many calls went well, failed or did neither, over the iterations, in at most so many buckets."""
    last = max(course.calls, default=-1)
    size = max(1, -(-(last + 1) // MOST_BUCKETS))
    count = (last + size) // size
    sums = [[0, 0, 0] for _ in range(count)]
    for iteration, parts in course.calls.items():
        for place, amount in enumerate(parts):
            sums[iteration // size][place] += amount
    return {
        "size": size,
        "iterations": [index * size + 1 for index in range(count)],
        "ok": [one[0] for one in sums],
        "failed": [one[1] for one in sums],
        "other": [one[2] for one in sums],
    }
