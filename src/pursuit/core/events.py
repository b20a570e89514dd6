"""Everything that can happen to a mission, as a closed union of past-tense events, and their stored form.

Invariant: an event that was written once can be read for ever.

    created   MissionCreated
    driving   RunClaimed · ConversationBegan · ModelAsked · ModelAnswered · IterationProposed · TurnContinued
              ConversationCompacted · CallIntended · CallSettled · CallRefused · ScriptEnded · ApprovalAsked
              ApprovalExpired · IterationEnded · MissionWarned · WaitBegan · MissionFailed · MissionEnded
              ReportWritten
    operator  MissionPaused · MissionResumed · AbortOrdered · CompletionOrdered · BudgetExtended · ApprovalAnswered
              ApprovalShown
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from pursuit.core.proposing import ProposerFacts
from pursuit.errors import LedgerTooNew

Outcome = Literal["ok", "failed", "denied", "skipped", "timed_out", "cancelled", "unknown"]
Verdict = Literal["continue", "adjust", "complete", "terminate"]
CriterionStatus = Literal["met", "unmet", "inconclusive"]
WaitingFor = Literal["approval", "input", "task", "proposal", "pace", "budget", "model"]
Purpose = Literal["proposal", "script", "check"]
Permission = Literal["once", "arguments", "mission", "denied"]
Channel = Literal["terminal", "page", "api", "stdio-elicitation", "http-elicitation"]
"""How a person's answer to an approval came in."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A value inside an event. Plain data forms no cycles, so the garbage collector skips it."""


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact about a mission; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0

    def blobs(self) -> tuple[str | None, ...]:
        """The digests of the blobs that the event names; None stands for a blob that is not there."""
        return ()


class PlannedCall(Record, frozen=True, kw_only=True):
    """A call as proposed, before policy and budget are asked.

    `wanted_id` is the id that a language model's provider gave it; a call with a `fault` is refused for it.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    wanted_id: str = ""
    fault: str | None = None


class Source(Record, frozen=True, kw_only=True):
    """The call that a value comes from."""

    tool: str
    call_id: str
    iteration: int


class CriterionResult(Record, frozen=True, kw_only=True):
    """The status of one criterion at a checkpoint."""

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
    """The latest of these failures."""
    no_progress: int = 0
    threshold: int | None = None
    same_calls: bool = False
    new_error: str | None = None
    never: str | None = None
    """The required criterion that can never be met any more."""
    figures: str | None = None
    """The numbers behind a lack of progress, from half of the threshold on."""


class MissionCreated(Event, frozen=True, kw_only=True):
    """A mission was accepted, with its tools resolved; `file` is the mission file that brings its own servers.

    `parent` is the mission whose child it is; a mission that a model wrote is not `operators_own`. `origin` is the
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
    """Those of its proposer; None in missions of earlier releases."""


class Identity(Record, frozen=True, kw_only=True):
    """The client that asks for something; `credential` is the name of its token, if it shows one.

    `subject` is what its records belong to: a token of the same name that is made later is another subject.
    """

    subject: str | None = None
    credential: str | None = None


