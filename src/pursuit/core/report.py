"""The status of a mission for people and programs: its criteria, its budget, the reason for a wait. Pure.

`Status` is built only from the state. The parts that it shares with reports are here, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import msgspec

from pursuit.core import pick
from pursuit.core.approvals import Approval
from pursuit.core.audit import redacted
from pursuit.core.best import BestPoint
from pursuit.core.budgets import budget_use
from pursuit.core.caps import BY_REASON, BudgetUse
from pursuit.core.criteria import describe
from pursuit.core.events import CompletionOrdered, CriterionResult, Outcome, Source
from pursuit.core.fold import EXTENDABLE
from pursuit.core.history import Shown, iso
from pursuit.core.observe import text_of, value_of
from pursuit.core.state import MissionState

TAIL_LINES, MAX_LINE = 20, 300


class CriterionRow(Shown, frozen=True, kw_only=True):
    criterion_id: str
    kind: str
    required: bool
    status: str
    """`met`, `unmet` or `inconclusive`."""
    description: str
    evidence: Any
    source: Source | None
    """The call that gave the value."""


class ApprovalRow(Shown, frozen=True, kw_only=True):
    """A question to a person about a call, without secrets, and the answer once there is one."""

    approval_id: str
    mission_id: str | None = msgspec.field(name="session_id", default=None)
    """The mission or the gateway that asks."""
    iteration: int | None = None
    tool: str
    args: Any
    description: str | None = None
    reason: str
    asked_at: str | None
    expires_at: str | None = None
    required: int = 1
    """The number of people who must approve."""
    approved_by: list[str] | None = None
    cut: bool = False
    """True if the description does not show the full arguments."""
    masked: bool | None = None
    expired: bool = False
    answer: str | None = None
    by: str | None = None
    answered_at: str | None = None
    channel: str | None = None
    why: str | None = None

    @classmethod
    def of(cls, asked: Approval, stream: str | None = None, now: float | None = None) -> Self:
        return cls(
            approval_id=asked.approval_id,
            mission_id=stream or asked.stream,
            tool=asked.tool,
            args=redacted(asked.args) if asked.masked is None and asked.whole is None else asked.args,
            description=asked.description,
            reason=asked.reason,
            asked_at=iso(asked.asked_at),
            expires_at=iso(asked.until),
            required=asked.require,
            approved_by=asked.approved_by if asked.require > 1 else None,
            cut=asked.cut,
            masked=asked.masked,
            expired=now is not None and not asked.is_open(now),
        )


class ChildRow(Shown, frozen=True, kw_only=True):
    """A child with the amounts reserved for it and used by it; the latter are unknown while it runs."""

    mission_id: str = msgspec.field(name="session_id")
    outcome: str | None
    reserved: dict[str, float]
    used: dict[str, float] | None
    status: str | None = None
    directive: str | None = None


class WorkspaceTurn(Shown, frozen=True, kw_only=True):
    iteration: int
    outcome: Outcome | None
    before: str
    after: str
    files: int = 0
    protected: list[str] = []  # noqa: RUF012 - msgspec copies it
    diff: str | None = None


class WorkspaceRow(Shown, frozen=True, kw_only=True):
    """The workspace of an agent's mission, and the changes of its latest turns."""

    path: str | None
    in_place: bool
    turns: list[WorkspaceTurn]
    protected_turns: int
    """The number of turns that changed protected files; these changes do not count."""
    agents: list[pick.PickedAgent] | None = None
    branch: str | None = None
    """The branch of the result."""
    isolation: list[str] | None = None
    """The paths and hosts that the agent can write, read and reach; one line if nothing limits it."""

    @classmethod
    def of(cls, mission_id: str, state: MissionState) -> Self | None:
        workspace = state.mission.workspace
        if workspace is None:
            return None
        iterations = [*state.recent, *([state.open] if state.open is not None else [])]
        turns = [
            WorkspaceTurn(iteration=one.index, outcome=call.outcome, **msgspec.structs.asdict(call.change))
            for one in iterations
            for call in one.calls.values()
            if call.change is not None
        ]
        agents, result = None, mission_id if state.status == "completed" else None
        if state.mission.picks:
            won, agents = pick.winner(state), pick.agents(state)
            result = None if won is None else won[1].session_id
        return cls(
            path=workspace.path,
            in_place=workspace.in_place,
            turns=turns,
            protected_turns=state.protected_turns,
            agents=agents,
            branch=None if result is None else f"pursuit/{result}",
            isolation=None if state.isolation is None else state.isolation.splitlines(),
        )


class ModelUse(Shown, frozen=True, kw_only=True):
    """Usage of a language model beyond the budget's sums; `estimated_tokens` are those of unanswered requests."""

    name: str | None
    cached_tokens: int
    requests_kept: int
    estimated_tokens: int = 0


class ClientCompletion(Shown, frozen=True, kw_only=True):
    """The client that marked a mission completed, and the required criteria that were not met."""

    by: str
    unmet: list[str]


