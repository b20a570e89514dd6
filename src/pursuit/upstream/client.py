"""The client of an MCP server, over any transport.

`McpClient` keeps one connection: it opens it on first use, reconnects after a failure (with a growing pause and a
ceiling for servers that keep dying), and sends requests over it. `McpUpstream` adds the server's tools, their calls,
and separate clients that are leased to one interactive call at a time.

Invariant: the server receives a request at most once. A call in progress when the connection broke has the outcome
`unknown`; the next call uses a new connection.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND

from pursuit.config.servers import ClientSettings, ServerConfig
from pursuit.core.observe import text_of
from pursuit.core.tools import (
    NOT_KNOWN,
    CallFailed,
    HandleFn,
    InitializeResult,
    NotifyFn,
    ProgressFn,
    Tool,
    ToolResult,
    UpstreamError,
    says_unknown,
)
from pursuit.errors import UpstreamUnavailable
from pursuit.upstream.connection import Era, McpConnection, too_slow
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits, read_listing
from pursuit.upstream.pins import Pins
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.tasks import (
    OnTaskStatus,
    follow_task,
    handle_in,
    task_handle,
    task_support,
    with_tasks_extension,
)
from pursuit.upstream.transport import (
    CallBroken,
    ClientFeatures,
    ConnectionLost,
    OnNotification,
    OpenTransport,
    SessionGone,
    too_large,
    write_json,
)

TASK_TTL_MS = 86_400_000
MAX_PAGES = 1000
# The interval at which a call that waits for a free slot reports progress, so that its timeout does not run.
_WAITING_SECONDS = 0.2
_log = logging.getLogger(__name__)

WhileQueued = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while a call waits for a free slot, which does not count as the server's time."""

ListKind = Literal["tools", "resources", "resourceTemplates", "prompts"]
LIST_METHODS: Mapping[ListKind, str] = {
    "tools": "tools/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
    "prompts": "prompts/list",
}