class RunClaimed(Event, frozen=True, kw_only=True):
    """A process took the driver's lock, for this many `iterations` (None: to the end).

    A `background` run has no caller that waits, so a serving process continues one that was cut short; the client's
    `proposal` for it is kept here until its iteration begins. `mode` is the policy mode if the operator chose one for
    this run. `waited` is how long the mission waited before, without a driver: these seconds count for its wall clock.
    `driver` is the client that asks for the run; None is the operator.
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
    """Whether the answer was cut off at its maximum length."""
    lost: int = 0
    """Requests before this answer that were sent and not answered: the provider may have charged for them."""


Request = Literal["turn", "summary"]
"""What a language model is asked for: its next calls, or a summary of the conversation so far."""


class ConversationBegan(Event, frozen=True, kw_only=True):
    """The conversation with a language model began: its system text and its first message, which never change.

    `window` is the model's context window: how much of the results is shown depends on it.
    """

    system: str
    first: str
    window: int = 0


class ModelAsked(Event, frozen=True, kw_only=True):
    """A language model is about to be asked; `attempt` counts the requests of an iteration from 0.

    `said` is the message at the end of the conversation: what changed since the last request, with the first
    `words_told` words of the operator. `tools` is the blob of
    the tools that the model is offered. `size` is the bytes of the request, `estimate` the expected tokens.
    """

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

    def blobs(self) -> tuple[str | None, ...]:
        """The tools that the model is offered."""
        return (self.tools,)


class ModelAnswered(Event, frozen=True, kw_only=True):
    """The answer, or the blob that holds it, or why there is none.

    `tokens` are all that it used, `read` those of the request among them, `cached` those of `read` that came from the
    provider's cache. Before it, `lost` requests were sent and not answered.
    """

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

    def blobs(self) -> tuple[str | None, ...]:
        """A large answer."""
        return (self.blob,)


class ConversationCompacted(Event, frozen=True, kw_only=True):
    """The oldest exchanges were replaced by a summary that the model wrote; without one, none were.

    `replaced` counts those exchanges. The results of the `trimmed` calls are shown as their size only.
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
    """Whether the model's turn ends with these calls."""


class TurnContinued(Event, frozen=True, kw_only=True):
    """The model answered once more in the same iteration: with further calls, or with none, which ends its turn."""

    iteration: int
    calls: list[PlannedCall] = []
    rationale: str | None = None
    failed: list[str] = []
    ends: bool = False


class CallIntended(Event, frozen=True, kw_only=True):
    """A call is about to be sent; from here until it settles its outcome is unknown.

    `task` is the id of the task that a long call becomes; the outcome is then known from the task.
    `reserved` is what the call sets aside of the mission's budget until it settles.
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
    """What a turn of an agent changed: the git trees before and after it, and the blob of the diff."""

    before: str
    after: str
    files: int = 0
    protected: list[str] = []
    """The protected files that differ from the start; they do not count."""
    diff: str | None = None


class CallSettled(Event, frozen=True, kw_only=True):
    """The outcome of a call. A large result is stored as a blob and previewed.

    `used` is what the call took of what its intent set aside; None is all of it. Of a turn of an agent it is what the
    agent reports: an amount that is not there is not known. `cut`: a stop of the mission, or the end of its driver, cut
    that turn off, and the iteration goes on with another one.
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
        """A large result, and the diff of an agent's turn."""
        return (self.blob, self.change and self.change.diff)


class CallRefused(Event, frozen=True, kw_only=True):
    """A call that was never sent: policy, loop guard or budget refused it, or its tool is missing.

    `unapproved`: a person was asked and said no, or did not answer in time.
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
    """A person is asked whether a call may be made; `until` is when silence counts as no.

    `subject` is the client that drives, for which a yes counts; None is the operator. So many people must say yes as
    `require` says. `cut`: the description does not show the arguments whole.
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
    """The definition of the tool that the yes is about."""
    accepts: dict[str, Any] | None = None
    """What a yes accepts (`Changes.what`), if the question is about the changes of a server and not about a call."""


class ApprovalExpired(Event, frozen=True, kw_only=True):
    """No answer came in time: that counts as no."""

    approval_id: str


class ScriptEnded(Event, frozen=True, kw_only=True):
    """A script ran to its end, or into an error; the observations of a proposed script are only `claimed`."""

    iteration: int
    memory: dict[str, Any] | None = None
    observed: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    error: str | None = None
    printed: str = ""
    claimed: bool = False


class IterationEnded(Event, frozen=True, kw_only=True):
    """The verdict of an iteration, with the facts behind it."""

    iteration: int
    verdict: Verdict
    reason: str
    facts: Facts
    rationale: str | None = None
    criteria: list[CriterionResult] = []
    elapsed: float = 0.0


