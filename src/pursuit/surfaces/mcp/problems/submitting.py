"""The one submission of an attempt: taken, stored, judged.

Owns: the order of these steps, for our own `submit_final` and for the upstream's, and what an agent reads of them. Does
not know: lists or briefs. Invariant: what is judged is in the ledger first; what an agent is told of its score is what
the manifest allows, and of a judge that failed nothing at all.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import anyio
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError

from pursuit.errors import PursuitError, ValidationFailed
from pursuit.model.problems import AttemptScored, AttemptState
from pursuit.model.report import iso
from pursuit.problems.attempts import Attempt
from pursuit.problems.manifest import Manifest
from pursuit.problems.rows import CannotScore
from pursuit.problems.scoring import CallTool, Expressions, Judged, Submitted, judge
from pursuit.problems.submission import checked_submission
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.failure import Context, sendable
from pursuit.tools.contract import CallFailed, ToolResult

_log = logging.getLogger(__name__)


class Submitting:
    """Takes submissions for one attempt; `inner` is the gateway, over which the upstream is asked."""

    def __init__(self, problem: Manifest, attempt: Attempt, inner: CallNext, expressions: Expressions) -> None:
        self._problem = problem
        self._attempt = attempt
        self._inner = inner
        self._expressions = expressions

    async def own(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Our own `submit_final`; raises `ValidationFailed`, `AlreadySubmitted`, `BudgetExhausted`."""
        state = await self._attempt.open()
        if state.taken is None:
            arguments = checked_submission(self._problem, arguments)
        # Once it is taken it is judged, whether its client waits for that or not.
        with anyio.CancelScope(shield=True):
            await self._attempt.submit(arguments)
            state = await self._judged(ctx, Submitted(submission=arguments))
        body: dict[str, Any] = {"receipt": readable(state.receipt or {})}
        if self._problem.visibility.score and state.scored is not None and state.scored.error is None:
            body["score"] = list(msgspec.to_builtins(state.scored.rows))
            body["solved"] = state.scored.solved
        return {
            "content": [{"type": "text", "text": json.dumps(body, ensure_ascii=False)}],
            "structuredContent": body,
            "isError": False,
        }

    async def upstream(self, ctx: Context, final: str, arguments: Mapping[str, Any]) -> HandlerResult:
        """The upstream's own `submit_final`: its answer is the agent's, untouched."""
        digest = await self._attempt.claim(arguments)
        # Cancelled here, nobody knows what became of it: the place stays taken, and nothing is handed in twice.
        try:
            result = cast("Mapping[str, Any]", await self._inner(_asked(ctx, final, arguments)))
        except MCPError as error:
            await self._attempt.drop(digest, error.message)
            raise
        why = _objection(result)
        if why:
            await self._attempt.drop(digest, why)
            return dict(result)
        with anyio.CancelScope(shield=True):
            await self._attempt.submit(arguments, result=result, claimed=digest)
            await self._judged(ctx, Submitted(submission=arguments, result=result))
        return dict(result)

    async def _judged(self, ctx: Context, submitted: Submitted) -> AttemptState:
        try:
            found = await judge(self._problem, submitted, expressions=self._expressions, call=self._calling(ctx))
        except CannotScore as error:
            event(_log, logging.ERROR, "not scored", attempt=self._attempt.attempt_id, why=str(error))
            return await self._attempt.scored(AttemptScored(at=time.time(), error=str(error)))
        return await self._attempt.scored(scored_event(found, at=time.time()))

    def _calling(self, ctx: Context) -> CallTool:
        """How the judge calls a tool: as the same client, so that the upstream knows whose work it is."""

        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            try:
                result = cast("Mapping[str, Any]", await self._inner(_asked(ctx, name, arguments)))
            except MCPError as error:
                raise CallFailed(error.message) from None
            return ToolResult(
                content=tuple(result.get("content", ())),
                structured=result.get("structuredContent"),
                is_error=result.get("isError") is True,
            )

        return call


def scored_event(found: Judged, *, at: float) -> AttemptScored:
    """The judge's word as a fact."""
    return AttemptScored(at=at, rows=found.score.rows, solved=found.score.solved, evidence=found.evidence)


def _objection(result: Mapping[str, Any]) -> str:
    """Why a result of the upstream is no submission; empty if it is one."""
    if result.get("resultType", "complete") != "complete":
        return "the server asked something first"
    if result.get("isError"):
        return "the server refused it"
    return ""


def _asked(ctx: Context, name: str, arguments: Mapping[str, Any]) -> Context:
    """The same request, for another tool and without what makes it a task."""
    kept = {key: value for key, value in (ctx.params or {}).items() if key != "task"}
    return replace(ctx, params={**kept, "name": name, "arguments": dict(arguments)})


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
