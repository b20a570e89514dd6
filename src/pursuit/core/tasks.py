"""A task (long-running work): its events, its state, and the fold between them. Pure.

Invariant: the first settlement counts; later events are recorded and change nothing.

    created   TaskCreated
    owner     TaskAdopted · TaskProgressed · InputAsked · TaskSettled
    any       InputAnswered · CancelOrdered · WordDropped
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import msgspec

from pursuit.core.events import encode
from pursuit.errors import INTERNAL_ERROR

TaskKind = Literal["process", "call", "mission", "child", "work"]
TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TaskEnd = Literal["completed", "failed", "cancelled"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
TASK_ENDS: tuple[TaskEnd, ...] = get_args(TaskEnd)
MAX_REASON = 2_000
UNKNOWN: Mapping[str, Any] = {"outcome": "unknown"}
"""The data of the error of a task whose work may have taken effect."""


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A fact about a task; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0


class TaskCreated(TaskEvent, frozen=True, kw_only=True):
    """Work was requested; `owner` is the process that does it, and `origin` the data needed to resume it."""

    kind: TaskKind
    title: str
    requestor: str
    by: str = "operator"
    owner: str | None = None
    ttl: float | None = None
    total: float | None = None
    origin: dict[str, Any] = {}


class TaskAdopted(TaskEvent, frozen=True, kw_only=True):
    """Another process took over the work because its owner is gone."""

    owner: str


class TaskProgressed(TaskEvent, frozen=True, kw_only=True):
    """Progress; absent fields stay unchanged. `mark` is the position at which its owner continues after a crash.

    `alive` marks a heartbeat, which does not count as a change.
    """

    message: str | None = None
    done: float | None = None
    total: float | None = None
    item: str | None = None
    mark: dict[str, Any] | None = None
    alive: bool = False


class InputAsked(TaskEvent, frozen=True, kw_only=True):
    """The work waits for answers; each question is an MCP request, by its key."""

    requests: dict[str, dict[str, Any]]


class InputAnswered(TaskEvent, frozen=True, kw_only=True):
    """Answers; the first to each question counts."""

    responses: dict[str, Any]
    by: str = "operator"


class CancelOrdered(TaskEvent, frozen=True, kw_only=True):
    """A stop was requested."""

    by: str = "operator"
    reason: str | None = None


class TaskSettled(TaskEvent, frozen=True, kw_only=True):
    """The task ended: `result` is a tool's result as JSON (or in a blob), `error` a JSON-RPC error."""

    status: TaskEnd
    message: str | None = None
    result: dict[str, Any] | None = None
    blob: str | None = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    done: float | None = None
    item: str | None = None
    mark: dict[str, Any] | None = None

    @classmethod
    def failure(cls, why: str, *, unknown: bool = False, result: dict[str, Any] | None = None) -> Self:
        """A failure with a reason; `unknown` if the work may have taken effect."""
        why = why[:MAX_REASON]
        error = {"code": INTERNAL_ERROR, "message": why, **({"data": UNKNOWN} if unknown else {})}
        return cls(status="failed", message=why, result=result, error=error)


class WordDropped(TaskEvent, frozen=True, kw_only=True):
    """A request came too late."""

    what: str
    detail: str | None = None


AnyTaskEvent = (
    TaskCreated | TaskAdopted | TaskProgressed | InputAsked | InputAnswered | CancelOrdered | TaskSettled | WordDropped
)

encode_task: Callable[[AnyTaskEvent], tuple[str, bytes]] = encode
decode_task: Callable[[bytes], AnyTaskEvent] = msgspec.json.Decoder(AnyTaskEvent).decode


@dataclass(slots=True, kw_only=True)
class TaskState:
    """The state of a task. Only `advance_task` changes it."""

    task_id: str
    kind: TaskKind
    title: str
    requestor: str
    by: str
    owner: str | None
    origin: Mapping[str, Any]
    created_at: float
    updated_at: float
    ttl: float | None = None
    status: TaskStatus = "working"
    message: str | None = None
    done: float = 0.0
    total: float | None = None
    item: str | None = None
    mark: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asked: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Unanswered questions, by key."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """Every answer so far, by the key of its question."""
    cancel: CancelOrdered | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    blob: str | None = None
    error: Mapping[str, Any] | None = None
    dropped: int = 0
    """The number of recorded requests that came too late."""
    seq: int = 0

    @property
    def terminal(self) -> bool:
        return self.status in TASK_ENDS

    @property
    def expires_at(self) -> float | None:
        return None if self.ttl is None else self.created_at + self.ttl


_FROM_CREATED = ("kind", "title", "requestor", "by", "owner", "origin", "ttl", "total")


def fold_task(task_id: str, events: Iterable[AnyTaskEvent]) -> TaskState | None:
    state: TaskState | None = None
    for event in events:
        if state is not None:
            advance_task(state, event)
        elif isinstance(event, TaskCreated):
            known: dict[str, Any] = {name: getattr(event, name) for name in _FROM_CREATED}
            state = TaskState(task_id=task_id, created_at=event.at, updated_at=event.at, seq=1, **known)
    return state


def advance_task(state: TaskState, event: AnyTaskEvent) -> None:
    state.seq += 1
    state.dropped += isinstance(event, WordDropped)
    if state.terminal:
        return
    match event:
        case TaskAdopted():
            state.owner = event.owner
            return
        case TaskProgressed():
            _progressed(state, event)
            if event.alive:
                return
        case InputAsked():
            state.asked.update({key: ask for key, ask in event.requests.items() if key not in state.answers})
        case InputAnswered():
            for key in event.responses.keys() & state.asked.keys():
                state.answers[key] = event.responses[key]
                del state.asked[key]
        case CancelOrdered():
            state.cancel = state.cancel or event
        case TaskSettled():
            _progressed(state, event)
            state.status, state.exit_code, state.ended_at = event.status, event.exit_code, event.at
            state.result, state.blob, state.error = event.result, event.blob, event.error
            state.asked = {}
        case TaskCreated() | WordDropped():
            return
    state.updated_at = max(state.updated_at, event.at)
    if not state.terminal:
        state.status = "input_required" if state.asked else "working"


def _progressed(state: TaskState, event: TaskProgressed | TaskSettled) -> None:
    """Applies the fields that the event has; the others stay unchanged."""
    for name in ("message", "done", "total", "item", "mark"):
        if (value := getattr(event, name, None)) is not None:
            setattr(state, name, value)
