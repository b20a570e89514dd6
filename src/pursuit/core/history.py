"""The history of a mission as typed rows: its iterations with their calls, questions and model turns. Pure.

Reports, histories, timelines and shared files are made of these rows. A row joins events: that of a call has its
intent, the question about it and its end. `Iteration` and `Call` are the forms for people and programs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import msgspec
from msgspec import UNSET

from pursuit.core.approvals import Approval, Questions
from pursuit.core.events import (
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
    Stored,
    TurnContinued,
    decode,
)


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of rows for people and programs: JSON of the fields in order, without those that have their default."""

    def as_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self, enc_hook=lambda value: value.as_json())


def iso(moment: float | None) -> str | None:
    """A time in ISO 8601, to the millisecond."""
    if moment is None:
        return None
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).isoformat(timespec="milliseconds")


class Call(Shown, frozen=True, kw_only=True):
    """A call of a tool; fields that were not requested, or do not apply, are absent."""

    call_id: str = ""
    iteration: int | None = None
    """The iteration of the call, from 0."""
    tool: str
    args: Mapping[str, Any] | None = None
    purpose: str | None = None
    """`proposal`, `script` or `check`."""
    at: str | None = None
    """When it was sent or refused, in ISO 8601."""
    outcome: Outcome | None = None
    seconds: float | None = None
    result: Any = UNSET
    """The tool's MCP result; for a large result, its beginning as text."""
    error: str | None = None
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    reason: Any = UNSET
    """Why it was refused, or why its outcome is unknown; None without a known reason."""


class ProposedCall(Shown, frozen=True, kw_only=True):
    """A call as it was proposed."""

    tool_name: str
    args: Mapping[str, Any]


class Strategy(Shown, frozen=True, kw_only=True):
    """The proposal of an iteration, its proposer and rationale; `failed` has the reasons why nothing was proposed."""

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
    """The output and observations of a script; those of a proposed script are only `claimed`."""

    error: str | None = None
    printed: str = ""
    claimed: Observed | None = None
    observed: Observed | None = None


