"""An MCP server as an `Upstream`.

Owns: the tools of a server, listed once and kept while they are known to be current; the reading of results; who hears
its notifications. Does not know: transports (an `Opener` brings one), restarts, or policy. Invariant: a call is taken
by the server at most once; a call that was under way when the connection broke has the outcome `unknown`, and the next
one runs on a new connection.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Literal, cast

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND

from pursuit.config.servers import ServerConfig
from pursuit.core.observe import text_of
from pursuit.core.tools import (
    NOT_KNOWN,
    About,
    CallFailed,
    HandleFn,
    NotifyFn,
    ProgressFn,
    Tool,
    ToolResult,
    UpstreamError,
    says_unknown,
)
from pursuit.errors import UpstreamUnavailable
from pursuit.upstream.connection import Connection, Era, Opener
from pursuit.upstream.listing import is_offered, read_listing
from pursuit.upstream.supervise import LONGEST_WAIT, Restarts, Supervisor
from pursuit.upstream.tasks import ToldFn, declared, followed, generation_of, handle_in, handle_of, support
from pursuit.upstream.transport import CallBroken, ClientSide, ConnectionLost, Heard, SessionGone

# Raw requests to one server, whoever makes them: its JSON in, its JSON out.
# Invariant: a request is taken by the server at most once; its result, or its error, is handed on exactly as it came,
# but for the secrets of its configuration (`blanking` says where).

MOST_PAGES = 1000
Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""What is entered while a call waits for its turn: that time is not the server's."""

ListKind = Literal["tools", "resources", "resourceTemplates", "prompts"]
_LIST_METHODS: Mapping[ListKind, str] = {
    "tools": "tools/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
    "prompts": "prompts/list",
}


