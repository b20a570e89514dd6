"""What a connection speaks through: raw JSON-RPC requests and notifications, in both directions.

Owns: the role `Wire`, its failures, and the wire over one of the SDK's dispatchers (stdio, SSE, in process). Does not
know: eras, capabilities, or what a method means. Invariant: notifications are heard synchronously and in the order in
which they came, before the answer that followed them; a result is upstream's JSON, untouched.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from pydantic_core import from_json, to_json

from pursuit.core.tools import AnswerFn, UpstreamError

LONGEST_MESSAGE = 64 * 1024 * 1024

# A notification: its method and its raw parameters. It must not block.
Heard = Callable[[str, Mapping[str, Any]], None]
# A request from upstream: answered with a result, or refused with an `UpstreamError`.
Asked = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class ConnectionLost(Exception):
    """The connection ended before the answer came; `sent` is False if nothing of the request was written before."""

    def __init__(self, *, sent: bool = True) -> None:
        super().__init__()
        self.sent = sent


class CallBroken(Exception):
    """The transport failed for this one request; the connection is still there. The text is the end of a sentence.

    `sent` is False if the server is known not to have taken the request.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class NotReached(CallBroken):
    """Nothing listens at the server's address."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class HttpRefused(CallBroken):
    """The server answered with an HTTP status, and not with JSON-RPC. A 4xx says that it did not take the request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, sent=status >= 500)


class SessionGone(Exception):
    """The server no longer knows our session, and did not take the request."""


class Wire(Protocol):
    """An open transport. `run` must be running before anything is sent."""

    @property
    def hears(self) -> bool:
        """Whether notifications outside of any request can reach us now."""
        ...

    @property
    def can_hang(self) -> bool:
        """Whether one stuck request can be the end of all others, and a new connection the remedy."""
        ...

    async def run(
        self, heard: Heard, asked: Asked, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Receives until the other side is gone."""
        ...

    def adopt(self, version: str, *, modern: bool) -> None:
        """Takes note of the protocol's version that was agreed on."""
        ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        cancellable: bool = True,
        heard: Heard | None = None,
    ) -> dict[str, Any]:
        """Sends a request and returns the raw result.

        `heard` gets what is known to belong to this request alone, where the transport can tell. Raises
        `UpstreamError`, `ConnectionLost`, `CallBroken` or `SessionGone`. Cancelling the caller reaches the server.
        """
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Sends a notification; what cannot be delivered is dropped."""
        ...

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        ...


class DispatcherWire:
    """A wire over one of the SDK's dispatchers; `progress_inline` is for the one that has no progress messages."""

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        *,
        over: anyio.Event,
        ending: Callable[[], str],
        progress_inline: bool = False,
        can_hang: bool = False,
    ) -> None:
        self.can_hang = can_hang
        self._dispatcher = dispatcher
        self._over = over
        self._ending = ending
        self._progress_inline = progress_inline
        self._heard: Heard = _deaf

    @property
    def hears(self) -> bool:
        """Always: there is one stream for everything."""
        return True

    def adopt(self, version: str, *, modern: bool) -> None:
        """Nothing changes on such a wire."""

    async def run(
        self, heard: Heard, asked: Asked, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Receives until the other side is gone."""
        self._heard = heard

        async def on_request(
            _context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            try:
                return dict(await asked(method, params or {}))
            except UpstreamError as error:
                raise MCPError(code=error.code, message=error.message, data=error.data) from None

        async def on_notify(_context: DispatchContext[Any], _method: str, _params: Mapping[str, Any] | None) -> None:
            """Never called: `intercept` takes every one, in the order in which they came."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            heard(method, params or {})
            return True

        await self._dispatcher.run(on_request, on_notify, intercept, task_status=task_status)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        cancellable: bool = True,
        heard: Heard | None = None,
    ) -> dict[str, Any]:
        """Sends a request and returns the raw result; nothing here tells which notification belongs to it."""
        if self._over.is_set():
            raise ConnectionLost(sent=False)
        options: CallOptions = {"cancel_on_abandon": cancellable}
        if request_id is not None:
            options["request_id"] = request_id
        if self._progress_inline:
            options["on_progress"] = self._inline_progress(params)
        try:
            return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and self._over.is_set():
                raise ConnectionLost from None
            raise UpstreamError(error.code, error.error.message, error.error.data) from None

    def _inline_progress(self, params: Mapping[str, Any]) -> Any:
        token = cast("Mapping[str, Any]", params.get("_meta") or {}).get("progressToken")

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            body: dict[str, Any] = {"progressToken": token, "progress": progress}
            more = {"total": total, "message": message}
            self._heard("notifications/progress", body | {key: one for key, one in more.items() if one is not None})

        return on_progress

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Sends a notification; what cannot be delivered is dropped."""
        await self._dispatcher.notify(method, params)

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        return self._ending()


def unwritable(item: SessionMessage) -> Exception:
    """What a closed write stream raises: to the caller of a request that nothing was sent.

    The SDK's dispatcher makes one error of a broken write and of a broken wait for the answer; it drops a notification
    that cannot be written only if the stream says `BrokenResourceError`.
    """
    is_request = isinstance(item.message, JSONRPCRequest)
    return ConnectionLost(sent=False) if is_request else anyio.BrokenResourceError()


def read_json(data: str | bytes) -> Any:
    """A message as Python values; raises `ValueError`."""
    try:
        return from_json(data)
    except ValueError:
        # The quick reader refuses lone surrogates, which other languages send.
        return json.loads(data)


def write_json(value: Any) -> bytes:
    """Values as a message; raises `ValueError`."""
    try:
        return to_json(value)
    except ValueError as error:
        # The same lone surrogates: JSON can say them, UTF-8 cannot.
        try:
            return json.dumps(value).encode()
        except TypeError:
            raise error from None


def read_message(data: str | bytes) -> JSONRPCMessage:
    """A message as the SDK's dispatcher takes it; raises `ValueError`."""
    try:
        return jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError as error:
        try:
            return jsonrpc_message_adapter.validate_python(json.loads(data), by_name=False)
        except RecursionError:
            raise error from None


