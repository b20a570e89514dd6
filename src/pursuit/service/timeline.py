"""The timeline of a mission: a row for each call, model request and failed script, and full details of each call.

The history of a mission is read once and then only continued. Results are read from the ledger when a call is shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from pursuit.core.audit import masked
from pursuit.core.caps import BudgetUse, CapUse
from pursuit.core.criteria import MetricThreshold
from pursuit.core.events import (
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    Outcome,
    decoded,
)
from pursuit.core.history import CallRow, History, ModelTurn
from pursuit.core.progress import SIGNIFICANT, falling
from pursuit.core.report import Status
from pursuit.core.state import TERMINAL, CallRecord, MissionState
from pursuit.errors import InvalidArgument
from pursuit.ledger.contract import Ledger
from pursuit.reports.report import MetricRow, Report, metric_rows
from pursuit.service.service import Service

ROWS = 100
"""Maximum of rows in one part of a timeline."""
MAX_HISTORIES = 8
MAX_BLOB = 1 << 20
"""Maximum bytes of a stored result or diff that are shown; a larger one is cut."""
MAX_SHARED = 32 << 20
"""Characters of all stored results and diffs in the file of a shared mission; further ones are previews."""
IDLE_SECONDS = 10.0
"""A pause of at least this many seconds that is longer than all work of the part together is collapsed."""
TREND_VALUES = 40
_CHUNK = 10_000
_UNDER_WAY = ("running", "waiting")
"""The statuses in which a call without an outcome runs; a mission may be waiting for its task."""


@dataclass(slots=True)
class _Known:
    """The history of a mission up to the event `seq`, without results, and the events at which its calls ended."""

    history: History = field(default_factory=History)
    seq: int = 0
    ends: dict[str, int] = field(default_factory=dict[str, int])


class Timelines:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def mission(self, mission_id: str) -> MissionNow:
        """A mission for an operator: its status, its trends, its budget, and its current work."""
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

    async def metrics(self, mission_id: str) -> dict[str, MetricRow]:
        state = await self._service.state(mission_id)
        return metric_rows((await self._read(mission_id)).history, state)

    async def part(
        self,
        mission_id: str,
        *,
        first: int | None = None,
        last: int | None = None,
        after: int | None = None,
        before: int | None = None,
    ) -> TimelinePart:
        """Rows of calls: from iteration `first` on, `after` or `before` an event, or the newest.

        `last` is the last iteration to include.
        """
        status = (await self._service.status(mission_id)).status
        history = (await self._read(mission_id)).history
        rows = timeline_rows(history)
        wanted = [row for row in rows if last is None or row.iteration <= last]
        if first is None and after is None:
            shown = [row for row in wanted if before is None or row.seq < before][-ROWS:]
        else:
            shown = [row for row in wanted if row.iteration >= (first or 0) and row.seq > (after or 0)][:ROWS]
        return TimelinePart(
            session_id=mission_id,
            rows=[replace(one, state=_state(one.outcome, status, waits=one.waits)) for one in shown],
            bands={one.iteration: history.iterations[one.iteration].ended for one in shown},
            older=shown[0].seq if shown and shown[0] is not rows[0] else None,
            newer=shown[-1].seq if shown and shown[-1] is not wanted[-1] else None,
        )

    async def call(self, mission_id: str, call_id: str, iteration: int) -> CallDetail:
        """Full details of one call: proposal, policy decision, arguments, result, and the previous call of its tool."""
        status = (await self._service.status(mission_id)).status
        known = await self._read(mission_id)
        row = known.history.iterations.get(iteration)
        call = None if row is None else row.calls.get(call_id)
        if call is None:
            raise InvalidArgument(f"call {call_id[:80]!r} does not exist in iteration {iteration + 1} of {mission_id}")
        earlier = [one for one in known.history.calls if one.tool == call.tool and one.settled and one.seq < call.seq]
        found = await self._detail(mission_id, known, call, status)
        if not earlier:
            return found
        before = max(earlier, key=lambda one: one.seq)
        return replace(found, previous=await self._detail(mission_id, known, before, status))

    async def _detail(self, mission_id: str, known: _Known, call: CallRow, status: str) -> CallDetail:
        if call.settled is not None:
            stored = await self._service.ledger.read(mission_id, known.ends[call.call_id] - 1, 1)
            (end,) = decoded(stored)
            assert isinstance(end, CallSettled)  # noqa: S101 - the event that ended the call
            call = msgspec.structs.replace(call, end=end)
        return await call_detail(self._service.ledger, known.history, call, status)

    async def _read(self, mission_id: str) -> _Known:
        # Removed while it is continued: two concurrent readers would count the same events twice.
        known = self._known.pop(mission_id, None) or _Known()
        while events := await self._service.ledger.read(mission_id, known.seq, _CHUNK):
            for stored, event in zip(events, decoded(events), strict=True):
                if isinstance(event, CallSettled):
                    known.ends[event.call_id] = stored.seq
                    event = msgspec.structs.replace(event, result=None, preview=None)  # noqa: PLW2901 - without its result
                known.history.take(event, stored.seq)
            known.seq = events[-1].seq
        self._known[mission_id] = known
        if len(self._known) > MAX_HISTORIES:
            self._known.popitem(last=False)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDetail:
    """Full details of a call, with secrets masked; `previous` is the preceding call of the same tool."""

    row: CallRow
    state: str
    args: Any
    result: Any
    diff: str
    """The changes of an agent's turn."""
    policy: str
    proposal: IterationProposed | None
    rationale: str | None
    previous: CallDetail | None = None


