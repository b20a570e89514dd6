"""A mission's state: everything that a turn needs, and the bounded views for predicates and scripts.

Pure data; only the fold changes it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from pursuit.core.approvals import Questions
from pursuit.core.best import BestPoints
from pursuit.core.confirmation import Confirmations, remeasure
from pursuit.core.criteria import AnyCriterion, Check, MetricThreshold, MetricTrend, doubled
from pursuit.core.events import (
    AbortOrdered,
    CompletionOrdered,
    ConversationBegan,
    CriterionResult,
    Identity,
    IterationEnded,
    IterationProposed,
    MissionFailed,
    MissionWarned,
    ModelAnswered,
    Outcome,
    PlannedCall,
    Purpose,
    ScriptEnded,
    Source,
    Verdict,
    WaitingFor,
    WorkspaceChange,
)
from pursuit.core.mission import Mission
from pursuit.core.observe import leaves, value_of
from pursuit.core.proposing import ProposerFacts
from pursuit.core.series import Events, Gap, Metrics

StoredStatus = Literal["pending", "running", "waiting", "paused", "failed", "completed", "terminated"]
STATUSES: tuple[StoredStatus, ...] = get_args(StoredStatus)
TERMINAL = frozenset({"completed", "terminated"})
SCRIPT_SOURCE = "script"
REMEMBERED = 4_096
RECENT = 20
MAX_VIEW_BYTES = 256 * 1024
MAX_REMEMBERED = 100_000
PREVIEW = 200
CLOCK_RUNS: frozenset[WaitingFor | None] = frozenset({"task", "pace", "model"})
"""The wall clock of a mission also runs while it waits for these; otherwise only while a driver holds the mission."""
FOR_PROVIDERS: frozenset[WaitingFor | None] = frozenset({"model", "limit"})
"""The waits for a provider of models that cannot be reached or refuses work."""
TIMED = FOR_PROVIDERS | {"pace"}
"""The waits that end by time alone: a driver waits, or comes back then."""


class CallRecord(msgspec.Struct, kw_only=True, gc=False):
    """A call of the open iteration or of a recent one; without an outcome it still runs."""

    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    purpose: Purpose = "proposal"
    order: int = 0
    attempt: int = 1
    criterion_id: str | None = None
    repeatable: bool = False
    task: str | None = None
    outcome: Outcome | None = None
    result: Any = None
    blob: str | None = None
    preview: str | None = None
    digest: str = ""
    error: str | None = None
    unapproved: bool = False
    cut: bool = False
    fingerprint: str = ""
    change: WorkspaceChange | None = None

    @property
    def key(self) -> str:
        """Equal for identical calls."""
        if not self.fingerprint:
            self.fingerprint = fingerprint([self.tool, self.args])
        return self.fingerprint


class Child(msgspec.Struct, kw_only=True, gc=False):
    """A child, for its parent: the amounts reserved for it and, after its end, those used."""

    session_id: str
    call_id: str
    reserved: dict[str, float]
    used: dict[str, float] | None = None
    outcome: Outcome | None = None
    unpriced: bool = False
    completed: bool = False
    metrics: dict[str, float] = {}


class IterationRecord(msgspec.Struct, kw_only=True, gc=False):
    """An iteration that has begun: its calls in the order of their intents.

    `view` is the `state` for its script when the iteration began, so that a replay sees the same.
    """

    index: int
    started_at: float
    proposed: IterationProposed
    calls: dict[str, CallRecord] = {}
    planned: list[PlannedCall] = []
    """The calls of the proposal, and of later answers in the same turn."""
    requests: int = 1
    """The number of requests to the model in this turn."""
    turn_over: bool = False
    failed: list[str] = []
    """Why the proposer proposed nothing usable."""
    script: ScriptEnded | None = None
    view: dict[str, Any] | None = None
    measured: dict[str, dict[str, float]] = {}
    """The metrics of each call that matter for the best point."""
    guarded: bool = False
    """True if the loop guard watches it: proposals of models and clients, and scripts that are not the operator's."""

    def errors(self) -> list[tuple[str, str]]:
        """The errors, each with its tool; a stop that cut off an agent's turn does not count."""
        found: list[tuple[str, str]] = []
        for call in self.calls.values():
            if call.error is not None and not call.cut:
                found.append((call.tool, call.error))
        if self.proposed.failed:
            found = [(self.proposed.proposer, reason) for reason in self.proposed.failed] + found
        if self.script is not None and self.script.error is not None:
            found.append((SCRIPT_SOURCE, self.script.error))
        return found

    def sequence(self) -> str:
        """A fingerprint of the calls that were made, in order."""
        return " ".join([call.key for call in self.calls.values() if call.purpose != "check"])

    @property
    def tree(self) -> str | None:
        """The git tree after the last turn of an agent; None without one."""
        return next((c.change.after for c in reversed(self.calls.values()) if c.change is not None), None)

    @property
    def only_unapproved(self) -> bool:
        """True if people denied, or did not answer, all its calls: then it learned nothing."""
        script = self.script
        observed = script is not None and (script.observed or script.events)
        return bool(self.calls) and not observed and all(call.unapproved for call in self.calls.values())

    def outputs(self) -> str:
        """A fingerprint of all outcomes and results without the arguments; for an agent's turn, its tree."""
        if (tree := self.tree) is not None:
            return fingerprint(["tree", tree])
        return fingerprint([(c.tool, c.outcome, c.digest or c.error) for c in self.calls.values()] + [self._said])

    def shape(self) -> str:
        """A fingerprint of the calls and their results without numbers and identifiers; for an agent, its tree."""
        if self.tree is not None:
            return self.outputs()
        calls = [(c.key, c.outcome, _shape(c.result or c.preview) or c.digest, c.error) for c in self.calls.values()]
        return fingerprint([*calls, _shape(self._said)])

    @property
    def _said(self) -> tuple[Any, ...] | None:
        return None if self.script is None else (self.script.observed, self.script.events, self.script.error)


