"""The one submission of an attempt: taken, stored, judged.

Owns: the order of these steps, for our own `submit_final` and for the upstream's, and what an agent reads of them. Does
not know: lists or briefs. Invariant: what is judged is in the ledger first; a submission that may have reached the
upstream is never followed by another one; what an agent is told of its score is what the manifest allows, and of a
judge that failed nothing at all, nor is the agent asked or told anything while it judges.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from mcp.shared.exceptions import MCPError

from pursuit.errors import AlreadySubmitted, LedgerUnavailable, PursuitError, UpstreamUnavailable, ValidationFailed
from pursuit.model.problems import AttemptScored, AttemptState
from pursuit.model.report import iso
from pursuit.problems.attempts import GONE, Attempt
from pursuit.problems.manifest import Manifest
from pursuit.problems.rows import CannotScore
from pursuit.problems.scoring import CallTool, Expressions, Submitted, judge, scored_event
from pursuit.problems.submission import checked_submission, kept_result, kept_submission
from pursuit.problems.versions import judging_digest
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.failure import Context, sendable, wire_error
from pursuit.surfaces.mcp.gateway.calls import failures
from pursuit.surfaces.mcp.gateway.guests import Visit
from pursuit.tools.contract import CallFailed, ToolResult

CUT_OFF = "its client cut it off before the server answered"
BROKE = "the server's answer could not be kept"
DIED = "the server went away before it answered"
LATE = "the time was over before the server answered"
PATIENCE = 30.0
"""Seconds for which a submission waits for the one before."""

LOOK_EVERY = 0.05
_log = logging.getLogger(__name__)

Answer = Callable[[Visit], Awaitable[dict[str, Any]]]
"""How the gateway makes a call."""

Aside = Callable[[Context | None, str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Calls a tool for the operator: where the calls of a client go, or at a server of its own if there is no client."""


