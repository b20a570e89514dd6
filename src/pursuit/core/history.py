"""What happened in a mission, as typed rows: its iterations with their calls, questions and model turns. Pure.

Reports, histories, timelines and shared files are made of these rows. A row holds the events that it joins: a call its
intent, the question about it and its end. `Iteration` and `Call` are what people and programs read of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Self

import msgspec
from msgspec import UNSET

from pursuit.core.approvals import GRANTS, Yes, agreed
from pursuit.core.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    CriterionResult,
    Event,
    IterationEnded,
    IterationProposed,
    ModelAnswered,
    ModelAsked,
    Outcome,
    ScriptEnded,
    TurnContinued,
    decode,
)


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What people and programs read: its fields in their order are its JSON, without those that have their default."""

    def as_json(self) -> dict[str, Any]:
        """Its JSON."""
        return msgspec.to_builtins(self, enc_hook=lambda value: value.as_json())


def iso(moment: float | None) -> str | None:
    """A moment in ISO 8601, to the millisecond."""
    if moment is None:
        return None
    seconds, milliseconds = divmod(round(moment * 1e6) // 1000, 1000)
    return f"{_second(seconds)}.{str(1000 + milliseconds)[1:]}+00:00"


@lru_cache(maxsize=1024)
def _second(moment: int) -> str:
    """Most moments of a report share their second with others, and writing one takes long."""
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).isoformat()[:19]


class Call(Shown, frozen=True, kw_only=True):
    """A call of a tool; a field without a value was not asked for, or the call has none."""

    call_id: str = ""
    iteration: int | None = None
    """Its iteration, from 0."""
    tool: str
    args: Mapping[str, Any] | None = None
    purpose: str | None = None
    """`proposal`, `script` or `check`."""
    at: str | None = None
    """When it was sent or refused, in ISO 8601."""
    outcome: Outcome | None = None
    seconds: float | None = None
    result: Any = UNSET
    """What the tool returned, as MCP has it; of a large result the beginning, as text."""
    error: str | None = None
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    reason: Any = UNSET
    """Why it was refused, or its outcome is not known; None if nobody knows."""


class ProposedCall(Shown, frozen=True, kw_only=True):
    """A call as it was proposed."""

    tool_name: str
    args: Mapping[str, Any]


class Strategy(Shown, frozen=True, kw_only=True):
    """What was proposed for an iteration, by whom and why; `failed` are the reasons why nothing was."""

    proposer: str | None = None
    script: str | None = None
    tool_calls: list[ProposedCall] | None = None
    rationale: str | None = None
    failed: list[str] = []


class Observed(Shown, frozen=True, kw_only=True):
    """Metrics and events that were reported; `errors` are those of the proposer, of calls and of the script."""

    metrics: dict[str, Any]
    events: list[dict[str, Any]]
    errors: list[str] | None = None


class ScriptOutcome(Shown, frozen=True, kw_only=True):
    """What a script printed and observed; what a proposed script observed is only `claimed`."""

    error: str | None = None
    printed: str = ""
    claimed: Observed | None = None
    observed: Observed | None = None


class Iteration(Shown, frozen=True, kw_only=True):
    """An iteration. Its calls, criteria and observations are there if they were asked for."""

    index: int = msgspec.field(name="iteration_index")
    """Its number, from 0."""
    started_at: str | None = None
    strategy: Strategy | None = None
    calls: list[Call] | None = None
    script: ScriptOutcome | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    ended_at: str | None = None
    rationale: Any = UNSET
    """The words of who proposed, or of the verdict; None without them."""
    checkpoint: bool | None = None
    """Whether its criteria were evaluated."""
    criteria: list[CriterionResult] | None = None
    observation: Observed | None = None


class Stored(Protocol):
    """An event as a ledger gives it."""

    @property
    def seq(self) -> int:
        """Its number in the stream."""
        ...

    @property
    def type(self) -> str:
        """The name of its kind."""
        ...

    @property
    def body(self) -> bytes:
        """Its JSON."""
        ...