_WORD = re.compile(r"[\w.:+-]+")
_DIGIT = re.compile(r"\d")


def _shape(value: Any) -> str:
    """JSON with a mark in place of each number, time and identifier (word with a digit); empty without a value."""
    if value is None:
        return ""
    text = msgspec.json.encode(value, order="deterministic").decode()
    return _WORD.sub(lambda word: "#" if _DIGIT.search(word[0]) else word[0], text)


class Exchange(msgspec.Struct, kw_only=True, gc=False):
    """One request to a language model with its answer, and the calls that the answer requested.

    `calls` is shared with the iteration, so that each outcome appears here.
    """

    iteration: int
    attempt: int
    said: str = ""
    words_told: int = 0
    answered: ModelAnswered | None = None
    planned: list[PlannedCall] = []
    calls: dict[str, CallRecord] = {}
    script: IterationRecord | None = None
    """The iteration that runs the script in the answer, if it contains one."""


@dataclass(slots=True)
class Conversation:
    """The conversation of a proposer with a language model: its requests, and the answers of model and provider."""

    answers: dict[int, ModelAnswered] = field(default_factory=dict[int, ModelAnswered])
    """The answers of a language model in this iteration, or for the one about to begin, by attempt."""
    began: ConversationBegan | None = None
    asking: Exchange | None = None
    """The unanswered request."""
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    """The conversation since the last summary."""
    summary: str = ""
    compactions: int = 0
    trimmed: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])
    notes_then: list[str] = field(default_factory=list[str])
    """The notes at the time of the summary; later ones are in the conversation."""
    words_told: int = 0
    """The number of the operator's messages that the model has been sent."""
    outages: int = 0
    """The number of consecutive times that no model could be reached."""
    windows: dict[str, int] = field(default_factory=dict[str, int])
    """The context windows inferred for models that refused a request as too long."""
    not_before: dict[str, float] = field(default_factory=dict[str, float])
    """The earliest retry time of each busy provider, by model."""
    fallback: int = 0
    """The index of the model asked in this iteration: 0 is the mission's model, then come its fallbacks."""
    tools_offered: str | None = None
    cached_tokens: int = 0
    in_flight: tuple[int, float] = (0, 0.0)
    """The estimated tokens and dollars of the request in flight."""
    estimated_tokens: int = 0
    """The part of `tokens` that is estimated, for unanswered requests."""
    asked_of: str | None = None
    unanswered: int = 0
    """The number of consecutive unanswered requests to the same model for the same turn."""
    question_size: int = 0
    counted_size: int = 0
    counted_tokens: int = 0
    """The tokens of the last request that the provider counted (`counted_size` bytes); zero after a cut."""
    densest: float | None = None
    """The most tokens per byte of any answered request so far."""


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def fingerprint(value: Any) -> str:
    """A short stable digest of a JSON value."""
    return digest_of(msgspec.json.encode(value, order="deterministic"))[:16]


