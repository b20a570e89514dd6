"""Calls that wait for a client of the new era to come back with an answer.

Owns: the turn from a question that a server of the old era pushes to a result that asks, and back. Does not know: how
the server is reached. Invariant: the server is asked once however often the client comes back; a question that nobody
answers within `ASK_SECONDS` is declined, and one whose call is over refused; a result is kept for `KEEP_SECONDS` for a
client that missed it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, REQUEST_TIMEOUT

from pursuit.core.tools import NotifyFn, UpstreamError
from pursuit.server.gateway.clients import ASK_SECONDS, ClientRequest, Timeout
from pursuit.server.gateway.protocol_versions import is_wanted, log_level
from pursuit.tasks.record import finite
from pursuit.upstream.transport import ClientSide

# Progress of a call as its client counts it.


class Progress:
    """The progress of one call; nothing is told to a client that did not ask for it."""

    def __init__(self, token: Any) -> None:
        self.token = token
        self._base = 0.0
        self._last = 0.0

    def restart(self) -> None:
        """The server is asked again, and counts from its beginning."""
        self._base = self._last

    def told(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the client is told; the server's own words but for the token, and for numbers that are none."""
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


KEEP_SECONDS = 60.0
ROOTS_GRACE = 0.2
"""Roots are asked beside a call: if the call ends at once, its client need not be bothered."""

MOST_UNTOLD = 1_000
PARKED = "parked-"
Perform = Callable[[ClientSide, NotifyFn | None], Awaitable[dict[str, Any]]]


@dataclass(slots=True, eq=False)
class _Question:
    method: str
    params: Mapping[str, Any]
    given: anyio.Event = field(default_factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


class PendingCall:
    """One call to a server, and the legs of its client."""

    def __init__(self, said: Mapping[str, Any], capabilities: Mapping[str, Any], limit: Timeout) -> None:
        self.said = said
        self._limit = limit
        self.capabilities = capabilities
        self.questions: dict[str, _Question] = {}
        self.legs = 0
        self.asked = False
        self.outcome: dict[str, Any] | Exception | None = None
        self.over = anyio.Event()
        self.scope = anyio.CancelScope()
        self._numbers = 0
        self._stirred = anyio.Event()
        self._untold: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=MOST_UNTOLD)

    async def perform(self, perform: Perform) -> None:
        """Asks the server; never raises but when cancelled."""
        side = ClientSide(capabilities=self.capabilities, answer=self.answer, heard=self.heard_beside)
        try:
            with self.scope:
                self.outcome = await perform(side, self.heard)
        except Exception as error:  # noqa: BLE001 - the boundary to the legs: whichever waits gets it
            self.outcome = error
        finally:
            self.over.set()
            for question in self.open.values():  # nobody can answer it any more, and the server need not wait
                question.given.set()
            self._stir()

    def cut(self) -> None:
        """Gives it up, for all legs."""
        self.scope.cancel()

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The client's answer to a question of the server, whenever it comes back with it."""
        if method == "roots/list":
            with anyio.move_on_after(ROOTS_GRACE):
                await self.over.wait()
                return {"roots": []}
        self._numbers += 1
        key = f"{method.partition('/')[0]}-{self._numbers}"
        question = self.questions[key] = _Question(method, params)
        self._stir()
        try:
            with self._limit.paused(), anyio.move_on_after(ASK_SECONDS):
                await question.given.wait()
                if question.answer is None:
                    raise UpstreamError(INVALID_REQUEST, f"{method}: the call that it belonged to is over")
                return question.answer
            return _declined(method)
        finally:
            del self.questions[key]

    async def leg(self, visit: ClientRequest) -> bool:
        """Waits with a client until there is a result (True) or a question (False), and tells it what comes."""
        self.legs += 1
        try:
            while True:
                stirred = self._stirred
                while self._untold:
                    await _tell(visit, *self._untold.popleft())
                if self.over.is_set():
                    return True
                if self.open:
                    self.asked = True
                    return False
                await stirred.wait()
        except anyio.get_cancelled_exc_class():
            if self.legs == 1:
                # The only client that waits for it gives up.
                self.cut()
            raise
        finally:
            self.legs -= 1

    @property
    def open(self) -> dict[str, _Question]:
        """The questions that have no answer yet."""
        return {key: one for key, one in self.questions.items() if not one.given.is_set()}

    def take(self, answers: Mapping[str, Any]) -> None:
        """Takes what the client came back with; an answer that was given already stays."""
        for key, answer in answers.items():
            question = self.questions.get(key)
            if question is not None and not question.given.is_set() and isinstance(answer, Mapping):
                question.answer = cast("Mapping[str, Any]", answer)
                question.given.set()

    async def heard(self, method: str, params: Mapping[str, Any]) -> None:
        """Keeps what belongs to the call for the leg that waits, or for the next one."""
        self.heard_beside(method, params)

    def heard_beside(self, method: str, params: Mapping[str, Any]) -> None:
        """On a connection of its own, a log message belongs to the call."""
        if method in ("notifications/message", "notifications/progress"):
            self._limit.again()
            self._untold.append((method, params))
            self._stir()

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = anyio.Event()


