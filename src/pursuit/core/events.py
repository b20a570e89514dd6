"""All events of a mission, as a closed union in the past tense, and their stored form.

Invariant: a stored event stays readable for ever. A driver writes all events except those of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, Protocol, get_args

import msgspec

from pursuit.core.proposing import ProposerFacts
from pursuit.errors import LedgerTooNew

Outcome = Literal["ok", "failed", "denied", "skipped", "timed_out", "cancelled", "unknown"]
Verdict = Literal["continue", "adjust", "complete", "terminate"]
CriterionStatus = Literal["met", "unmet", "inconclusive"]
WaitingFor = Literal["approval", "input", "task", "proposal", "pace", "budget", "model", "limit"]
Purpose = Literal["proposal", "script", "check"]
Permission = Literal["once", "arguments", "mission", "denied"]
Channel = Literal["terminal", "page", "api", "stdio-elicitation", "http-elicitation"]
"""The channel by which a person answered an approval."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A value inside an event. Plain data forms no cycles, so the garbage collector skips it."""


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact about a mission; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0

    BLOBS: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that hold digests of blobs."""

    def blobs(self) -> tuple[str | None, ...]:
        """The digests of the blobs that the event refers to; None for an absent blob."""
        return tuple([getattr(self, name) for name in self.BLOBS])


class PlannedCall(Record, frozen=True, kw_only=True):
    """A call as proposed, before the checks of policy and budget.

    `wanted_id` is the id from a language model's provider; a call with a `fault` is refused for that reason.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    wanted_id: str = ""
    fault: str | None = None


class Source(Record, frozen=True, kw_only=True):
    tool: str
    call_id: str
    iteration: int


class CriterionResult(Record, frozen=True, kw_only=True):
    criterion_id: str
    status: CriterionStatus
    evidence: Any = None
    source: Source | None = None


class Facts(Record, frozen=True, kw_only=True):
    """The input of the verdict cascade; stored, so that the verdict can be recomputed."""

    checkpoint: bool = True
    required_met: bool = False
    operator_stop: Literal["complete", "abort"] | None = None
    operator_reason: str | None = None
    cap: str | None = None
    proposer_failures: int = 0
    proposer_error: str | None = None
    """The latest of the proposer's failures."""
    no_progress: int = 0
    threshold: int | None = None
    same_calls: bool = False
    new_error: str | None = None
    never: str | None = None
    """The required criterion that can never be met."""
    figures: str | None = None
    """The numbers that show a lack of progress, given from half of the threshold on."""


