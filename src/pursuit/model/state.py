"""A mission's state: everything that a turn needs to know.

Owns: the fields and what can be read off them. Only the fold changes them. Pure data.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pursuit.model.approvals import Approval
from pursuit.model.criteria import MetricThreshold
from pursuit.model.events import (
    AbortOrdered,
    CompletionOrdered,
    CriterionResult,
    IterationEnded,
    MissionFailed,
    ModelAnswered,
    Source,
    Verdict,
    WaitingFor,
)
from pursuit.model.mission import Mission
from pursuit.model.records import Child, Iteration, Remembered
from pursuit.model.series import Events, Metrics, Point

Status = Literal["pending", "running", "waiting", "paused", "failed", "completed", "terminated"]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL = frozenset({"completed", "terminated"})
RECENT = 20


@dataclass(slots=True, kw_only=True)
class MissionState:
    """Everything that a turn needs to know. Only `advance` changes it."""

    mission: Mission
    tools: tuple[str, ...]
    thresholds: tuple[MetricThreshold, ...] = ()
    asks: bool = False
    """Whether it has criteria that the state alone does not decide: predicates and checks."""
    stagnation: int | None = None
    guarded: bool = False
    parameters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    warnings: tuple[str, ...] = ()
    file: str | None = None
    credential: str | None = None
    parent: str | None = None
    operators_own: bool = True
    """Whether the operator wrote it, and not a model."""
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    lent: dict[str, float] = field(default_factory=dict[str, float])
    """What children used of each cap, and what is set aside for those under way."""
    paused_by: str | None = None
    seq: int = 0
    status: Status = "pending"
    waiting_for: WaitingFor | None = None
    wait_detail: str | None = None
    wait_until: float | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    budget: dict[str, float] = field(default_factory=dict[str, float])
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced: bool = False
    """Whether an answer had a price that nobody knows: the budget counts it as nothing, people are not told so."""
    elapsed_before: float = 0.0
    elapsed: float = 0.0
    run: str | None = None
    run_goal: int | None = None
    background: bool = False
    handed_in: dict[str, Any] | None = None
    answers: dict[int, ModelAnswered] = field(default_factory=dict[int, ModelAnswered])
    """What a language model answered for the iteration that is not begun yet, by attempt."""
    asked_of: str | None = None
    unanswered: int = 0
    """How often in a row the same model was asked the question at hand, without an answer."""
    question_size: int = 0
    densest: float | None = None
    """The most tokens in a byte of a question that was answered so far."""
    iteration_count: int = 0
    open: Iteration | None = None
    last: Iteration | None = None
    last_ended: IterationEnded | None = None
    recent: deque[Iteration] = field(default_factory=lambda: deque[Iteration](maxlen=RECENT))
    results: dict[str, CriterionResult] = field(default_factory=dict[str, CriterionResult])
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    metric_order: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    claimed: dict[str, Any] = field(default_factory=dict[str, Any])
    series: Metrics = field(default_factory=Metrics)
    events: Events = field(default_factory=Events)
    succeeded: dict[str, int] = field(default_factory=dict[str, int])
    last_success: dict[str, Source] = field(default_factory=dict[str, Source])
    best: dict[str, Point] = field(default_factory=dict[str, Point])
    checkpoint_best: dict[str, float] = field(default_factory=dict[str, float])
    checkpoints: int = 0
    checkpoint_at: float | None = None
    no_progress: int = 0
    unchanged: int = 0
    news: bool = False
    proposer_failures: int = 0
    sequences: deque[str] = field(default_factory=lambda: deque[str](maxlen=3))
    outputs_seen: Remembered = field(default_factory=Remembered)
    errors_seen: Remembered = field(default_factory=Remembered)
    results_seen: Remembered = field(default_factory=Remembered)
    guard_key: str = ""
    guard_count: int = 0
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    approvals: dict[str, Approval] = field(default_factory=dict[str, Approval])
    granted: set[str] = field(default_factory=set[str])
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    stop: AbortOrdered | CompletionOrdered | None = None
    failure: MissionFailed | None = None
    closed: bool = False
    report: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL

    @property
    def stopped(self) -> bool:
        """Whether the operator's word says not to go on now."""
        return self.stop is not None or self.status == "paused"

    @property
    def wall_clock(self) -> float:
        """Seconds that drivers have held the mission."""
        return self.elapsed_before + self.elapsed

    def cap(self, name: str) -> float | None:
        """A cap in force, or None."""
        value = self.budget[name]
        return None if value == -1 else value
