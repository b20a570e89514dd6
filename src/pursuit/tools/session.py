"""An MCP server as an `Upstream`.

Owns: when to connect and reconnect, the reading of listings and results, and the words of a failure. Does not know:
transports (an `Opener` brings one) or policy. Invariant: a call is sent at most once; a call that was under way when
the connection broke fails, and the next one runs on a new connection. At most `SPAWNS_A_MINUTE` connections are
opened in any minute, so that a server that dies at once is no fork bomb.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from pursuit.errors import UpstreamUnavailable
from pursuit.tools.connection import Connection, ConnectionLost, Era, Opener
from pursuit.tools.contract import CallFailed, ProgressFn, Tool, ToolResult
from pursuit.tools.listing import is_offered, read_listing
from pursuit.tools.server_config import ServerConfig
from pursuit.tools.stderr import StderrTail

SPAWNS_A_MINUTE = 10
MOST_PAGES = 1000
_OBITUARY_SECONDS = 1.0


class McpUpstream:
    """One MCP server, connected on first use. Its owner tasks live in `tasks`, which must outlive it."""

    def __init__(
        self,
        config: ServerConfig,
        opener: Opener,
        *,
        tasks: anyio.abc.TaskGroup,
        tail: StderrTail | None = None,
        era: Era = "auto",
    ) -> None:
        self.config = config
        self.warnings: list[str] = []
        self._opener = opener
        self._tasks = tasks
        self._tail = tail or StderrTail()
        self._era: Era = era
        self._current: Connection | None = None
        self._alive: set[Connection] = set()
        self._started: deque[float] = deque(maxlen=SPAWNS_A_MINUTE)
        self._closed = False
        self._room = anyio.Semaphore(config.concurrency) if config.concurrency else nullcontext()

    @property
    def name(self) -> str:
        """The name that the operator gave it."""
        return self.config.name

    @property
    def stderr(self) -> str:
        """The last lines of its stderr."""
        return self._tail.text()

    @property
    def protocol_version(self) -> str | None:
        """What was negotiated, while it is connected."""
        return None if self._current is None else self._current.protocol_version

    async def tools(self) -> Sequence[Tool]:
        """All tools that the operator lets through, over all pages; what was left out is in `warnings`."""
        connection = await self._connection()
        try:
            entries = await self._all_pages(connection)
        except ConnectionLost:
            raise UpstreamUnavailable(await self._obituary(connection), server=self.name) from None
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return []
            raise self._unavailable(f"it refused to list its tools: {error.error.message}") from None
        except TimeoutError:
            raise self._unavailable(f"it did not list its tools within {self.config.timeouts.read:g} s") from None
        found, warnings = read_listing(self.config, entries)
        self.warnings = [self._tail.redacted(warning) for warning in warnings]
        return found

    async def _all_pages(self, connection: Connection) -> list[object]:
        entries: list[object] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            with anyio.fail_after(self.config.timeouts.read):
                page = await connection.request("tools/list", params)
            tools, cursor = page.get("tools"), page.get("nextCursor")
            if not isinstance(tools, list):
                raise self._unavailable("its list of tools is malformed")
            entries.extend(cast("list[object]", tools))
            # A cursor that comes round again would turn the listing into a loop.
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return entries

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """Sends one call; there is no timeout here, whoever waits cancels. Raises `CallFailed`."""
        if not is_offered(self.config, tool):
            raise CallFailed(f"not sent: the operator's configuration disables {self.name}.{tool}")
        async with self._room:
            try:
                connection = await self._connection()
            except UpstreamUnavailable as error:
                raise CallFailed(f"not sent: {error.message}") from None
            try:
                raw = await connection.request(
                    "tools/call",
                    {"name": tool, "arguments": dict(arguments)},
                    meta={"pursuit/callId": call_id},
                    on_progress=on_progress,
                )
            except ConnectionLost:
                raise CallFailed(await self._obituary(connection)) from None
            except MCPError as error:
                reason = self._tail.redacted(error.error.message)
                raise CallFailed(f"server {self.name!r} refused the call: {reason}") from None
            except ValueError as error:
                raise CallFailed(f"not sent: the arguments are no JSON: {error}") from None
        return self._read_result(tool, raw)

    def _read_result(self, tool: str, raw: Mapping[str, Any]) -> ToolResult:
        kind = raw.get("resultType", "complete")
        if kind == "input_required":
            raise CallFailed(f"{self.name}.{tool} needs an answer from a person, and none can be asked here")
        if kind != "complete":
            raise CallFailed(
                f"{self.name}.{tool} answered with a result of an unknown type: {self._tail.redacted(repr(kind))}"
            )
        content = raw.get("content", [])
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in cast("list[object]", content)):
            raise CallFailed(f"{self.name}.{tool} answered with a malformed result")
        return ToolResult(
            content=cast("list[dict[str, Any]]", content),
            structured=raw.get("structuredContent"),
            is_error=raw.get("isError") is True,
        )

    async def aclose(self) -> None:
        """Disconnects for good; calls under way fail."""
        self._closed = True
        async with anyio.create_task_group() as closing:
            for connection in tuple(self._alive):
                closing.start_soon(connection.aclose)

    async def _connection(self) -> Connection:
        """A connection that works, opened if there is none; everybody who waits shares the one being opened."""
        connection = await self._settled(self._era)
        if connection.lost_in_probe:
            # Some servers of the old era hang up on a first request that they do not know: once more, the old way.
            connection = await self._settled("legacy")
        if connection.failure is None:
            self._era = connection.era
            return connection
        await connection.done.wait()
        raise self._unavailable(connection.failure)

    async def _settled(self, era: Era) -> Connection:
        if self._current is None or self._current.spent:
            self._current = self._open(era)
        connection = self._current
        if not connection.settled.is_set():
            await connection.settled.wait()
        return connection

    def _open(self, era: Era) -> Connection:
        if self._closed:
            raise self._unavailable("it is closed")
        now = anyio.current_time()
        if len(self._started) == SPAWNS_A_MINUTE and now - self._started[0] < 60:
            wait = math.ceil(60 - (now - self._started[0]))
            raise self._unavailable(
                f"it was started {SPAWNS_A_MINUTE} times within a minute and did not stay; next try in {wait} s"
            )
        self._started.append(now)
        self._tail.clear()
        connection = Connection(self._opener, era=era, timeout=self.config.timeouts.connect)
        self._alive.add(connection)
        self._tasks.start_soon(self._own, connection, name=f"upstream {self.name}")
        return connection

    async def _own(self, connection: Connection) -> None:
        try:
            await connection.own()
        finally:
            self._alive.discard(connection)

    async def _obituary(self, connection: Connection) -> str:
        """Why the connection broke; waits a moment for the exit code and the last words."""
        with anyio.move_on_after(_OBITUARY_SECONDS):
            await connection.done.wait()
        return self._sentence(f"the connection broke: {connection.ending()}")

    def _unavailable(self, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(self._sentence(reason), server=self.name)

    def _sentence(self, reason: str) -> str:
        tail = self._tail.text()
        return f"server {self.name!r}: {self._tail.redacted(reason)}" + (
            f"\nlast lines of its stderr:\n{tail}" if tail else ""
        )