class MissionCreated(Event, frozen=True, kw_only=True):
    """A mission was accepted and its tools resolved; `file` is the mission file if it defines servers.

    `parent` is the parent mission of a child; a mission that a model wrote is not `operators_own`. `origin` is the
    file that the mission was read from, `mode` the policy mode that the operator chose for it.
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
    origin: str | None = None
    mode: str | None = None
    callers: list[str] = []
    owner: str | None = None
    facts: ProposerFacts | None = None
    """The facts of its proposer; None in missions of earlier releases."""


class Identity(Record, frozen=True, kw_only=True):
    """The client that makes a request; `credential` is the name of its token, if it has one.

    `subject` owns its records: a later token with the same name is another subject.
    """

    subject: str | None = None
    credential: str | None = None


class RunClaimed(Event, frozen=True, kw_only=True):
    """A process took the driver's lock for this many `iterations` (None: to the end).

    No caller waits for a `background` run, so a serving process continues it after an interruption; the client's
    `proposal` for it is kept here until its iteration begins. `mode` is the policy mode if the operator chose one for
    this run. `waited` is how long the mission waited before, without a driver: its wall clock counts these seconds.
    `driver` is the client that requested the run; None is the operator.
    """

    run: str
    pid: int
    host: str
    iterations: int | None = None
    background: bool = False
    proposal: dict[str, Any] | None = None
    mode: str | None = None
    waited: float = 0.0
    driver: Identity | None = None


class WantedCall(Record, frozen=True, kw_only=True):
    """A call as a language model wrote it: its arguments, or the malformed text in their place."""

    name: str
    args: dict[str, Any] | None = None
    malformed: str | None = None
    id: str = ""


class ModelAnswer(Record, frozen=True, kw_only=True):
    """A language model's answer and what it used; a cost of None is unknown, not zero.

    `native` is the answer in the provider's own parts (pydantic-ai's form), which go back to it unchanged. Of the
    input tokens `cached_tokens` were read from the provider's cache; of the output tokens `reasoning_tokens` are
    thoughts.
    """

    calls: list[WantedCall] = []
    text: str = ""
    model: str = ""
    native: dict[str, Any] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    cut: bool = False
    """True if the answer was cut off at its maximum length."""
    lost: int = 0
    """The number of unanswered requests before this answer: the provider may have charged for them."""


Request = Literal["turn", "summary"]
"""The purpose of a model request: the next calls, or a summary of the conversation so far."""


class ConversationBegan(Event, frozen=True, kw_only=True):
    """The conversation with a language model began: its system text and its first message, which never change.

    `window` is the model's context window: how much of the results is shown depends on it.
    """

    system: str
    first: str
    window: int = 0


class ModelAsked(Event, frozen=True, kw_only=True):
    """A language model is about to be asked; `attempt` counts the requests of an iteration from 0.

    `said` is the last message of the conversation: the changes since the last request. It includes the operator's
    first `words_told` messages. `tools` is the blob of the tools offered to the model. `size` is the number of bytes
    of the request, `estimate` the expected tokens.
    """

    BLOBS = ("tools",)

    iteration: int
    attempt: int
    model: str
    digest: str
    size: int = 0
    estimate: int = 0
    estimate_usd: float = 0.0
    said: str = ""
    words_told: int = 0
    tools: str | None = None
    purpose: Request = "turn"


class ModelAnswered(Event, frozen=True, kw_only=True):
    """The answer, the blob that contains it, or the error.

    `tokens` counts all tokens used, `read` those of the request among them, and `cached` those of `read` that came from
    the provider's cache. `lost` counts the unanswered requests before it.
    """

    BLOBS = ("blob",)

    iteration: int
    attempt: int
    answer: ModelAnswer | None = None
    blob: str | None = None
    error: str | None = None
    tokens: int = 0
    read: int = 0
    cached: int = 0
    reasoning: int = 0
    cost_usd: float | None = None
    lost: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0
    purpose: Request = "turn"


class ConversationCompacted(Event, frozen=True, kw_only=True):
    """The model's summary replaced the oldest exchanges; without a summary, none were replaced.

    `replaced` counts those exchanges. Of the results of the `trimmed` calls, only the size is shown.
    """

    iteration: int
    replaced: int = 0
    summary: str = ""
    trimmed: list[str] = []


class IterationProposed(Event, frozen=True, kw_only=True):
    """The iteration began: with calls, with a script, or with the reasons why the proposer failed."""

    iteration: int
    proposer: str
    calls: list[PlannedCall] = []
    script: str | None = None
    own_script: bool = False
    rationale: str | None = None
    failed: list[str] = []
    ends: bool = False
    """True if the model's turn ends with these calls."""


class TurnContinued(Event, frozen=True, kw_only=True):
    """The model answered again in the same iteration, with further calls or with none, which ends its turn."""

    iteration: int
    calls: list[PlannedCall] = []
    rationale: str | None = None
    failed: list[str] = []
    ends: bool = False


class CallIntended(Event, frozen=True, kw_only=True):
    """A call is about to be sent; its outcome is unknown until it settles.

    `task` is the id of the task that a long call becomes; the task then has the outcome.
    `reserved` is the part of the mission's budget that the call reserves until it settles.
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


class WorkspaceChange(Record, frozen=True, kw_only=True):
    """The changes of an agent's turn: the git trees before and after it, and the blob of the diff."""

    before: str
    after: str
    files: int = 0
    protected: list[str] = []
    """The protected files that differ from the start; these changes do not count."""
    diff: str | None = None


