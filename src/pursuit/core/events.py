"""Everything that can happen to a mission, as a closed union of past-tense facts.

Owns: the events, their wire form and the upcasting of old ones. Knows no storage.
Invariant: an event that was written once can be read for ever.

    created   MissionCreated
    driving   RunClaimed · ModelAsked · ModelAnswered · IterationProposed · CallIntended · CallSettled · CallRefused
              ScriptEnded · ApprovalAsked · ApprovalExpired · IterationEnded · WaitBegan · MissionFailed · MissionEnded
              ReportWritten
    operator  MissionPaused · MissionResumed · AbortOrdered · CompletionOrdered · BudgetExtended · ApprovalAnswered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Outcome = Literal["ok", "failed", "denied", "skipped", "timed_out", "cancelled", "unknown"]
Verdict = Literal["continue", "adjust", "complete", "terminate"]
CriterionStatus = Literal["met", "unmet", "inconclusive"]
WaitingFor = Literal["approval", "input", "task", "proposal", "pace", "budget"]
Purpose = Literal["proposal", "script", "check"]
Permission = Literal["once", "arguments", "mission", "denied"]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A value inside an event; plain data cannot form a cycle, so the collector need not look at it."""


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact of a mission's life; `at` is the wall clock of whoever wrote it."""

    at: float = 0.0


class PlannedCall(Record, frozen=True, kw_only=True):
    """A call as proposed, before policy and budget have spoken."""

    call_id: str
    tool: str
    args: dict[str, Any]


class Source(Record, frozen=True, kw_only=True):
    """Whose word a value is."""

    tool: str
    call_id: str
    iteration: int


class CriterionResult(Record, frozen=True, kw_only=True):
    """How one criterion stood at a checkpoint."""

    criterion_id: str
    status: CriterionStatus
    evidence: Any = None
    source: Source | None = None


class Facts(Record, frozen=True, kw_only=True):
    """What the verdict cascade looks at; stored, so that the verdict can be recomputed."""

    checkpoint: bool = True
    required_met: bool = False
    operator_stop: Literal["complete", "abort"] | None = None
    operator_reason: str | None = None
    cap: str | None = None
    proposer_failures: int = 0
    no_progress: int = 0
    threshold: int | None = None
    same_calls: bool = False
    new_error: str | None = None
    never: str | None = None
    """The required criterion that can never be met any more."""


class MissionCreated(Event, frozen=True, kw_only=True):
    """A mission was accepted, with its tools resolved; `file` is the mission file that brings its own servers.

    `parent` is the mission whose child it is; one that a model wrote is not the `operators_own`.
    """

    mission: dict[str, Any]
    tools: list[str]
    parameters: dict[str, list[str]] = {}
    warnings: list[str] = []
    file: str | None = None
    by: str = "operator"
    credential: str | None = None
    parent: str | None = None
    operators_own: bool = True


class RunClaimed(Event, frozen=True, kw_only=True):
    """A process took the driver's lock; `iterations` is how far this run is to go (None: to the end).

    Nobody waits for the answer of a `background` run, so a serving process goes on with one that was cut short,
    and the client's `proposal` for it is kept here until its iteration begins.
    """

    run: str
    pid: int
    host: str
    iterations: int | None = None
    background: bool = False
    proposal: dict[str, Any] | None = None


class WantedCall(Record, frozen=True, kw_only=True):
    """A call as a language model wrote it: its arguments, or the text that was meant to be them."""

    name: str
    args: dict[str, Any] | None = None
    malformed: str | None = None


class ModelAnswer(Record, frozen=True, kw_only=True):
    """What a language model answered and what that used up; a cost of None is unknown, not nothing."""

    calls: list[WantedCall] = []
    text: str = ""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    cut: bool = False
    """Whether it ends because it was as long as it may be."""
    lost: int = 0
    """Requests before this answer that were sent and not answered: the provider may have charged for them."""


class ModelAsked(Event, frozen=True, kw_only=True):
    """A language model is about to be asked what to do in this iteration; `attempt` counts its repairs.

    `size` is the bytes of the question, `estimate` the tokens that it was thought to take.
    """

    iteration: int
    attempt: int
    model: str
    digest: str
    size: int = 0
    estimate: int = 0


class ModelAnswered(Event, frozen=True, kw_only=True):
    """What came back: the answer, or the blob that it lies in, or why there is none.

    `tokens` are all that it used up, `read` those of the question among them.
    """

    iteration: int
    attempt: int
    answer: ModelAnswer | None = None
    blob: str | None = None
    error: str | None = None
    tokens: int = 0
    read: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    elapsed: float = 0.0


class IterationProposed(Event, frozen=True, kw_only=True):
    """The iteration began: calls, or a script, or a proposer that failed with these reasons."""

    iteration: int
    proposer: str
    calls: list[PlannedCall] = []
    script: str | None = None
    own_script: bool = False
    rationale: str | None = None
    failed: list[str] = []