def write_message(message: JSONRPCMessage) -> bytes:
    """A message of the SDK's dispatcher; raises `ValueError`."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError as error:
        try:
            return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()
        except TypeError:
            raise error from None


def _deaf(_method: str, _params: Mapping[str, Any]) -> None:
    """Before `run`, nothing is heard."""


# What we are to a server.
# Invariant: every question gets an answer or a proper error.


@dataclass(slots=True, kw_only=True)
class ClientSide:
    """What we are to a server: what we say that we can do, and who answers what it asks of us.

    `heard` gets what a connection of its own hears outside of requests; without one it is for everybody.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: AnswerFn | None = None
    roots: Sequence[Mapping[str, Any]] = ()
    heard: Heard | None = None

    async def asked(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request of the server."""
        if method == "ping":
            return {}
        if method == "roots/list" and (self.roots or "roots" not in self.capabilities or self.answer is None):
            return {"roots": [dict(root) for root in self.roots]}
        if self.answer is None:
            what = {"elicitation/create": "Elicitation", "sampling/createMessage": "Sampling"}.get(method, method)
            raise UpstreamError(METHOD_NOT_FOUND, f"{what} not supported", None)
        return await self.answer(method, params)


# The last lines that a server wrote to its stderr, so that an error can show them.
# Invariant: never more than 40 lines and 8 KiB, and never one of the secrets that it was told.

MOST_LINES = 40
MOST_BYTES = 8 * 1024
_BLANK = b"***"


class StderrTail:
    """Keeps a bounded tail of a byte stream as text."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._size = 0
        self._partial = b""
        self._secrets: tuple[str, ...] = ()
        self._blanked: tuple[bytes, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown, longest first."""
        return self._secrets

    @secrets.setter
    def secrets(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        # Variables may hold bytes that are no UTF-8; Python hands them over as lone surrogates.
        self._blanked = tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets)

    def feed(self, data: bytes) -> None:
        """Takes the next piece, wherever it was cut."""
        *lines, partial = self.blank(self._partial + data).split(b"\n")
        # What is kept may end within a secret that the next piece completes: that much more must stay whole.
        longest = max((len(secret) for secret in self._blanked), default=0)
        self._partial = partial[-(MOST_BYTES + longest) :]
        for line in lines:
            self.add(line)

    def add(self, line: bytes) -> None:
        """Takes one whole line."""
        if len(self._lines) == MOST_LINES:
            self._size -= len(self._lines[0])
        self._lines.append(self.blank(line)[-MOST_BYTES:])
        self._size += len(self._lines[-1])
        while self._size > MOST_BYTES:
            self._size -= len(self._lines.popleft())

    def text(self) -> str:
        """The tail as text, without secrets."""
        whole = self.blank(b"\n".join((*self._lines, self._partial)))[-MOST_BYTES:]
        return whole.decode("utf-8", errors="replace").strip()

    def blank(self, data: bytes) -> bytes:
        """The same bytes without secrets; always done before anything is cut, or half a secret would stay."""
        for secret in self._blanked:
            data = data.replace(secret, _BLANK)
        return data

    def redacted(self, text: str) -> str:
        """The same text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _BLANK.decode())
        return text

    def clear(self) -> None:
        """Forgets everything, for a fresh process."""
        self._lines.clear()
        self._size = 0
        self._partial = b""