class CallSettled(Event, frozen=True, kw_only=True):
    """The outcome of a call. A large result is stored as a blob and previewed.

    `used` is the part of the reserved amounts that the call used; None means all. For an agent's turn it is the usage
    that the agent reports; missing amounts are unknown. `cut` is true if a stop of the mission or the end of its driver
    cut off that turn; the iteration continues with another turn.
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
    change: WorkspaceChange | None = None
    cut: bool = False

    def blobs(self) -> tuple[str | None, ...]:
        return (self.blob, self.change and self.change.diff)


class CallRefused(Event, frozen=True, kw_only=True):
    """A call was not sent: policy, loop guard or budget refused it, or its tool is missing.

    `unapproved` is true if a person was asked and said no, or did not answer in time.
    """

    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    outcome: Literal["denied", "skipped", "failed"]
    reason: str
    purpose: Purpose = "proposal"
    order: int = 0
    unapproved: bool = False


class ApprovalAsked(Event, frozen=True, kw_only=True):
    """A person is asked whether a call may be made; after `until`, silence counts as no.

    `subject` is the driving client, for which an approval is valid; None is the operator. `require` is the number of
    people who must approve. `cut` is true if the description does not show the arguments in full.
    """

    approval_id: str
    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    description: str
    reason: str
    until: float
    subject: str | None = None
    require: int = 1
    cut: bool = False
    digest: str | None = None
    """The definition of the tool that the approval is about."""
    accepts: dict[str, Any] | None = None
    """The changes (`Changes.what`) that an approval accepts, if the question is about a server's changes; else None."""


class ApprovalExpired(Event, frozen=True, kw_only=True):
    """No answer came in time, which counts as no."""

    approval_id: str


class ScriptEnded(Event, frozen=True, kw_only=True):
    """A script ended or failed; the observations of a proposed script are only `claimed`."""

    iteration: int
    memory: dict[str, Any] | None = None
    observed: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    error: str | None = None
    printed: str = ""
    claimed: bool = False


class IterationEnded(Event, frozen=True, kw_only=True):
    """The verdict of an iteration, with its facts."""

    iteration: int
    verdict: Verdict
    reason: str
    facts: Facts
    rationale: str | None = None
    criteria: list[CriterionResult] = []
    elapsed: float = 0.0


ISOLATION = "isolation"


class MissionWarned(Event, frozen=True, kw_only=True):
    """A warning that the mission cannot meet these criteria (`metric_missing`), or one about its workspace.

    Warnings about the workspace (`uncommitted`, `no_branch`) are permanent, without criteria. `message` is for people.
    `isolation` is no warning: it says what the agent can write, read and reach, and the last one counts.
    """

    iteration: int
    code: str
    message: str
    criteria: list[str] = []


class ProposerRemembered(Event, frozen=True, kw_only=True):
    """The proposer's memory from now on; the last event counts."""

    kind: str
    data: dict[str, Any]


class WaitBegan(Event, frozen=True, kw_only=True):
    """The mission waits; no process needs to hold it.

    A mission that waits for its model asks it again at `until`, or then asks the `fallback` with that number; `lost`
    counts unanswered requests. `not_before` is the retry time that the provider set, and `window` the model's maximum
    if it refused a request as too long.
    """

    waiting_for: WaitingFor
    detail: str | None = None
    until: float | None = None
    fallback: int | None = None
    lost: int = 0
    not_before: float | None = None
    window: int | None = None
    elapsed: float = 0.0


class MissionFailed(Event, frozen=True, kw_only=True):
    """Our own code failed, or the operator must repair something; `resume` continues from here.

    `lost` counts unanswered requests.
    """

    error: str
    trace: str
    elapsed: float = 0.0
    lost: int = 0


