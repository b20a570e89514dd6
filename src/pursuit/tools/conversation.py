"""Raw requests to one server, whoever makes them: its JSON in, its JSON out.

Owns: the limit of calls side by side, what may be sent again, and the pages of lists. Does not know: what the results
mean, or policy. Invariant: a request is taken by the server at most once; its result, or its error, is handed on
exactly as it came, but for the secrets of its configuration (`blanking` says where).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Literal, cast

import anyio
from mcp_types import METHOD_NOT_FOUND

from pursuit.core.tools import NOT_KNOWN, About, CallFailed, NotifyFn, UpstreamError
from pursuit.errors import UpstreamUnavailable
from pursuit.tools.connection import Connection
from pursuit.tools.supervise import Supervisor
from pursuit.tools.wire import CallBroken, ConnectionLost, SessionGone

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