def decoded(stored: Iterable[Stored]) -> Iterator[AnyEvent]:
    """The events of a stored stream."""
    return (decode(one.type, one.body) for one in stored)


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row; it never changes. `seq` is the number of the event that begins it."""

    seq: int = 0


class ApprovalQuestion(Row, frozen=True, kw_only=True, gc=False):
    """A question to a person about a call, and what was said."""

    asked: ApprovalAsked
    answers: tuple[ApprovalAnswered, ...] = ()
    expired: ApprovalExpired | None = None

    @property
    def end(self) -> tuple[str, str | None, ApprovalAnswered | ApprovalExpired] | None:
        """The answer that counts, who gave it, and the event that closed the question; None while it is open.

        A no counts at once; a yes counts once as many people said it as are required.
        """
        said: dict[str, Yes] = {}
        for event in self.answers:
            if event.answer not in GRANTS:
                return event.answer, event.by, event
            said.setdefault(event.person or event.by, Yes(event.answer, event.by))
            if (together := agreed(said, self.asked.require)) is not None:
                return together[0], together[1], event
        return None if self.expired is None else ("expired", None, self.expired)


class CallRow(Row, frozen=True, kw_only=True, gc=False):
    """A call that was asked about, intended or refused, and its end."""

    call_id: str
    at: float
    """When it began: it was asked about, intended or refused."""
    intended: CallIntended | None = None
    question: ApprovalQuestion | None = None
    end: CallSettled | CallRefused | None = None

    @property
    def said(self) -> CallIntended | CallRefused | ApprovalAsked:
        """The event that says what is called."""
        if self.intended is not None:
            return self.intended
        if isinstance(self.end, CallRefused):
            return self.end
        assert self.question is not None  # noqa: S101 - a row begins with one of the three
        return self.question.asked

    @property
    def iteration(self) -> int:
        """The iteration that it belongs to."""
        return self.said.iteration

    @property
    def tool(self) -> str:
        """The tool that is called."""
        return self.said.tool

    @property
    def args(self) -> dict[str, Any]:
        """Its arguments."""
        return self.said.args

    @property
    def settled(self) -> CallSettled | None:
        """Its outcome, if it was sent and has one."""
        return self.end if isinstance(self.end, CallSettled) else None

    @property
    def outcome(self) -> Outcome | None:
        """What came of it; None while it is under way."""
        return None if self.end is None else self.end.outcome

    @property
    def error(self) -> str | None:
        """Why it failed or was refused."""
        return self.end.reason if isinstance(self.end, CallRefused) else None if self.end is None else self.end.error

    @property
    def waits(self) -> bool:
        """Whether it waits for a person's answer."""
        return self.intended is None and self.end is None and self.question is not None and self.question.end is None

    def shown(self) -> Call:
        """The call with its result."""
        said, end = self.said, self.end
        row = Call(
            call_id=self.call_id,
            tool=self.tool,
            args=self.args,
            purpose=None if isinstance(said, ApprovalAsked) else said.purpose,
            outcome=self.outcome,
        )
        if isinstance(end, CallRefused):
            return msgspec.structs.replace(row, error=end.reason)
        if end is None:
            return row
        found: dict[str, Any] = {"metrics": end.metrics, "events": end.events, "error": end.error or None}
        return msgspec.structs.replace(row, seconds=end.seconds, result=end.result or end.preview, **found)


class ModelTurn(Row, frozen=True, kw_only=True, gc=False):
    """A request to a language model and its answer."""

    asked: ModelAsked
    answered: ModelAnswered | None = None


