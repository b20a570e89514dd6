"""The one submission of an attempt: taken, stored, judged.

Owns: the order of these steps for our own `submit_final`, how what was taken is judged whoever took it, and what an
agent reads of that. Does not know: lists or briefs, or the upstream's own `submit_final`. Invariant: what is judged is
in the ledger first; what an agent is told of its score is what the manifest allows, and of a judge that failed nothing
at all, nor is the agent asked or told anything while it judges.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from pursuit.core.attempts import AttemptScored, AttemptState
from pursuit.core.report import iso
from pursuit.core.tools import OUTCOME_META_KEY, CallFailed, ToolResult
from pursuit.errors import PursuitError, ValidationFailed
from pursuit.problems.attempts import GONE, Attempt
from pursuit.problems.manifest import Manifest
from pursuit.problems.scoring import (
    CallTool,
    CannotScore,
    Expressions,
    Submitted,
    checked_submission,
    judge,
    scored_event,
)
from pursuit.problems.secrecy import judging_digest
from pursuit.server.errors import Context, sendable
from pursuit.server.logs import event

_log = logging.getLogger(__name__)

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
            await self.judged(ctx).wait()
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

    def judged(self, ctx: Context | None) -> anyio.Event:
        """Has what was taken judged, where the calls of this client went; the event is its end."""
        return self._judging(self._calling(ctx))

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
        raise CallFailed("it asks something first, and nobody is asked while it judges", answered=True)
    return ToolResult(
        content=tuple(result.get("content", ())),
        structured=result.get("structuredContent"),
        is_error=result.get("isError") is True,
    )


def _is_unsettled(state: AttemptState) -> bool:
    if state.taken is None:
        return state.claimed is not None
    return state.scored is None or state.scored.error is not None


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
    result: dict[str, Any] = {"content": [{"type": "text", "text": sendable(words)}], "isError": True}
    if error.details.get("outcome") == "unknown":
        result["_meta"] = {OUTCOME_META_KEY: "unknown"}
    return result
