"""Sends one call and turns whatever happens into its settlement.

Owns: deadlines, progress that extends them, cancellation, large results. Decides nothing about the mission.
Invariant: a call that was sent ends in exactly one settlement, or the process died.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from pursuit.engine.run import Run
from pursuit.model.events import CallSettled, Outcome
from pursuit.model.observe import lift, text_of
from pursuit.model.records import CallRecord
from pursuit.tools.contract import CallFailed, Tool, ToolResult

PREVIEW = 2_000
MOST_ERROR = 4_000


class Settlement(msgspec.Struct, frozen=True):
    """A settlement, with the blob of a result that is too large for it."""

    event: CallSettled
    blobs: dict[str, bytes]


async def perform(run: Run, call: CallRecord, tool: Tool, timeout: float | None = None) -> Settlement:
    """Sends the call and waits; a timeout, a failure and an error result are outcomes, not exceptions."""
    began = run.clock.monotonic()
    limit = run.deadline(timeout or tool.traits.timeout or run.settings.call_timeout)
    try:
        sent = run.tools.call(tool, call.args, call_id=call.call_id, on_progress=limit.progressed)
        answer = sent if isinstance(sent, ToolResult) else await limit.bound(sent)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), seconds=run.clock.monotonic() - began)
    seconds = run.clock.monotonic() - began
    if answer is None:
        return settle(run, call, "timed_out", error=limit.why(), seconds=seconds)
    return settled_as(run, call, answer, seconds=seconds)


def settled_as(
    run: Run, call: CallRecord, answer: ToolResult, *, seconds: float = 0.0, used: Mapping[str, float] | None = None
) -> Settlement:
    """The settlement of a call that was answered, be it with an error."""
    result = answer.as_dict()
    if answer.is_error:
        said = text_of(result) or "the tool reported an error"
        return settle(run, call, "failed", result=result, error=said, seconds=seconds, used=used)
    return settle(run, call, "ok", result=result, seconds=seconds, used=used)


def _storable(value: Any) -> tuple[Any, bytes]:
    """The value as a replay will read it, and its bytes; what JSON cannot hold is shown as text."""
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        body = msgspec.json.encode(_shown(value))
    return msgspec.json.decode(body), body


def _shown(value: Any, depth: int = 50) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping) and depth:
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_shown(str(key)): _shown(item, depth - 1) for key, item in pairs}
    if isinstance(value, list | tuple) and depth:
        return [_shown(item, depth - 1) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    return _shown(repr(cast("object", value)))


def settle(
    run: Run,
    call: CallRecord,
    outcome: Outcome,
    *,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
    seconds: float = 0.0,
    used: Mapping[str, float] | None = None,
) -> Settlement:
    """The settlement of a call, with metrics and events lifted and a large result set aside."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    blob = preview = None
    error = None if error is None else _shown(error)[:MOST_ERROR]
    if result is None:
        full = hashlib.sha256(f"{outcome}:{error}".encode()).hexdigest()
    else:
        answer, body = _storable(result)
        result = answer
        full = hashlib.sha256(body).hexdigest()
        metrics, events = lift(call.tool, answer, run.state.mission.observe)
        if "structuredContent" not in answer:  # what was parsed out of text may hold what JSON cannot
            metrics, events = _storable((metrics, events))[0]
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
        digest=full[:16],
        error=error,
        metrics=metrics,
        events=events,
        seconds=int(seconds * 1e6) / 1e6,
        elapsed=run.elapsed(),
        used=None if used is None else dict(used),
    )
    return Settlement(event, blobs)
