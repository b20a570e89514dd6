"""The record of tasks: a stream of events for each in a `TaskStore`, changed under compare-and-set.

Invariant: an ended task never changes. A late event is recorded as dropped and never raises.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Required, TypedDict, Unpack

import anyio
import msgspec

from pursuit.core.tasks import (
    AnyTaskEvent,
    CancelOrdered,
    InputAnswered,
    InputAsked,
    TaskAdopted,
    TaskCreated,
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
from pursuit.errors import Conflict, InvalidArgument, TaskNotFound
from pursuit.ledger.contract import (
    ANY,
    FORGOTTEN,
    Anywhere,
    AppendOptions,
    Draft,
    Head,
    Ledger,
    StoredEvent,
    StreamFilter,
    StreamPage,
    StreamRow,
    TaskStore,
    Wakeup,
)
from pursuit.tasks.limits import RunningTasks, TaskLimits
from pursuit.tasks.record import generate_task_id, is_task_id, sound_text, storable, summary_of

INLINE = 16 * 1024


def kept_apart(settled: TaskSettled) -> tuple[TaskSettled, dict[str, bytes]]:
    """The settlement without its large result, and the blobs to store with it."""
    if settled.result is None:
        return settled, {}
    body = msgspec.json.encode(settled.result)
    if len(body) <= INLINE:
        return settled, {}
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.structs.replace(settled, result=None, blob=digest), {digest: body}


KIND = "task"
KEPT_STATES = 2_048
MAX_DROPPED = 10
"""Maximum of late or unrequested answers recorded for one task; further ones are dropped silently."""
Build = Callable[[TaskState], Sequence[AnyTaskEvent]]


Ending = TaskSettled
"""The end of work, as the work gives it: `at` is when it ended, if known, since it may be recorded much later."""


class LedgerWithTasks:
    """A ledger whose tasks are in a separate store. The locks of their owners stay in the ledger."""

    def __init__(self, ledger: Ledger, store: TaskStore) -> None:
        self._ledger = ledger
        self._store = store
        self.claim, self.is_claimed, self.holder = ledger.claim, ledger.is_claimed, ledger.holder
        self.root, self.verify, self.close = ledger.root, ledger.verify, ledger.close
        self.seal, self.stored = ledger.seal, ledger.stored
        self.watch, self.search, self.digests = ledger.watch, ledger.search, ledger.digests

    def _home(self, stream: str) -> TaskStore:
        return self._store if is_task_id(stream) else self._ledger

    def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Awaitable[Head]:
        return self._home(stream).append(stream, expected, events, **options)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        return await self._home(stream).read(stream, after, limit)

    async def row(self, stream: str) -> StreamRow | None:
        return await self._home(stream).row(stream)

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """See `Ledger.streams`; lists tasks of the separate store if requested."""
        return await (self._store if wanted.get("kind") == KIND else self._ledger).streams(**wanted)

    async def blob(self, digest: str) -> bytes | None:
        found = await self._ledger.blob(digest)
        return await self._store.blob(digest) if found is None else found

    async def forget(self, stream: str) -> None:
        await self._home(stream).forget(stream)

    @contextmanager
    def wakeup(self, stream: str | None = None) -> Generator[Wakeup]:
        if stream is not None:
            with self._home(stream).wakeup(stream) as wakeup:
                yield wakeup
            return
        with self._ledger.wakeup() as first, self._store.wakeup() as second:
            yield _EitherWakeup(first, second)


class _EitherWakeup:
    def __init__(self, *wakeups: Wakeup) -> None:
        self._wakeups = wakeups

    async def wait(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def hear(wakeup: Wakeup) -> None:
                await wakeup.wait()
                tasks.cancel_scope.cancel()

            for wakeup in self._wakeups:
                tasks.start_soon(hear, wakeup)


class NewTask(TypedDict, total=False):
    """The parts of a new task; without a `task_id` it gets a random one."""

    kind: Required[TaskKind]
    title: Required[str]
    requestor: Required[str]
    by: str
    ttl: float | None
    total: float | None
    origin: Mapping[str, Any] | None
    task_id: str | None


class TaskRecords:
    """Every task of one ledger. `now` is the wall clock."""

    def __init__(
        self, ledger: Ledger, *, limits: TaskLimits | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.ledger = ledger
        self.limits = limits or TaskLimits()
        self.now = now
        self.on_ended: Callable[[TaskState], Awaitable[None]] | None = None
        """Called with each task whose end this store records."""
        self._running = RunningTasks(ledger, KIND)
        self._states: OrderedDict[str, TaskState] = OrderedDict()

    async def create(self, *, owner: str | None = None, **parts: Unpack[NewTask]) -> TaskState:
        """Creates a durable task with one commit. Raises `TooManyTasks` or `ValidationFailed`.

        With a `task_id` (see `generate_task_id`), raises `Conflict` if the task exists.
        """
        task_id, lives = parts.pop("task_id", None) or generate_task_id(), self.limits.time_to_live(parts.get("ttl"))
        given: dict[str, Any] = {**parts, "title": parts["title"][:200], "ttl": lives}
        given["origin"] = dict(parts.get("origin") or {})
        created = storable(TaskCreated(at=self.now(), owner=owner, **given))
        state = fold_task(task_id, [created])
        assert state is not None  # noqa: S101 - TaskCreated folds to a state
        async with self._running.place(task_id, parts["requestor"], self.limits):
            await self._append(state, 0, [created])
        self._keep(state)
        return state

    async def get(self, task_id: str, *, requestor: str | None = None) -> TaskState:
        """The state, which callers must not change. Raises `TaskNotFound`, even for another requestor's task."""
        state = await self._load(task_id)
        if state is None or (requestor is not None and state.requestor != requestor):
            why = f"task {task_id[:100]!r} does not exist; it may have been removed after its retention time"
            raise TaskNotFound(why, task_id=task_id)
        return state

    async def adopt(self, task_id: str, owner: str, *, instead_of: str | None) -> bool:
        """Takes over work whose owner died; False if another process was faster or it has ended."""
        return bool(
            await self._record(
                task_id,
                lambda state: (
                    () if state.terminal or state.owner != instead_of else [TaskAdopted(at=self.now(), owner=owner)]
                ),
            )
        )

    async def progress(self, task_id: str, change: TaskProgressed) -> None:
        """Stores progress, unless the task has ended."""
        await self._record(task_id, lambda state: () if state.terminal else [change])

    async def ask(self, task_id: str, requests: Mapping[str, Mapping[str, Any]]) -> None:
        """Stores input requests; the task is `input_required` until each is answered."""
        if any(key != sound_text(key) for key in requests):
            raise InvalidArgument("invalid question name: not valid Unicode")  # an answer could not carry that name
        asked = InputAsked(at=self.now(), requests={key: dict(request) for key, request in requests.items()})
        await self._record(task_id, lambda state: () if state.terminal else [asked])

    async def answer(self, task_id: str, responses: Mapping[str, Any], *, by: str = "operator") -> None:
        """Stores answers; one to a request that is not open, or of an ended task, is recorded as dropped."""

        def build(state: TaskState) -> Sequence[AnyTaskEvent]:
            fitting = {key: value for key, value in responses.items() if key in state.asked}
            others = sorted(key[:100] for key in responses if key not in fitting)
            heard = bool(others) and state.dropped < MAX_DROPPED
            late = [WordDropped(at=self.now(), what="answer", detail=", ".join(others)[:500])] if heard else []
            taken = [InputAnswered(at=self.now(), responses=fitting, by=by)] if fitting else []
            return [*taken, *late]

        await self._record(task_id, build)

    async def settle(self, task_id: str, ending: Ending) -> bool:
        """Ends the task; if it has ended, records the late ending as dropped and returns False."""
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
        """Requests cancellation; with `settle`, the task ends now, even if its work still runs.

        The task is then `cancelled`, unless another `ending` is given.
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
        """The tool result of an ended task. Raises `TaskNotFound` if it was removed with its task."""
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
        """Waits for a state, by default for the end, and returns it. Any number may wait."""
        async for state in self.follow(task_id, requestor=requestor):
            if until(state):
                return state
        raise TaskNotFound(f"the task {task_id!r} was removed", task_id=task_id)

    async def follow(self, task_id: str, *, requestor: str | None = None) -> AsyncGenerator[TaskState]:
        """The state now and after changes (only the latest), until the task has ended or is removed."""
        with self.ledger.wakeup(task_id) as wakeup:
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
                await wakeup.wait()

    async def forget(self, task_id: str) -> None:
        """Removes an ended task and its data; a running one stays."""
        state = await self._load(task_id)
        if state is not None and state.terminal:
            await self.ledger.forget(task_id)
            self._states.pop(task_id, None)

    async def _record(
        self, task_id: str, build: Build, blobs: Mapping[str, bytes] | None = None
    ) -> Sequence[AnyTaskEvent]:
        """Appends the events that `build` makes from the latest state; builds again after a conflict."""
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
        if known is None or not events:  # another process may have removed it, which sends no wakeup
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
    ahead = copy.copy(state)
    ahead.asked, ahead.answers = dict(state.asked), dict(state.answers)
    for event in events:
        advance_task(ahead, event)
    return ahead


def _settled(ending: Ending, now: float) -> TaskSettled:
    return msgspec.structs.replace(ending, at=min(now, ending.at or now))


async def create_task(
    store: TaskRecords,
    *,
    title: str,
    requestor: str = "local",
    task_id: str | None = None,
    ttl: float | None = None,
    total: float | None = None,
) -> TaskState:
    """Creates a durable task for work of the program; see `TaskRecords.create`, and `task_execution` for the work."""
    return await store.create(kind="work", title=title, requestor=requestor, task_id=task_id, ttl=ttl, total=total)