class IterationRow(Row, frozen=True, kw_only=True):
    """An iteration; its calls and turns are added while the events are read."""

    index: int
    proposed: IterationProposed | None = None
    continued: tuple[TurnContinued, ...] = ()
    calls: dict[str, CallRow]
    turns: list[ModelTurn]
    script: ScriptEnded | None = None
    script_seq: int = 0
    ended: IterationEnded | None = None

    def shown(self, *, full: bool) -> Iteration:
        """When the iteration ran and its verdict; in `full` with its proposal, calls, criteria and observations."""
        proposed, ended = self.proposed, self.ended
        row = Iteration(index=self.index, started_at=None if proposed is None else iso(proposed.at))
        if ended is not None:
            end = {"verdict": ended.verdict, "verdict_reason": ended.reason, "ended_at": iso(ended.at)}
            row = msgspec.structs.replace(row, **end)
        if not full:
            return row
        calls = [one.shown() for one in self.calls.values() if one.intended is not None or one.end is not None]
        row = msgspec.structs.replace(row, strategy=self._strategy(), calls=calls, script=self._script())
        if ended is None:
            return row
        found: dict[str, Any] = {"rationale": ended.rationale, "checkpoint": ended.facts.checkpoint}
        return msgspec.structs.replace(row, **found, criteria=ended.criteria, observation=self._observation())

    def _strategy(self) -> Strategy:
        """What was proposed, with the further answers of a model in the same turn."""
        event = self.proposed
        if event is None:
            return Strategy()
        planned = [*event.calls, *(call for further in self.continued for call in further.calls)]
        calls = [ProposedCall(tool_name=call.tool, args=call.args) for call in planned]
        rationales = [part.rationale for part in (event, *self.continued) if part.rationale is not None]
        return Strategy(
            proposer=event.proposer,
            script=event.script,
            tool_calls=calls if event.script is None or self.continued else None,
            rationale=rationales[-1] if rationales else None,
            failed=event.failed,
        )

    def _script(self) -> ScriptOutcome | None:
        script = self.script
        if script is None:
            return None
        said = {"claimed" if script.claimed else "observed": Observed(metrics=script.observed, events=script.events)}
        return ScriptOutcome(error=script.error or None, printed=script.printed, **said)

    def _observation(self) -> Observed:
        """What the iteration learned: its calls in the order that they were proposed in, then its script."""
        metrics: dict[str, Any] = {}
        events: list[dict[str, Any]] = []
        errors = [] if self.proposed is None else list(self.proposed.failed)
        for call in self.calls.values():
            if (end := call.settled) is not None:
                metrics |= end.metrics
                events += end.events
            errors += [call.error] if call.error else []
        if self.script is not None:
            if not self.script.claimed:
                metrics |= self.script.observed
                events += self.script.events
            errors += [self.script.error] if self.script.error else []
        return Observed(metrics=metrics, events=events, errors=errors)