class Restarts:
    """The pace of restarts, shared by all connections to a server.

    A server that ended too often within a minute is not restarted, which prevents a fork bomb. The pause before a start
    doubles while the server keeps dying; a healthy connection resets it. Restarts never stop for good.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._ends: deque[float] = deque()
        self._last_death = -math.inf
        self.deaths = 0
        """The number of consecutive deaths."""
        self.total = 0

    def lost(self, now: float) -> None:
        """Records an end that does not indicate bad health; it counts only towards the ceiling."""
        self._ends.append(now)

    def ended(self, now: float, *, lived: float, answers: int) -> None:
        """Records an end that we did not cause."""
        self._ends.append(now)
        self.total += 1
        healthy = lived >= self._settings.healthy_seconds or answers >= self._settings.healthy_answers
        self.deaths = 1 if healthy else self.deaths + 1
        self._last_death = now

    def pause(self, now: float) -> float:
        """Seconds until the next start; the first restart is immediate."""
        if self.deaths < 2:
            return 0.0
        pause = min(self._settings.first_pause * 2 ** min(self.deaths - 2, 20), self._settings.longest_pause)
        return max(0.0, self._last_death + pause - now)

    def ceiling_pause(self, now: float) -> float:
        """Seconds until the ceiling permits a start."""
        while self._ends and now - self._ends[0] >= 60:
            self._ends.popleft()
        return 60 - (now - self._ends[0]) if len(self._ends) >= self._settings.ends_per_minute else 0.0


@dataclass(eq=False, kw_only=True)
class McpClient:
    """A connection to a server, opened on first use. Its tasks run in `tasks`, which must outlive it."""

    config: ServerConfig
    open_transport: OpenTransport
    tasks: anyio.abc.TaskGroup
    pace: Restarts
    on_notification: OnNotification
    features: ClientFeatures
    era: Era
    slots: anyio.Semaphore | None
    _tail: StderrTail = field(init=False, default_factory=StderrTail)
    _connection: McpConnection | None = field(init=False, default=None)
    _alive: set[McpConnection] = field(init=False, default_factory=set[McpConnection])
    _closed: bool = field(init=False, default=False)

    @property
    def current(self) -> McpConnection | None:
        connection = self._connection
        return connection if connection is not None and connection.ready.is_set() and connection.usable else None

    async def connect(self) -> McpConnection:
        """Returns a working connection, opening it if needed; concurrent callers share it.

        Raises `UpstreamUnavailable`.
        """
        if self._connection is not None:
            await self._connection.wait_for_probe()
        connection = await self._ready(self.era)
        if connection.lost_in_probe:
            # Some legacy servers close the connection on an unknown first request: try again with the handshake.
            connection = await self._ready("legacy")
        if connection.failure is None:
            self.era = connection.era
            return connection
        await connection.finished.wait()
        raise self._unavailable(self._why_unusable(connection.failure), "it could not be started or does not answer")

    async def _ready(self, era: Era) -> McpConnection:
        connection = self._connection
        if connection is None or not connection.usable:
            if connection is not None:
                # Its end must be counted before the next start.
                await connection.finished.wait()
            pause = self.pace.pause(anyio.current_time())
            if 0 < pause <= self.config.client.longest_wait:
                await anyio.sleep(pause)
            # Another caller may have opened one in the meantime.
            if self._connection is connection:
                self._connection = self._open(era)
            connection = self._connection
        if connection is None:
            raise self._unavailable("it is closed")
        if not connection.ready.is_set():  # waiting would cost every request a task switch
            await connection.ready.wait()
        return connection

    def _open(self, era: Era) -> McpConnection:
        if self._closed:
            raise self._unavailable("it is closed")
        now = anyio.current_time()
        if self.pace.deaths and not self.config.restart:
            raise self._unavailable("it has ended, and its configuration says restart = false")
        if (pause := self.pace.ceiling_pause(now)) > 0:
            times = f"{self.config.client.ends_per_minute:g} times within a minute"
            raise self._unavailable(f"it ended {times}; next try in {math.ceil(pause)} s")
        if (pause := self.pace.pause(now)) > 0:
            times = f"{self.pace.deaths} times in a row"
            raise self._unavailable(f"it ended {times}; next try in {math.ceil(pause)} s")
        self._tail.clear()
        connection = McpConnection(
            open_transport=self.open_transport,
            config=self.config,
            era=era,
            features=self.features,
            tail=self._tail,
            on_notification=self.on_notification,
        )
        self._alive.add(connection)
        self.tasks.start_soon(self._run, connection, name=f"upstream {self.config.name}")
        return connection

    async def _run(self, connection: McpConnection) -> None:
        born = anyio.current_time()
        try:
            await connection.run()
        finally:
            self._alive.discard(connection)
            now = anyio.current_time()
            # A server that was never started did not die, and a lost probe does not indicate bad health.
            if connection.lost_in_probe:
                self.pace.lost(now)
            elif connection.opened and not connection.closed_by_us:
                self.pace.ended(now, lived=now - born, answers=connection.answers)

    async def about(self) -> InitializeResult:
        """The server's description of itself; connects. Raises `UpstreamUnavailable`."""
        connection = await self.connect()
        if connection.about is None:
            raise self._unavailable("it is closed")
        return connection.about

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
        waiting: WhileQueued = nullcontext,
        capabilities: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Sends one raw request and returns the result unchanged, without a timeout: cancel the caller instead.

        `on_notify` gets the notifications of the request; the server is asked for progress unless `progress` is False.
        `capabilities` replaces the declared ones on a modern connection. Raises the server's own `UpstreamError`, or
        `CallFailed`.
        """
        async with nullcontext() if self.slots is None or method != "tools/call" else _slot(self.slots, waiting):
            for last in (False, True):
                try:
                    connection = await self.connect()
                except UpstreamUnavailable as error:
                    raise CallFailed(f"not sent: {error.message}", sent=False) from None
                try:
                    return await connection.request(
                        method, params or {}, capabilities=capabilities, on_notify=on_notify, progress=progress
                    )
                except SessionGone:
                    # The server did not accept the request; a new session may.
                    if last:
                        said = self._error_text("it lost our session twice")
                        raise CallFailed(f"not sent: {said}", sent=False) from None
                except ConnectionLost as error:
                    with anyio.move_on_after(self.config.client.exit_wait):
                        await connection.finished.wait()
                    reason, public = f"the connection broke: {connection.close_reason()}", "the connection broke"
                    raise self._call_failed(method, reason, public, sent=error.sent) from None
                except CallBroken as error:
                    raise self._call_failed(
                        method, str(error), "it did not return a valid answer", sent=error.sent
                    ) from None
                except ValueError as error:
                    raise CallFailed(f"not sent: the arguments are not valid JSON: {error}", sent=False) from None
        raise AssertionError("the loop above always returns or raises")

    def _call_failed(self, method: str, reason: str, public: str, *, sent: bool) -> CallFailed:
        # Only calls have effects, so only their outcome can be in doubt.
        doubt = f"; {NOT_KNOWN}" if sent and method == "tools/call" else ""
        said = self._error_text(reason + doubt, public + doubt)
        return CallFailed(said if sent else f"not sent: {said}", sent=sent)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        connection = self.current
        if connection is not None:
            await connection.notify(method, params)

    async def entries(self, kind: ListKind) -> list[Any]:
        """All entries of a list, over all pages, unchanged; empty for an unknown list.

        Raises `UpstreamUnavailable`.
        """
        found: list[Any] = []
        try:
            async for page in pages(
                partial(self._page, kind), kind, self.config.client.limits.list, f"its list of {kind}"
            ):
                entries = page.get(kind)
                if not isinstance(entries, list):
                    raise self._unavailable(f"its list of {kind} is malformed")
                found.extend(cast("list[Any]", entries))
        except CallFailed as error:
            raise self._unavailable(str(error)) from None
        return found

    async def _page(self, kind: ListKind, params: Mapping[str, Any]) -> dict[str, Any]:
        seconds = self.config.timeouts.read
        await self.connect()
        try:
            with anyio.fail_after(seconds):
                return await self.request(LIST_METHODS[kind], params)
        except UpstreamError as error:
            if error.code == METHOD_NOT_FOUND:
                return {kind: []}
            raise self._unavailable(f"it refused to list its {kind}: {error.message}") from None
        except CallFailed as error:
            raise UpstreamUnavailable(str(error).removeprefix("not sent: "), server=self.config.name) from None
        except TimeoutError:
            raise self._unavailable(f"it did not list its {kind} within {seconds:g} s") from None

    async def reconnect(self) -> None:
        """Closes the connection, if any: calls in progress fail, and the next request reconnects."""
        if self._connection is not None:
            await self._connection.aclose()

    async def aclose(self) -> None:
        self._closed = True
        async with anyio.create_task_group() as closing:
            for connection in tuple(self._alive):
                closing.start_soon(connection.aclose)

    def _why_unusable(self, failure: str) -> str:
        if (line := self._tail.stray) is not None:
            return f"its standard output is not MCP ({failure}); its first line there is {line[:200]!r}"
        if self.config.fetches and failure == too_slow(self.config.timeouts.connect):
            command = self.config.command
            return f"{failure}; {command} may still be downloading it: run it once by hand, or raise timeouts.connect"
        return failure

    def _unavailable(self, reason: str, public: str | None = None) -> UpstreamUnavailable:
        return UpstreamUnavailable(self._error_text(reason, public), server=self.config.name)

    def _error_text(self, reason: str, public: str | None = None) -> str:
        """The text of a failure, with the last lines of stderr and without secrets.

        For a discreet server it is the `public` text, and the rest goes to the log: stderr only at debug level, because
        the program that started this process may show our log.
        """
        tail = self._tail.text()
        who, said = f"server {self.config.name!r}", self._tail.redact(reason)
        whole = said if said.startswith(f"{who} ") else f"{who}: {said}"
        if self.config.discreet:
            _log.warning("%s", whole)
            _log.debug("%s: last lines of its stderr: %s", who, tail)
            return whole if public is None else f"{who}: {public}"
        return whole + (f"\nlast lines of its stderr:\n{tail}" if tail else "")


class SharedClient:
    """Requests over a shared modern connection, each with these capabilities in its `_meta`."""

    def __init__(self, client: McpClient, capabilities: Mapping[str, Any]) -> None:
        self.about = client.about
        self.notify = client.notify
        self.request = partial(client.request, capabilities=capabilities)


@dataclass(slots=True, eq=False)
class ClientLeases:
    """Clients with separate connections, each leased to one interactive call at a time.

    A legacy server shows more tools to a client that declares more, and sends its requests over the connection: on
    stdio a message does not name its call, hence one call at a time. In the modern era this still applies to log
    messages. A returned client is leased again to callers with the same capabilities, which find the server's state of
    the connection; if too many are idle, the longest idle one is closed.
    """

    make: Callable[[ClientFeatures, Era], McpClient]
    tasks: anyio.abc.TaskGroup
    most_idle: int
    _idle: dict[McpClient, str] = field(default_factory=dict[McpClient, str])
    """The idle clients with their keys, the longest idle first."""
    _all: set[McpClient] = field(default_factory=set[McpClient])

    @asynccontextmanager
    async def lend(
        self, features: ClientFeatures, era: Era = "legacy", *, keep: bool = True
    ) -> AsyncGenerator[McpClient]:
        """A client for exclusive use within the block; then closes it unless `keep`."""
        key = f"{era} {json.dumps(features.capabilities, sort_keys=True)}"
        client = next((one for one, its_key in reversed(self._idle.items()) if its_key == key), None)
        if client is None:
            client = self.make(ClientFeatures(capabilities=features.capabilities), era)
            self._all.add(client)
        else:
            del self._idle[client]
        own = client.features
        own.answer, own.heard = features.answer, features.heard
        try:
            yield client
        finally:
            own.answer, own.heard = None, None
            if client in self._all:
                self._give_back(key, client, keep)

    def _give_back(self, key: str, client: McpClient, keep: bool) -> None:
        connection = client.current
        # The server may still send requests for an abandoned call; the next call must not get them.
        keep = keep and connection is not None and not connection.call_abandoned
        if keep:
            self._idle[client] = key
            client = next(iter(self._idle))
        if not keep or len(self._idle) > self.most_idle:
            self._idle.pop(client, None)
            self.tasks.start_soon(self._close, client)

    async def _close(self, client: McpClient) -> None:
        self._all.discard(client)
        await client.aclose()

    async def aclose(self) -> None:
        """Closes all clients, including leased ones."""
        self._idle.clear()
        async with anyio.create_task_group() as closing:
            for client in tuple(self._all):
                closing.start_soon(self._close, client)


class McpUpstream(McpClient):
    """An MCP server as an `Upstream`, connected on first use. Its tasks run in `tasks`, which must outlive it."""

    def __init__(
        self,
        config: ServerConfig,
        open_transport: OpenTransport,
        *,
        tasks: anyio.abc.TaskGroup,
        era: Era = "auto",
        pins: Pins | None = None,
        traits: ToolTraits = KNOWN_TRAITS,
    ) -> None:
        settings = config.client
        self.pins = pins
        self.traits = traits
        # Only a process can become a fork bomb; a remote server is retried soon.
        remote = replace(settings, ends_per_minute=math.inf, longest_pause=settings.longest_wait)
        super().__init__(
            config=config,
            open_transport=open_transport,
            tasks=tasks,
            pace=Restarts(settings if config.transport == "stdio" else remote),
            on_notification=self._notified,
            features=ClientFeatures(),
            era=era,
            slots=anyio.Semaphore(config.concurrency) if config.concurrency else None,
        )
        self.warnings: list[str] = []
        self.listings = 0
        self._listeners: list[OnNotification] = []
        self._leases = ClientLeases(self._separate_client, tasks, settings.most_idle)
        self._listing: list[Tool] = []
        self._listed_by: McpConnection | None = None
        self._listed_at = -math.inf
        self._announced = False
        self._changes = self._listed_changes = 0
        self._refreshing = anyio.Lock()
        self._trying_legacy = anyio.Lock()
        self._speaks_legacy: bool | None = None

    def _separate_client(self, features: ClientFeatures, era: Era) -> McpClient:
        def notified(method: str, params: Mapping[str, Any]) -> None:
            if features.heard is not None:
                features.heard(method, params)
            elif not method.endswith("/list_changed"):
                # Its lists differ from those of the shared connection; all other messages concern all listeners.
                self._notified(method, params)

        return McpClient(
            config=self.config,
            open_transport=self.open_transport,
            tasks=self.tasks,
            pace=self.pace,
            on_notification=notified,
            features=features,
            era=era,
            slots=self.slots,
        )

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def stderr(self) -> str:
        return self._tail.text()

    @property
    def connected(self) -> bool:
        return self.current is not None

    @property
    def restarts(self) -> int:
        return self.pace.total

    @property
    def protocol_version(self) -> str | None:
        connection = self.current
        return None if connection is None or connection.about is None else connection.about.protocol_version

    @asynccontextmanager
    async def lease(
        self, features: ClientFeatures, *, legacy: bool = False, separate: bool = False
    ) -> AsyncGenerator[McpClient | SharedClient]:
        """A client with these features, for one interactive call at a time.

        On a modern server each request declares its capabilities and questions come as results: the connection is
        shared and `features.answer` unused, unless `separate`. On a legacy server the client has a separate connection
        (on stdio: a process); `legacy` requests that of a server that supports both, without later reuse.
        """
        connection = await self.connect()
        if connection.modern and separate:
            async with self._leases.lend(features, "auto") as client:
                yield client
        elif connection.modern and not (legacy and await self._try_legacy()):
            yield SharedClient(self, features.capabilities)
        else:
            async with self._leases.lend(features, keep=not legacy) as client:
                yield client

    async def _try_legacy(self) -> bool:
        """True if a modern server also accepts the handshake; tried once."""
        async with self._trying_legacy:
            if self._speaks_legacy is None:
                try:
                    async with self._leases.lend(ClientFeatures()) as client:
                        self._speaks_legacy = not (await client.connect()).modern
                except UpstreamUnavailable:
                    self._speaks_legacy = False
            return self._speaks_legacy

    async def set_client_features(self, side: ClientFeatures, *, era: Era = "auto") -> None:
        """Gives the shared connection the features of the only client of a host.

        Closes an existing connection that declared other features.
        """
        own, current = self.features, self.current
        differs = own.capabilities != side.capabilities
        outdated = current is not None and (own.answer is None and era == "legacy" if current.modern else differs)
        own.capabilities, own.answer = side.capabilities, side.answer
        self.era = era
        if outdated:
            await self.reconnect()

    def listen(self, listener: OnNotification) -> Callable[[], None]:
        """Passes each notification outside requests to `listener`, in order; returns a function that stops it.

        The listener must not block.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/tools/list_changed":
            self._changes += 1
        for listener in tuple(self._listeners):
            listener(method, params)

    async def tools(self) -> Sequence[Tool]:
        """All enabled tools, over all pages; `warnings` lists what was left out.

        The list is cached while the server is connected and notifies of changes, otherwise for `listing_seconds`.
        """
        if not self._listing_is_current():
            async with self._refreshing:
                if not self._listing_is_current():
                    await self._refresh()
        return list(self._listing)

    def _listing_is_current(self) -> bool:
        connection = self.current
        if connection is None or connection is not self._listed_by or self._changes != self._listed_changes:
            return False
        if self._announced and connection.announces("tools"):
            return True
        return anyio.current_time() - self._listed_at < self.config.client.listing_seconds

    async def _refresh(self) -> None:
        connection = await self.connect()
        # Read before the first page: a change during the listing invalidates the list immediately.
        changes, announced, now = self._changes, connection.announces("tools"), anyio.current_time()
        entries = await self.entries("tools")
        listing, warnings = read_listing(self.config, entries, tasks=connection.tasks, source=self.traits)
        if self.pins is not None:
            listing, notices = await self.pins.check(self.config, listing)
            warnings += notices
        self._listing = listing
        self.listings += 1
        self.warnings = [self._tail.redact(warning) for warning in warnings]
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
        """Sends a call, without a timeout: cancel the caller instead. Raises `CallFailed`.

        If the server turns it into a task, the task is followed to its end; `on_handle` gets the handle with which
        another process can continue.
        """
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments), "_meta": {"pursuit/callId": call_id}}
        on_notify = None if on_progress is None else _progress_of(on_progress)
        waiting = nullcontext if on_progress is None else partial(_report_waiting, on_progress)
        try:
            generation = (await self.connect()).tasks
        except UpstreamUnavailable as error:
            raise CallFailed(f"not sent: {error.message}", sent=False) from None
        if generation == 1:
            said = next((task_support(one.definition) for one in self._listing if one.name == tool), "forbidden")
            if said == "required" or (said == "optional" and on_handle is not None):
                params["task"] = {"ttl": TASK_TTL_MS}
        client = self._task_client(generation)
        try:
            raw = await client.request("tools/call", params, on_notify=on_notify, waiting=waiting)
            handle = None if generation is None else task_handle(raw)
            if handle is not None:
                if on_handle is not None:
                    await on_handle(handle.as_dict())
                told, retry = _task_progress(on_progress), self.config.client.task_retry
                raw = await follow_task(client, handle, told=told, on_notify=on_notify, retry=retry)
        except UpstreamError as error:
            raise self._refused(error) from None
        return self._read_result(tool, raw)

    async def pick_up(
        self, tool: str, handle: Mapping[str, Any], *, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """The result of another process's call, by its task handle. Raises `CallFailed`."""
        known = handle_in(handle)
        if known is None:
            raise CallFailed("the stored handle of the server's task is malformed")
        told, retry = _task_progress(on_progress), self.config.client.task_retry
        try:
            raw = await follow_task(self._task_client(known.generation), known, told=told, retry=retry)
        except UpstreamError as error:
            raise self._refused(error) from None
        return self._read_result(tool, raw)

    def _task_client(self, generation: int | None) -> McpClient | SharedClient:
        """The client for calls that may become tasks: in the second generation, requests declare the extension."""
        return SharedClient(self, with_tasks_extension(self.features.capabilities)) if generation == 2 else self

    def _refused(self, error: UpstreamError) -> CallFailed:
        reason = self._tail.redact(error.message)
        return CallFailed(f"server {self.name!r} refused the call: {reason}", answered=True)

    def _read_result(self, tool: str, raw: Mapping[str, Any]) -> ToolResult:
        kind = raw.get("resultType", "complete")
        if kind == "input_required":
            asks = f"{self.name}.{tool} requires user input, which is not available here"
            raise CallFailed(asks, answered=True)
        if kind != "complete":
            shown = self._tail.redact(repr(kind))
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
        async with anyio.create_task_group() as closing:
            closing.start_soon(super().aclose)
            closing.start_soon(self._leases.aclose)


async def pages(
    ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], kind: str, most: int, what: str
) -> AsyncGenerator[dict[str, Any]]:
    """The pages of a list; raises `CallFailed` if `what` has more than `most` bytes."""
    seen: set[str] = set()
    params: dict[str, Any] = {}
    size = 0
    for _ in range(MAX_PAGES):
        page = await ask(params)
        yield page
        cursor = page.get("nextCursor")
        # A repeated cursor would cause an endless loop.
        if not isinstance(cursor, str) or cursor in seen:
            return
        seen.add(cursor)
        size += len(write_json(page.get(kind)))
        if size > most:
            raise CallFailed(too_large(f"{what} has", "list", most))
        params = {"cursor": cursor}


@asynccontextmanager
async def _slot(slots: anyio.Semaphore, waiting: WhileQueued) -> AsyncGenerator[None]:
    """Waits for one of the server's slots for concurrent calls."""
    try:
        slots.acquire_nowait()
    except anyio.WouldBlock:
        async with waiting():
            await slots.acquire()
    try:
        yield
    finally:
        slots.release()


def _task_progress(on_progress: ProgressFn | None) -> OnTaskStatus | None:
    """Reports the status of a server's task as progress: the number of polls and a message."""
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
    async def on_notify(method: str, params: Mapping[str, Any]) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if method == "notifications/progress" and isinstance(done, int | float) and not isinstance(done, bool):
            known = float(total) if isinstance(total, int | float) else None
            await on_progress(float(done), known, message if isinstance(message, str) else None)

    return on_notify


@asynccontextmanager
async def _report_waiting(on_progress: ProgressFn) -> AsyncGenerator[None]:
    async def report() -> None:
        while True:
            await on_progress(0.0, None, "waiting for a free slot at the server")
            await anyio.sleep(_WAITING_SECONDS)

    async with anyio.create_task_group() as reporting:
        reporting.start_soon(report)
        yield
        reporting.cancel_scope.cancel()