class Remembered:
    """A bounded set: the newest few thousand keys."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Adds a key and drops the oldest if there are too many."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > REMEMBERED:
            del self._keys[next(iter(self._keys))]


def error_key(tool: str, error: str) -> str:
    """Equal for errors that count as the same."""
    return f"{tool}: {error[:500]}"


@dataclass(slots=True)
class Standing:
    """The standing of a mission: the fields of its row in a listing, and those that decide how it changes."""

    parent: str | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    status: StoredStatus = "pending"
    waiting_for: WaitingFor | None = None
    wait_detail: str | None = None
    wait_until: float | None = None
    wait_seconds: float = math.inf
    """The longest duration of its wait: setting the clock back does not extend it."""
    started_at: float | None = None
    ended_at: float | None = None
    run_goal: int | None = None
    background: bool = False
    iteration_count: int = 0
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    failure: MissionFailed | None = None
    closed: bool = False
    report: str | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def can_go_on(self) -> bool:
        """True if it has ended but the operator can resume it: it was stuck and is not a child."""
        stuck = self.verdict_reason in ("no_progress", "proposer_failed")
        return self.status == "terminated" and stuck and self.parent is None


@dataclass(slots=True, kw_only=True)
class MissionState(Standing):
    """Everything that a turn needs. Only `fold.advance` changes it."""

    mission: Mission
    facts: ProposerFacts
    """The stored facts of its proposer."""
    tools: tuple[str, ...]
    criteria: tuple[AnyCriterion, ...] = ()
    """The mission's criteria, which never change."""
    thresholds: tuple[MetricThreshold, ...] = ()
    counting: tuple[AnyCriterion, ...] = ()
    """The criteria that count something or depend on more than a value."""
    unseen: tuple[MetricThreshold | MetricTrend, ...] = ()
    """The criteria whose metric still lacks a value."""
    picks: bool = False
    joins: bool = False
    """True if one call must meet several thresholds."""
    gives_up: bool = False
    """True if a criterion can become impossible to meet."""
    confirms: bool = False
    """True if a threshold requires fresh measurements."""
    asks: bool = False
    """True if some criteria need the sandbox or a call: predicates and checks."""
    news_counts: bool = False
    """True if a new result can be progress, because some required criteria may have nothing to measure."""
    stagnation: int | None = None
    remembered: dict[str, Any] = field(default_factory=dict[str, Any])
    parameters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    first_warnings: tuple[str, ...] = ()
    raised: tuple[MissionWarned, ...] = ()
    """The warnings since the start, including those that no longer hold."""
    isolation: str | None = None
    """The paths and hosts that the agent can write, read and reach, by the last report."""
    file: str | None = None
    credential: str | None = None
    owner: str | None = None
    """The subject of the client that started it; None is the operator."""
    callers: tuple[str, ...] = ()
    """The names of the tokens whose policy applies to the whole mission: those of the client that started it."""
    driver: Identity | None = None
    drivers: tuple[str, ...] = ()
    """The tokens whose policy applies to this run: those of its driver, and of the driver of the open iteration."""
    operators_own: bool = True
    """True if the operator wrote it, not a model."""
    origin: str | None = None
    mode: str | None = None
    """The policy mode that the operator chose last; None if the operator never chose one."""
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    lent: dict[str, float] = field(default_factory=dict[str, float])
    """The amounts of each cap used by children or reserved for running ones."""
    seq: int = 0
    counted_at: float = 0.0
    """The time up to which `wall_clock` counts."""
    created_at: float = 0.0
    budget: dict[str, float] = field(default_factory=dict[str, float])
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced: bool = False
    """True if the price of an answer is unknown: the budget counts it as 0, and people see that it is unknown."""
    uncounted: bool = False
    """True if an agent did not report the tokens of a turn."""
    protected_turns: int = 0
    """The number of an agent's turns that changed protected files."""
    elapsed_before: float = 0.0
    elapsed: float = 0.0
    run: str | None = None
    host: str | None = None
    handed_in: dict[str, Any] | None = None
    conversation: Conversation = field(default_factory=Conversation)
    words: list[str] = field(default_factory=list[str])
    open: IterationRecord | None = None
    last: IterationRecord | None = None
    last_ended: IterationEnded | None = None
    recent: deque[IterationRecord] = field(default_factory=lambda: deque[IterationRecord](maxlen=RECENT))
    results: dict[str, CriterionResult] = field(default_factory=dict[str, CriterionResult])
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    metric_order: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    claimed: dict[str, Any] = field(default_factory=dict[str, Any])
    series: Metrics = field(default_factory=Metrics)
    events: Events = field(default_factory=Events)
    succeeded: dict[str, int] = field(default_factory=dict[str, int])
    last_success: dict[str, Source] = field(default_factory=dict[str, Source])
    best_points: BestPoints = field(init=False)
    confirmations: Confirmations = field(default_factory=Confirmations)
    """The calls that met a threshold and are measured again; `confirmation.remeasure` chooses the next."""
    nearest: dict[str, float] = field(default_factory=dict[str, float])
    """The least distance of each threshold's metric since the last checkpoint; `trail` has those of earlier ones."""
    least: dict[str, float] = field(default_factory=dict[str, float])
    """The least distance up to the last checkpoint, whatever the effect on the other criteria."""
    trail: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    levels: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """The highest level, up to the last checkpoint, of each criterion that counts something."""
    ever_met: set[str] = field(default_factory=set[str])
    checkpoints: int = 0
    checkpoint_at: float | None = None
    no_progress: int = 0
    unchanged: int = 0
    news: bool = False
    proposer_failures: int = 0
    sequences: deque[str] = field(default_factory=lambda: deque[str](maxlen=3))
    outputs_seen: Remembered = field(default_factory=Remembered)
    shapes_seen: Remembered = field(default_factory=Remembered)
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    """How often a check with `confirm` was met and then failed its repetition."""
    standings: Remembered = field(default_factory=Remembered)
    """The outcomes of the checks at each checkpoint."""
    errors_seen: Remembered = field(default_factory=Remembered)
    results_seen: Remembered = field(default_factory=Remembered)
    guard_key: str = ""
    guard_count: int = 0
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    approvals: Questions = field(default_factory=Questions)
    stop: AbortOrdered | CompletionOrdered | None = None

    def __post_init__(self) -> None:
        self.best_points = BestPoints(self.mission, self.facts.objective)

    @property
    def stopped(self) -> bool:
        """True if the operator paused or ended it."""
        return self.stop is not None or self.status == "paused"

    @property
    def wall_clock(self) -> float:
        """Seconds of its wall clock up to the last event that counts them."""
        return self.elapsed_before + self.elapsed

    def wall_clock_at(self, now: float, *, driven: bool) -> float:
        """Seconds of its wall clock up to now; `driven` is true if a process drives it."""
        held = max(0.0, now - self.counted_at) if driven and self.status == "running" else self.waited(now)
        return self.wall_clock + held

    def wait_left(self, now: float) -> float:
        """Seconds until its wait ends; infinite if the wait has no time limit."""
        return math.inf if self.wait_until is None else max(0.0, min(self.wait_until - now, self.wait_seconds))

    def waited(self, now: float) -> float:
        """Seconds of its wait that its wall clock does not include yet."""
        if self.waiting_for not in CLOCK_RUNS:
            return 0.0
        return max(0.0, min(now, self.wait_until or now) - self.counted_at)

    @property
    def new_warnings(self) -> list[MissionWarned]:
        return [one for one in self.raised if one.iteration == self.iteration_count - 1]

    @property
    def current_index(self) -> int:
        """The index of the open iteration, or of the next one."""
        return self.open.index if self.open is not None else self.iteration_count

    @property
    def standing_warnings(self) -> tuple[str, ...]:
        """The warnings since the start that still hold."""
        missing = {
            one.criterion_id
            for one in self.mission.criteria
            if isinstance(one, MetricThreshold | MetricTrend) and self.series.latest(one.metric, one.source) is None
        }
        return tuple(one.message for one in self.raised if not one.criteria or missing.intersection(one.criteria))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings from the start, and later ones that still hold."""
        return (*self.first_warnings, *self.standing_warnings)

    @property
    def iteration_number(self) -> int:
        """The number, from 1, of the open iteration or else of the last one."""
        return self.iteration_count + (self.open is not None)

    def confirmations_of(self, check: Check) -> int:
        """How many more times a check must be met once it is met."""
        return doubled(check.confirm, self.rejected.get(check.criterion_id, 0))

    def is_new(self, iteration: IterationRecord) -> bool:
        """True if an iteration has results that differ from earlier ones in more than numbers."""
        if iteration.only_unapproved:
            return False
        return iteration.outputs() not in self.outputs_seen and iteration.shape() not in self.shapes_seen

    def call(self, call_id: str) -> CallRecord | None:
        """A call of the open iteration."""
        return self.open.calls[call_id] if self.open is not None and call_id in self.open.calls else None

    def cap(self, name: str) -> float | None:
        """A cap in force, or None."""
        value = self.budget[name]
        return None if value == -1 else value


def observation_view(state: MissionState) -> dict[str, Any]:
    """The `obs` of a predicate, limited in size: the newest results are complete if they fit, older ones previewed."""
    window = [*state.recent, *([state.open] if state.open is not None else [])][-20:]
    names = list(state.series.names())
    each = max(10, MAX_REMEMBERED // max(1, len(names)))
    return {
        "metrics": {name: value for name, value in state.metrics.items() if not _out_of_date(state, name, value)},
        "metric_history": {name: [p.value for p in state.series.points(name)[-each:]] for name in names},
        "events": state.events.counts(),
        "tool_results": _bounded([row for iteration in window for row in _rows(iteration)]),
        "errors": [error for iteration in window for _tool, error in iteration.errors()],
        "iteration": state.open.index if state.open is not None else max(0, state.iteration_count - 1),
    }


def _out_of_date(state: MissionState, name: str, value: Any) -> bool:
    """True if the tool of a metric was called again and no longer reports it."""
    path = next(iter(leaves({name: value})), name)
    return isinstance(state.series.standing(path), Gap)


def _bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows: the newest are complete until the bytes are used up, the others have the beginning of their result."""
    room = MAX_VIEW_BYTES
    for row in reversed(rows):
        body = msgspec.json.encode([row["args"], row["result"]])
        if len(body) > room:
            row["result"], row["args"] = body[:PREVIEW].decode(errors="replace"), {}
            continue
        room -= len(body)
    return rows


