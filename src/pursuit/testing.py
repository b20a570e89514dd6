"""The parts for tests of programs on Pursuit: a clock, a ledger, a task store, a model, a server, checks of ports.

Each port has a function that raises `AssertionError` with the fault. Pass it a fresh object:

    async def test_our_store() -> None:
        await pursuit.testing.check_task_store(OurStore())
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import anyio.lowlevel
from msgspec import convert, to_builtins

from pursuit.errors import Conflict
from pursuit.ledger.contract import (
    ANY,
    Anywhere,
    AppendOptions,
    Draft,
    Head,
    StoredEvent,
    StreamFilter,
    StreamPage,
    StreamRow,
    TaskStore,
)

if TYPE_CHECKING:  # a small server starts quickly without them
    from pursuit.ledger.placement import Job, Placement, Requirements, Reschedule, WorkerRow
    from pursuit.upstream.listing import ToolTraits

__all__ = [
    "FakeClock",
    "InMemoryTaskStore",
    "RecordingWorker",
    "Reply",
    "ScriptedModel",
    "SmallServer",
    "check_placement",
    "check_proposer",
    "check_task_store",
    "check_tool_traits",
    "temporary_ledger",
]

SECONDS = 20.0
"""Seconds that a check waits for an expected event."""


@dataclass
class FakeClock:
    """A clock that stands still: `Runtime(clock=FakeClock())`. It is both the wall clock and the monotonic clock."""

    at: float = 1_800_000_000.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    monotonic = now

    def advance(self, seconds: float) -> None:
        """Advances the time."""
        self.at += seconds


@contextmanager
def temporary_ledger() -> Generator[Path]:
    """The path of a new SQLite ledger, for `Runtime(state=…)`; in memory if the machine has a folder for that."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it is private
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "ledger.db"


