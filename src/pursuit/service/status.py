"""A mission as people and agents see it: one JSON object.

Owns: the shape of a status and of a row in a list. Pure.
"""

from __future__ import annotations

from typing import Any

from pursuit.core.approvals import Approval, pending
from pursuit.core.audit import redacted
from pursuit.core.report import budget_row, children_rows, criteria_rows, iso
from pursuit.core.state import MissionState
from pursuit.ledger.contract import StreamRow


def status_of(mission_id: str, state: MissionState) -> dict[str, Any]:
    """Everything about a mission but its history."""
    optional = {
        "waiting_for": state.waiting_for,
        "waiting_detail": state.wait_detail,
        "waiting_until": iso(state.wait_until),
        "verdict": state.verdict,
        "verdict_reason": state.verdict_reason,
        "rationale": state.last_ended.rationale if state.last_ended is not None else None,
        "started_at": iso(state.started_at),
        "ended_at": iso(state.ended_at),
        "failure": state.failure.error if state.failure is not None else None,
        "report": f"mission://{mission_id}/report" if state.report is not None else None,
        "parent": state.parent,
        "children": children_rows(state) or None,
    }
    return {
        "session_id": mission_id,
        "status": state.status,
        "directive": state.mission.directive,
        "criteria": criteria_rows(state),
        "budget": budget_row(state),
        "tool_allowlist": list(state.tools),
        "proposer": state.mission.proposer.kind,
        "iteration_count": state.iteration_count,
        "no_progress_counter": state.no_progress,
        "metrics": state.metrics,
        "best": {criterion_id: point.value for criterion_id, point in state.best.items()},
        "pending_approvals": [approval_row(mission_id, approval) for approval in pending(state.approvals)],
        "created_at": iso(state.created_at),
        "warnings": list(state.warnings),
        **{key: value for key, value in optional.items() if value is not None},
    }


def approval_row(mission_id: str, approval: Approval) -> dict[str, Any]:
    """A question to a person, as the one who answers sees it."""
    return {
        "approval_id": approval.approval_id,
        "session_id": mission_id,
        "tool": approval.tool,
        "args": redacted(approval.args),
        "description": approval.description,
        "reason": approval.reason,
        "asked_at": iso(approval.asked_at),
        "expires_at": iso(approval.until),
    }


def list_row(row: StreamRow) -> dict[str, Any]:
    """A mission in a list."""
    summary = dict(row.summary)
    answer: dict[str, Any] = {
        "session_id": row.name,
        "status": row.status,
        "created_at": iso(row.created_at),
        "iteration_count": summary.get("iteration_count", 0),
        "directive": summary.get("directive", ""),
    }
    if row.status == "waiting" and "waiting_for" in summary:
        answer["waiting_for"] = summary["waiting_for"]
    if "parent" in summary:
        answer["parent"] = summary["parent"]
    return answer