def script_view(state: MissionState) -> dict[str, Any]:
    last = state.last
    return {
        "iteration": state.iteration_count,
        "metrics": dict(state.metrics),
        "best": {one.metric: value for one in state.thresholds if (value := _best(state, one)) is not None},
        "results": [] if last is None else _rows(last),
        "errors": [] if last is None else [error for _tool, error in last.errors()],
        "advice": state.last_ended.rationale if state.last_ended is not None else None,
        "confirm": msgspec.to_builtins(remeasure(state.confirmations.latest.values())),
        "memory": state.memory,
    }


def _best(state: MissionState, criterion: MetricThreshold) -> float | None:
    """The best value of a threshold's metric that satisfies the limits; without one, the best of all."""
    found = state.best_points.of(criterion.criterion_id)
    point = None if found is None else found.point or found.infeasible
    return None if point is None else point.value


def call_value(call: CallRecord) -> Any:
    """The value in the result of a call; for a large result, its preview."""
    return call.preview if call.result is None else value_of(call.result)


def _rows(iteration: IterationRecord) -> list[dict[str, Any]]:
    return [
        {
            "iteration": iteration.index,
            "tool": call.tool,
            "args": call.args,
            "outcome": call.outcome,
            "result": call_value(call),
            "error": call.error,
        }
        for call in iteration.calls.values()
    ]
