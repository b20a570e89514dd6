"""The only submission of an attempt: accepted, stored, scored.

It goes to the problem's own `submit_final`, or to that of a server that has such a tool and decides itself whether it
accepts a submission. Both kinds are scored in the same way.

Invariants: a submission is in the ledger before it is scored. An agent learns only what the manifest allows about its
score, and nothing about a scorer that failed. A submission that may have reached the server is never followed by
another one; one that certainly did not reach it costs nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from mcp.shared.exceptions import MCPError

from pursuit.core.attempts import AttemptScored
from pursuit.core.report import iso
from pursuit.core.tools import CallFailed, ToolResult, UpstreamError
from pursuit.errors import AlreadySubmitted, LedgerUnavailable, PursuitError, UpstreamUnavailable, ValidationFailed
from pursuit.problems.attempts import GONE, NOT_SCORED, Attempt
from pursuit.problems.manifest import Manifest
from pursuit.problems.scoring import (
    CannotScore,
    Submitted,
    checked_submission,
    judge,
    kept_result,
    kept_submission,
)
from pursuit.problems.secrecy import judging_digest
from pursuit.sandbox.sandbox import Sandbox
from pursuit.server.errors import Context, as_object, wire_error
from pursuit.server.gateway.clients import PendingWork
from pursuit.server.gateway.protocol_versions import ROUND_TRIP_KEYS
from pursuit.server.gateway.tool_calls import CallTool, GatewayCall, tool_error
from pursuit.server.logs import event

CANCELLED = "its client cancelled it before the server answered"
BROKE = "the server's answer could not be stored"
DIED = "the server ended before it answered"
LATE = "the time ended before the server answered"
REFUSED = "the server refused it"
UNSENT = "it did not reach the server"
LOOK_EVERY = 0.05
GRACE = 0.1
"""Seconds after the end of the time: a request that still waits ends by its own clock, and gives that reason."""

_log = logging.getLogger(__name__)

CallAsOperator = Callable[[Context | None, str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Calls a tool for the operator, over the connection of a client's request or over a new one."""

Settle = Callable[[bool], Awaitable[None]]
"""Called when a call has ended; true if it was cancelled because the time was over."""

Fate = Literal["taken", "refused", "asked", "unsent", "lost"]
Outcome = dict[str, Any] | Exception | None
"""The outcome of a call; None if it was cancelled."""


