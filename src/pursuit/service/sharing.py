"""Everything about one mission, for a file that is handed on: the report, and each iteration with its calls whole.

The stream is read once. Arguments that are named like a secret are masked, as on the command line.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from pursuit.core.audit import masked
from pursuit.core.events import ApprovalExpired, CallRefused
from pursuit.core.history import CallRow, History, IterationRow
from pursuit.core.report import iso
from pursuit.service.service import Service

LARGEST_BLOB = 1 << 20
"""Bytes of one stored result or diff that are written into the file; of a larger one, its beginning."""
MOST_BLOBS = 32 << 20
"""The same for all of them together."""


async def everything(service: Service, mission_id: str) -> dict[str, Any]:
    """The `report` of a mission, and its `iterations` with everything that was recorded of their calls."""
    report = await service.report(mission_id)
    history = History.read(await service.ledger.read(mission_id))
    left = MOST_BLOBS
    iterations: list[dict[str, Any]] = []
    for one in history.iterations.values():
        row = _iteration_row(one)
        for call, shown in zip(one.calls.values(), row["calls"], strict=True):
            for key, digest in _blobs(call):
                if left > 0 and (body := await service.ledger.blob(digest)) is not None:
                    left -= len(body)
                    shown[key] = _shown(body, parse=key == "result")
        iterations.append(row)
    return {"report": report, "iterations": iterations}


def _shown(body: bytes, *, parse: bool) -> Any:
    if parse:
        with suppress(msgspec.DecodeError):
            value = masked(msgspec.json.decode(body))
            if len(body) <= LARGEST_BLOB:
                return value
            body = msgspec.json.encode(value)
    cut = f"\n… {len(body) - LARGEST_BLOB:,} bytes more" if len(body) > LARGEST_BLOB else ""
    return body[:LARGEST_BLOB].decode(errors="replace") + cut


def _blobs(call: CallRow) -> list[tuple[str, str]]:
    """The blobs of a call, each under the key that gets its content."""
    end = call.settled
    diff = None if end is None or end.change is None else end.change.diff
    found = {"result": None if end is None else end.blob, "diff": diff}
    return [(key, digest) for key, digest in found.items() if digest is not None]


def _iteration_row(one: IterationRow) -> dict[str, Any]:
    answers = [turn.answered for turn in one.turns if turn.answered is not None]
    parts = [part for part in (one.proposed, *one.continued) if part is not None]
    row: dict[str, Any] = {
        "iteration_index": one.index,
        "rationales": [part.rationale for part in parts if part.rationale],
        "prompts": [turn.asked.said for turn in one.turns if turn.asked.said],
        "calls": [_call_row(call) for call in one.calls.values()],
        "tokens": sum(answer.tokens for answer in answers),
        "cost_usd": sum(answer.cost_usd or 0.0 for answer in answers),
    }
    row |= {"started_at": iso(parts[0].at)} if parts else {}
    if one.proposed is not None:
        row |= {"proposer": one.proposed.proposer, "script": one.proposed.script, "failed": list(one.proposed.failed)}
    if one.script is not None:
        row |= {"printed": one.script.printed, "script_error": one.script.error}
    if one.ended is not None:
        row |= {"verdict": one.ended.verdict, "verdict_reason": one.ended.reason, "ended_at": iso(one.ended.at)}
        row["criteria"] = [msgspec.to_builtins(result) for result in one.ended.criteria]
    return row


def _call_row(call: CallRow) -> dict[str, Any]:
    row: dict[str, Any] = {"call_id": call.call_id, "tool": call.tool, "args": masked(call.args)}
    row["outcome"] = call.outcome or ("unknown" if call.question is None else "waiting")
    if call.question is not None:
        row["policy"] = f"asked: {call.question.asked.reason}"
        if (end := call.question.end) is not None:
            answer, by, event = end
            late = isinstance(event, ApprovalExpired)
            why = f" ({event.reason})" if not late and event.reason else ""
            row["answer"] = "nobody answered in time" if late else f"{answer} by {by}{why}"
    if call.intended is not None:
        row |= {"purpose": call.intended.purpose, "at": call.intended.at}
    if isinstance(call.end, CallRefused):
        row |= {"purpose": call.end.purpose, "at": call.end.at, "policy": f"refused: {call.end.reason}"}
    elif call.end is not None:
        row |= {"seconds": call.end.seconds, "error": call.end.error, "metrics": call.end.metrics}
        row["result"] = masked(call.end.result) or call.end.preview
    return row
