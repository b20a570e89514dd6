"""An attempt at a problem: its events, its state, the fold between them, and the form of a score. Pure.

Invariant: the first accepted submission counts; later events are recorded and change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import structs

from pursuit.core.events import encode

BudgetName = Literal["calls", "evaluations", "wall_seconds"]
AttemptStatus = Literal["open", "claimed", "submitted", "scored"]


class ScoreRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One number of a score, its `direction`, and whether the submission is feasible."""

    metric: str
    value: float
    unit: str = ""
    direction: Literal["minimize", "maximize"] | None = None
    feasible: bool = True


class AttemptEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """A fact of an attempt; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0


class AttemptOpened(AttemptEvent, frozen=True, kw_only=True):
    """An attempt began, maybe by a `mission`.

    `manifest` is the digest of the problem's file, `judge` the digest of everything that judges.
    """

    problem_id: str
    manifest: str
    judge: str = ""
    by: str = "operator"
    label: str = ""
    mission: str | None = None
    limits: dict[str, float] = {}
    subject: str | None = None
    """The caller that owns the attempt; None is the operator."""
    number: int = 1
    """The number of this attempt among the caller's attempts at the problem."""


class FormFixed(AttemptEvent, frozen=True, kw_only=True):
    """The `submit_final` of this attempt, fixed from now on: `own`, or the name of a tool of the problem's server."""

    form: str


class AttemptCalled(AttemptEvent, frozen=True, kw_only=True):
    """A tool is about to be called."""

    number: int
    tool: str
    args: dict[str, Any] = {}
    evaluation: bool = False


class AttemptAnswered(AttemptEvent, frozen=True, kw_only=True):
    """The outcome of a call; `metrics` are the numbers in its result."""

    number: int
    ok: bool
    metrics: dict[str, float] = {}


class BudgetSpent(AttemptEvent, frozen=True, kw_only=True):
    """A call was refused because this budget is used up."""

    budget: BudgetName
    limit: float


class SubmissionClaimed(AttemptEvent, frozen=True, kw_only=True):
    """A submission is about to be sent to the problem's server; until it answers, no other submission is accepted."""

    digest: str
    submission: dict[str, Any] = {}


class SubmissionDropped(AttemptEvent, frozen=True, kw_only=True):
    """The claim failed: the problem's server refused it, asked a question first, or never received it (`unsent`)."""

    digest: str
    why: str = ""
    sort: Literal["refused", "asked", "unsent"] = "refused"


class SubmissionTaken(AttemptEvent, frozen=True, kw_only=True):
    """The submission; `result` is the answer of the problem's server if that server takes submissions.

    `unknown` says why it is not known whether that server accepted it: it counts as the submission, without a result.
    `calls` and `evaluations` count those before it; old ledgers do not record the latter.
    """

    digest: str
    submission: dict[str, Any]
    result: dict[str, Any] | None = None
    calls: int = 0
    evaluations: int | None = None
    unknown: str = ""


class AttemptScored(AttemptEvent, frozen=True, kw_only=True):
    """The judge's score; `evidence` is the external input it used, so that judging can be repeated offline.

    `judge` is the digest of everything that judged. `isolated` is None if the judge does not run submitted code.
    """

    rows: tuple[ScoreRow, ...] = ()
    solved: bool = False
    evidence: dict[str, Any] | None = None
    error: str | None = None
    judge: str = ""
    isolated: bool | None = None


AnyAttemptEvent = (
    AttemptOpened
    | FormFixed
    | AttemptCalled
    | AttemptAnswered
    | BudgetSpent
    | SubmissionClaimed
    | SubmissionDropped
    | SubmissionTaken
    | AttemptScored
)

encode_attempt: Callable[[AnyAttemptEvent], tuple[str, bytes]] = encode
decode_attempt: Callable[[bytes], AnyAttemptEvent] = msgspec.json.Decoder(AnyAttemptEvent).decode


def submission_digest(submission: Mapping[str, Any]) -> str:
    """The sha256 of a submission, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(submission, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class AttemptState:
    """The state of an attempt. Only `advance_attempt` changes it."""

    attempt_id: str
    opened: AttemptOpened
    began: float | None = None
    """The time of the first call of a tool or of `submit_final`; the attempt may have been open before."""
    seq: int = 1
    calls: int = 0
    evaluations: int = 0
    failed_calls: int = 0
    spent: dict[BudgetName, float] = field(default_factory=dict[BudgetName, float])
    form: str | None = None
    claimed: SubmissionClaimed | None = None
    asked: str | None = None
    """The digest of a submission about which the problem's server asked a question that is still unanswered."""
    taken: SubmissionTaken | None = None
    scored: AttemptScored | None = None
    series: list[tuple[int, Mapping[str, float]]] = field(default_factory=list[tuple[int, Mapping[str, float]]])
    """The numbers in the results of calls, each with the number of its call."""

    @property
    def status(self) -> AttemptStatus:
        if self.scored is not None:
            return "scored"
        if self.taken is not None:
            return "submitted"
        return "open" if self.claimed is None else "claimed"

    @property
    def receipt(self) -> dict[str, Any] | None:
        if self.taken is None:
            return None
        known = {
            "attempt_id": self.attempt_id,
            "problem_id": self.opened.problem_id,
            "sha256": self.taken.digest,
            "submitted_at": self.taken.at,
        }
        return {**known, "fate": "unknown", "why": self.taken.unknown} if self.taken.unknown else known


def fold_attempt(attempt_id: str, events: Iterable[AnyAttemptEvent]) -> AttemptState | None:
    state: AttemptState | None = None
    for event in events:
        if state is not None:
            advance_attempt(state, event)
        elif isinstance(event, AttemptOpened):
            state = AttemptState(attempt_id=attempt_id, opened=event)
    return state


def advance_attempt(state: AttemptState, event: AnyAttemptEvent) -> None:
    state.seq += 1
    state.began = event.at if state.began is None else state.began
    match event:
        case AttemptCalled():
            state.calls = event.number
            state.evaluations += event.evaluation
        case AttemptAnswered():
            state.failed_calls += not event.ok
            if event.metrics:
                state.series.append((event.number, event.metrics))
        case BudgetSpent():
            state.spent[event.budget] = event.limit
        case SubmissionClaimed():
            state.claimed = state.claimed or event
        case SubmissionDropped():
            state.claimed = None if state.taken is None else state.claimed
            state.asked = {"refused": None, "asked": event.digest, "unsent": state.asked}[event.sort]
        case SubmissionTaken():
            # Old ledgers do not record the evaluations here: the events before it have them.
            known = state.evaluations if event.evaluations is None else event.evaluations
            state.taken = state.taken or structs.replace(event, evaluations=known)
        case AttemptScored():
            # Judging again is allowed only where there was no score before.
            if state.scored is None or state.scored.error is not None:
                state.scored = event
        case FormFixed():
            state.form = state.form or event.form
        case AttemptOpened():
            pass