class CallIntended(Event, frozen=True, kw_only=True):
    """A call is about to be sent; from here until it settles its outcome is unknown.

    Where its answer comes later, `task` is the task that it will be: then its outcome is known wherever that is.
    `reserved` is what it sets aside of the mission's budget until it settles.
    """

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
    reserved: dict[str, float] = {}


class CallSettled(Event, frozen=True, kw_only=True):
    """The outcome of a call. Large results lie in a blob and are previewed.

    `used` is what it took of what its intent had set aside; None is all of it.
    """

    call_id: str
    iteration: int
    outcome: Outcome
    result: Any = None
    blob: str | None = None
    preview: str | None = None
    digest: str = ""
    error: str | None = None
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    seconds: float = 0.0
    elapsed: float = 0.0
    used: dict[str, float] | None = None


class CallRefused(Event, frozen=True, kw_only=True):
    """A call that was never sent: policy, loop guard or budget said no, or its tool is not there."""

    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    outcome: Literal["denied", "skipped", "failed"]
    reason: str
    purpose: Purpose = "proposal"
    order: int = 0


class ApprovalAsked(Event, frozen=True, kw_only=True):
    """A person is asked whether a call may be made; `until` is when silence counts as no."""

    approval_id: str
    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    description: str
    reason: str
    until: float


class ApprovalExpired(Event, frozen=True, kw_only=True):
    """Nobody answered in time: it counts as no."""

    approval_id: str


class ScriptEnded(Event, frozen=True, kw_only=True):
    """A script ran to its end, or into an error; `claimed` marks what somebody else's script says."""

    iteration: int
    memory: dict[str, Any] | None = None
    observed: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    error: str | None = None
    printed: str = ""
    claimed: bool = False


class IterationEnded(Event, frozen=True, kw_only=True):
    """The verdict of an iteration, with the facts that it stands on."""

    iteration: int
    verdict: Verdict
    reason: str
    facts: Facts
    rationale: str | None = None
    criteria: list[CriterionResult] = []
    elapsed: float = 0.0


class WaitBegan(Event, frozen=True, kw_only=True):
    """The mission waits durably; nobody needs to hold it."""

    waiting_for: WaitingFor
    detail: str | None = None
    until: float | None = None
    elapsed: float = 0.0


class MissionFailed(Event, frozen=True, kw_only=True):
    """Our own code broke; `resume` goes on from here."""

    error: str
    trace: str
    elapsed: float = 0.0


class MissionEnded(Event, frozen=True, kw_only=True):
    """The end, whatever it was."""

    status: Literal["completed", "terminated"]
    verdict: Verdict
    reason: str
    elapsed: float = 0.0


class ReportWritten(Event, frozen=True, kw_only=True):
    """The final report lies in a blob."""

    digest: str


class OperatorWord(Event, frozen=True, kw_only=True):
    """What a person, or a client for them, said; appended at the head, never refused by a race."""

    by: str = "operator"
    reason: str | None = None


class MissionPaused(OperatorWord, frozen=True, kw_only=True):
    """Stop advancing, stay resumable."""


class MissionResumed(OperatorWord, frozen=True, kw_only=True):
    """Advance again."""


class AbortOrdered(OperatorWord, frozen=True, kw_only=True):
    """End it as terminated."""


class CompletionOrdered(OperatorWord, frozen=True, kw_only=True):
    """End it as completed."""


class BudgetExtended(OperatorWord, frozen=True, kw_only=True):
    """New caps, by name."""

    caps: dict[str, float]


class ApprovalAnswered(OperatorWord, frozen=True, kw_only=True):
    """A person's answer: yes once, yes for these arguments, yes to this tool in this mission, or no."""

    approval_id: str
    answer: Permission


AnyEvent = (
    MissionCreated
    | RunClaimed
    | ModelAsked
    | ModelAnswered
    | IterationProposed
    | CallIntended
    | CallSettled
    | CallRefused
    | ApprovalAsked
    | ApprovalExpired
    | ScriptEnded
    | IterationEnded
    | WaitBegan
    | MissionFailed
    | MissionEnded
    | ReportWritten
    | MissionPaused
    | MissionResumed
    | AbortOrdered
    | CompletionOrdered
    | BudgetExtended
    | ApprovalAnswered
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

UPCASTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Old type name to a function that gives the body of today's form.

The type's name is the version: an event whose meaning changes gets a new name (`CallSettled2`), and the old one an
entry here.
"""


def encode(event: Event) -> tuple[str, bytes]:
    """The event's type name and bytes, as the ledger stores them."""
    return type(event).__name__, _encoder.encode(event)


def decode(kind: str, body: bytes) -> AnyEvent:
    """The event from stored bytes, brought up to today's form if it is an old one."""
    upcast = UPCASTS.get(kind)
    if upcast is not None:
        body = _encoder.encode(upcast(msgspec.json.decode(body)))
    return _decoder.decode(body)
