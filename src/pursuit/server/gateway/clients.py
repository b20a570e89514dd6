"""The clients of a gateway, and the ways back to them.

Owns: what a client said of itself, in its own JSON, and raw messages to it. The only module here that reaches into the
SDK's session. Does not know: servers. Invariant: what is told outside of a request is told in order, and a client that
reads slowly holds up nobody else; once there is silence, clients hear nothing but answers, and are asked nothing.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

import anyio
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.server.errors import Context, whole
from pursuit.server.gateway.protocol_versions import as_object, is_modern

# How long a server may take for a request.


class Timeout:
    """The limit of one call; None is none."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._scope: anyio.CancelScope | None = None

    @contextmanager
    def running(self) -> Generator[None]:
        """Cuts what takes longer; raises `CallFailed`. Cutting it reaches the server as a cancellation."""
        if self.seconds is None:
            yield
            return
        with anyio.CancelScope() as self._scope:
            self.again()
            yield
        if self._scope.cancelled_caught:
            raise CallFailed(f"no answer within {self.seconds:g} s; the call was cancelled")

    def again(self) -> None:
        """The server shows that it works."""
        if self._scope is not None and self.seconds is not None:
            self._scope.deadline = anyio.current_time() + self.seconds

    @contextmanager
    def paused(self) -> Generator[None]:
        """The time of the client is not the server's."""
        if self._scope is not None:
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self.again()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Neither is the time in which a call waits for its turn."""
        with self.paused():
            yield


BACKLOG = 1_000
ASK_SECONDS = 55.0
"""How long a client may take to answer a server's question: servers themselves give up after about a minute."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_INTERACTIVE = ("elicitation", "sampling", "roots", "tasks")
_OF_THE_CLIENT = ("progressToken", LOG_LEVEL_META_KEY)
_log = logging.getLogger(__name__)


class OutboundFilter:
    """Whether servers may speak to clients only by answering them; once it is so, it stays so."""

    def __init__(self) -> None:
        self.kept = False

    def drops(self, method: str) -> bool:
        """Whether clients are not told this; that they are listening is our word."""
        return self.kept and method != ACKNOWLEDGED

    def refuse(self, method: str) -> None:
        """Raises `UpstreamError` where nobody is asked, as a client that cannot be asked would."""
        if self.kept:
            raise UpstreamError(METHOD_NOT_FOUND, f"{method}: nobody can be asked here")


class Client:
    """A client as one request shows it: one of the new era is not known beyond it."""

    def __init__(
        self, capabilities: Mapping[str, Any], *, modern: bool = True, silence: OutboundFilter | None = None
    ) -> None:
        self.capabilities = capabilities
        self.modern = modern
        self.silence = silence or OutboundFilter()
        self.unicode = False
        self.level: str | None = None

    @property
    def interactive(self) -> bool:
        """Whether a server may ask it something."""
        return any(self.capabilities.get(one) is not None for one in _INTERACTIVE)

    def readable(self, message: Any) -> Any:
        """The part of a message as this client can be sent it."""
        return whole(message) if self.unicode else message

    def can(self, what: str) -> bool:
        """Whether it says that it can do this."""
        return self.capabilities.get(what) is not None

    @property
    def fills_forms(self) -> bool:
        """Whether its person can be shown a form; one that says nothing about it can, as forms were all there was."""
        said = self.capabilities.get("elicitation")
        return isinstance(said, Mapping) and (not said or "form" in said)


