"""A task, which is long work: its events, its state, and the fold between them. Pure.

Invariant: the first settlement counts; whatever comes after it is kept as a fact and changes nothing.

    created   TaskCreated
    owner     TaskAdopted · TaskProgressed · InputAsked · TaskSettled
    any       InputAnswered · CancelOrdered · WordDropped
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from pursuit.core.events import encode

TaskKind = Literal["process", "call", "mission", "child", "work"]
TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TaskEnd = Literal["completed", "failed", "cancelled"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
TASK_ENDS: tuple[TaskEnd, ...] = get_args(TaskEnd)


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A fact about a task; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0


class TaskCreated(TaskEvent, frozen=True, kw_only=True):
    """Work was requested; `owner` is the process that does it, and `origin` what it needs to resume the work."""

    kind: TaskKind
    title: str
    requestor: str
    by: str = "operator"
    owner: str | None = None
    ttl: float | None = None
    total: float | None = None
    origin: dict[str, Any] = {}


class TaskAdopted(TaskEvent, frozen=True, kw_only=True):
    """Another process continues the work, because its owner is gone."""

    owner: str


class TaskProgressed(TaskEvent, frozen=True, kw_only=True):
    """Progress; what is left out stays as it was. `mark` is where its owner continues after a crash.

    `alive` marks a heartbeat, which does not count as a change.
    """

    message: str | None = None
    done: float | None = None
    total: float | None = None
    item: str | None = None
    mark: dict[str, Any] | None = None
    alive: bool = False


class InputAsked(TaskEvent, frozen=True, kw_only=True):
    """The work waits for these answers; each question is an MCP request, by its key."""

    requests: dict[str, dict[str, Any]]


class InputAnswered(TaskEvent, frozen=True, kw_only=True):
    """Answers; the first one to each question counts."""

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
    """Questions without an answer, by key."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """Every answer so far, by the key of its question."""
    cancel: CancelOrdered | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    blob: str | None = None
    error: Mapping[str, Any] | None = None
    dropped: int = 0
    """Requests that came too late, as far as they were recorded."""
    seq: int = 0

    @property
    def terminal(self) -> bool:
        """Whether it has ended, for good."""
        return self.status in TASK_ENDS

    @property
    def expires_at(self) -> float | None:
        """When its time to live ends."""
        return None if self.ttl is None else self.created_at + self.ttl


def fold_task(task_id: str, events: Iterable[AnyTaskEvent]) -> TaskState | None:
    """The state after all events; None if there are none."""
    state: TaskState | None = None
    for event in events:
        if state is not None:
            advance_task(state, event)
        elif isinstance(event, TaskCreated):
            state = _created(task_id, event)
    return state


def _created(task_id: str, event: TaskCreated) -> TaskState:
    return TaskState(
        task_id=task_id,
        kind=event.kind,
        title=event.title,
        requestor=event.requestor,
        by=event.by,
        owner=event.owner,
        origin=event.origin,
        ttl=event.ttl,
        total=event.total,
        created_at=event.at,
        updated_at=event.at,
        seq=1,
    )


def advance_task(state: TaskState, event: AnyTaskEvent) -> None:
    """Applies one more event."""
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
            _settled(state, event)
        case TaskCreated() | WordDropped():
            return
    state.updated_at = max(state.updated_at, event.at)
    if not state.terminal:
        state.status = "input_required" if state.asked else "working"


def _progressed(state: TaskState, event: TaskProgressed | TaskSettled) -> None:
    """Takes over what the event gives; what it leaves out stays as it was."""
    for name in ("message", "done", "total", "item", "mark"):
        if (value := getattr(event, name, None)) is not None:
            setattr(state, name, value)


def _settled(state: TaskState, event: TaskSettled) -> None:
    _progressed(state, event)
    state.status = event.status
    state.result, state.blob, state.error = event.result, event.blob, event.error
    state.exit_code = event.exit_code
    state.ended_at = event.at
    state.asked = {}
