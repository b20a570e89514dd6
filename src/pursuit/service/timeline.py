"""What a mission did, call by call and in numbers, for views that show a part of a long history.

A part is found by halving the stream and read alone, so it costs the same in a mission of ten iterations and in one of
ten thousand. What needs the whole history (plots, the course of the budget) is folded once and then only continued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pursuit.core.audit import masked
from pursuit.core.criteria import MetricThreshold
from pursuit.core.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    ModelAnswered,
    ModelAsked,
    ScriptEnded,
    TurnContinued,
    decode,
)
from pursuit.core.observe import leaves, source_matches
from pursuit.core.progress import SIGNIFICANT, Trend
from pursuit.core.report import iso
from pursuit.core.state import TERMINAL, MissionState
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


_CAPS = (
    ("iterations", "max_iterations"),
    ("wall_clock_seconds", "max_wall_clock_seconds"),
    ("tool_calls", "max_tool_calls"),
    ("tokens", "max_tokens"),
    ("cost_usd", "max_cost_usd"),
)


@dataclass(slots=True, kw_only=True)
class Course:
    """A mission in numbers, up to the event `seq`."""

    seq: int = 0
    tools: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    points: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict[tuple[str, str], dict[int, float]])
    """The last value of each iteration, by metric and tool."""
    calls: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """For each iteration the calls that went well, those that failed, and the others."""
    spent: list[tuple[int, float, int, int, float]] = field(default_factory=list["tuple[int, float, int, int, float]"])
    """For each ended iteration its number, and the seconds, calls, tokens and dollars up to its end."""
    run_before: float = 0.0
    elapsed: float = 0.0
    tool_calls: int = 0
    tokens: int = 0
    cost: float = 0.0

    def step(self, stored: StoredEvent) -> None:
        """Adds the next event."""
        self.seq = stored.seq
        if stored.type not in _COUNTED:
            return
        event = decode(stored.type, stored.body)
        match event:
            case CallIntended():
                self.tools[event.call_id] = (event.tool, event.iteration)
                self.tool_calls += event.attempt == 1
            case CallSettled():
                self._settled(event)
            case CallRefused():
                self.calls.setdefault(event.iteration, [0, 0, 0])[2] += 1
            case ModelAnswered():
                self.tokens += event.tokens
                self.cost += event.cost_usd or 0.0
                self._time(event.elapsed)
            case IterationEnded():
                self._time(event.elapsed)
                total = self.run_before + self.elapsed
                self.spent.append((event.iteration, total, self.tool_calls, self.tokens, self.cost))
            case _:
                pass

    def _settled(self, event: CallSettled) -> None:
        tool, iteration = self.tools.pop(event.call_id, ("", event.iteration))
        place = 0 if event.outcome == "ok" else 1 if event.outcome in ("failed", "timed_out") else 2
        self.calls.setdefault(iteration, [0, 0, 0])[place] += 1
        for name, value in leaves(event.metrics):
            self.points.setdefault((name, tool), {})[iteration] = value
        for name, amount in (event.used or {}).items():
            self.tokens += int(amount) if name == "max_tokens" else 0
            self.cost += amount if name == "max_cost_usd" else 0.0
        self._time(event.elapsed)

    def _time(self, elapsed: float) -> None:
        """The seconds of a run start at 0 again when another process drives."""
        if elapsed < self.elapsed:
            self.run_before += self.elapsed
        self.elapsed = elapsed


_COUNTED = frozenset({"CallIntended", "CallSettled", "CallRefused", "ModelAnswered", "IterationEnded"})


class Timelines:
    """The histories of the missions of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._courses: OrderedDict[str, Course] = OrderedDict()

    async def mission(self, mission_id: str) -> dict[str, Any]:
        """A mission as an operator looks at it: its status, with trends, what is left of the budget, and what it does.

        Nothing here reads the history, so it costs the same however long that is.
        """
        status = await self._service.status(mission_id)
        state = await self._service.state(mission_id)
        thresholds = {one.criterion_id: one for one in state.thresholds}
        for row in status["criteria"]:
            if (threshold := thresholds.get(row["criterion_id"])) is not None:
                row["trend"] = _trend(state, threshold)
        return {
            **status,
            "now": _now(state, status["status"]),
            "gauges": _gauges(status, live=status["status"] == "running"),
        }

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
            for stored in events:
                course.step(stored)
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
    ) -> dict[str, Any]:
        """Rows of calls: from iteration `first` on, those that begin `after` or `before` an event, or the newest.

        `last` is the last iteration that is wanted. `older` and `newer` are the events that continue it.
        """
        status = await self._service.status(mission_id)
        row = await self._service.ledger.row(mission_id)
        head = row.head.seq if row is not None else 0
        if first is None and after is None:
            rows, bands = await self._backward(mission_id, before or head + 1)
            more = before is not None and before <= head
        else:
            at = after if after is not None else await self._before(mission_id, first or 0, head)
            rows, bands, more = await self._forward(mission_id, at, last)
        begun = bool(rows) and (rows[0]["iteration"] > 0 or rows[0]["order"] > 0)
        return {
            "session_id": mission_id,
            "rows": [{**row, "state": _state(row, status["status"])} for row in rows],
            "bands": bands,
            "older": rows[0]["seq"] if begun else None,
            "newer": rows[-1]["seq"] if rows and more else None,
        }

    async def call(self, mission_id: str, call_id: str, iteration: int) -> dict[str, Any]:
        """One call whole: its proposal, the policy's word, arguments, result, and the previous call of its tool."""
        status = await self._service.status(mission_id)
        row = await self._service.ledger.row(mission_id)
        head = row.head.seq if row is not None else 0
        at = await self._before(mission_id, iteration, head)
        found: dict[str, Any] = {"call_id": call_id, "iteration": iteration, "session_id": mission_id}
        seq: int | None = None
        approvals: set[str] = set()
        async for stored in self._read(mission_id, at, head):
            event = decode(stored.type, stored.body)
            match event:
                case IterationProposed(iteration=one) if one > iteration and seq is not None:
                    break
                case IterationProposed(iteration=one) if one == iteration:
                    found["proposal"] = _proposal(event)
                case TurnContinued(iteration=one) if one == iteration and any(
                    c.call_id == call_id for c in event.calls
                ):
                    found["proposal"] = {**found.get("proposal", {}), "rationale": event.rationale}
                case CallIntended() | CallRefused() if event.call_id == call_id:
                    seq = seq or stored.seq
                    found |= {"tool": event.tool, "args": event.args, "purpose": event.purpose, "at": iso(event.at)}
                    if isinstance(event, CallRefused):
                        found |= {"outcome": event.outcome, "policy": f"Refused: {event.reason}"}
                        break
                    found |= {"attempt": event.attempt, "task": event.task, "criterion_id": event.criterion_id}
                case ApprovalAsked() if event.call_id == call_id:
                    seq = seq or stored.seq
                    approvals.add(event.approval_id)
                    found |= {"tool": event.tool, "args": event.args, "at": iso(event.at)}
                    found["asked"] = {"approval_id": event.approval_id, "reason": event.reason, "at": iso(event.at)}
                case ApprovalAnswered() | ApprovalExpired() if event.approval_id in approvals:
                    answered = isinstance(event, ApprovalAnswered)
                    found["answer"] = {
                        "answer": event.answer if answered else "expired",
                        "by": event.by if answered else None,
                        "reason": event.reason if answered else None,
                        "at": iso(event.at),
                    }
                case CallSettled() if event.call_id == call_id:
                    found |= await self._outcome(event)
                    break
                case _:
                    pass
        if seq is None:
            raise InvalidArgument(f"{mission_id} has no call {call_id[:80]!r} in iteration {iteration + 1}")
        previous = await self._previous(mission_id, seq, str(found["tool"]), call_id)
        found["waits"] = "asked" in found and "answer" not in found
        found["state"] = _state(found, status["status"])
        return {**found, "args": masked(found["args"]), "previous": previous}

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

    async def _previous(self, mission_id: str, seq: int, tool: str, call_id: str) -> dict[str, Any] | None:
        """The call of the same tool before this one, if it is not too far back."""
        start, intents, settled = max(0, seq - 1 - _LOOK_BACK), list[CallIntended](), dict[str, CallSettled]()
        for stored in await self._service.ledger.read(mission_id, start, seq - 1 - start):
            if stored.type not in ("CallIntended", "CallSettled"):
                continue
            event = decode(stored.type, stored.body)
            if isinstance(event, CallIntended) and event.tool == tool and event.call_id != call_id:
                intents.append(event)
            elif isinstance(event, CallSettled):
                settled[event.call_id] = event
        for intent in reversed(intents):
            if (end := settled.get(intent.call_id)) is not None:
                row = {"call_id": intent.call_id, "iteration": intent.iteration, "args": masked(intent.args)}
                return {**row, **await self._outcome(end)}
        return None

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
            for stored in events:
                iteration = getattr(decode(stored.type, stored.body), "iteration", None)
                if iteration is not None:
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

    async def _forward(
        self, mission_id: str, after: int, last: int | None
    ) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]], bool]:
        """The rows that begin after an event, and whether more of them follow."""
        rows, start, full = _Rows(), after, False
        while True:
            events = await self._service.ledger.read(mission_id, after, _CHUNK)
            for stored in events:
                event = decode(stored.type, stored.body)
                iteration = getattr(event, "iteration", None)
                beyond = last is not None and iteration is not None and iteration > last
                full = full or (len(rows.rows) >= ROWS and not beyond and isinstance(event, _BEGINNINGS))
                rows.take(event, stored.seq, begins=not beyond and len(rows.rows) < ROWS)
            after = events[-1].seq if events else after
            done = len(rows.rows) >= ROWS and not rows.open
            if len(events) < _CHUNK or done or after > start + ROWS + _LOOK_AHEAD:
                return rows.listed(), rows.bands, full

    async def _backward(self, mission_id: str, before: int) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
        """The newest rows that begin before an event; a call of them may settle after it."""
        start, size, rows = before - 1, 4 * ROWS, _Rows()
        while start > 0 and len(rows.rows) < ROWS:
            start, size, rows = max(0, start - size), 2 * size, _Rows()
            async for stored in self._read(mission_id, start, before - 1):
                rows.take(decode(stored.type, stored.body), stored.seq, begins=stored.seq < before)
        if rows.open:
            for stored in await self._service.ledger.read(mission_id, before - 1, _LOOK_AHEAD):
                rows.take(decode(stored.type, stored.body), stored.seq, begins=False)
        listed = rows.listed()[-ROWS:]
        return listed, {one["iteration"]: rows.bands.get(one["iteration"], {}) for one in listed}


