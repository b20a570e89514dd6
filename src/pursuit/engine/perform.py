"""Sends one call and turns whatever happens into its settlement.

Owns: deadlines, progress that extends them, cancellation, large results. Decides nothing about the mission.
Invariant: a call that was sent ends in exactly one settlement, or the process died.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pursuit.engine.run import Run
from pursuit.model.events import CallSettled, Outcome
from pursuit.model.observe import lift, text_of
from pursuit.model.records import CallRecord
from pursuit.tools.contract import CallFailed, Tool

PREVIEW = 2_000


class Settlement(NamedTuple):
    """A settlement, with the blob of a result that is too large for it."""

    event: CallSettled
    blobs: dict[str, bytes]


async def perform(run: Run, call: CallRecord, tool: Tool, timeout: float | None = None) -> Settlement:
    """Sends the call and waits; a timeout, a failure and an error result are outcomes, not exceptions."""
    began = run.clock.monotonic()
    result: Mapping[str, Any] | None = None
    failure = "no result"
    with run.deadline(timeout or tool.traits.timeout or run.settings.call_timeout) as limit:
        try:
            answer = await run.tools.call(tool, call.args, call_id=call.call_id, on_progress=limit.progressed)
            result = answer.as_dict()
        except CallFailed as error:
            failure = str(error)
    seconds = run.clock.monotonic() - began
    if limit.scope.cancelled_caught:
        return settle(run, call, "timed_out", error=limit.why(), seconds=seconds)
    if result is None:
        return settle(run, call, "failed", error=failure, seconds=seconds)
    if result.get("isError"):
        said = text_of(result) or "the tool reported an error"
        return settle(run, call, "failed", result=result, error=said, seconds=seconds)
    return settle(run, call, "ok", result=result, seconds=seconds)


def _storable(result: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """The result and its bytes; what JSON cannot hold is shown as text, so that nothing breaks a save."""
    try:
        return result, msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        shown = repr(result).encode(errors="replace").decode()
        plain = {"content": [{"type": "text", "text": shown}]}
        return plain, msgspec.json.encode(plain)


def settle(
    run: Run,
    call: CallRecord,
    outcome: Outcome,
    *,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
    seconds: float = 0.0,
) -> Settlement:
    """The settlement of a call, with metrics and events lifted and a large result set aside."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    blob = preview = None
    digest = hashlib.sha256(f"{outcome}:{error}".encode()).hexdigest()[:16]
    if result is not None:
        result, body = _storable(result)
        full = hashlib.sha256(body).hexdigest()
        digest = full[:16]
        metrics, events = lift(call.tool, result, run.state.mission.observe)
        if len(body) > run.settings.inline_result:
            blob, preview = full, body[:PREVIEW].decode(errors="replace")
            blobs[full] = body
            result = None
    event = CallSettled(
        at=run.clock.now(),
        call_id=call.call_id,
        iteration=call.iteration,
        outcome=outcome,
        result=result,
        blob=blob,
        preview=preview,
        digest=digest,
        error=error[:4_000] if error is not None else None,
        metrics=metrics,
        events=events,
        seconds=round(seconds, 6),
        elapsed=run.elapsed(),
    )
    return Settlement(event, blobs)