@dataclass(slots=True, eq=False, kw_only=True)
class Submission:
    """Accepts and scores the submission of one attempt.

    Scoring runs in `tasks`, whether its client waits or not. A scorer that is a tool of the server is called as the
    operator, so that the agent does not see that call. `wait_seconds` limits how long a submission waits for the
    previous one.
    """

    problem: Manifest
    attempt: Attempt
    call_as_operator: CallAsOperator
    expressions: Sandbox
    tasks: anyio.abc.TaskGroup
    watcher: PendingWatcher
    wait_seconds: float
    _pending: _PendingSubmission | None = field(init=False, default=None)
    _scoring: anyio.Event | None = field(init=False, default=None)
    _closed: bool = field(init=False, default=False)

    def close(self) -> None:
        """Stops scoring: the next process that opens the attempt continues."""
        self._closed = True

    async def submit(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Accepts a submission to the own `submit_final`; may raise `AlreadySubmitted` or `BudgetExhausted`."""
        state = await self.attempt.open()
        if state.taken is None:
            arguments = checked_submission(self.problem, arguments)
        async with self.attempt.alone():
            with anyio.CancelScope(shield=True):
                await self.attempt.submit(arguments)
            await self.score(ctx).wait()
        state = await self.attempt.refresh() or state
        receipt = readable(state.receipt or {})
        if self.problem.submission is None:
            receipt |= {"kind": self.problem.kind, **arguments}
        body: dict[str, Any] = {"receipt": receipt}
        if self.problem.visibility.score and state.scored is not None and state.scored.error is None:
            body["score"] = list(msgspec.to_builtins(state.scored.rows))
            body["solved"] = state.scored.solved
        return {
            "content": [{"type": "text", "text": json.dumps(body, ensure_ascii=False)}],
            "structuredContent": body,
            "isError": False,
        }

    async def pass_on(self, call: GatewayCall, call_next: CallTool, tool: str) -> dict[str, Any]:
        """The unchanged result of the server's own tool, if the server decides whether it accepts a submission.

        Raises `ValidationFailed`, `AlreadySubmitted`, `BudgetExhausted`, and `UpstreamUnavailable` if it is not known
        whether the server accepted it.
        """
        call = call.of(tool, kept_submission(call.arguments))
        request, pending = call.request, self._pending
        if pending is not None and pending.continues(call):
            try:
                result = await call_next(call)
            finally:
                if pending.work.over.is_set():
                    await pending.check()
            pending.state = result.get("requestState")
            return result
        async with AsyncExitStack() as lock:
            if not await lock.enter_async_context(self._in_turn()):
                await self.attempt.refuse_second()
                state = await self.attempt.refresh()
                claimed = None if state is None else state.claimed
                which = "" if claimed is None else f" (sha256 {claimed.digest[:12]}…)"
                later = "ask again later to get its receipt"
                raise AlreadySubmitted(f"another submission of this attempt{which} is in progress; {later}")
            await self.attempt.open()  # raises for an attempt at another problem
            if await self.attempt.give_up(GONE):
                await self.score(request.ctx).wait()
            digest = await self.attempt.claim(call.arguments, comes_back=comes_back(call.params))
            outcome: Outcome = None
            try:
                with anyio.move_on_after(self.attempt.seconds_left()):
                    outcome = await call_next(call)
            except Exception as error:  # noqa: BLE001 - raised below, when it is recorded what the submission counts as
                outcome = error
            except BaseException:  # its client has disconnected
                if request.pending is not None:
                    request.pending.cancel()
                with anyio.CancelScope(shield=True):
                    await self._settle(call, digest, None)
                raise
            if isinstance(outcome, dict) and request.pending is not None:
                work, state = request.pending, outcome.get("requestState")
                self._pending = _PendingSubmission(call=call, digest=digest, work=work, state=state)
                self.watcher.watch(work, partial(self._ended, self._pending, lock.pop_all()))
                return outcome
            instead = await self._settle(call, digest, outcome, late=outcome is None)
            if instead is None and isinstance(outcome, LedgerUnavailable):
                raise wire_error(outcome)
            if instead is not None or isinstance(outcome, Exception):
                raise instead or cast("Exception", outcome) from None
            return outcome or {}

    @asynccontextmanager
    async def _in_turn(self) -> AsyncGenerator[bool]:
        """Yields true when no other submission is in progress; raises `AlreadySubmitted` once there is a receipt."""
        until = anyio.current_time() + self.wait_seconds
        while True:
            async with self.attempt.alone() as alone:
                if alone or anyio.current_time() >= until:
                    yield alone
                    return
            await self.attempt.refuse_second()
            await anyio.sleep(LOOK_EVERY)

    async def _settle(
        self, call: GatewayCall, digest: str, outcome: Outcome, *, late: bool = False
    ) -> PursuitError | None:
        """Records the fate of a submission and scores it if it counts; returns the error for its client, if any.

        `late`: it was cancelled because the time was over.
        """
        attempt, (fate, why) = self.attempt, _fate(outcome, sent=call.request.sent, late=late)
        instead: PursuitError | None = await attempt.overran() if late else None
        with anyio.CancelScope(shield=True):
            if fate == "taken":
                await attempt.submit(call.arguments, result=kept_result(outcome), claimed=digest)
            elif fate == "lost":
                await attempt.give_up(why)
            else:
                await attempt.drop(digest, kept_result(why), fate)
        if fate in ("taken", "lost"):
            scored = self.score(call.request.ctx)
            if outcome is not None or late:
                await scored.wait()
        receipt = None if attempt.state is None else attempt.state.receipt
        if instead is not None and receipt is not None:
            instead.details["receipt"] = receipt
        if instead is None and fate == "lost" and outcome is not None:
            event(_log, logging.ERROR, "a submission without an answer", why=repr(outcome))
            unknown = "it is not known whether it accepted the submission, and an attempt has only one"
            return UpstreamUnavailable(f"{DIED}: {unknown}", receipt=receipt, outcome="unknown")
        return instead

    async def _ended(self, pending: _PendingSubmission, lock: AsyncExitStack, late: bool) -> None:
        """Settles a pending submission by its outcome, whether its client has returned or not."""
        outcome = pending.work.outcome
        async with lock:
            try:
                pending.error = await self._settle(pending.call, pending.digest, outcome, late=late and outcome is None)
            finally:
                self._pending = None
                pending.settled.set()

    def score(self, ctx: Context | None, *, again: bool = False) -> anyio.Event:
        """Starts scoring, unless that is in progress; the event is set at its end.

        A scorer that is a tool is called over the connection of this client's calls, because the submitted state may be
        there.
        """
        if self._scoring is not None and not self._scoring.is_set():
            return self._scoring
        self._scoring = done = anyio.Event()
        if self._closed:
            done.set()
            return done

        async def work() -> None:
            try:
                await self._score(ctx, again=again)
            except Exception as error:  # noqa: BLE001 - the next opening of the attempt scores it
                event(_log, logging.ERROR, "not judged", attempt=self.attempt.attempt_id, why=str(error))
            finally:
                done.set()

        self.tasks.start_soon(work)
        return done

    async def catch_up(self) -> None:
        """Finishes what an earlier process began, unless another process does; retries a scorer that failed."""
        state = await self.attempt.refresh()
        if state is None or not self.attempt.fits(state):
            return
        scored = state.scored is not None and state.scored.error is None
        if scored or (state.taken is None and state.claimed is None):
            return
        async with self.attempt.alone() as alone:
            if alone:
                with suppress(PursuitError):  # another process was faster, or the ledger is not available
                    await self.attempt.give_up(GONE)
                await self.score(None, again=True).wait()

    async def _score(self, ctx: Context | None, *, again: bool) -> None:
        """Scores an accepted submission without a score; with `again`, even if the scorer failed before."""
        await self.attempt.open()  # raises for an attempt at another problem
        state = await self.attempt.refresh()
        if state is None or state.taken is None:
            return
        failed = None if state.scored is None else state.scored.error
        if state.scored is not None and not (again and failed is not None):
            return
        version = await anyio.to_thread.run_sync(judging_digest, self.problem)
        try:
            found = await judge(
                self.problem,
                Submitted.of(state.taken),
                expressions=self.expressions,
                call=partial(self._call_scorer, ctx),
            )
        except CannotScore as error:
            why = str(error).encode(errors="replace").decode()
            # The reason is only in the ledger: agents may be able to read the log of this process.
            attempt = self.attempt.attempt_id
            event(_log, logging.ERROR, "not scored", attempt=attempt, told=NOT_SCORED)
            event(_log, logging.DEBUG, "the judge failed", attempt=attempt, why=why)
            if why != failed:
                await self.attempt.record(AttemptScored(at=time.time(), error=why, judge=version))
            return
        await self.attempt.record(found.event(at=time.time(), version=version))

    async def _call_scorer(self, ctx: Context | None, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        result = await self.call_as_operator(ctx, name, arguments)
        if result.get("resultType", "complete") != "complete":
            raise CallFailed("it needs user input, which a scorer does not get", answered=True)
        return ToolResult(
            content=tuple(result.get("content", ())),
            structured=result.get("structuredContent"),
            is_error=result.get("isError") is True,
        )


def readable(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """A receipt with a readable time."""
    return {key: iso(value) if key == "submitted_at" else value for key, value in receipt.items()}


def refusal(error: PursuitError) -> dict[str, Any]:
    """An error as a tool's result: its code, its reason, and the receipt of the first submission."""
    words = f"{error.code}: {error.message}"
    if isinstance(error, ValidationFailed):
        words += "".join(f"\n- {fault}" for fault in error.faults)
    receipt = error.details.get("receipt")
    if receipt is not None:
        words += f"\nreceipt: {json.dumps(readable(receipt))}"
    return tool_error(words, unknown=error.details.get("outcome") == "unknown")


def comes_back(params: Mapping[str, Any]) -> bool:
    """True if a request is another round trip of a call: it has answers, a state, or both."""
    return any(key in params for key in ROUND_TRIP_KEYS)


class PendingWatcher:
    """Watches calls that the problem's server still processes while their client is asked.

    Invariant: no call outlives the time of its attempt or the client's session; `settle` is called once for each.
    """

    def __init__(self, attempt: Attempt, tasks: anyio.abc.TaskGroup) -> None:
        self._attempt = attempt
        self._tasks = tasks
        self._calls: set[PendingWork] = set()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for call in tuple(self._calls):
            call.cancel()

    def watch(self, call: PendingWork, settle: Settle) -> None:
        """Watches a call until it ends, even if the client retries in the meantime."""
        if call not in self._calls:
            self._calls.add(call)
            self._tasks.start_soon(self._watch, call, settle)

    async def _watch(self, call: PendingWork, settle: Settle) -> None:
        late = False
        try:
            if self._closed:
                call.cancel()
            left = self._attempt.seconds_left()
            with anyio.move_on_after(None if left is None else left + GRACE) as limit:
                await call.over.wait()
            if limit.cancelled_caught:
                late = True
                call.cancel()
                await call.over.wait()
        finally:
            call.cancel()
            with anyio.CancelScope(shield=True):
                try:
                    await settle(late)
                except PursuitError as error:  # without the ledger, the next process that opens the attempt settles it
                    event(_log, logging.ERROR, "not settled", attempt=self._attempt.attempt_id, why=error.message)
            self._calls.discard(call)


@dataclass(slots=True, eq=False, kw_only=True)
class _PendingSubmission:
    """A submission at the server while its client is asked; `state` is the state that the client returns."""

    call: GatewayCall
    digest: str
    work: PendingWork
    state: object
    settled: anyio.Event = field(default_factory=anyio.Event)
    error: PursuitError | None = None

    def continues(self, call: GatewayCall) -> bool:
        """True if a call is its next round trip; any other call would be a second submission."""
        return call.params.get("requestState") == self.state and self.call.arguments == call.arguments

    async def check(self) -> None:
        """Waits until it is settled; raises the error for its client, if any."""
        await self.settled.wait()
        if self.error is not None:
            raise self.error


def _asks(outcome: object) -> bool:
    return as_object(outcome).get("resultType", "complete") != "complete"


def _fate(outcome: Outcome, *, sent: bool, late: bool) -> tuple[Fate, str]:
    """The fate of a submission, and the reason; `sent` is true if the server may have seen it."""
    match outcome:
        case dict() if not _asks(outcome) and not outcome.get("isError"):
            return "taken", ""
        case CallFailed(outcome="unknown"):
            return "lost", DIED
        case LedgerUnavailable() if sent:
            return "lost", BROKE
        case CallFailed() | UpstreamUnavailable():
            return "unsent", UNSENT
        case None if sent:
            return "lost", LATE if late else CANCELLED
        case None:
            return "unsent", LATE if late else UNSENT
        case dict() if sent and _asks(outcome):
            return "asked", "its server asked for input"
        case dict():
            return "refused" if sent else "unsent", REFUSED if sent else UNSENT
        case MCPError() | PursuitError() | UpstreamError() if sent:
            return "refused", str(outcome) or REFUSED
        case _:
            return ("lost", BROKE) if sent else ("unsent", str(outcome) or UNSENT)
