"""How `verify` reads each kind of stream: what its row in the listing must be, and which blobs its events name.

Invariant: the type of the first event decides the kind. Events are hashed and rows are not, so an edited row is
compared with something that cannot be edited unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from pursuit.core.approvals import Questions
from pursuit.core.attempts import AttemptOpened, AttemptState, advance_attempt, decode_attempt, fold_attempt
from pursuit.core.audit import AUDIT, ControlCalled, Forgotten, decode_audit
from pursuit.core.events import MissionCreated, ReportWritten, decode
from pursuit.core.fold import advance
from pursuit.core.gateway_events import (
    GatewayApprovalAsked,
    GatewayClosed,
    GatewayOpened,
    decode_gateway,
)
from pursuit.core.listing import listing_of
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


class _Mission:
    def __init__(self, _stream: str) -> None:
        self._state: MissionState | None = None
        self._digests: set[str] = set()
        self._report: str | None = None

    def step(self, type_: str, body: bytes) -> None:
        event = decode(type_, body)
        self._state = advance(self._state, event)
        self._digests.update(filter(None, event.blobs()))
        if isinstance(event, ReportWritten):
            self._report = event.digest

    def result(self) -> Folded | None:
        if self._state is None:
            return None
        row = listing_of(self._state)
        return Folded(
            kind=MISSION,
            statuses=frozenset((row.status,)),
            summary=row.summary(),
            later=frozenset(("run_goal", "queue")),
            digests=frozenset(self._digests),
            report=self._report,
        )


class _Task:
    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._state: TaskState | None = None
        self._digests: set[str] = set()

    def step(self, type_: str, body: bytes) -> None:
        event = decode_task(body)
        if self._state is None:
            self._state = fold_task(self._stream, [event])
        else:
            advance_task(self._state, event)
        if isinstance(event, TaskSettled) and event.blob is not None:
            self._digests.add(event.blob)

    def result(self) -> Folded | None:
        if self._state is None:
            return None
        return Folded(
            kind=TASK,
            statuses=frozenset((self._state.status,)),
            summary=task_summary(self._state),
            digests=frozenset(self._digests),
        )


class _Attempt:
    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._state: AttemptState | None = None

    def step(self, type_: str, body: bytes) -> None:
        event = decode_attempt(body)
        if self._state is None:
            self._state = fold_attempt(self._stream, [event])
        else:
            advance_attempt(self._state, event)

    def result(self) -> Folded | None:
        if self._state is None:
            return None
        return Folded(kind=ATTEMPT, statuses=frozenset((self._state.status,)), summary=attempt_summary(self._state))


class _Gateway:
    def __init__(self, _stream: str) -> None:
        self._questions = Questions()
        self._closed = False
        self._at = 0.0
        self._digests: set[str] = set()

    def step(self, type_: str, body: bytes) -> None:
        event = decode_gateway(body)
        self._questions.apply(event)
        self._closed = self._closed or isinstance(event, GatewayClosed)
        if isinstance(event, GatewayApprovalAsked) and event.whole is not None:
            self._digests.add(event.whole)
        self._at = event.at

    def result(self) -> Folded:
        return Folded(kind=GATEWAY, statuses=self._statuses(), summary={}, digests=frozenset(self._digests))

    def _statuses(self) -> frozenset[str]:
        """A gateway writes its status when it appends; whether a question still waited then, only its clock knew."""
        if self._questions.waits(self._at):
            return frozenset((ASKING,))
        quiet = "closed" if self._closed else "open"
        return frozenset((quiet, ASKING) if self._questions.asked else (quiet,))


class _Usage:
    def __init__(self, _stream: str) -> None:
        self._usage: Usage | None = None

    def step(self, type_: str, body: bytes) -> None:
        event = decode_usage(body)
        self._usage = (self._usage or Usage(subject=event.subject)).after(event)

    def result(self) -> Folded | None:
        if self._usage is None:
            return None
        return Folded(kind=USAGE, statuses=frozenset(("open",)), summary=asdict(self._usage))


class _Log:
    """A stream whose row never changes."""

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
    """Chooses the fold by the first event."""

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
    """The folds of all streams that Pursuit writes."""

    def begin(self, stream: str) -> StreamFold:
        """A fold for a stream."""
        return _Stream(stream)

    def has_ended(self, kind: str, status: str) -> bool:
        """Whether a stream of this kind may be forgotten in this status."""
        return status in _ENDS.get(kind, ()) or kind not in _KINDS


FOLDS = PursuitFolds()


def verify_export(path: Path) -> Verification:
    """Checks an exported mission: its chain, its blobs, and that its header is what its events say."""
    return verify_archive(path, FOLDS)