class MissionEnded(Event, frozen=True, kw_only=True):
    status: Literal["completed", "terminated"]
    verdict: Verdict
    reason: str
    elapsed: float = 0.0


class ReportWritten(Event, frozen=True, kw_only=True):
    """The final report was stored as a blob."""

    BLOBS = ("digest",)

    digest: str


class OperatorEvent(Event, frozen=True, kw_only=True):
    """An order or answer of the operator; appended at the head of the stream, so it never loses a race.

    If it ends a wait, `waited` is the number of seconds of that wait that count for the wall clock.
    """

    by: str = "operator"
    reason: str | None = None
    waited: float = 0.0


class MissionPaused(OperatorEvent, frozen=True, kw_only=True):
    """The operator paused the mission; it can be resumed."""


class MissionResumed(OperatorEvent, frozen=True, kw_only=True):
    """The operator resumed the mission; from now on the proposer asks `model`, if given.

    With `reopens`, even a mission that ended without progress continues.
    """

    model: str | None = None
    reopens: bool = False


class AbortOrdered(OperatorEvent, frozen=True, kw_only=True):
    """The operator ended the mission as terminated."""


class CompletionOrdered(OperatorEvent, frozen=True, kw_only=True):
    """The mission was marked completed by the operator or, if `client` is true, by a client."""

    client: bool = False


class BudgetExtended(OperatorEvent, frozen=True, kw_only=True):
    caps: dict[str, float]


class ApprovalAnswered(OperatorEvent, frozen=True, kw_only=True):
    """A person's answer: yes once, yes for these arguments, yes for this tool in this mission, or no.

    `person` is the subject who answered: if two people must approve, each person counts once.
    """

    approval_id: str
    answer: Permission
    channel: Channel | None = None
    person: str | None = None


class ApprovalShown(OperatorEvent, frozen=True, kw_only=True):
    """A person has seen the full arguments of a question."""

    approval_id: str
    person: str


AnyEvent = (
    MissionCreated
    | RunClaimed
    | ConversationBegan
    | ModelAsked
    | ModelAnswered
    | IterationProposed
    | TurnContinued
    | ConversationCompacted
    | CallIntended
    | CallSettled
    | CallRefused
    | ApprovalAsked
    | ApprovalExpired
    | ScriptEnded
    | IterationEnded
    | MissionWarned
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
    | ApprovalShown
    | ProposerRemembered
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

UPCASTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""For each old type name, the function that converts its body to the current form.

The type name is the version: an event whose meaning changes gets a new name (`CallSettled2`), and the old name gets
an entry here.
"""


encoded = _encoder.encode
"""The bytes of an event, as the ledger stores them."""


def encode(event: msgspec.Struct) -> tuple[str, bytes]:
    """The type name and the bytes of an event, of a mission or of another stream, as the ledger stores them."""
    return type(event).__name__, encoded(event)


KNOWN: set[str] = {one.__name__ for one in get_args(AnyEvent)}
"""The type names of current events."""


def decode(kind: str, body: bytes) -> AnyEvent:
    """Decodes a stored event and converts old forms to the current one.

    Raises `LedgerTooNew` for an event from a newer release.
    """
    upcast = UPCASTS.get(kind)
    if upcast is not None:
        body = _encoder.encode(upcast(msgspec.json.decode(body)))
    elif kind not in KNOWN:
        text = f"event {kind!r} was written by a newer release of Pursuit; upgrade this one"
        raise LedgerTooNew(text, event=kind)
    return _decoder.decode(body)


class Stored(Protocol):
    @property
    def seq(self) -> int: ...

    @property
    def type(self) -> str: ...

    @property
    def body(self) -> bytes: ...


def decoded(stored: Iterable[Stored]) -> Iterator[AnyEvent]:
    return (decode(one.type, one.body) for one in stored)
