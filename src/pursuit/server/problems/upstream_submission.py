"""A submission on its way to the problem's own server, which has the last word.

Owns: what a submission counts as, by what the server said or did not say. Does not know: lists, briefs or judges.
Invariant: a submission that may have reached the server is never followed by another one; one that surely never did
costs nothing; one that is asked about and its answer are one; whoever hands in holds the place until it is settled.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import anyio
from mcp.shared.exceptions import MCPError

from pursuit.core.attempts import AttemptState
from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.errors import AlreadySubmitted, LedgerUnavailable, PursuitError, UpstreamUnavailable
from pursuit.problems.attempts import GONE, Attempt
from pursuit.problems.scoring import kept_result, kept_submission
from pursuit.server.errors import Context, wire_error
from pursuit.server.gateway.calls import failures
from pursuit.server.gateway.clients import ClientRequest, PendingWork
from pursuit.server.logs import event
from pursuit.server.problems.round_trips import Following, comes_back

CUT_OFF = "its client cut it off before the server answered"
BROKE = "the server's answer could not be kept"
DIED = "the server went away before it answered"
LATE = "the time was over before the server answered"
REFUSED = "the server refused it"
UNSENT = "it did not get as far as the server"
PATIENCE = 30.0
"""Seconds for which a submission waits for the one before."""

LOOK_EVERY = 0.05
_log = logging.getLogger(__name__)

Handler = Callable[[ClientRequest], Awaitable[dict[str, Any]]]
"""How the gateway makes a call."""

Judge = Callable[[Context | None], anyio.Event]
"""Has what was taken judged, where the calls of that client went; the event is the end of it."""

Fate = Literal["taken", "refused", "asked", "unsent", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A submission for which the place is kept."""

    digest: str
    arguments: Mapping[str, Any]
    ctx: Context


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiting:
    """A submission that is at the server while its client is asked; `state` is what the client comes back with."""

    given: _Given
    call: PendingWork
    state: object
    settled: anyio.Event = field(default_factory=anyio.Event)
    error: PursuitError | None = None

    def is_met_by(self, params: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        """Whether a request goes on with it: nothing else may, as it would be sent a second time."""
        return params.get("requestState") == self.state and self.given.arguments == arguments

    async def outcome(self) -> None:
        """Waits until it is settled; raises what its client is to be told instead of an answer."""
        await self.settled.wait()
        if self.error is not None:
            raise self.error


class UpstreamSubmission:
    """Hands in for one attempt."""

    def __init__(self, attempt: Attempt, following: Following, judge: Judge) -> None:
        self._attempt = attempt
        self._following = following
        self._judge = judge
        self._waiting: _Waiting | None = None

    async def hand_in(
        self, visit: ClientRequest, answer: Handler, final: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The answer of the upstream's own `submit_final` is the agent's, untouched.

        Raises `ValidationFailed`, `AlreadySubmitted`, `BudgetExhausted`, and `UpstreamUnavailable` if nobody knows
        whether it was taken.
        """
        arguments = kept_submission(arguments)
        visit.params = {**visit.params, "name": final, "arguments": dict(arguments)}
        waiting = self._waiting
        if waiting is not None and waiting.is_met_by(visit.params, arguments):
            return await self._went_on(waiting, visit, answer)
        async with AsyncExitStack() as place:
            if not await place.enter_async_context(self._in_turn()):
                await self._attempt.refuse_second()
                raise AlreadySubmitted(_under_way(await self._attempt.refresh()))
            await self._attempt.open()  # which refuses an attempt at another problem
            if await self._attempt.give_up(GONE):
                await self._judge(visit.ctx).wait()
            digest = await self._attempt.claim(arguments, comes_back=comes_back(visit.params))
            given = _Given(digest=digest, arguments=arguments, ctx=visit.ctx)
            try:
                result = await self._handed_over(visit, answer, given)
            except (MCPError, PursuitError):
                raise
            except BaseException as error:  # cancelled, or what nobody foresaw
                cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                if visit.goes_on is not None:
                    visit.goes_on.cut()
                with anyio.CancelScope(shield=True):
                    await self._broken_off(given, (CUT_OFF if cancelled else BROKE) if visit.sent else "")
                raise
            if visit.goes_on is not None:
                self._follow(_Waiting(given=given, call=visit.goes_on, state=result.get("requestState")), place)
            return result

    @asynccontextmanager
    async def _in_turn(self) -> AsyncGenerator[bool]:
        """Whether nobody else hands in here; whoever does is waited for, as its receipt may be the answer.

        Raises `AlreadySubmitted` with that receipt as soon as there is one.
        """
        until = anyio.current_time() + PATIENCE
        while True:
            async with self._attempt.alone() as alone:
                if alone or anyio.current_time() >= until:
                    yield alone
                    return
            await self._attempt.refuse_second()
            await anyio.sleep(LOOK_EVERY)

    async def _handed_over(self, visit: ClientRequest, answer: Handler, given: _Given) -> dict[str, Any]:
        """Asks the upstream, whose place is kept; afterwards it is settled, or goes on there."""
        result: dict[str, Any] | None = None
        try:
            with anyio.move_on_after(self._attempt.seconds_left()), failures() as failed:
                result = await answer(visit)
        except LedgerUnavailable as error:
            if not visit.sent:
                await self._settle(given, "unsent", why=error.message)
            raise wire_error(error) from error
        except (MCPError, PursuitError) as error:
            await self._settle(given, "refused" if visit.sent else "unsent", why=error.message)
            raise
        if result is None:
            raise await self._late(given, sent=visit.sent)
        fate = _fate(result, failed, sent=visit.sent)
        if visit.goes_on is None or fate != "asked":
            await self._settle(given, fate, result=result, why=DIED if fate == "lost" else "")
        if fate == "lost":
            event(_log, logging.ERROR, "a submission without an answer", why="; ".join(map(str, failed)))
            raise self._without_answer()
        return result

    async def _settle(
        self, given: _Given, fate: Fate, *, result: Mapping[str, Any] | None = None, why: str = ""
    ) -> None:
        """Writes what it counts as, whoever leaves meanwhile, and has judged what counts."""
        with anyio.CancelScope(shield=True):
            match fate:
                case "taken":
                    kept = None if result is None else kept_result(result)
                    await self._attempt.submit(given.arguments, result=kept, claimed=given.digest)
                case "lost":
                    await self._attempt.give_up(why)
                case "refused":
                    await self._attempt.drop(given.digest, kept_result(why or REFUSED))
                case "asked":
                    await self._attempt.ask_first(given.digest)
                case "unsent":
                    await self._attempt.withdraw(given.digest, kept_result(why or UNSENT))
        if fate in ("taken", "lost"):
            await self._judge(given.ctx).wait()

    async def _broken_off(self, given: _Given, why: str) -> None:
        """Somebody left in the middle; `why` nobody knows what became of it is empty if the server never saw it."""
        if why:
            await self._attempt.give_up(why)
            self._judge(given.ctx)
        else:
            await self._attempt.withdraw(given.digest, UNSENT)

    async def _late(self, given: _Given, *, sent: bool) -> PursuitError:
        """The time is over; what was sent may have been taken."""
        over = await self._attempt.overran()
        await self._settle(given, "lost" if sent else "unsent", why=LATE)
        state = self._attempt.state
        if state is not None and state.receipt is not None:
            over.details["receipt"] = state.receipt
        return over

    def _without_answer(self) -> UpstreamUnavailable:
        said = f"{DIED}: nobody knows whether it took the submission, and nobody can submit again in this attempt"
        state = self._attempt.state
        return UpstreamUnavailable(said, receipt=None if state is None else state.receipt, outcome="unknown")

    def _follow(self, waiting: _Waiting, place: AsyncExitStack) -> None:
        """Keeps the place of a submission that is at the server while its client is asked."""
        self._waiting = waiting
        self._following.follow(waiting.call, partial(self._ended, waiting, place.pop_all()))

    async def _ended(self, waiting: _Waiting, place: AsyncExitStack, late: bool) -> None:
        """Settles it, whether its client has come back or not."""
        async with place:
            try:
                waiting.error = await self._outcome(waiting.given, waiting.call.outcome, late)
            finally:
                self._waiting = None
                waiting.settled.set()

    async def _outcome(
        self, given: _Given, outcome: dict[str, Any] | Exception | None, late: bool
    ) -> PursuitError | None:
        """Settles it by what the server said, and returns what its client is told where that is no answer."""
        match outcome:
            case None if late:
                return await self._late(given, sent=True)
            case None:
                await self._settle(given, "lost", why=CUT_OFF)
            case dict():
                await self._settle(given, _fate(outcome, (), sent=True), result=outcome)
            case CallFailed(sent=False):
                await self._settle(given, "unsent", why=str(outcome))
            case UpstreamError() | MCPError():
                await self._settle(given, "refused", why=str(outcome))
            case _:
                event(_log, logging.ERROR, "a submission without an answer", why=repr(outcome))
                await self._settle(given, "lost", why=DIED if isinstance(outcome, CallFailed) else BROKE)
                return self._without_answer()
        return None

    async def _went_on(self, waiting: _Waiting, visit: ClientRequest, answer: Handler) -> dict[str, Any]:
        """The next leg of a submission that is at the server; what it comes to is settled beside it."""
        try:
            result = await answer(visit)
        except MCPError:
            if waiting.call.over.is_set():
                await waiting.outcome()
            raise
        if waiting.call.over.is_set():
            await waiting.outcome()
        elif visit.goes_on is not None:
            waiting.state = result.get("requestState")
        return result


def _fate(result: Mapping[str, Any], failed: Sequence[Exception], *, sent: bool) -> Fate:
    """What a result says of a submission; `failed` is why it is no answer of the server."""
    asks = result.get("resultType", "complete") != "complete"
    if not asks and not result.get("isError"):
        return "taken"
    if any(isinstance(one, CallFailed) and one.outcome == "unknown" for one in failed):
        return "lost"
    if failed or not sent:
        return "unsent"
    return "asked" if asks else "refused"


def _under_way(state: AttemptState | None) -> str:
    """What somebody is told who has waited long enough for the submission before."""
    claimed = None if state is None else state.claimed
    which = "" if claimed is None else f" (sha256 {claimed.digest[:12]}…)"
    return f"another submission of this attempt{which} is under way; ask again later, and its receipt is the answer"
