"""The record of tasks: a stream of events for each in a `TaskStore`, changed under compare-and-set.

Invariant: an ended task never changes. What comes too late is recorded as dropped and never raises.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Unpack

import anyio
import msgspec

from pursuit.core.tasks import (
    AnyTaskEvent,
    CancelOrdered,
    InputAnswered,
    InputAsked,
    TaskAdopted,
    TaskCreated,
    TaskEnd,
    TaskKind,
    TaskProgressed,
    TaskSettled,
    TaskState,
    WordDropped,
    advance_task,
    decode_task,
    encode_task,
    fold_task,
)
from pursuit.errors import INTERNAL_ERROR, Conflict, InvalidArgument, TaskNotFound
from pursuit.ledger.contract import (
    ANY,
    FORGOTTEN,
    Anywhere,
    AppendOptions,
    Bell,
    Draft,
    Head,
    Ledger,
    StoredEvent,
    StreamFilter,
    StreamPage,
    StreamRow,
    TaskStore,
)
from pursuit.tasks.limits import RunningTasks, TaskLimits
from pursuit.tasks.record import is_task_id, new_task_id, sound_text, storable, summary_of

INLINE = 16 * 1024


def kept_apart(settled: TaskSettled) -> tuple[TaskSettled, dict[str, bytes]]:
    """The settlement without a large result, and the blobs to store with it."""
    if settled.result is None:
        return settled, {}
    body = msgspec.json.encode(settled.result)
    if len(body) <= INLINE:
        return settled, {}
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.structs.replace(settled, result=None, blob=digest), {digest: body}


KIND = "task"
KEPT_STATES = 2_048
MOST_DROPPED = 10
"""Late or unasked answers that are recorded for one task; further ones are dropped silently."""

LONGEST_REASON = 2_000
UNKNOWN: Mapping[str, Any] = {"outcome": "unknown"}
"""The data of the error of a task whose work may have taken effect."""

Build = Callable[[TaskState], Sequence[AnyTaskEvent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How work ended: `result` is a tool's result as JSON, `error` a JSON-RPC error."""

    status: TaskEnd
    message: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    exit_code: int | None = None
    done: float | None = None
    item: str | None = None
    mark: Mapping[str, Any] | None = None
    at: float | None = None
    """When it ended, if that is known: it may be recorded much later."""

    @classmethod
    def failure(cls, why: str, *, unknown: bool = False, result: Mapping[str, Any] | None = None) -> Ending:
        """A failure for that reason; `unknown` if the work may have taken effect."""
        why = why[:LONGEST_REASON]
        error = {"code": INTERNAL_ERROR, "message": why, **({"data": UNKNOWN} if unknown else {})}
        return cls(status="failed", message=why, result=result, error=error)


class LedgerWithTasks:
    """A ledger whose tasks live in a store of their own. The locks of their owners stay in the ledger."""

    def __init__(self, ledger: Ledger, store: TaskStore) -> None:
        self._ledger = ledger
        self._store = store
        self.claim, self.is_claimed, self.holder = ledger.claim, ledger.is_claimed, ledger.holder
        self.root, self.verify, self.close = ledger.root, ledger.verify, ledger.close
        self.watch, self.search, self.digests = ledger.watch, ledger.search, ledger.digests

    def _home(self, stream: str) -> TaskStore:
        return self._store if is_task_id(stream) else self._ledger

    async def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Head:
        """See `Ledger.append`."""
        return await self._home(stream).append(stream, expected, events, **options)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """See `Ledger.read`."""
        return await self._home(stream).read(stream, after, limit)

    async def row(self, stream: str) -> StreamRow | None:
        """See `Ledger.row`."""
        return await self._home(stream).row(stream)

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """See `Ledger.streams`; tasks are listed where they are asked for."""
        return await (self._store if wanted.get("kind") == KIND else self._ledger).streams(**wanted)

    async def blob(self, digest: str) -> bytes | None:
        """See `Ledger.blob`."""
        found = await self._ledger.blob(digest)
        return await self._store.blob(digest) if found is None else found

    async def forget(self, stream: str) -> None:
        """See `Ledger.forget`."""
        await self._home(stream).forget(stream)

    @contextmanager
    def bell(self, stream: str | None = None) -> Generator[Bell]:
        """See `Ledger.bell`."""
        if stream is not None:
            with self._home(stream).bell(stream) as bell:
                yield bell
            return
        with self._ledger.bell() as first, self._store.bell() as second:
            yield _EitherBell(first, second)