class Conversation:
    """Requests over a supervised connection; `capabilities` replaces what is declared, where each request says it."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        room: anyio.Semaphore | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._room = room
        self._capabilities = capabilities

    async def about(self) -> About:
        """What the server says about itself; connects. Raises `UpstreamUnavailable`."""
        connection = await self._supervisor.connection()
        if connection.about is None:
            raise self._supervisor.unavailable("it is closed")
        return connection.about

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
        waiting: Waiting = nullcontext,
    ) -> dict[str, Any]:
        """Sends one request; there is no timeout here, whoever waits cancels.

        `on_notify` hears what belongs to it; the server is asked for progress unless `progress` is False. Returns
        upstream's result untouched. Raises `UpstreamError`, which is the server's own, or `CallFailed`.
        """
        async with nullcontext() if self._room is None or method != "tools/call" else _turn(self._room, waiting):
            for again in (True, False):
                connection = await self._connection()
                try:
                    return await connection.request(
                        method,
                        params or {},
                        capabilities=self._capabilities,
                        on_notify=on_notify,
                        progress=progress,
                    )
                except SessionGone:
                    # The server said that it did not take it: a new session may.
                    if not again:
                        raise CallFailed(self._supervisor.sentence("it forgot our session twice"), sent=False) from None
                except ConnectionLost as error:
                    said = await self._supervisor.obituary(connection, _doubt(method, error))
                    raise _failed(said, sent=error.sent) from None
                except CallBroken as error:
                    doubt = _doubt(method, error)
                    said = self._supervisor.sentence(f"{error}{doubt}", f"it gave no proper answer{doubt}")
                    raise _failed(said, sent=error.sent) from None
                except ValueError as error:
                    raise CallFailed(f"not sent: the arguments are no JSON: {error}", sent=False) from None
        raise AssertionError("the loop above always returns or raises")

    async def _connection(self) -> Connection:
        try:
            return await self._supervisor.connection()
        except UpstreamUnavailable as error:
            raise CallFailed(f"not sent: {error.message}", sent=False) from None

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends a notification if there is a connection."""
        connection = self._supervisor.current
        if connection is not None:
            await connection.notify(method, params)

    async def entries(self, kind: ListKind) -> list[Any]:
        """Every entry of a list, over all pages, as the server wrote it; a list that it does not know is empty.

        Raises `UpstreamUnavailable`.
        """
        method = _LIST_METHODS[kind]
        found: list[Any] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            page = await self._page(kind, method, params)
            entries, cursor = page.get(kind), page.get("nextCursor")
            if not isinstance(entries, list):
                raise self._supervisor.unavailable(f"its list of {kind} is malformed")
            found.extend(cast("list[Any]", entries))
            # A cursor that comes round again would turn the listing into a loop.
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return found

    async def _page(self, kind: ListKind, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        supervisor, seconds = self._supervisor, self._supervisor.config.timeouts.read
        await supervisor.connection()
        try:
            with anyio.fail_after(seconds):
                return await self.request(method, params)
        except UpstreamError as error:
            if error.code == METHOD_NOT_FOUND:
                return {kind: []}
            raise supervisor.unavailable(f"it refused to list its {kind}: {error.message}") from None
        except CallFailed as error:
            raise UpstreamUnavailable(str(error).removeprefix("not sent: "), server=supervisor.config.name) from None
        except TimeoutError:
            raise supervisor.unavailable(f"it did not list its {kind} within {seconds:g} s") from None


def _doubt(method: str, error: ConnectionLost | CallBroken) -> str:
    """What is added to the words of a failure: for any other request there is no effect to ask about."""
    return f"; {NOT_KNOWN}" if error.sent and method == "tools/call" else ""


def _failed(said: str, *, sent: bool) -> CallFailed:
    return CallFailed(said if sent else f"not sent: {said}", sent=sent)


@asynccontextmanager
async def _turn(room: anyio.Semaphore, waiting: Waiting) -> AsyncGenerator[None]:
    try:
        room.acquire_nowait()
    except anyio.WouldBlock:
        async with waiting():
            await room.acquire()
    try:
        yield
    finally:
        room.release()


# Connections that are lent to one interactive call at a time.
# Invariant: a connection answers the questions of its server only through whoever holds it now; one that was given
# back declares the same capabilities to the next holder, or is closed after `IDLE_SECONDS`; never more than
# `MOST_IDLE` wait, whatever their holders declared. A server of the old era shows more tools to a client that
# declares more, and pushes its questions over the connection: on stdio nothing on the wire says which call such a
# question belongs to, hence one call at a time. In the new era that is still so for log messages.

IDLE_SECONDS = 60.0
MOST_IDLE = 4


class Leases:
    """`make` starts a supervisor of its own for a client side, in an era."""

    def __init__(self, make: Callable[[ClientSide, Era], Supervisor], tasks: anyio.abc.TaskGroup) -> None:
        self._make = make
        self._tasks = tasks
        self._idle: dict[str, dict[Supervisor, float]] = {}
        self._all: set[Supervisor] = set()
        self._sweeper: anyio.CancelScope | None = None

    @asynccontextmanager
    async def lent(self, side: ClientSide, era: Era = "legacy") -> AsyncGenerator[Supervisor]:
        """One that nobody else uses, for as long as the block."""
        key = _key(side.capabilities, era)
        waiting = self._idle.get(key)
        supervisor = waiting.popitem()[0] if waiting else self._make(ClientSide(capabilities=side.capabilities), era)
        self._all.add(supervisor)
        supervisor.side.answer, supervisor.side.roots, supervisor.side.heard = side.answer, side.roots, side.heard
        try:
            yield supervisor
        finally:
            supervisor.side.answer, supervisor.side.roots, supervisor.side.heard = None, (), None
            self._given_back(key, supervisor)

    def _given_back(self, key: str, supervisor: Supervisor) -> None:
        waiting = self._idle.setdefault(key, {})
        if supervisor not in self._all:
            return
        connection = supervisor.current
        # After a call that was given up, the server may still ask on its behalf: that is nobody else's question.
        if connection is None or connection.abandoned:
            self._tasks.start_soon(self._close, supervisor)
            return
        waiting[supervisor] = anyio.current_time()
        idle = [(at, one, others) for others in self._idle.values() for one, at in others.items()]
        if len(idle) > MOST_IDLE:
            _, oldest, others = min(idle, key=lambda entry: entry[0])
            del others[oldest]
            self._tasks.start_soon(self._close, oldest)
        if self._sweeper is None:
            self._sweeper = anyio.CancelScope()
            self._tasks.start_soon(self._sweep, self._sweeper)

    async def _sweep(self, scope: anyio.CancelScope) -> None:
        """Closes what waited for too long; ends when nothing waits."""
        with scope:
            while since := [at for waiting in self._idle.values() for at in waiting.values()]:
                await anyio.sleep_until(min(since) + IDLE_SECONDS)
                now = anyio.current_time()
                for waiting in tuple(self._idle.values()):
                    for supervisor in [one for one, at in waiting.items() if at + IDLE_SECONDS <= now]:
                        # Not waited for here: a slow end must not delay the next one.
                        del waiting[supervisor]
                        self._tasks.start_soon(self._close, supervisor)
            self._sweeper = None

    async def _close(self, supervisor: Supervisor) -> None:
        self._all.discard(supervisor)
        await supervisor.aclose()

    async def aclose(self) -> None:
        """Closes all of them, also those that are lent."""
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        async with anyio.create_task_group() as closing:
            for supervisor in tuple(self._all):
                closing.start_soon(self._close, supervisor)


def _key(capabilities: Mapping[str, Any], era: Era) -> str:
    return f"{era} {json.dumps(capabilities, sort_keys=True)}"


# How long a list is believed of a server that does not say when it changes.
LISTING_SECONDS = 30.0
TASK_TTL_MS = 86_400_000
# How often a call that waits for its turn says that it is not the server that is slow.
_WAITING_SECONDS = 0.2


class McpUpstream:
    """One MCP server, connected on first use. Its owner tasks live in `tasks`, which must outlive it."""

    def __init__(self, config: ServerConfig, opener: Opener, *, tasks: anyio.abc.TaskGroup, era: Era = "auto") -> None:
        self.config = config
        self.warnings: list[str] = []
        self._opener = opener
        self._tasks = tasks
        # Only a process can become a fork bomb; a server elsewhere is asked again soon.
        elsewhere = config.transport != "stdio"
        self._restarts = Restarts(most=math.inf, longest_pause=LONGEST_WAIT) if elsewhere else Restarts()
        self._listeners: list[Heard] = []
        self._supervisor = self._supervised(ClientSide(), self._heard, era)
        self._room = anyio.Semaphore(config.concurrency) if config.concurrency else None
        self._talk = Conversation(self._supervisor, room=self._room)
        self._leases = Leases(self._lent, tasks)
        self._listing: list[Tool] = []
        self._listed_by: Connection | None = None
        self._listed_at = -math.inf
        self._announced = False
        self._changes = self._listed_changes = 0
        self._refreshing = anyio.Lock()
        self._trying_old = anyio.Lock()
        self._old: bool | None = None

    def _supervised(self, side: ClientSide, listener: Heard, era: Era) -> Supervisor:
        return Supervisor(
            self.config,
            self._opener,
            tasks=self._tasks,
            listener=listener,
            restarts=self._restarts,
            side=side,
            era=era,
        )

    def _lent(self, side: ClientSide, era: Era) -> Supervisor:
        def heard(method: str, params: Mapping[str, Any]) -> None:
            (side.heard or self._heard_elsewhere)(method, params)

        return self._supervised(side, heard, era)

    @property
    def name(self) -> str:
        """The name that the operator gave it."""
        return self.config.name

    @property
    def stderr(self) -> str:
        """The last lines of its stderr."""
        return self._supervisor.tail.text()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._supervisor.current is not None

    @property
    def protocol_version(self) -> str | None:
        """What was negotiated, while it is connected."""
        connection = self._supervisor.current
        return None if connection is None or connection.about is None else connection.about.protocol_version

    async def about(self) -> About:
        """What the server says about itself; connects. Raises `UpstreamUnavailable`."""
        return await self._talk.about()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
        waiting: Waiting = nullcontext,
    ) -> dict[str, Any]:
        """Sends one raw request, past the list of allowed tools; see `Conversation.request`."""
        return await self._talk.request(method, params, on_notify=on_notify, progress=progress, waiting=waiting)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends a notification if there is a connection."""
        await self._talk.notify(method, params)

    async def entries(self, kind: ListKind) -> list[Any]:
        """Every entry of a list as the server writes it now; see `Conversation.entries`."""
        return await self._talk.entries(kind)

    @asynccontextmanager
    async def leased(self, side: ClientSide, *, old: bool = False, apart: bool = False) -> AsyncGenerator[Conversation]:
        """A conversation as a client that can do more, for one interactive call at a time.

        In the new era each request says what its client can, and questions come as results: the connection is shared
        and `side.answer` is not asked, unless it is wished `apart`. In the old one it is a connection (on stdio: a
        process) of its own. A server that speaks both is spoken to in the old one if `old` is wished.
        """
        connection = await self._supervisor.connection()
        if connection.modern and apart:
            async with self._leases.lent(side, "auto") as supervisor:
                yield Conversation(supervisor, room=self._room, capabilities=side.capabilities)
            return
        if connection.modern and not (old and await self._speaks_old()):
            yield Conversation(self._supervisor, room=self._room, capabilities=side.capabilities)
            return
        async with self._leases.lent(side) as supervisor:
            yield Conversation(supervisor, room=self._room)

    async def _speaks_old(self) -> bool:
        """Whether a server of the new era shakes hands, too; it is tried once."""
        async with self._trying_old:
            if self._old is None:
                try:
                    async with self._leases.lent(ClientSide()) as supervisor:
                        self._old = not (await supervisor.connection()).modern
                except UpstreamUnavailable:
                    self._old = False
            return self._old

    async def become(self, side: ClientSide, *, era: Era = "auto") -> None:
        """Makes the shared connection that of one client, for a host that serves no other.

        One that was opened before there was that client ends if it said something else to the server.
        """
        own, current = self._supervisor.side, self._supervisor.current
        told = current is not None and own.answer is None and (current.modern or own.capabilities != side.capabilities)
        own.capabilities, own.answer, own.roots = side.capabilities, side.answer, side.roots
        self._supervisor.era = era
        if told:
            await self._supervisor.renew()

    def listen(self, listener: Heard) -> Callable[[], None]:
        """Hands every notification that belongs to no request to `listener`, in order; returns how to stop.

        The listener is called as they arrive and must not block.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _heard(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/tools/list_changed":
            self._changes += 1
        for listener in tuple(self._listeners):
            listener(method, params)

    def _heard_elsewhere(self, method: str, params: Mapping[str, Any]) -> None:
        """What a lent connection hears: its lists are not the shared one's, all else is for everybody."""
        if not method.endswith("/list_changed"):
            self._heard(method, params)

    async def tools(self) -> Sequence[Tool]:
        """All tools that the operator lets through, over all pages; what was left out is in `warnings`.

        Kept while the server is connected and would tell of a change, and otherwise for `LISTING_SECONDS`.
        """
        if not self._current():
            async with self._refreshing:
                if not self._current():
                    await self._refresh()
        return list(self._listing)

    def _current(self) -> bool:
        connection = self._supervisor.current
        if connection is None or connection is not self._listed_by or self._changes != self._listed_changes:
            return False
        if self._announced and connection.announces("tools"):
            return True
        return anyio.current_time() - self._listed_at < LISTING_SECONDS

    async def _refresh(self) -> None:
        connection = await self._supervisor.connection()
        # All taken before the first page: a change that comes during the listing makes it old at once.
        changes, announced, now = self._changes, connection.announces("tools"), anyio.current_time()
        tasks = None if connection.about is None else generation_of(connection.about)
        self._listing, warnings = read_listing(self.config, await self._talk.entries("tools"), tasks=tasks)
        self.warnings = [self._supervisor.tail.redacted(warning) for warning in warnings]
        self._listed_by, self._listed_changes, self._announced, self._listed_at = connection, changes, announced, now

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str,
        on_progress: ProgressFn | None = None,
        on_handle: HandleFn | None = None,
    ) -> ToolResult:
        """Sends one call; there is no timeout here, whoever waits cancels. Raises `CallFailed`.

        If the server makes a task of it, that is followed to its end, and `on_handle` gets what it can be picked up by.
        """
        if not is_offered(self.config, tool):
            reason = f"not sent: the operator's configuration disables {self.name}.{tool}"
            raise CallFailed(reason, sent=False)
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments), "_meta": {"pursuit/callId": call_id}}
        on_notify = None if on_progress is None else _progress_of(on_progress)
        waiting = nullcontext if on_progress is None else partial(_waiting, on_progress)
        try:
            talk = await self._tasked(tool, params, wished=on_handle is not None)
            raw = await talk.request("tools/call", params, on_notify=on_notify, waiting=waiting)
            handle = handle_of(raw)
            if handle is not None:
                if on_handle is not None:
                    await on_handle(handle.as_dict())
                raw = await followed(talk, handle, told=_told(on_progress), on_notify=on_notify)
        except UpstreamError as error:
            reason = self._supervisor.tail.redacted(error.message)
            raise CallFailed(f"server {self.name!r} refused the call: {reason}", answered=True) from None
        return self._read_result(tool, raw)

    async def pick_up(
        self, tool: str, handle: Mapping[str, Any], *, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """The result of a call that another process made, by what its `on_handle` got. Raises `CallFailed`."""
        known = handle_in(handle)
        if known is None:
            raise CallFailed("what was remembered of the server's task does not say which it is")
        try:
            talk = self._talk if known.generation == 1 else self._following()
            return self._read_result(tool, await followed(talk, known, told=_told(on_progress)))
        except UpstreamError as error:
            reason = self._supervisor.tail.redacted(error.message)
            raise CallFailed(f"server {self.name!r} refused the call: {reason}", answered=True) from None

    async def _tasked(self, tool: str, params: dict[str, Any], *, wished: bool) -> Conversation:
        """The conversation to make a call in, and its parameters, so that the server may make a task of it."""
        generation = generation_of(await self._about_for_call())
        if generation == 2:
            return self._following()
        if generation == 1:
            said = next((support(one.definition) for one in self._listing if one.name == tool), "forbidden")
            if said == "required" or (wished and said == "optional"):
                params["task"] = {"ttl": TASK_TTL_MS}
        return self._talk

    async def _about_for_call(self) -> About:
        try:
            return await self._talk.about()
        except UpstreamUnavailable as error:
            raise CallFailed(f"not sent: {error.message}", sent=False) from None

    def _following(self) -> Conversation:
        capabilities = declared(self._supervisor.side.capabilities)
        return Conversation(self._supervisor, room=self._room, capabilities=capabilities)

    def _read_result(self, tool: str, raw: Mapping[str, Any]) -> ToolResult:
        kind = raw.get("resultType", "complete")
        if kind == "input_required":
            asks = f"{self.name}.{tool} needs an answer from a person, and none can be asked here"
            raise CallFailed(asks, answered=True)
        if kind != "complete":
            shown = self._supervisor.tail.redacted(repr(kind))
            raise CallFailed(f"{self.name}.{tool} answered with a result of an unknown type: {shown}; {NOT_KNOWN}")
        content = raw.get("content", [])
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in cast("list[object]", content)):
            raise CallFailed(f"{self.name}.{tool} answered with a malformed result; {NOT_KNOWN}")
        if raw.get("isError") is True and says_unknown(raw):
            raise CallFailed(text_of(raw) or f"{self.name}.{tool}: {NOT_KNOWN}")
        return ToolResult(
            content=cast("list[dict[str, Any]]", content),
            structured=raw.get("structuredContent"),
            is_error=raw.get("isError") is True,
        )

    async def aclose(self) -> None:
        """Disconnects for good; calls under way fail."""
        async with anyio.create_task_group() as closing:
            closing.start_soon(self._supervisor.aclose)
            closing.start_soon(self._leases.aclose)


def _told(on_progress: ProgressFn | None) -> ToldFn | None:
    """How a server's task stands, told as progress: it says no number, only that it lives and what it does."""
    if on_progress is None:
        return None
    looks = 0

    async def told(task: Mapping[str, Any]) -> None:
        nonlocal looks
        looks += 1
        said = task.get("statusMessage")
        await on_progress(float(looks), None, said if isinstance(said, str) else None)

    return told


def _progress_of(on_progress: ProgressFn) -> NotifyFn:
    async def heard(method: str, params: Mapping[str, Any]) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if method == "notifications/progress" and isinstance(done, int | float) and not isinstance(done, bool):
            known = float(total) if isinstance(total, int | float) else None
            await on_progress(float(done), known, message if isinstance(message, str) else None)

    return heard


@asynccontextmanager
async def _waiting(on_progress: ProgressFn) -> AsyncGenerator[None]:
    """Says again and again that the call has not begun, for whoever has a clock running."""

    async def say() -> None:
        while True:
            await on_progress(0.0, None, "it waits for its turn at the server")
            await anyio.sleep(_WAITING_SECONDS)

    async with anyio.create_task_group() as saying:
        saying.start_soon(say)
        yield
        saying.cancel_scope.cancel()