async def call_detail(
    ledger: Ledger, history: History, call: CallRow, status: str, *, blobs: bool = True
) -> CallDetail:
    """Full details of a call of a mission with this status; without `blobs`, a large result is cut."""
    end, iteration = call.settled, history.iterations[call.iteration]
    result = None if end is None else end.result or end.preview
    if blobs and end is not None and end.blob is not None and (body := await ledger.blob(end.blob)) is not None:
        result = _cut(body)
    digest = None if end is None or end.change is None else end.change.diff
    diff = await ledger.blob(digest) if blobs and digest is not None else None
    further = [part for part in iteration.continued if any(one.call_id == call.call_id for one in part.calls)]
    return CallDetail(
        row=call,
        state=_state(call.outcome, status, waits=call.waits),
        args=masked(call.args),
        result=masked(result),
        diff=_text(diff or b""),
        policy=_policy(call),
        proposal=iteration.proposed,
        rationale=further[-1].rationale if further else iteration.proposed and iteration.proposed.rationale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMission:
    """A mission in a shared file: its report, its history, and the full details of its calls by id."""

    report: Report
    history: History
    calls: Mapping[str, CallDetail]


async def shared_mission(service: Service, mission_id: str) -> SharedMission:
    report = await service.report(mission_id)
    history = History.read(await service.ledger.read(mission_id))
    calls: dict[str, CallDetail] = {}
    last: dict[str, CallDetail] = {}
    left = MAX_SHARED
    for call in history.calls:
        found = await call_detail(service.ledger, history, call, report.status, blobs=left > 0)
        left -= len(str(found.result)) + len(found.diff)
        calls[call.call_id] = replace(found, previous=last.get(call.tool))
        last[call.tool] = found
    return SharedMission(report=report, history=history, calls=calls)


def _cut(body: bytes) -> Any:
    """A stored result, without secrets; a large one is cut and returned as text."""
    try:
        value = masked(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return _text(body)
    return value if len(body) <= MAX_BLOB else _text(msgspec.json.encode(value))


def _text(body: bytes) -> str:
    cut = f"\n… {len(body) - MAX_BLOB:,} bytes more" if len(body) > MAX_BLOB else ""
    return body[:MAX_BLOB].decode(errors="replace") + cut


def _policy(call: CallRow) -> str:
    if isinstance(call.end, CallRefused):
        return f"Refused: {call.end.reason}"
    if call.question is None:
        return "Allowed without approval."
    question = call.question
    asked = f"Needed approval: {question.reason}."
    if question.answer is None:
        return asked
    if question.answer == "expired":
        return f"{asked} Not answered in time."
    return f"{asked} Answer: {question.answer} by {question.by}{f' ({question.why})' if question.why else ''}."


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A call, a model request or a failed script, from its beginning to its end.

    `state` is the outcome, or before it, the activity of the mission.
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
    """A row for each model request; retries share the row, from the first sending to the last answer."""
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
    """The position of a row on a time line from 0 to 1; `idle` are the seconds of the gap before it."""

    left: float
    width: float
    idle: float | None = None


def placed(spans: Sequence[tuple[float, float]]) -> list[TimelinePlace]:
    """The positions of these time spans, sorted by start, on one line with collapsed idle gaps."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGauge:
    """A cap with its use, and when it is used up at this rate; the `first` one is used up before the others."""

    use: CapUse
    left_seconds: float | None
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionNow:
    """A mission for an operator, with its running calls, or the model that it waits for."""

    status: Status
    trends: Mapping[str, str]
    """For each threshold, the trend of its metric."""
    gauges: Sequence[BudgetGauge]
    rationale: str | None
    calls: Sequence[CallRecord]
    model: str | None


def _trend(state: MissionState, threshold: MetricThreshold) -> str:
    """The trend of a threshold's metric towards its target, by the last values; empty before there are two."""
    values = [point.value for point in state.series.points(threshold.metric, threshold.source)][-TREND_VALUES:]
    side = {"<": 1.0, "<=": 1.0, ">": -1.0, ">=": -1.0}.get(threshold.op)
    away = [abs(one - threshold.target) if side is None else side * (one - threshold.target) for one in values]
    z = falling(away)
    word = "getting closer" if z >= SIGNIFICANT else "moving away" if z <= -SIGNIFICANT else "level"
    return word if len(values) > 1 else ""


def _state(outcome: Outcome | None, status: str, *, waits: bool) -> str:
    """The outcome of a call, or its current activity; the outcome is unknown if its driver has died."""
    if outcome is not None:
        return outcome
    if waits:
        return "skipped" if status in TERMINAL else "waiting"
    return "running" if status in _UNDER_WAY else "unknown"


def _gauges(budget: BudgetUse, *, live: bool) -> list[BudgetGauge]:
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