class InMemoryTaskStore:
    """A `TaskStore` without a disk, for `Runtime(task_store=…)`; its tasks end with this process."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._rows: dict[str, StreamRow] = {}
        self._events: dict[str, list[StoredEvent]] = {}
        self._blobs: dict[str, dict[str, bytes]] = {}
        self._wakeups: list[tuple[str | None, _MemoryWakeup]] = []

    async def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Head:
        """See `TaskStore.append`."""
        await anyio.lowlevel.checkpoint()
        row, stored, now = self._rows.get(stream), self._events.get(stream, []), self._now()
        if expected is not ANY and expected != len(stored):
            raise Conflict(f"{stream} is at {len(stored)}, not at {expected}", actual=len(stored))
        for draft in events:
            seq, before = len(stored) + 1, stored[-1].hash if stored else b""
            digest = hashlib.sha256(before + draft.body).digest()
            stored = [*stored, StoredEvent(stream, seq, now, draft.type, draft.body, digest)]
        head = Head(len(stored), stored[-1].hash)
        if row is None:
            row = StreamRow(name=stream, kind="task", status="", created_at=now, updated_at=now, head=head, summary={})
        status, summary = options.get("status") or row.status, options.get("summary")
        self._rows[stream] = replace(
            row, status=status, updated_at=now, head=head, summary=row.summary if summary is None else summary
        )
        self._events[stream] = stored
        self._blobs.setdefault(stream, {}).update(options.get("blobs") or {})
        for name, wakeup in self._wakeups:
            if name in (None, stream):
                wakeup.due.set()
        return head

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """See `TaskStore.read`."""
        await anyio.lowlevel.checkpoint()
        return self._events.get(stream, [])[after : None if limit is None else after + limit]

    async def row(self, stream: str) -> StreamRow | None:
        """See `TaskStore.row`."""
        await anyio.lowlevel.checkpoint()
        return self._rows.get(stream)

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """See `TaskStore.streams`; a cursor is the name of the last task of a page."""
        await anyio.lowlevel.checkpoint()
        status, cursor, limit = wanted.get("status"), wanted.get("cursor"), wanted.get("limit", 100)
        statuses = [status] if isinstance(status, str) else status
        names = [*reversed(self._rows)]
        names = names if cursor is None else names[names.index(cursor) + 1 :]
        found = [row for row in map(self._rows.__getitem__, names) if statuses is None or row.status in statuses]
        return StreamPage(tuple(found[:limit]), found[limit - 1].name if len(found) > limit else None)

    async def blob(self, digest: str) -> bytes | None:
        """See `TaskStore.blob`."""
        await anyio.lowlevel.checkpoint()
        return next((blobs[digest] for blobs in self._blobs.values() if digest in blobs), None)

    @contextmanager
    def wakeup(self, stream: str | None = None) -> Generator[_MemoryWakeup]:
        """See `TaskStore.wakeup`."""
        entry = stream, _MemoryWakeup()
        self._wakeups.append(entry)
        try:
            yield entry[1]
        finally:
            self._wakeups.remove(entry)

    async def forget(self, stream: str) -> None:
        """See `TaskStore.forget`."""
        await anyio.lowlevel.checkpoint()
        for part in (self._rows, self._events, self._blobs):
            part.pop(stream, None)


class _MemoryWakeup:
    def __init__(self) -> None:
        self.due = anyio.Event()

    async def wait(self) -> None:
        await self.due.wait()
        self.due = anyio.Event()


class SmallServer:
    """A quick MCP server over stdio for tools that are functions: `SmallServer("shop", evaluate).run()` in a file.

    It needs no package. Each call runs in a separate thread; a tool returns a string, or a dict as structured content.
    Nothing is checked.
    """

    _TYPES: Mapping[str, str] = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}

    def __init__(self, name: str, *tools: Callable[..., Any]) -> None:
        self.name = name
        self.tools = {tool.__name__: tool for tool in tools}
        self._speaking = threading.Lock()

    def run(self) -> None:
        """Answers requests until standard input closes."""
        for line in sys.stdin:
            self._hear(json.loads(line))

    def _say(self, message: Mapping[str, Any]) -> None:
        with self._speaking:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def _hear(self, message: dict[str, Any]) -> None:
        request, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                about: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "serverInfo": {"name": self.name, "version": "1"},
                }
                self._say({"id": request, "result": {"capabilities": {"tools": {}}, **about}})
            case "tools/list":
                self._say({"id": request, "result": {"tools": [self._entry(tool) for tool in self.tools.values()]}})
            case "tools/call":
                arguments: dict[str, Any] = params.get("arguments") or {}
                asked = (request, self.tools[params["name"]], arguments)
                threading.Thread(target=self._call, args=asked, daemon=True).start()
            case "ping":
                self._say({"id": request, "result": {}})
            case method if request is not None:
                self._say({"id": request, "error": {"code": -32601, "message": f"no {method}"}})
            case _:
                pass

    def _call(self, request: Any, tool: Callable[..., Any], arguments: dict[str, Any]) -> None:
        found = tool(**arguments)
        text = found if isinstance(found, str) else json.dumps(found)
        body = {} if isinstance(found, str) else {"structuredContent": found}
        self._say({"id": request, "result": {"content": [{"type": "text", "text": text}], **body}})

    def _entry(self, tool: Callable[..., Any]) -> dict[str, Any]:
        """The tool's entry in the list; an annotation is a type or the name of a type."""
        given = {name: kind for name, kind in tool.__annotations__.items() if name != "return"}
        needed = list(given)[: len(given) - len(tool.__defaults__ or ())]  # type: ignore[attr-defined]
        types = {name: {"type": self._TYPES[getattr(kind, "__name__", kind)]} for name, kind in given.items()}
        schema = {"type": "object", "properties": types, "required": needed}
        return {"name": tool.__name__, "description": tool.__doc__, "inputSchema": schema}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of a `ScriptedModel`: calls of tools, as names with arguments, and a text."""

    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    text: str | None = None


class ScriptedModel:
    """An endpoint on loopback like OpenAI's chat completions: the replies in order, then always the last one.

    Use it as a context manager, with `environment` in the environment: `proposer={"kind": "model", "model":
    "openai-chat:any"}` then uses it. `requests` has the received bodies.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.requests: list[dict[str, Any]] = []
        handler = type("Handler", (_Completions,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that direct the provider's library to this endpoint."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-scripted", "NO_PROXY": "127.0.0.1"}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The next reply as the body of a chat completion."""
        self.requests.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        place = len(self.requests)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "index": number,
                    "id": f"call_{place}_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(args)},
                }
                for number, (name, args) in enumerate(reply.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
        return {
            "id": f"chatcmpl-{place}",
            "object": "chat.completion",
            "created": 0,
            "model": request.get("model", ""),
            "choices": [choice],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }


class _Completions(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ScriptedModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.model.answer(request)
        kind, body = "application/json", json.dumps(answer)
        if request.get("stream"):
            (choice,) = answer.pop("choices")
            head = {**answer, "object": "chat.completion.chunk"}
            deltas: list[dict[str, Any]] = [
                {"index": 0, "delta": choice["message"], "finish_reason": None},
                {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
            ]
            parts = [{**head, "usage": None, "choices": [one]} for one in deltas] + [{**head, "choices": []}]
            kind = "text/event-stream"
            body = "".join(f"data: {text}\n\n" for text in [*map(json.dumps, parts), "[DONE]"])
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library
        """Says nothing."""


@dataclass
class RecordingWorker:
    """A worker for tests of a placement: it records its jobs, and stops after `most` of them."""

    name: str = "w"
    queues: tuple[str, ...] = ("default",)
    most: int | None = None
    answers: dict[str, Reschedule] = field(default_factory=dict[str, "Reschedule"])
    """The result of the next job of a key; without one, the job is done."""
    jobs: list[str] = field(default_factory=list[str])
    stopping: anyio.Event = field(default_factory=anyio.Event)

    def about(self) -> WorkerRow:
        """See `Serving.about`."""
        from pursuit.ledger.placement import WorkerRow  # noqa: PLC0415 - see above

        about: dict[str, Any] = {"name": self.name, "host": "h", "pid": 1, "version": "0", "queues": self.queues}
        return WorkerRow(**about, servers=(), concurrency=1, lease_seconds=1)

    def serves(self, needs: Requirements) -> bool:
        """See `Serving.serves`."""
        return needs.queue in self.queues

    async def work(self, job: Job) -> Reschedule | None:
        """See `Serving.work`."""
        self.jobs.append(job.key)
        if len(self.jobs) == self.most:
            self.stopping.set()
        return self.answers.pop(job.key, None)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def check_placement(placement: Placement) -> None:
    """Checks that a `Placement` hands each job to a worker that serves it, when it is due."""
    from pursuit.ledger.placement import Requirements, Reschedule  # noqa: PLC0415 - see above

    ours = Requirements()
    await placement.enqueue("later", ours, delay=1_000)
    await placement.enqueue("again", ours)
    await placement.enqueue("again", ours, delay=1_000)
    await placement.enqueue("elsewhere", Requirements("another-queue"))
    _must((await placement.health()).queued == 3, "a key is one job, even if it is enqueued twice")
    worker = RecordingWorker(most=2, answers={"again": Reschedule(0.0)})
    with anyio.fail_after(SECONDS):
        await placement.run(worker, 1)
    _must(worker.jobs == ["again", "again"], f"only the jobs that the worker reschedules come again: {worker.jobs}")
    await placement.enqueue("later", ours)
    sooner = RecordingWorker(most=1)
    with anyio.fail_after(SECONDS):
        await placement.run(sooner, 1)
    _must(sooner.jobs == ["later"], f"the sooner time of a job counts: {sooner.jobs}")
    other = RecordingWorker("x", queues=("another-queue",), most=1)
    with anyio.fail_after(SECONDS):
        await placement.run(other, 1)
    _must(other.jobs == ["elsewhere"], f"a job waits for a worker that meets its requirements: {other.jobs}")
    _must((await placement.health()).queued == 0, "a finished job is no longer queued")


async def check_task_store(store: TaskStore) -> None:
    """Checks that a `TaskStore` keeps the events of tasks in order, under compare-and-set."""
    from pursuit.tasks.record import generate_task_id  # noqa: PLC0415 - see above

    first, second = generate_task_id(), generate_task_id()
    _must(await store.row(first) is None and await store.read(first) == [], "an unknown task has no events and no row")
    drafts, body = [Draft("A", b"1"), Draft("B", b"2")], b"x" * 100_000
    digest = hashlib.sha256(body).hexdigest()
    head = await store.append(
        first, 0, drafts, kind="task", status="working", summary={"requestor": "me"}, blobs={digest: body}
    )
    stored = await store.read(first)
    _must([(one.seq, one.type, one.body) for one in stored] == [(1, "A", b"1"), (2, "B", b"2")], "events stay as given")
    _must([one.seq for one in await store.read(first, 1)] == [2], "only later events are read")
    _must(len(await store.read(first, 0, 1)) == 1, "a read returns at most the requested events")
    _must(head.seq == 2, "the head is the number of the last event")
    for expected in (0, 1, 3):
        try:
            await store.append(first, expected, drafts, kind="task", status="failed")
        except Conflict:
            continue
        raise AssertionError(f"an append that expects {expected} raises Conflict, since the head is 2")
    row = await store.row(first)
    _must(
        row is not None and (row.kind, row.status, row.head.seq) == ("task", "working", 2), "a conflict changes nothing"
    )
    _must(row is not None and row.summary == {"requestor": "me"}, "the summary is that of the append")
    _must(await store.blob(digest) == body and await store.blob("0" * 64) is None, "a blob is found by its digest")
    with store.wakeup(first) as one, store.wakeup() as every, anyio.fail_after(SECONDS):
        await store.append(first, ANY, [Draft("C", b"3")], kind="task")
        await one.wait()
        await every.wait()
    row = await store.row(first)
    _must(row is not None and (row.status, row.head.seq) == ("working", 3), "an append without a status leaves it")
    await store.append(second, 0, [Draft("A", b"1")], kind="task", status="working", summary={})
    newest = await store.streams(kind="task", status=("working", "completed"), limit=1)
    older = await store.streams(kind="task", status=("working", "completed"), limit=1, cursor=newest.next_cursor)
    names = [row.name for row in (*newest.rows, *older.rows)]
    _must(names == [second, first], f"the pages have each task once, the newest first: {names}")
    await store.append(first, 3, [Draft("D", b"4")], kind="task", status="completed", summary={})
    ended = await store.streams(kind="task", status="completed")
    _must([row.name for row in ended.rows] == [first], "tasks are listed by their status")
    await store.forget(first)
    await store.forget(generate_task_id())
    row = await store.row(first)
    _must(row is None or row.status == "forgotten", "a forgotten task is gone")
    _must(await store.read(first) == [] and await store.blob(digest) is None, "and so are its events and blobs")


def check_tool_traits(source: ToolTraits) -> None:
    """Checks that a `ToolTraits` is consistent, assumes the worst of an unknown tool, and obeys the operator."""
    from pursuit.config.servers import ServerConfig  # noqa: PLC0415 - see above
    from pursuit.core.tools import ToolOverride  # noqa: PLC0415 - see above

    hints = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
    name = "nobody-knows-it"
    tool = {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
    server = ServerConfig(name="nobody-knows-this-server", command="/nobody/knows/this-command")
    found = source.of(server, tool)
    _must(found == source.of(server, tool), "the same tool has the same traits")
    _must(found.destructive and not found.repeatable, "an annotation alone must not make a tool look safer")
    _must({"read_only", "idempotent", "parallel_safe", "destructive"} <= found.why.keys(), "each answer has a reason")
    reads = source.of(server.model_copy(update={"tools": {name: ToolOverride(read_only=True)}}), tool)
    _must(reads.read_only and not reads.destructive, "the operator's setting read_only counts")
    destroys = {"trust_annotations": True, "tools": {name: ToolOverride(destructive=True)}}
    writes = source.of(server.model_copy(update=destroys), tool)
    _must(writes.destructive and not writes.read_only, "the operator's setting destructive counts")


async def check_proposer(settings: Mapping[str, Any], tools: Sequence[Callable[..., Any]]) -> None:
    """Checks that a kind of proposer works on a mission with these tools, and continues it in another runtime.

    `settings` are those of a mission file: the kind's name and its own keys. The package must be installed.
    """
    from pursuit import Mission, Runtime, predicate  # noqa: PLC0415 - see above
    from pursuit.core.proposing import ProposerFacts, read_settings  # noqa: PLC0415 - see above

    wanted = {"directive": "Check it", "criteria": [predicate("False")], "budget": {"max_iterations": 2}}
    mission = Mission.model_validate({**wanted, "proposer": settings})
    read, facts = mission.proposer, mission.proposer.facts()
    _must(facts == read.facts(), "the facts are a function of the settings")
    _must(convert(to_builtins(facts), ProposerFacts) == facts, "the facts can be stored")
    _must(read_settings(read.model_dump(mode="json")) == read, "the settings can be stored as JSON")
    with temporary_ledger() as state:
        handle = None
        for done in (1, 2):
            async with Runtime(state=state, tools=tools) as runtime:
                handle = await runtime.start(mission) if handle is None else runtime.mission(handle.mission_id)
                await handle.iterate()
                status, shown = await handle.status(), (await handle.history(full=True)).iterations
                proof = await runtime.verify()
            failed = [reason for one in shown if one.strategy is not None for reason in one.strategy.failed]
            _must(not failed, f"it proposes valid calls: {failed}")
            if status.verdict_reason == "proposer_done":
                break
            _must(len(shown) == done, f"it proposes an iteration each time: {len(shown)} of {done}")
    _must(status.proposer == read.kind and not proof.faults, f"its mission verifies: {proof.faults}")
