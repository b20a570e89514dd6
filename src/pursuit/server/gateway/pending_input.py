"""Calls that wait until a modern client returns with its answers.

A legacy server sends its requests during a call; a modern client gets them as an `input_required` result and repeats
the call with answers. This module translates between the two.

Invariant: the server gets the call once, however often the client repeats it. A request that is not answered within
`ask_seconds` is declined. A result is kept for `KEEP_SECONDS` for a client that missed it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, REQUEST_TIMEOUT

from pursuit.config.servers import LIMITS
from pursuit.core.tools import NotifyFn, UpstreamError
from pursuit.server.errors import is_wanted, log_level
from pursuit.server.gateway.clients import ClientRequest, cannot_ask
from pursuit.server.gateway.protocol_versions import ROUND_TRIP_KEYS
from pursuit.tasks.record import finite
from pursuit.upstream.transport import ClientFeatures, NotificationQueue

KEEP_SECONDS = 60.0
ROOTS_GRACE = 0.2
"""Seconds: a server may ask for roots beside a call; if the call ends soon, the client is not asked."""

STATE_PREFIX = "parked-"
PROGRESS = "notifications/progress"
Perform = Callable[[ClientFeatures, NotifyFn | None], Awaitable[dict[str, Any]]]


class Progress:
    def __init__(self, token: Any) -> None:
        self.token = token
        self._base = 0.0
        self._last = 0.0

    def restart(self) -> None:
        """The client sends the call again, and the server counts progress from its beginning."""
        self._base = self._last

    def params(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """The notification for the client, without numbers that are not finite."""
        if self.token is None:
            return None
        body = {**params, "progressToken": self.token}
        value, total = finite(params.get("progress")), finite(params.get("total"))
        if value is None:
            return None if isinstance(params.get("progress"), int | float) else body
        if total is None:
            body.pop("total", None)
        if self._base:
            body["progress"] = self._base + value
            if total is not None:
                body["total"] = self._base + total
        self._last = max(self._last, self._base + value)
        return body


@dataclass(slots=True, eq=False)
class _Question:
    method: str
    params: Mapping[str, Any]
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


class PendingCall:
    """One call to a server, and the round trips of its client."""

    def __init__(self, request: ClientRequest, params: Mapping[str, Any]) -> None:
        self.params = _without_answers(params)
        self._timeout = request.timeout
        self._outbound = request.client.outbound
        self._ask_seconds = self._outbound.ask_seconds
        self._capabilities = request.client.capabilities
        self._questions: dict[str, _Question] = {}
        self._waiting = 0
        self.asked = False
        self.outcome: dict[str, Any] | Exception | None = None
        self.over = anyio.Event()
        self._scope = anyio.CancelScope()
        self._number = 0
        self._changed = anyio.Event()
        self._queue = NotificationQueue(LIMITS.queued)

    async def perform(self, perform: Perform) -> None:
        """Sends the call; raises only if it is cancelled."""
        side = ClientFeatures(capabilities=self._capabilities, answer=self.answer, heard=self._notified)

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            self._notified(method, params)

        try:
            with self._scope:
                self.outcome = await perform(side, on_notify)
        except Exception as error:  # noqa: BLE001 - the request that waits for the outcome raises it
            self.outcome = error
        finally:
            self.over.set()
            for question in self.open.values():  # no further answer can come
                question.answered.set()
            self._wake()

    def cancel(self) -> None:
        self._scope.cancel()

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The client's answer to a server's request, once the client has returned with it."""
        if self._outbound.closed:
            raise cannot_ask(method)
        if method == "roots/list":
            with anyio.move_on_after(ROOTS_GRACE):
                await self.over.wait()
                return {"roots": []}
        self._number += 1
        key = f"{method.partition('/')[0]}-{self._number}"
        question = self._questions[key] = _Question(method, params)
        self._wake()
        try:
            async with self._timeout.paused():
                with anyio.move_on_after(self._ask_seconds):
                    await question.answered.wait()
                    if question.answer is None:
                        raise UpstreamError(INVALID_REQUEST, f"{method}: the tool call that needed it has ended")
                    return question.answer
        finally:
            del self._questions[key]
        if method == "elicitation/create":
            return {"action": "decline"}
        if method == "roots/list":
            return {"roots": []}
        raise UpstreamError(REQUEST_TIMEOUT, f"{method}: the client did not return within {self._ask_seconds:g} s")

    async def wait(self, request: ClientRequest) -> bool:
        """Waits until there is a result (True) or an open question (False), and sends notifications during the wait."""
        self._waiting += 1
        try:
            while True:
                changed = self._changed
                while (waiting := self._queue.take()) is not None:
                    await _notify(request, *waiting)
                if self.over.is_set():
                    return True
                if self.open:
                    self.asked = True
                    return False
                await changed.wait()
        except anyio.get_cancelled_exc_class():
            if self._waiting == 1:
                # Cancels the only request that waits for it.
                self.cancel()
            raise
        finally:
            self._waiting -= 1

    @property
    def open(self) -> dict[str, _Question]:
        return {key: one for key, one in self._questions.items() if not one.answered.is_set()}

    def take(self, answers: Mapping[str, Any]) -> None:
        """Takes the client's answers; the first answer to a question counts."""
        for key, answer in answers.items():
            question = self._questions.get(key)
            if question is not None and not question.answered.is_set() and isinstance(answer, Mapping):
                question.answer = cast("Mapping[str, Any]", answer)
                question.answered.set()

    def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        """Queues a notification; on the connection of a single call, log messages belong to that call."""
        if method in ("notifications/message", PROGRESS):
            self._timeout.reset()
            self._queue.put(method, params)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class PendingCalls:
    """All calls that wait, by their `requestState`."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._pending: dict[str, PendingCall] = {}

    async def run(
        self, request: ClientRequest, params: Mapping[str, Any], perform: Perform, *, foreign: bool = False
    ) -> dict[str, Any]:
        """The result of the call, or an `input_required` result.

        If `foreign`, the server may return such results itself, so a state without our prefix is the server's.
        """
        state: Any = params.get("requestState")
        if state is not None and not (foreign and not str(state).startswith(STATE_PREFIX)):
            return await self.resume(request, params)
        pending = PendingCall(request, params)
        self._tasks.start_soon(pending.perform, perform)
        return await self._wait(request, f"{STATE_PREFIX}{secrets.token_hex(16)}", pending)

    def holds(self, params: Mapping[str, Any]) -> bool:
        return str(params.get("requestState")) in self._pending

    async def resume(self, request: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
        """The next round trip of a waiting call; raises `MCPError` if there is no such call."""
        state = str(params.get("requestState"))
        pending = self._pending.get(state)
        if pending is None:
            message = "no call waits for these answers: it has ended, or the gateway was restarted"
            raise MCPError(INVALID_PARAMS, f"{message}; its effect is not known")
        if _without_answers(params) != pending.params:
            raise MCPError(INVALID_PARAMS, "these answers belong to a call with different parameters")
        answers: Any = params.get("inputResponses")
        if isinstance(answers, Mapping):
            pending.take(cast("Mapping[str, Any]", answers))
        request.sent = True
        return await self._wait(request, state, pending)

    async def _wait(self, request: ClientRequest, state: str, pending: PendingCall) -> dict[str, Any]:
        over = False
        try:
            over = await pending.wait(request)
        finally:
            if not over and pending.asked and state not in self._pending:
                self._pending[state] = pending
                self._tasks.start_soon(self._keep, state, pending)
        if not over:
            request.pending = pending
            requests = {
                key: {"method": one.method, **({"params": one.params} if one.params else {})}
                for key, one in pending.open.items()
            }
            return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        if isinstance(pending.outcome, dict):
            return pending.outcome
        raise pending.outcome or UpstreamError(INVALID_PARAMS, "the call was cancelled")

    async def _keep(self, state: str, pending: PendingCall) -> None:
        await pending.over.wait()
        await anyio.sleep(KEEP_SECONDS)
        del self._pending[state]


def _without_answers(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in (*ROUND_TRIP_KEYS, "_meta")}


async def _notify(request: ClientRequest, method: str, params: Mapping[str, Any]) -> None:
    if method == PROGRESS:
        body = Progress(request.token).params(params)
        if body is not None:
            await request.notify(method, body)
    elif is_wanted(log_level(request.params), params):
        await request.notify(method, params)