class Status(Shown, frozen=True, kw_only=True):
    """Everything about a mission except its history. Times are in ISO 8601; None or empty if a field does not apply."""

    mission_id: str = msgspec.field(name="session_id")
    status: str
    """`interrupted` if no live process drives a run that was cut short, else what the ledger says."""
    directive: str
    criteria: list[CriterionRow]
    budget: BudgetUse
    tool_allowlist: list[str]
    proposer: str
    iteration_count: int
    no_progress_counter: int
    metrics: dict[str, Any]
    best: dict[str, float]
    """The best value of each threshold among the calls that keep all limits."""
    pending_approvals: list[ApprovalRow]
    created_at: str | None
    warnings: list[str]
    waiting_for: str | None = None
    waiting_detail: str | None = None
    waiting_until: str | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    rationale: str | None = None
    """The rationale of the last verdict."""
    started_at: str | None = None
    ended_at: str | None = None
    failure: str | None = None
    paused_reason: str | None = None
    report: str | None = None
    """The address of the final report."""
    parent: str | None = None
    children: list[ChildRow] = []  # noqa: RUF012 - msgspec copies it
    notes: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Notes of the model."""
    model: ModelUse | None = None
    best_point: BestPoint | None = None
    mode: str | None = None
    completed_by_client: ClientCompletion | None = None
    workspace: WorkspaceRow | None = None
    next: str | None = None
    """The command that continues a mission whose run reached its goal."""
    resume: str | None = None
    """The command that continues an interrupted mission."""
    placement: str | None = None
    """Why no worker drives it."""

    @classmethod
    def of(cls, mission_id: str, state: MissionState, seconds: float | None = None, now: float | None = None) -> Self:
        best = {one.criterion_id: state.best_points.of(one.criterion_id) for one in state.thresholds}
        model = None
        if (talk := state.conversation).began is not None:
            model = ModelUse(
                name=talk.asked_of,
                cached_tokens=talk.cached_tokens,
                requests_kept=len(talk.exchanges),
                estimated_tokens=talk.estimated_tokens,
            )
        return cls(
            mission_id=mission_id,
            status=state.status,
            directive=state.mission.directive,
            criteria=criteria_rows(state),
            budget=budget_use(state, seconds),
            tool_allowlist=list(state.tools),
            proposer=state.mission.proposer.kind,
            iteration_count=state.iteration_count,
            no_progress_counter=state.no_progress,
            metrics=state.metrics,
            best={name: one.point.value for name, one in best.items() if one and one.point},
            pending_approvals=[ApprovalRow.of(one, mission_id, now) for one in state.approvals.open()],
            created_at=iso(state.created_at),
            warnings=list(state.warnings),
            waiting_for=state.waiting_for,
            waiting_detail=state.wait_detail,
            waiting_until=iso(state.wait_until),
            verdict=state.verdict,
            verdict_reason=state.verdict_reason,
            rationale=None if state.last_ended is None else state.last_ended.rationale,
            started_at=iso(state.started_at),
            ended_at=iso(state.ended_at),
            failure=None if state.failure is None else state.failure.error,
            paused_reason=state.paused_why if state.status == "paused" else None,
            report=None if state.report is None else f"mission://{mission_id}/report",
            parent=state.parent,
            children=children_rows(state),
            notes=state.conversation.notes,
            model=model,
            best_point=BestPoint.of(state.best_points.best()),
            mode=state.mode,
            completed_by_client=client_completion(state),
            workspace=WorkspaceRow.of(mission_id, state),
        )


def criteria_rows(state: MissionState) -> list[CriterionRow]:
    unknown = CriterionResult(criterion_id="", status="inconclusive", evidence={"reason": "not evaluated yet"})
    return [
        CriterionRow(
            criterion_id=criterion.criterion_id,
            kind=criterion.kind,
            required=criterion.required,
            status=result.status,
            description=describe(criterion),
            evidence=result.evidence,
            source=result.source,
        )
        for criterion in state.mission.criteria
        for result in [state.results.get(criterion.criterion_id, unknown)]
    ]


def children_rows(state: MissionState) -> list[ChildRow]:
    return [
        ChildRow(mission_id=child.session_id, outcome=child.outcome, reserved=child.reserved, used=child.used)
        for child in state.children.values()
    ]


def client_completion(state: MissionState) -> ClientCompletion | None:
    """The client that marked the mission completed, with its reason; None if no client did."""
    if not isinstance(state.stop, CompletionOrdered) or not state.stop.client:
        return None
    required = [criterion.criterion_id for criterion in state.mission.criteria if criterion.required]
    met = {name for name, result in state.results.items() if result.status == "met"}
    return ClientCompletion(by=state.stop.by, unmet=[name for name in required if name not in met])


def way_on(
    mission_id: str,
    *,
    reason: str | None,
    parent: str | None,
    origin: str | None = None,
    say: Callable[..., str] = lambda *words: shlex.join(("pursuit", *words)),
) -> str:
    """A sentence with the commands that continue or repeat a mission that ended for this reason."""
    if parent is not None:
        return f"its parent {parent} can start another child"
    if reason in EXTENDABLE:
        cap = BY_REASON.get(reason or "")
        extend = say("extend", mission_id, "--max-iterations" if cap is None else cap.option, "N")
        return f"raise its cap with: {extend}, then: {say('resume', mission_id)}"
    if reason == "no_progress":
        return f"continue it with: {say('resume', mission_id)}"
    if origin is not None:
        return f"start it again with: {say('run', origin)}"
    return "the mission has ended; start a new one"


def exit_code_of(result: Mapping[str, Any] | None) -> int | None:
    value = value_of(result)
    code = cast("Mapping[str, Any]", value).get("exit_code") if isinstance(value, Mapping) else None
    return code if isinstance(code, int) else None


def output_tail(result: Mapping[str, Any] | None, *, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a command's output, or of the text in a tool's result."""
    if result is None:
        return []
    value = value_of(result)
    texts = [text_of(result)]
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        streams = [found.get("stdout"), found.get("stderr")]
        printed_to = "output_tail" if found.get("output_tail") else "stderr_tail"
        tails = [cast("list[str]", found.get(key) or []) for key in ("failure_lines", printed_to)]
        printed = [text for text in streams if isinstance(text, str)] + ["\n".join(tail) for tail in tails]
        texts = [text for text in printed if text.strip()] or texts
    found = [line[:MAX_LINE] for text in texts for line in text.rstrip().splitlines()]
    return found[-lines:]