class _EitherBell:
    """Rings when one of two bells rings."""

    def __init__(self, *bells: Bell) -> None:
        self._bells = bells

    async def wait(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def hear(bell: Bell) -> None:
                await bell.wait()
                tasks.cancel_scope.cancel()

            for bell in self._bells:
                tasks.start_soon(hear, bell)


class TaskRecords:
    """Every task of one ledger. `now` is the wall clock."""

    def __init__(
        self, ledger: Ledger, *, limits: TaskLimits | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.ledger = ledger
        self.limits = limits or TaskLimits()
        self.now = now
        self.on_ended: Callable[[TaskState], Awaitable[None]] | None = None
        """Called with each task whose end this store has recorded."""
        self._running = RunningTasks(ledger, KIND)
        self._states: OrderedDict[str, TaskState] = OrderedDict()

    async def create(
        self,
        *,
        kind: TaskKind,
        title: str,
        requestor: str,
        by: str = "operator",
        owner: str | None = None,
        ttl: float | None = None,
        total: float | None = None,
        origin: Mapping[str, Any] | None = None,
        task_id: str | None = None,
    ) -> TaskState:
        """A new task, durable when this returns, for one commit. Raises `TooManyTasks` or `ValidationFailed`.

        Who chose the id beforehand (`new_task_id`) gets `Conflict` if there is such a task already.
        """
        lives = self.limits.time_to_live(ttl)
        task_id = task_id or new_task_id()
        created = TaskCreated(
            at=self.now(),
            kind=kind,
            title=title[:200],
            requestor=requestor,
            by=by,
            owner=owner,
            ttl=lives,
            total=total,
            origin=dict(origin or {}),
        )
        created = storable(created)
        state = fold_task(task_id, [created])
        assert state is not None  # noqa: S101 - a creation folds to a state
        async with self._running.place(task_id, requestor, self.limits):
            await self._append(state, 0, [created])
        self._keep(state)
        return state

    async def get(self, task_id: str, *, requestor: str | None = None) -> TaskState:
        """The task as it stands, which callers must not change. Raises `TaskNotFound`, also for another requestor."""
        state = await self._load(task_id)
        if state is None or (requestor is not None and state.requestor != requestor):
            raise TaskNotFound(f"no task {task_id[:100]!r}; it may have been removed after its time", task_id=task_id)
        return state

    async def adopt(self, task_id: str, owner: str, *, instead_of: str | None) -> bool:
        """Takes over work whose owner is gone; False if another process was faster or it has ended."""
        return bool(
            await self._record(
                task_id,
                lambda state: (
                    () if state.terminal or state.owner != instead_of else [TaskAdopted(at=self.now(), owner=owner)]
                ),
            )
        )

    async def progress(self, task_id: str, change: TaskProgressed) -> None:
        """Writes down how far it is; on an ended task nothing is written."""
        await self._record(task_id, lambda state: () if state.terminal else [change])

    async def ask(self, task_id: str, requests: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes questions durable; the task is `input_required` until each has its answer."""
        if any(key != sound_text(key) for key in requests):
            raise InvalidArgument("the name of a question is no valid text")  # no answer could carry that name
        asked = InputAsked(at=self.now(), requests={key: dict(request) for key, request in requests.items()})
        await self._record(task_id, lambda state: () if state.terminal else [asked])

    async def answer(self, task_id: str, responses: Mapping[str, Any], *, by: str = "operator") -> None:
        """Takes answers; to a question that is not open, or of an ended task, they are dropped and recorded."""

        def build(state: TaskState) -> Sequence[AnyTaskEvent]:
            fitting = {key: value for key, value in responses.items() if key in state.asked}
            others = sorted(key[:100] for key in responses if key not in fitting)
            heard = bool(others) and state.dropped < MOST_DROPPED
            late = [WordDropped(at=self.now(), what="answer", detail=", ".join(others)[:500])] if heard else []
            taken = [InputAnswered(at=self.now(), responses=fitting, by=by)] if fitting else []
            return [*taken, *late]

        await self._record(task_id, build)

    async def settle(self, task_id: str, ending: Ending) -> bool:
        """Ends it, unless it has ended: then the late ending is dropped and recorded, and the answer is False."""
        settled, blobs = kept_apart(storable(_settled(ending, self.now())))

        def build(state: TaskState) -> Sequence[AnyTaskEvent]:
            if state.terminal:
                late = ending.message and ending.message[:500]
                return [WordDropped(at=self.now(), what=f"ending as {ending.status}", detail=late)]
            return [settled]

        events = await self._record(task_id, build, blobs)
        return settled in events

    async def order_cancel(
        self,
        task_id: str,
        *,
        by: str = "operator",
        reason: str | None = None,
        settle: bool = True,
        ending: Ending | None = None,
    ) -> TaskState:
        """Orders the work stopped; with `settle` it has ended from now on, whatever the work still does.

        It is cancelled then, unless another `ending` is given.
        """

        def build(state: TaskState) -> Sequence[AnyTaskEvent]:
            if state.terminal or (state.cancel is not None and not settle):
                return ()
            now = self.now()
            word = CancelOrdered(at=now, by=by, reason=reason)
            if not settle:
                return [word]
            said = f"cancelled by {by}" + (f": {reason}" if reason else "")
            return [word, _settled(ending or Ending(status="cancelled", message=said), now)]

        await self._record(task_id, build)
        return await self.get(task_id)

    async def result(self, state: TaskState) -> Mapping[str, Any] | None:
        """The tool's result of an ended task. Raises `TaskNotFound` if it was removed with its task."""
        if state.blob is None:
            return state.result
        body = await self.ledger.blob(state.blob)
        if body is None:
            raise TaskNotFound(f"the task {state.task_id!r} was removed, with its result", task_id=state.task_id)
        return msgspec.json.decode(body)

    async def wait(
        self,
        task_id: str,
        until: Callable[[TaskState], bool] = lambda state: state.terminal,
        *,
        requestor: str | None = None,
    ) -> TaskState:
        """The state once it is as wanted: ended, if nothing else is said. Any number may wait."""
        async for state in self.follow(task_id, requestor=requestor):
            if until(state):
                return state
        raise TaskNotFound(f"the task {task_id!r} was removed", task_id=task_id)

    async def follow(self, task_id: str, *, requestor: str | None = None) -> AsyncGenerator[TaskState]:
        """The state now and after each change, the latest only, until it has ended or is removed."""
        with self.ledger.bell(task_id) as bell:
            seen = 0
            while True:
                try:
                    state = await self.get(task_id, requestor=requestor)
                except TaskNotFound:
                    if seen == 0:
                        raise
                    return
                if state.seq > seen:
                    seen = state.seq
                    yield state
                if state.terminal:
                    return
                await bell.wait()

    async def forget(self, task_id: str) -> None:
        """Removes an ended task and what it stored; a running one is left alone."""
        state = await self._load(task_id)
        if state is not None and state.terminal:
            await self.ledger.forget(task_id)
            self._states.pop(task_id, None)

    async def _record(
        self, task_id: str, build: Build, blobs: Mapping[str, bytes] | None = None
    ) -> Sequence[AnyTaskEvent]:
        """Appends what `build` makes of the latest state; after a conflicting append it builds again."""
        while True:
            state = await self.get(task_id)
            before, was_terminal = state.seq, state.terminal
            events = [storable(event) for event in build(state)]
            if not events:
                return ()
            if was_terminal:
                await self.ledger.append(task_id, ANY, [Draft(*encode_task(event)) for event in events], kind=KIND)
                return events
            after = fold_ahead(state, events)
            try:
                await self._append(after, before, events, blobs)
            except Conflict:
                continue
            self._keep(after)
            if after.terminal:
                self._running.ended(task_id)
                if self.on_ended is not None:
                    await self.on_ended(after)
            return events

    async def _append(
        self, state: TaskState, expected: int, events: Sequence[AnyTaskEvent], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        drafts = [Draft(*encode_task(event)) for event in events]
        await self.ledger.append(
            state.task_id,
            expected,
            drafts,
            kind=KIND,
            status=state.status,
            summary=summary_of(state),
            blobs=blobs if blobs and any(isinstance(event, TaskSettled) for event in events) else None,
        )

    async def _load(self, task_id: str) -> TaskState | None:
        if not is_task_id(task_id):
            return None
        known = self._states.get(task_id)
        stored = await self.ledger.read(task_id, known.seq if known is not None else 0)
        events = [decode_task(one.body) for one in stored]
        if known is None or not events:  # another process may have removed it, and that rings no bell
            row = await self.ledger.row(task_id)
            if row is None or row.status == FORGOTTEN:
                self._states.pop(task_id, None)
                return None
        state = fold_task(task_id, events) if known is None else fold_ahead(known, events)
        if state is not None:
            self._keep(state)
        return state

    def _keep(self, state: TaskState) -> None:
        known = self._states.get(state.task_id)
        if known is None or known.seq <= state.seq:
            self._states[state.task_id] = state
        with suppress(KeyError):
            self._states.move_to_end(state.task_id)
        while len(self._states) > KEPT_STATES:
            self._states.popitem(last=False)


def fold_ahead(state: TaskState, events: Sequence[AnyTaskEvent]) -> TaskState:
    """The state after further events; the given state stays unchanged for its other holders."""
    ahead = copy.copy(state)
    ahead.asked, ahead.answers = dict(state.asked), dict(state.answers)
    for event in events:
        advance_task(ahead, event)
    return ahead


def _settled(ending: Ending, now: float) -> TaskSettled:
    return TaskSettled(
        at=now if ending.at is None else min(now, ending.at),
        status=ending.status,
        message=ending.message,
        result=None if ending.result is None else dict(ending.result),
        error=None if ending.error is None else dict(ending.error),
        exit_code=ending.exit_code,
        done=ending.done,
        item=ending.item,
        mark=None if ending.mark is None else dict(ending.mark),
    )