class ClientSession(Client):
    """A client of the old era, for as long as its connection is there; `unicode` if it can be sent nothing else."""

    def __init__(
        self,
        capabilities: Mapping[str, Any],
        connection: Connection,
        *,
        unicode: bool = False,
        silence: OutboundFilter | None = None,
    ) -> None:
        super().__init__(capabilities, modern=False, silence=silence)
        self.unicode = unicode
        self.gone = anyio.Event()
        self.ready = anyio.Event()
        self.addresses: dict[tuple[str, str], str] = {}
        self._connection = connection
        self._untold: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._stirred = anyio.Event()

    def tell_from(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        """Tells it what a server says; a resource has the address under which the client knows it.

        How a task of the server stands is for whoever follows that: its id means nothing to the client.
        """
        if method.startswith("notifications/tasks"):
            return
        uri = params.get("uri")
        shown = self.addresses.get((server, uri)) if isinstance(uri, str) else None
        self.tell(method, params if shown is None else {**params, "uri": shown})

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells it something outside of any request, soon."""
        if self.silence.drops(method):
            return
        if len(self._untold) >= BACKLOG:
            _log.warning("a client does not read; %s was dropped", method)
            return
        self._untold.append((method, params))
        self._stirred.set()

    async def pump(self) -> None:
        """Sends what it is to be told; whoever runs this cancels it when it has gone."""
        while True:
            await self._stirred.wait()
            self._stirred = anyio.Event()
            while self._untold:
                method, params = self._untold.popleft()
                await self._connection.notify(method, self.readable(params) or None)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Asks it something outside of any request, once it has shaken hands; raises `UpstreamError`."""
        await self.ready.wait()
        self.silence.refuse(method)
        return await _asked(self._connection, method, self.readable(params))


class PendingWork(Protocol):
    """A call that is under way at its server while its client is asked; `outcome` is None if it was cut."""

    over: anyio.Event
    outcome: dict[str, Any] | Exception | None

    def cut(self) -> None:
        """Ends it, which reaches the server as a cancellation."""
        ...


class ClientRequest:
    """One request of a client, and the way back to the client while it is answered.

    `sent` is whether the server may have seen it, and `goes_on` what is under way there though it was answered.
    """

    __slots__ = ("ctx", "goes_on", "guest", "limit", "method", "params", "sent")
    patient = False
    """Whether nobody waits for it, so that it may take as long as it takes."""

    aside = False
    """Whether it is no wish of the client's: then its client is neither told nor asked anything."""

    def __init__(self, ctx: Context, guest: Client) -> None:
        self.ctx = ctx
        self.guest = guest
        self.limit = Timeout()
        self.method = ctx.method
        self.params: Mapping[str, Any] = ctx.params or {}
        self.sent = False
        self.goes_on: PendingWork | None = None

    @property
    def token(self) -> Any:
        """What progress is to be told under, or None."""
        return as_object(self.params.get("_meta")).get("progressToken")

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells the client something about this request; one that has gone is not told."""
        if self.guest.silence.drops(method):
            return
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            channel = self.ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
            await channel.notify(method, self.guest.readable(params))

    @asynccontextmanager
    async def queueing(self) -> AsyncGenerator[None]:
        """While it waits for its turn at the server it is not sent, and the server's time does not run."""
        self.sent = False
        async with self.limit.waiting():
            yield
        self.sent = True

    def taken(self) -> None:
        """Hears that the server has made a task of it."""

    async def remember(self, handle: Mapping[str, Any]) -> None:
        """Hears by what the server's task can be picked up in another process."""

    async def ask(self, method: str, params: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Asks a client of the old era something while its request waits; raises `UpstreamError`."""
        self.guest.silence.refuse(method)
        with self.limit.paused():
            channel = self.ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
            return await _asked(channel, method, self.guest.readable(params), seconds or ASK_SECONDS)


class OperatorRequest(ClientRequest):
    """A call that the operator makes while a client's request waits, over the same connection; `guest` is that client.

    It goes where the client's own calls go, and shows the server nothing of what that client can do or wants to hear.
    """

    aside = True
    patient = True

    def __init__(self, ctx: Context, guest: Client, name: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(ctx, guest)
        self.method = "tools/call"
        given = as_object((ctx.params or {}).get("_meta"))
        meta = {key: value for key, value in given.items() if key not in _OF_THE_CLIENT}
        if CLIENT_CAPABILITIES_META_KEY in given:
            meta[CLIENT_CAPABILITIES_META_KEY] = {}
        self.params = {"name": name, "arguments": dict(arguments), **({"_meta": meta} if meta else {})}

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells nobody."""

    async def ask(self, method: str, params: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Refuses."""
        raise UpstreamError(METHOD_NOT_FOUND, f"{method}: nobody can be asked here")


def connection_of(ctx: Context) -> Connection:
    """The connection that a request came on: what ends with it, and by what to know it again."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


class Clients:
    """The clients of the old era that are connected now, and the silence that is kept towards all clients."""

    def __init__(self) -> None:
        self.silence = OutboundFilter()
        self._here: dict[Connection, ClientSession] = {}

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(tuple(self._here.values()))

    def arrive(self, ctx: Context) -> ClientSession:
        """Takes note of a client that opens a connection with a handshake."""
        connection = connection_of(ctx)
        said = as_object((ctx.params or {}).get("capabilities"))
        known = self._here.get(connection)
        if known is not None:
            known.capabilities = said
            return known
        # What the SDK writes over HTTP in the old era must be UTF-8.
        session = self._here[connection] = ClientSession(
            said, connection, unicode=ctx.request is not None, silence=self.silence
        )
        connection.exit_stack.callback(self._leave, connection)
        return session

    def of(self, ctx: Context) -> Client | None:
        """Who sent this request; None for one of the old era that did not shake hands."""
        if not is_modern(ctx.protocol_version):
            return self._here.get(connection_of(ctx))
        meta = as_object((ctx.params or {}).get("_meta"))
        return Client(as_object(meta.get(CLIENT_CAPABILITIES_META_KEY)), silence=self.silence)

    def of_aside(self, ctx: Context) -> Client:
        """Whose request an errand of the operator belongs to; one that has gone could do nothing."""
        return self.of(ctx) or Client({}, silence=self.silence)

    def _leave(self, connection: Connection) -> None:
        self._here.pop(connection).gone.set()


async def _asked(channel: Any, method: str, params: Mapping[str, Any], seconds: float = ASK_SECONDS) -> dict[str, Any]:
    try:
        with anyio.fail_after(seconds):
            return await channel.send_raw_request(method, params or None)
    except NoBackChannelError as error:
        raise UpstreamError(METHOD_NOT_FOUND, str(error)) from None
    except MCPError as error:
        raise UpstreamError(error.code, error.message, error.data) from None
    except TimeoutError:
        raise UpstreamError(REQUEST_TIMEOUT, f"{method}: the client did not answer in {seconds:g} s") from None