class PendingCalls:
    """All calls that wait."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._parked: dict[str, PendingCall] = {}

    async def run(
        self, visit: ClientRequest, params: Mapping[str, Any], perform: Perform, *, foreign: bool = False
    ) -> dict[str, Any]:
        """The result of the call, or a result that asks; a client that comes back finds its call again.

        `foreign`: the server may ask in results of its own, so a state that is not ours is the server's.
        """
        state: Any = params.get("requestState")
        if state is not None and not (foreign and not str(state).startswith(PARKED)):
            return await self.go_on(visit, params)
        parked = PendingCall(_without_answers(params), visit.guest.capabilities, visit.limit)
        self._tasks.start_soon(parked.perform, perform)
        return await self._leg(visit, f"{PARKED}{secrets.token_hex(16)}", parked)

    def holds(self, params: Mapping[str, Any]) -> bool:
        """Whether a request comes back to a call that waits here; then it is for no server."""
        return str(params.get("requestState")) in self._parked

    async def go_on(self, visit: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
        """The next leg of a call that waits here; raises `MCPError` if there is none."""
        key, parked = self._returned(params)
        visit.sent = True
        return await self._leg(visit, key, parked)

    async def _leg(self, visit: ClientRequest, key: str, parked: PendingCall) -> dict[str, Any]:
        over = False
        try:
            over = await parked.leg(visit)
        finally:
            if not over and parked.asked and key not in self._parked:
                self._parked[key] = parked
                self._tasks.start_soon(self._keep, key, parked)
        if not over:
            visit.goes_on = parked
            return _asking(key, parked.open)
        if isinstance(parked.outcome, dict):
            return parked.outcome
        raise parked.outcome or UpstreamError(INVALID_PARAMS, "the call was given up")

    def _returned(self, params: Mapping[str, Any]) -> tuple[str, PendingCall]:
        state = str(params.get("requestState"))
        parked = self._parked.get(state)
        if parked is None:
            message = "no call waits for these answers: it ended long ago, or the gateway was started again meanwhile"
            raise MCPError(INVALID_PARAMS, f"{message}; whether it had an effect is not known here")
        if _without_answers(params) != parked.said:
            raise MCPError(INVALID_PARAMS, "these answers belong to a call with other parameters")
        answers: Any = params.get("inputResponses")
        if isinstance(answers, Mapping):
            parked.take(cast("Mapping[str, Any]", answers))
        return state, parked

    async def _keep(self, key: str, parked: PendingCall) -> None:
        await parked.over.wait()
        await anyio.sleep(KEEP_SECONDS)
        del self._parked[key]


def _asking(key: str, questions: Mapping[str, _Question]) -> dict[str, Any]:
    requests: dict[str, Any] = {}
    for name, question in questions.items():
        requests[name] = {"method": question.method, **({"params": question.params} if question.params else {})}
    return {"resultType": "input_required", "inputRequests": requests, "requestState": key}


def _declined(method: str) -> Mapping[str, Any]:
    if method == "elicitation/create":
        return {"action": "decline"}
    if method == "roots/list":
        return {"roots": []}
    raise UpstreamError(REQUEST_TIMEOUT, f"{method}: the client did not come back within {ASK_SECONDS:g} s")


def _without_answers(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in ("inputResponses", "requestState", "_meta")}


async def _tell(visit: ClientRequest, method: str, params: Mapping[str, Any]) -> None:
    if method == "notifications/progress":
        told = Progress(visit.token).told(params)
        if told is not None:
            await visit.tell(method, told)
    elif is_wanted(log_level(visit.params), params):
        await visit.tell(method, params)
