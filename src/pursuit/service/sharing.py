"""Everything about one mission, for a file that is handed on: the report, and each iteration with its calls whole.

The stream is read once. Arguments that are named like a secret are masked, as on the command line.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from pursuit.core.audit import masked
from pursuit.core.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    ModelAnswered,
    ModelAsked,
    ScriptEnded,
    TurnContinued,
    decode,
)
from pursuit.core.report import iso
from pursuit.service.service import Service

LARGEST_BLOB = 1 << 20
"""Bytes of one stored result or diff that are written into the file; of a larger one, its beginning."""
MOST_BLOBS = 32 << 20
"""The same for all of them together."""


async def everything(service: Service, mission_id: str) -> dict[str, Any]:
    """The `report` of a mission, and its `iterations` with everything that was recorded of their calls."""
    report = await service.report(mission_id)
    gathered = _Gathered()
    for stored in await service.ledger.read(mission_id):
        gathered.add(decode(stored.type, stored.body))
    left = MOST_BLOBS
    for row, key, digest in gathered.blobs:
        if left > 0 and (body := await service.ledger.blob(digest)) is not None:
            left -= len(body)
            row[key] = _shown(body, parse=key == "result")
    return {"report": report, "iterations": list(gathered.iterations.values())}


def _shown(body: bytes, *, parse: bool) -> Any:
    if parse:
        with suppress(msgspec.DecodeError):
            value = masked(msgspec.json.decode(body))
            if len(body) <= LARGEST_BLOB:
                return value
            body = msgspec.json.encode(value)
    cut = f"\n… {len(body) - LARGEST_BLOB:,} bytes more" if len(body) > LARGEST_BLOB else ""
    return body[:LARGEST_BLOB].decode(errors="replace") + cut


class _Gathered:
    """What is found while walking the events once."""

    def __init__(self) -> None:
        self.iterations: dict[int, dict[str, Any]] = {}
        self.blobs: list[tuple[dict[str, Any], str, str]] = []
        """The rows that get the content of a blob, under which key."""
        self._calls: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, dict[str, Any]] = {}

    def add(self, event: AnyEvent) -> None:
        match event:
            case IterationProposed() | TurnContinued():
                row = self._row(event.iteration)
                row.setdefault("started_at", iso(event.at))
                if isinstance(event, IterationProposed):
                    row |= {"proposer": event.proposer, "script": event.script, "failed": list(event.failed)}
                if event.rationale:
                    row["rationales"].append(event.rationale)
            case ModelAsked() if event.said:
                self._row(event.iteration)["prompts"].append(event.said)
            case ModelAnswered():
                row = self._row(event.iteration)
                row["tokens"] += event.tokens
                row["cost_usd"] += event.cost_usd or 0.0
            case CallIntended() | CallRefused() | CallSettled():
                self._add_call(event)
            case ApprovalAsked():
                call = self._call(event.call_id, event.iteration)
                call.setdefault("tool", event.tool)
                call.setdefault("args", masked(event.args))
                call |= {"policy": f"asked: {event.reason}", "outcome": "waiting"}
                self._asked[event.approval_id] = call
            case ApprovalAnswered() if (call := self._asked.get(event.approval_id)) is not None:
                why = f" ({event.reason})" if event.reason else ""
                call["answer"] = f"{event.answer} by {event.by}{why}"
            case ApprovalExpired() if (call := self._asked.get(event.approval_id)) is not None:
                call["answer"] = "nobody answered in time"
            case ScriptEnded():
                row = self._row(event.iteration)
                row |= {"printed": event.printed, "script_error": event.error}
            case IterationEnded():
                row = self._row(event.iteration)
                row |= {"verdict": event.verdict, "verdict_reason": event.reason, "ended_at": iso(event.at)}
                row["criteria"] = [msgspec.to_builtins(result) for result in event.criteria]
            case _:
                pass

    def _add_call(self, event: CallIntended | CallRefused | CallSettled) -> None:
        call = self._call(event.call_id, event.iteration)
        match event:
            case CallIntended():
                call |= {"tool": event.tool, "args": masked(event.args), "purpose": event.purpose}
                call.setdefault("at", event.at)
            case CallRefused():
                call |= {"tool": event.tool, "args": masked(event.args), "purpose": event.purpose}
                call |= {"at": event.at, "outcome": event.outcome, "policy": f"refused: {event.reason}"}
            case CallSettled():
                call |= {"outcome": event.outcome, "seconds": event.seconds, "error": event.error}
                call |= {"metrics": event.metrics, "result": masked(event.result) or event.preview}
                if event.blob is not None:
                    self.blobs.append((call, "result", event.blob))
                if event.change is not None and event.change.diff is not None:
                    self.blobs.append((call, "diff", event.change.diff))

    def _row(self, iteration: int) -> dict[str, Any]:
        empty: dict[str, Any] = {
            "iteration_index": iteration,
            "rationales": [],
            "prompts": [],
            "calls": [],
            "tokens": 0,
            "cost_usd": 0.0,
        }
        return self.iterations.setdefault(iteration, empty)

    def _call(self, call_id: str, iteration: int) -> dict[str, Any]:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = {"call_id": call_id, "outcome": "unknown"}
            self._row(iteration)["calls"].append(call)
        return call