class MissionWarned(Event, frozen=True, kw_only=True):
    """As it is, the mission cannot meet these criteria (`code` is `metric_missing`), or something about its workspace.

    That is `uncommitted` or `no_branch`, without criteria; it holds for good. `message` is for people.
    """

    iteration: int
    code: str
    message: str
    criteria: list[str] = []


class ProposerRemembered(Event, frozen=True, kw_only=True):
    """What a proposer remembers from now on; the last one counts."""

    kind: str
    data: dict[str, Any]


class WaitBegan(Event, frozen=True, kw_only=True):
    """The mission waits; no process needs to hold it.

    A mission that waits for its model asks it again at `until`, or then its `fallback` of that number; `lost` requests
    were sent and not answered. `not_before` is when the provider wants to be asked again, and `window` what the model
    takes at most, if it refused a request as too long.
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
    """Our own code failed, or the operator must repair something; `resume` continues from here. `lost` as in a wait."""

    error: str
    trace: str
    elapsed: float = 0.0
    lost: int = 0


class MissionEnded(Event, frozen=True, kw_only=True):
    """The mission ended."""

    status: Literal["completed", "terminated"]
    verdict: Verdict
    reason: str
    elapsed: float = 0.0


class ReportWritten(Event, frozen=True, kw_only=True):
    """The final report was stored as a blob."""

    digest: str

    def blobs(self) -> tuple[str | None, ...]:
        """The report."""
        return (self.digest,)


class OperatorEvent(Event, frozen=True, kw_only=True):
    """An order or an answer of the operator; appended at the head of the stream, so no race can refuse it.

    One that ends a wait counts the seconds that it `waited` for the wall clock.
    """

    by: str = "operator"
    reason: str | None = None
    waited: float = 0.0


class MissionPaused(OperatorEvent, frozen=True, kw_only=True):
    """Stop, and stay resumable."""


class MissionResumed(OperatorEvent, frozen=True, kw_only=True):
    """Continue; from now on the proposer asks `model`, if that is given.

    With `reopens` a mission that has ended without progress continues, too.
    """

    model: str | None = None
    reopens: bool = False


class AbortOrdered(OperatorEvent, frozen=True, kw_only=True):
    """End it as terminated."""


class CompletionOrdered(OperatorEvent, frozen=True, kw_only=True):
    """End it as completed; `client`: on the word of a client, and not of the operator."""

    client: bool = False


class BudgetExtended(OperatorEvent, frozen=True, kw_only=True):
    """New caps, by name."""

    caps: dict[str, float]


class ApprovalAnswered(OperatorEvent, frozen=True, kw_only=True):
    """A person's answer: yes once, yes for these arguments, yes for this tool in this mission, or no.

    `person` is the subject who answered: where two must say yes, one person counts once.
    """

    approval_id: str
    answer: Permission
    channel: Channel | None = None
    person: str | None = None


class ApprovalShown(OperatorEvent, frozen=True, kw_only=True):
    """A person has seen the arguments of a question whole."""

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
"""For each old type name, the function that turns its body into today's form.

The type's name is the version: an event whose meaning changes gets a new name (`CallSettled2`), and the old name an
entry here.
"""


def encode(event: msgspec.Struct) -> tuple[str, bytes]:
    """The type name and the bytes of an event, of a mission or of another stream, as the ledger stores them."""
    return type(event).__name__, _encoder.encode(event)


KNOWN: set[str] = {one.__name__ for one in get_args(AnyEvent)}
"""The type names of today's events."""


def decode(kind: str, body: bytes) -> AnyEvent:
    """The event from stored bytes; an old one is brought into today's form.

    Raises `LedgerTooNew` for the event of a newer release.
    """
    upcast = UPCASTS.get(kind)
    if upcast is not None:
        body = _encoder.encode(upcast(msgspec.json.decode(body)))
    elif kind not in KNOWN:
        text = f"an event {kind!r} is of a newer release of Pursuit; upgrade this one"
        raise LedgerTooNew(text, event=kind)
    return _decoder.decode(body)
