"""How `verify` reads each kind of stream: its row in the listing, and the blobs that its events name.

Invariant: the type of the first event decides the kind. Rows are not hashed, so each is compared with the events, which
are: an edited row is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Generic, TypeVar

from pursuit.core.approvals import Questions
from pursuit.core.attempts import AttemptOpened, AttemptState, advance_attempt, decode_attempt, fold_attempt
from pursuit.core.audit import AUDIT, ControlCalled, Forgotten, decode_audit
from pursuit.core.events import MissionCreated, ReportWritten, decode
from pursuit.core.fold import advance, summary_of
from pursuit.core.gateway_events import (
    GatewayApprovalAsked,
    GatewayClosed,
    GatewayOpened,
    decode_gateway,
)
from pursuit.core.pins import PINS, ToolsPinned
from pursuit.core.state import MissionState
from pursuit.core.tasks import TASK_ENDS, TaskCreated, TaskSettled, TaskState, advance_task, decode_task, fold_task
from pursuit.ledger.archive import verify_archive
from pursuit.ledger.contract import FORGOTTEN, Folded, StreamFold, Verification
from pursuit.problems.attempts import KIND as ATTEMPT
from pursuit.problems.attempts import summary_of as attempt_summary
from pursuit.service.gateway_journal import ASKING
from pursuit.service.gateway_journal import KIND as GATEWAY
from pursuit.service.limits import KIND as USAGE
from pursuit.service.limits import ClientUsed, Usage, decode_usage
from pursuit.tasks.record import summary_of as task_summary
from pursuit.tasks.store import KIND as TASK

MISSION = "mission"


S = TypeVar("S")


class _Fold(Generic[S]):
    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.state: S | None = None
        self.digests: set[str] = set()

    def step(self, type_: str, body: bytes) -> None:
        raise NotImplementedError

    def row(self, state: S, /) -> Folded:
        raise NotImplementedError

    def result(self) -> Folded | None:
        return None if self.state is None else replace(self.row(self.state), digests=frozenset(self.digests))


class _Mission(_Fold[MissionState]):
    report: str | None = None

    def step(self, type_: str, body: bytes) -> None:
        event = decode(type_, body)
        self.state = advance(self.state, event)
        self.digests.update(filter(None, event.blobs()))
        if isinstance(event, ReportWritten):
            self.report = event.digest

    def row(self, state: MissionState, /) -> Folded:
        statuses, later = frozenset((state.status,)), frozenset(("run_goal", "queue"))
        return Folded(kind=MISSION, statuses=statuses, summary=summary_of(state), later=later, report=self.report)


class _Task(_Fold[TaskState]):
    def step(self, type_: str, body: bytes) -> None:
        event = decode_task(body)
        if self.state is None:
            self.state = fold_task(self.stream, [event])
        else:
            advance_task(self.state, event)
        if isinstance(event, TaskSettled) and event.blob is not None:
            self.digests.add(event.blob)

    def row(self, state: TaskState, /) -> Folded:
        return Folded(kind=TASK, statuses=frozenset((state.status,)), summary=task_summary(state))


class _Attempt(_Fold[AttemptState]):
    def step(self, type_: str, body: bytes) -> None:
        event = decode_attempt(body)
        if self.state is None:
            self.state = fold_attempt(self.stream, [event])
        else:
            advance_attempt(self.state, event)

    def row(self, state: AttemptState, /) -> Folded:
        return Folded(kind=ATTEMPT, statuses=frozenset((state.status,)), summary=attempt_summary(state))


class _Gateway(_Fold[Questions]):
    closed = False
    at = 0.0

    def step(self, type_: str, body: bytes) -> None:
        event = decode_gateway(body)
        self.state = Questions() if self.state is None else self.state
        self.state.apply(event)
        self.closed = self.closed or isinstance(event, GatewayClosed)
        if isinstance(event, GatewayApprovalAsked) and event.whole is not None:
            self.digests.add(event.whole)
        self.at = event.at

    def row(self, state: Questions, /) -> Folded:
        # A gateway writes its status when it appends; only its clock knew whether an approval was still open then.
        quiet = "closed" if self.closed else "open"
        statuses = (ASKING,) if state.waits(self.at) else (quiet, ASKING) if state.asked else (quiet,)
        return Folded(kind=GATEWAY, statuses=frozenset(statuses), summary={})


class _Usage(_Fold[Usage]):
    def step(self, type_: str, body: bytes) -> None:
        event = decode_usage(body)
        self.state = (self.state or Usage(subject=event.subject)).after(event)

    def row(self, state: Usage, /) -> Folded:
        return Folded(kind=USAGE, statuses=frozenset(("open",)), summary=asdict(state))


class _Log:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def step(self, type_: str, body: bytes) -> None:
        if self._kind == AUDIT:
            decode_audit(body)

    def result(self) -> Folded:
        return Folded(kind=self._kind, statuses=frozenset(("open",)), summary={})


_BY_FIRST_EVENT: Mapping[str, Callable[[str], StreamFold]] = {
    MissionCreated.__name__: _Mission,
    TaskCreated.__name__: _Task,
    AttemptOpened.__name__: _Attempt,
    GatewayOpened.__name__: _Gateway,
    ClientUsed.__name__: _Usage,
    **{event.__name__: lambda _: _Log(AUDIT) for event in (ControlCalled, Forgotten)},
    # By name: these modules import the queries, which import this one.
    **{name: lambda _: _Log("notifications") for name in ("NotificationsBegan", "NotificationSettled")},
    "ScheduleBegan": lambda _: _Log("schedule"),
    ToolsPinned.__name__: lambda _: _Log(PINS),
}
_KINDS = frozenset((MISSION, TASK, ATTEMPT, GATEWAY, AUDIT, USAGE, PINS, "notifications", "schedule"))
_ENDS: Mapping[str, frozenset[str]] = {
    MISSION: frozenset(("completed", "terminated", FORGOTTEN)),
    TASK: frozenset((*TASK_ENDS, FORGOTTEN)),
}


class _Stream:
    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._began = False
        self._fold: StreamFold | None = None

    def step(self, type_: str, body: bytes) -> None:
        if not self._began:
            self._began = True
            make = _BY_FIRST_EVENT.get(type_)
            self._fold = None if make is None else make(self._stream)
        if self._fold is not None:
            self._fold.step(type_, body)

    def result(self) -> Folded | None:
        return None if self._fold is None else self._fold.result()


class PursuitFolds:
    def begin(self, stream: str) -> StreamFold:
        return _Stream(stream)

    def has_ended(self, kind: str, status: str) -> bool:
        """True if a stream of this kind may be forgotten in this status."""
        return status in _ENDS.get(kind, ()) or kind not in _KINDS


FOLDS = PursuitFolds()


def verify_export(path: Path) -> Verification:
    return verify_archive(path, FOLDS)