class Iteration(Shown, frozen=True, kw_only=True):
    """An iteration. Its calls, criteria and observations are present if they were requested."""

    index: int = msgspec.field(name="iteration_index")
    """The number of the iteration, from 0."""
    started_at: str | None = None
    strategy: Strategy | None = None
    calls: list[Call] | None = None
    script: ScriptOutcome | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    ended_at: str | None = None
    rationale: Any = UNSET
    """The rationale of the proposer or of the verdict; None without one."""
    checkpoint: bool | None = None
    """True if its criteria were evaluated."""
    criteria: list[CriterionResult] | None = None
    observation: Observed | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An immutable row; `seq` is the number of its first event."""

    seq: int = 0


class CallRow(Row, frozen=True, kw_only=True, gc=False):
    """A call with its question, its intent or refusal, and its end."""

    call_id: str
    at: float
    """The time of its question, intent or refusal, whichever came first."""
    intended: CallIntended | None = None
    question: Approval | None = None
    end: CallSettled | CallRefused | None = None

    @property
    def said(self) -> CallIntended | CallRefused | Approval:
        """The event or approval with the tool and the arguments of the call."""
        if self.intended is not None:
            return self.intended
        if isinstance(self.end, CallRefused):
            return self.end
        assert self.question is not None  # noqa: S101 - a row begins with one of the three
        return self.question

    @property
    def iteration(self) -> int:
        return self.said.iteration or 0

    @property
    def tool(self) -> str:
        return self.said.tool

    @property
    def args(self) -> Mapping[str, Any]:
        return self.said.args

    @property
    def settled(self) -> CallSettled | None:
        return self.end if isinstance(self.end, CallSettled) else None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.end is None else self.end.outcome

    @property
    def error(self) -> str | None:
        return self.end.reason if isinstance(self.end, CallRefused) else None if self.end is None else self.end.error

    @property
    def waits(self) -> bool:
        return self.intended is None and self.end is None and self.question is not None and self.question.answer is None

    def shown(self) -> Call:
        said, end = self.said, self.end
        row = Call(
            call_id=self.call_id,
            tool=self.tool,
            args=self.args,
            purpose=None if isinstance(said, Approval) else said.purpose,
            outcome=self.outcome,
        )
        if isinstance(end, CallRefused):
            return msgspec.structs.replace(row, error=end.reason)
        if end is None:
            return row
        found: dict[str, Any] = {"metrics": end.metrics, "events": end.events, "error": end.error or None}
        return msgspec.structs.replace(row, seconds=end.seconds, result=end.result or end.preview, **found)


class ModelTurn(Row, frozen=True, kw_only=True, gc=False):
    asked: ModelAsked
    answered: ModelAnswered | None = None


class IterationRow(msgspec.Struct, kw_only=True):
    """An iteration that begins with the event `seq`; later parts are added while the events are read."""

    seq: int
    index: int
    proposed: IterationProposed | None = None
    continued: tuple[TurnContinued, ...] = ()
    calls: dict[str, CallRow]
    turns: list[ModelTurn]
    script: ScriptEnded | None = None
    script_seq: int = 0
    ended: IterationEnded | None = None

    def shown(self, *, full: bool) -> Iteration:
        """The times and verdict of the iteration; with `full` also its proposal, calls, criteria and observations."""
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
        """The observations of the iteration: those of its calls in proposed order, then those of its script."""
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
        self.questions = Questions()
        self.ended_calls: list[CallRow] = []
        """The calls in the order of their ends."""
        self.made_calls: list[tuple[CallIntended, CallSettled]] = []
        """The ended calls that were sent."""
        self.turns: list[IterationProposed | ModelTurn | CallRow] = []
        """Proposals, answers of models and changes by agents, in order."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        history = cls()
        for event in events:
            history.take(event)
        return history

    @classmethod
    def read(cls, stored: Iterable[Stored]) -> Self:
        history = cls()
        history.extend(stored)
        return history

    def extend(self, stored: Iterable[Stored]) -> None:
        for one in stored:
            self.take(decode(one.type, one.body), one.seq)

    @property
    def calls(self) -> Iterator[CallRow]:
        """All calls, by iteration and in the order in which they were sent or refused."""
        return (call for iteration in self.iterations.values() for call in iteration.calls.values())

    def ended_from(self, first: int) -> list[IterationRow]:
        """The ended iterations from this one on, in order."""
        ended = [one for one in self.iterations.values() if one.index >= first and one.ended is not None]
        return sorted(ended, key=lambda one: one.index)

    def take(self, event: Event, seq: int = 0) -> None:
        """Adds the next event, which has this number in its stream."""
        match event:
            case CallIntended():
                self._intended(event, self._iteration(event.iteration, seq).calls, seq)
            case CallSettled():
                self._settled(event)
            case CallRefused():
                calls = self._iteration(event.iteration, seq).calls
                row = calls.pop(event.call_id, None) or CallRow(seq=seq, call_id=event.call_id, at=event.at)
                row = calls[event.call_id] = msgspec.structs.replace(row, end=event)
                self.ended_calls.append(row)
            case IterationProposed():
                self._iteration(event.iteration, seq).proposed = event
                self.turns.append(event)
            case TurnContinued():
                self._iteration(event.iteration, seq).continued += (event,)
            case ScriptEnded():
                iteration = self._iteration(event.iteration, seq)
                iteration.script, iteration.script_seq = event, seq
            case IterationEnded():
                self._iteration(event.iteration, seq).ended = event
            case ModelAsked():
                self._iteration(event.iteration, seq).turns.append(ModelTurn(seq=seq, asked=event))
            case ModelAnswered():
                self._answered(event)
            case ApprovalAsked() | ApprovalAnswered() | ApprovalExpired():
                self._questioned(event, seq)
            case _:
                pass

    def _iteration(self, index: int, seq: int) -> IterationRow:
        row = self.iterations.get(index)
        if row is None:
            row = self.iterations[index] = IterationRow(seq=seq, index=index, calls={}, turns=[])
        return row

    @staticmethod
    def _intended(event: CallIntended, calls: dict[str, CallRow], seq: int) -> None:
        row = calls.get(event.call_id)
        if row is None:
            calls[event.call_id] = CallRow(seq=seq, call_id=event.call_id, at=event.at, intended=event)
        else:  # it needed approval, or is sent again
            if row.intended is None:  # a question does not change the order in which calls are sent
                del calls[event.call_id]
            calls[event.call_id] = msgspec.structs.replace(row, intended=event, end=None)

    def _settled(self, event: CallSettled) -> None:
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

    def _answered(self, event: ModelAnswered) -> None:
        iteration = self.iterations.get(event.iteration)
        turns = [] if iteration is None else iteration.turns
        for place in range(len(turns) - 1, -1, -1):
            seq, asked = turns[place].seq, turns[place].asked
            if (asked.attempt, asked.purpose) == (event.attempt, event.purpose):
                turns[place] = ModelTurn(seq=seq, asked=asked, answered=event)
                self.turns.append(turns[place])
                return

    def _questioned(self, event: ApprovalAsked | ApprovalAnswered | ApprovalExpired, seq: int) -> None:
        before = dict(self.questions.asked)
        self.questions.apply(event)
        for asked in self.questions.asked.values():  # a wide yes answers others, too
            if asked is before.get(asked.approval_id) or asked.call_id is None or asked.iteration is None:
                continue
            calls = self._iteration(asked.iteration, seq).calls
            row = calls.get(asked.call_id) or CallRow(seq=seq, call_id=asked.call_id, at=event.at)
            calls[asked.call_id] = msgspec.structs.replace(row, question=asked)