_BEGINNINGS = (CallIntended, ApprovalAsked, CallRefused, ModelAsked)


class _Rows:
    """Rows of calls and of questions to a model, from events in order: intent, run and end are one row."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.bands: dict[int, dict[str, Any]] = {}
        self._approvals: dict[str, str] = {}

    @property
    def open(self) -> bool:
        """Whether a row has no end yet."""
        return any(row["outcome"] is None for row in self.rows.values())

    def take(self, event: AnyEvent, seq: int, *, begins: bool) -> None:
        """Applies an event; a row begins only while `begins`, and ends at any time."""
        match event:
            case CallIntended() | ApprovalAsked() | CallRefused():
                if begins or event.call_id in self.rows:
                    self._call(event, seq)
            case CallSettled() if (row := self.rows.get(event.call_id)) is not None:
                row |= {"outcome": event.outcome, "ended": event.at, "seconds": event.seconds, "error": event.error}
                row["cost"] = (event.used or {}).get("max_cost_usd")
                row["tokens"] = (event.used or {}).get("max_tokens")
            case ModelAsked() if begins:
                key = f"model {event.iteration}.{event.attempt} {event.purpose}"
                self.rows.setdefault(key, _row(event, seq, event.model or "model", kind="model", order=event.attempt))
            case ModelAnswered():
                self._answered(event)
            case ScriptEnded() if begins and event.error:
                row = _row(event, seq, "script", kind="script", order=0)
                self.rows[f"script {event.iteration}"] = {**row, "outcome": "failed", "error": event.error}
            case ApprovalAnswered() | ApprovalExpired():
                call_id = self._approvals.get(event.approval_id)
                if call_id is not None and self.rows[call_id]["waits"]:
                    self.rows[call_id]["waits"] = False
            case IterationProposed() if begins:
                self.bands.setdefault(event.iteration, {})
            case IterationEnded():
                if event.iteration in self.bands or begins:
                    self.bands[event.iteration] = {"verdict": event.verdict, "reason": event.reason}
            case _:
                pass

    def _call(self, event: CallIntended | ApprovalAsked | CallRefused, seq: int) -> None:
        row = self.rows.get(event.call_id)
        if row is None:
            row = self.rows[event.call_id] = _row(event, seq, event.tool, kind="call", order=getattr(event, "order", 0))
            row["call_id"] = event.call_id
        match event:
            case ApprovalAsked():
                self._approvals[event.approval_id] = event.call_id
                row["waits"] = True
            case CallRefused():
                row |= {"outcome": event.outcome, "error": event.reason, "ended": event.at, "waits": False}
            case CallIntended():
                row |= {"started": event.at, "waits": False, "purpose": event.purpose, "attempt": event.attempt}
                row["outcome"] = None

    def _answered(self, event: ModelAnswered) -> None:
        row = self.rows.get(f"model {event.iteration}.{event.attempt} {event.purpose}")
        if row is not None:
            outcome = "ok" if event.error is None else "failed"
            row |= {"outcome": outcome, "ended": event.at, "seconds": event.seconds, "error": event.error}
            row |= {"tokens": event.tokens, "cost": event.cost_usd}

    def listed(self) -> list[dict[str, Any]]:
        """The rows in the order of their beginnings."""
        return sorted(self.rows.values(), key=lambda row: row["seq"])


def _row(event: Any, seq: int, name: str, *, kind: str, order: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "kind": kind,
        "iteration": event.iteration,
        "order": order,
        "name": name,
        "started": event.at,
        "ended": None,
        "seconds": None,
        "outcome": None,
        "error": None,
        "waits": False,
        "purpose": "proposal",
        "attempt": 1,
        "tokens": None,
        "cost": None,
    }


def placed(rows: Iterable[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """The rows with their places on one line of time from 0 to 1, in which idle gaps are collapsed.

    A row after a gap has `idle`, the seconds of it.
    """
    listed = [dict(row) for row in rows]
    spans = [(row["started"], row["ended"] or (now if row["outcome"] is None else row["started"])) for row in listed]
    work = sum(max(0.0, end - start) for start, end in spans)
    least = max(IDLE_SECONDS, work)
    shift, latest = 0.0, spans[0][0] if spans else 0.0
    moved: list[tuple[float, float]] = []
    for row, (start, end) in zip(listed, spans, strict=True):
        if start - latest > least:
            row["idle"] = start - latest
            shift += start - latest
        latest = max(latest, end)
        moved.append((start - shift, max(start, end) - shift))
    first = min((start for start, _ in moved), default=0.0)
    whole = max((end for _, end in moved), default=0.0) - first or 1.0
    for row, (start, end) in zip(listed, moved, strict=True):
        row["left"], row["width"] = (start - first) / whole, max(0.002, (end - start) / whole)
    return listed


SHOWN_VALUES = 40


def _trend(state: MissionState, threshold: MetricThreshold) -> dict[str, Any]:
    """The last values of a threshold's metric, and whether they get closer to its target."""
    values = [point.value for point in state.series.points(threshold.metric, threshold.source)][-SHOWN_VALUES:]
    side = {"<": 1.0, "<=": 1.0, ">": -1.0, ">=": -1.0}.get(threshold.op)
    away = [abs(one - threshold.target) if side is None else side * (one - threshold.target) for one in values]
    found = Trend(away)
    word = "getting closer" if found.z >= SIGNIFICANT else "moving away" if found.z <= -SIGNIFICANT else "level"
    return {"values": values, "target": threshold.target, "word": word if len(values) > 1 else ""}