class History:
    """The rows of a mission, or of a part of its events; `take` adds the next event."""

    def __init__(self) -> None:
        self.iterations: dict[int, IterationRow] = {}
        self.questions: dict[str, ApprovalQuestion] = {}
        self.ended_calls: list[CallRow] = []
        """The calls in the order of their ends."""
        self.made_calls: list[tuple[CallIntended, CallSettled]] = []
        """Those of them that were sent."""
        self.turns: list[IterationProposed | ModelTurn | CallRow] = []
        """What was proposed, models answered and agents changed, in order."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """The rows of these events."""
        history = cls()
        for event in events:
            history.take(event)
        return history

    @classmethod
    def read(cls, stored: Iterable[Stored]) -> Self:
        """The rows of a stored stream, or of a part of it."""
        history = cls()
        history.extend(stored)
        return history

    def extend(self, stored: Iterable[Stored]) -> None:
        """Adds the next events of a stored stream."""
        for one in stored:
            self.take(decode(one.type, one.body), one.seq)

    @property
    def calls(self) -> Iterator[CallRow]:
        """All calls, by iteration and in the order in which they were sent or refused."""
        return (call for iteration in self.iterations.values() for call in iteration.calls.values())

    def take(self, event: Event, seq: int = 0) -> None:
        """Adds the next event, which has the number `seq`."""
        if (take := self._TAKES.get(type(event))) is not None:
            take(self, event, seq)

    def _iteration(self, index: int, seq: int) -> IterationRow:
        row = self.iterations.get(index)
        if row is None:
            row = self.iterations[index] = IterationRow(seq=seq, index=index, calls={}, turns=[])
        return row

    def _proposed(self, event: IterationProposed, seq: int) -> None:
        row = self.iterations.get(event.iteration)
        if row is None:
            row = IterationRow(seq=seq, index=event.iteration, proposed=event, calls={}, turns=[])
        else:
            row = msgspec.structs.replace(row, proposed=event)
        self.iterations[event.iteration] = row
        self.turns.append(event)

    def _continued(self, event: TurnContinued, seq: int) -> None:
        row = self._iteration(event.iteration, seq)
        self.iterations[row.index] = msgspec.structs.replace(row, continued=(*row.continued, event))

    def _script_ended(self, event: ScriptEnded, seq: int) -> None:
        row = self._iteration(event.iteration, seq)
        self.iterations[row.index] = msgspec.structs.replace(row, script=event, script_seq=seq)

    def _ended(self, event: IterationEnded, seq: int) -> None:
        row = self._iteration(event.iteration, seq)
        self.iterations[row.index] = msgspec.structs.replace(row, ended=event)

    def _intended(self, event: CallIntended, seq: int) -> None:
        calls = self._iteration(event.iteration, seq).calls
        row = calls.get(event.call_id)
        if row is None:
            calls[event.call_id] = CallRow(seq=seq, call_id=event.call_id, at=event.at, intended=event)
        else:  # it was asked about, or is sent again
            if row.intended is None:  # a question does not change the order in which calls are sent
                del calls[event.call_id]
            calls[event.call_id] = msgspec.structs.replace(row, intended=event, end=None)

    def _settled(self, event: CallSettled, _seq: int) -> None:
        iteration = self.iterations.get(event.iteration)
        row = None if iteration is None else iteration.calls.get(event.call_id)
        if iteration is None or row is None or row.intended is None:
            return  # it began before the events that are read
        intended = row.intended
        row = CallRow(seq=row.seq, call_id=row.call_id, at=row.at, intended=intended, question=row.question, end=event)
        iteration.calls[event.call_id] = row
        self.ended_calls.append(row)
        self.made_calls.append((intended, event))
        if event.change is not None:
            self.turns.append(row)

    def _refused(self, event: CallRefused, seq: int) -> None:
        calls = self._iteration(event.iteration, seq).calls
        row = calls.pop(event.call_id, None) or CallRow(seq=seq, call_id=event.call_id, at=event.at)
        row = calls[event.call_id] = msgspec.structs.replace(row, end=event)
        self.ended_calls.append(row)

    def _asked(self, event: ModelAsked, seq: int) -> None:
        self._iteration(event.iteration, seq).turns.append(ModelTurn(seq=seq, asked=event))

    def _answered(self, event: ModelAnswered, _seq: int) -> None:
        iteration = self.iterations.get(event.iteration)
        turns = [] if iteration is None else iteration.turns
        for place in range(len(turns) - 1, -1, -1):
            seq, asked = turns[place].seq, turns[place].asked
            if (asked.attempt, asked.purpose) == (event.attempt, event.purpose):
                turns[place] = ModelTurn(seq=seq, asked=asked, answered=event)
                self.turns.append(turns[place])
                return

    def _questioned(self, event: ApprovalAsked, seq: int) -> None:
        question = self.questions[event.approval_id] = ApprovalQuestion(seq=seq, asked=event)
        calls = self._iteration(event.iteration, seq).calls
        row = calls.get(event.call_id) or CallRow(seq=seq, call_id=event.call_id, at=event.at)
        calls[event.call_id] = msgspec.structs.replace(row, question=question)

    def _heard(self, event: ApprovalAnswered | ApprovalExpired, _seq: int) -> None:
        question = self.questions.get(event.approval_id)
        if question is None or question.end is not None:
            return
        if isinstance(event, ApprovalExpired):
            question = msgspec.structs.replace(question, expired=event)
        else:
            question = msgspec.structs.replace(question, answers=(*question.answers, event))
        self.questions[event.approval_id] = question
        calls = self.iterations[question.asked.iteration].calls
        calls[question.asked.call_id] = msgspec.structs.replace(calls[question.asked.call_id], question=question)

    _TAKES: ClassVar[dict[type[Any], Callable[[History, Any, int], None]]] = {
        CallIntended: _intended,
        CallSettled: _settled,
        CallRefused: _refused,
        IterationProposed: _proposed,
        TurnContinued: _continued,
        ScriptEnded: _script_ended,
        IterationEnded: _ended,
        ModelAsked: _asked,
        ModelAnswered: _answered,
        ApprovalAsked: _questioned,
        ApprovalAnswered: _heard,
        ApprovalExpired: _heard,
    }