class Submitting:
    """Takes submissions for one attempt.

    A tool that judges is asked `aside`: its agent neither sees that nor has a say in it. What was taken is judged in
    `tasks`, whether its client waits for that or not.
    """

    def __init__(
        self,
        problem: Manifest,
        attempt: Attempt,
        *,
        aside: Aside,
        expressions: Expressions,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._problem = problem
        self._attempt = attempt
        self._aside = aside
        self._expressions = expressions
        self._tasks = tasks
        self._under_way: anyio.Event | None = None
        self._left = False

    def leave(self) -> None:
        """From here on nothing is judged any more: who comes next does it."""
        self._left = True

    async def own(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Our own `submit_final`; raises `ValidationFailed`, `AlreadySubmitted`, `BudgetExhausted`."""
        state = await self._attempt.open()
        if state.taken is None:
            arguments = checked_submission(self._problem, arguments)
        async with self._attempt.alone():
            with anyio.CancelScope(shield=True):
                await self._attempt.submit(arguments)
            await self._judging(self._calling(ctx)).wait()
        state = await self._attempt.refresh() or state
        body: dict[str, Any] = {"receipt": readable(state.receipt or {})}
        if self._problem.visibility.score and state.scored is not None and state.scored.error is None:
            body["score"] = list(msgspec.to_builtins(state.scored.rows))
            body["solved"] = state.scored.solved
        return {
            "content": [{"type": "text", "text": json.dumps(body, ensure_ascii=False)}],
            "structuredContent": body,
            "isError": False,
        }

    async def upstream(self, visit: Visit, answer: Answer, final: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The upstream's own `submit_final`: its answer is the agent's, untouched.

        Raises what `own` raises, and `UpstreamUnavailable` if nobody knows whether it was taken.
        """
        arguments, ctx = kept_submission(arguments), visit.ctx
        visit.params = _asked(visit.params, final, arguments)
        async with self._in_turn() as alone:
            if not alone:
                await self._attempt.refuse_second()
                raise AlreadySubmitted(_under_way(await self._attempt.refresh()))
            await self._attempt.open()  # which refuses an attempt at another problem
            if await self._attempt.give_up(GONE):
                await self._judging(self._calling(ctx)).wait()
            digest = await self._attempt.claim(arguments)
            try:
                return await self._handed_over(visit, answer, arguments, digest)
            except (MCPError, PursuitError):
                raise
            except BaseException as error:  # cancelled, or what nobody foresaw: it may have been taken
                with anyio.CancelScope(shield=True):
                    cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                    await self._attempt.give_up(CUT_OFF if cancelled else BROKE)
                    self._judging(self._calling(ctx))
                raise

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

    async def _handed_over(self, visit: Visit, answer: Answer, given: Mapping[str, Any], digest: str) -> dict[str, Any]:
        """Asks the upstream, whose place is kept; afterwards it is taken, given back, or lost."""
        result: dict[str, Any] | None = None
        ctx = visit.ctx
        try:
            with anyio.move_on_after(self._attempt.seconds_left()), failures() as failed:
                result = await answer(visit)
        except LedgerUnavailable as error:  # before it was sent, or after
            raise wire_error(error) from error
        except (MCPError, PursuitError) as error:
            await self._drop(digest, error.message)
            raise
        if result is None:
            state = await self._lost(ctx, LATE)
            over = await self._attempt.overran()
            over.details["receipt"] = state.receipt
            raise over
        if any(isinstance(one, CallFailed) and one.sent for one in failed):
            event(_log, logging.ERROR, "a submission without an answer", why="; ".join(map(str, failed)))
            state = await self._lost(ctx, DIED)
            said = f"{DIED}: nobody knows whether it took the submission, and nobody can submit again in this attempt"
            raise UpstreamUnavailable(said, receipt=state.receipt)
        why = _objection(result)
        if why:
            await self._drop(digest, why)
            return result
        with anyio.CancelScope(shield=True):
            await self._attempt.submit(given, result=kept_result(result), claimed=digest)
        await self._judging(self._calling(ctx)).wait()
        return result

    async def _drop(self, digest: str, why: str) -> None:
        """The upstream refused it, whoever leaves meanwhile."""
        with anyio.CancelScope(shield=True):
            await self._attempt.drop(digest, kept_result(why))

    async def _lost(self, ctx: Context, why: str) -> AttemptState:
        """Nobody knows what became of it: it is the submission, and is judged as far as that goes."""
        state = await self._attempt.give_up(why) or await self._attempt.open()
        await self._judging(self._calling(ctx)).wait()
        return state

    def _judging(self, call: CallTool, *, again: bool = False) -> anyio.Event:
        """Judges what was taken, once at a time and apart from whoever waits for that; the event is its end."""
        if self._under_way is not None and not self._under_way.is_set():
            return self._under_way
        self._under_way = done = anyio.Event()
        if self._left:
            done.set()
            return done

        async def work() -> None:
            try:
                await self._settled(call, again=again)
            except Exception as error:  # noqa: BLE001 - it ends neither the server nor others; the next opening judges
                event(_log, logging.ERROR, "not judged", attempt=self._attempt.attempt_id, why=str(error))
            finally:
                done.set()

        self._tasks.start_soon(work)
        return done

    async def catch_up(self) -> None:
        """Finishes what an earlier process began and did not end, unless another one is at it.

        A judge that failed is asked once more.
        """
        state = await self._attempt.refresh()
        if state is None or not self._attempt.fits(state) or not _is_unsettled(state):
            return
        async with self._attempt.alone() as alone:
            if alone:
                with suppress(PursuitError):  # somebody else was faster, or the ledger is not to be had
                    await self._attempt.give_up(GONE)
                await self._judging(self._calling(None), again=True).wait()

    async def _settled(self, call: CallTool, *, again: bool = False) -> None:
        """Judges what was taken and is not judged; with `again` also where the judge failed before."""
        await self._attempt.open()  # which refuses an attempt at another problem
        state = await self._attempt.refresh()
        if state is None or state.taken is None:
            return
        if state.scored is None or (again and state.scored.error is not None):
            failed = None if state.scored is None else state.scored.error
            await self._judged(Submitted.of(state.taken), call, failed)

    async def _judged(self, submitted: Submitted, call: CallTool, failed: str | None) -> None:
        """Asks the judge and writes what it says; `failed` is why it could not before, which is not written twice."""
        version = await anyio.to_thread.run_sync(judging_digest, self._problem)
        try:
            found = await judge(self._problem, submitted, expressions=self._expressions, call=call)
        except CannotScore as error:
            why = str(error).encode(errors="replace").decode()
            self._log_failure(why)
            if why != failed:
                await self._attempt.scored(AttemptScored(at=time.time(), error=why, judge=version))
            return
        await self._attempt.scored(scored_event(found, at=time.time(), version=version))

    def _log_failure(self, why: str) -> None:
        """Says that the judge failed; why is in the ledger, as whoever started this process may show agents its log."""
        attempt = self._attempt.attempt_id
        told = f"`pursuit problem compare {self._problem.problem_id} --json` says why"
        event(_log, logging.ERROR, "not scored", attempt=attempt, told=told)
        event(_log, logging.DEBUG, "the judge failed", attempt=attempt, why=why)

    def _calling(self, ctx: Context | None) -> CallTool:
        """How the judge calls a tool: where the client's calls went, as what is judged may be there."""
        return partial(_called, self._aside, ctx)


async def _called(aside: Aside, ctx: Context | None, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    result = await aside(ctx, name, arguments)
    if result.get("resultType", "complete") != "complete":
        raise CallFailed("it asks something first, and nobody is asked while it judges")
    return ToolResult(
        content=tuple(result.get("content", ())),
        structured=result.get("structuredContent"),
        is_error=result.get("isError") is True,
    )


def _is_unsettled(state: AttemptState) -> bool:
    if state.taken is None:
        return state.claimed is not None
    return state.scored is None or state.scored.error is not None


def _under_way(state: AttemptState | None) -> str:
    """What somebody is told who has waited long enough for the submission before."""
    claimed = None if state is None else state.claimed
    which = "" if claimed is None else f" (sha256 {claimed.digest[:12]}…)"
    return f"another submission of this attempt{which} is under way; ask again later, and its receipt is the answer"


def _objection(result: Mapping[str, Any]) -> str:
    """Why a result of the upstream is no submission; empty if it is one."""
    if result.get("resultType", "complete") != "complete":
        return "the server asked something first"
    if result.get("isError"):
        return "the server refused it"
    return ""


def _asked(params: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for another tool."""
    return {**params, "name": name, "arguments": dict(arguments)}


def readable(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """A receipt with a time that people read."""
    return {key: iso(value) if key == "submitted_at" else value for key, value in receipt.items()}


def refusal(error: PursuitError) -> dict[str, Any]:
    """A refusal as a tool's answer: what a model reads says the code, why, and the receipt of the first submission."""
    words = f"{error.code}: {error.message}"
    if isinstance(error, ValidationFailed):
        words += "".join(f"\n- {fault}" for fault in error.faults)
    receipt = error.details.get("receipt")
    if receipt is not None:
        words += f"\nreceipt: {json.dumps(readable(receipt))}"
    return {"content": [{"type": "text", "text": sendable(words)}], "isError": True}