_UNDER_WAY = ("running", "waiting")
"""The statuses in which a call without an outcome runs; a mission can wait for a task that runs."""


def _state(row: Mapping[str, Any], status: str) -> str:
    """The outcome of a call, or what it does while it has none; how it ended is unknown if its driver has gone."""
    if (outcome := row.get("outcome")) is not None:
        return outcome
    if row["waits"]:
        return "skipped" if status in TERMINAL else "waiting"
    return "running" if status in _UNDER_WAY else "unknown"


def _now(state: MissionState, status: str) -> dict[str, Any]:
    """What a mission does at this moment: the calls that run, or the model that is asked."""
    under_way = state.open is not None and status in _UNDER_WAY
    calls = [one for one in state.open.calls.values() if one.outcome is None] if state.open and under_way else []
    return {
        "rationale": None if state.open is None else state.open.proposed.rationale,
        "calls": [{"call_id": one.call_id, "tool": one.tool, "iteration": one.iteration} for one in calls],
        "model": state.asked_of if state.asking is not None else None,
    }


def _gauges(status: Mapping[str, Any], *, live: bool) -> list[dict[str, Any]]:
    """Each cap with what was used of it and, while the mission runs, when it is used up at this rate."""
    budget = status["budget"]
    used, seconds = budget["used"], budget["used"]["wall_clock_seconds"]
    rows: list[dict[str, Any]] = []
    for name, cap_name in _CAPS:
        cap, spent = budget.get(cap_name, -1), used[name]
        capped = cap > 0
        if not capped and not spent:
            continue
        row: dict[str, Any] = {"name": name, "used": spent, "cap": cap if capped else None, "share": None}
        if capped and spent is not None:
            row["share"] = min(1.0, spent / cap)
            if live and 0 < row["share"] < 1 and seconds > 0:
                row["left_seconds"] = seconds * (1 - row["share"]) / row["share"]
        rows.append(row)
    soonest = min((row for row in rows if "left_seconds" in row), key=lambda row: row["left_seconds"], default=None)
    if soonest is not None:
        soonest["first"] = True
    return rows


def _proposal(event: IterationProposed) -> dict[str, Any]:
    return {
        "proposer": event.proposer,
        "rationale": event.rationale,
        "script": event.script,
    }


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
        merged: dict[int, float] = {}
        for (metric, tool), values in course.points.items():
            if metric == name and source_matches(source, tool):
                merged |= values
        if not merged:
            continue
        points = thin([(float(at + 1), value) for at, value in sorted(merged.items())])
        target = None if criterion is None else {"op": criterion.op, "target": criterion.target}
        rows.append({"metric": name, "points": points, "target": target})
    return rows


def _budget_rows(state: MissionState, course: Course) -> list[dict[str, Any]]:
    """What is left of each cap after each iteration, as a share of it."""
    rows: list[dict[str, Any]] = []
    for place, (name, cap_name) in enumerate(_CAPS):
        cap = state.budget.get(cap_name, -1)
        if cap <= 0:
            continue
        used = [(float(one[0] + 1), float(one[0] + 1 if place == 0 else one[place])) for one in course.spent]
        points = thin([(at, max(0.0, 1 - amount / cap)) for at, amount in used], most=MOST_BUCKETS)
        rows.append({"name": name, "cap": cap, "points": points})
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
