"""`pursuit logs`: what a mission did, in order: turns, calls and their outcomes, questions, warnings, failing checks.

Arguments are redacted as in the audit. Each entry is one line; the end of a failing command's output follows it,
indented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.cli.console import CommandAnswer, Screen, clean, counted, line
from pursuit.core import events
from pursuit.core.audit import redacted
from pursuit.core.events import AnyEvent
from pursuit.core.report import exit_code_of, iso, output_tail
from pursuit.core.state import MissionState
from pursuit.reports.wording import compact, figure, local_iso, span
from pursuit.service import Service

LONGEST = 400
"""Characters of an answer, an error or a rationale on its line; `--json` has them whole."""


class Log:
    """Prints the entries of a mission as its events come, up to the event with the number `until`."""

    def __init__(self, service: Service, screen: Screen, *, until: int | None) -> None:
        self._service = service
        self._screen = screen
        self._until = until
        self._calls: dict[str, events.CallIntended] = {}
        self._asked: dict[str, events.ApprovalAsked] = {}
        self._model = ""

    async def show(self, event: AnyEvent, state: MissionState) -> bool:
        """Prints the entry of an event; returns whether no more is wanted."""
        screen, row = self._screen, await self._entry(event, state)
        if row is not None:
            output = (f"    {clean(text)}" for text in row.get("output", ()))
            screen.render(CommandAnswer(row, f"{local_iso(row['at'])}\t{row['text']}", output))
        return screen.unread or (self._until is not None and state.seq >= self._until)

    async def _entry(self, event: AnyEvent, state: MissionState) -> dict[str, Any] | None:
        output: Sequence[str] = ()
        match event:
            case events.CallIntended():
                self._calls[event.call_id] = event
                text = f"{_what(event)} {_arguments(event.args)}" + (f" as {event.task}" if event.task else "")
            case events.CallSettled():
                call = self._calls.pop(event.call_id, None)
                result = await self._result(event)
                code = exit_code_of(result)
                text = f"{'call' if call is None else _what(call)}: {event.outcome} in {span(event.seconds)}"
                text += f", exit code {code}" if code else ""
                if code or event.outcome != "ok":
                    output = output_tail(result)
                if event.error and not output:
                    text += f": {line(event.error, LONGEST)}"
            case events.ApprovalAsked():
                self._asked[event.approval_id] = event
                text = f"question {event.approval_id}: {event.tool} {_arguments(event.args)} ({line(event.reason)})"
            case events.ApprovalAnswered() | events.ApprovalExpired():
                asked = self._asked.pop(event.approval_id, None)
                what = "" if asked is None else f" ({asked.tool})"
                text = f"question {event.approval_id}{what}: {_answer(event)}"
            case events.ModelAsked():
                self._model = event.model
                again = f", request {event.attempt + 1}" if event.attempt else ""
                text = f"iteration {event.iteration + 1}: asked {line(event.model)}{again}"
            case events.ModelAnswered():
                text = f"iteration {event.iteration + 1}: {line(self._model)} {_said(event)}"
            case _:
                text = _words(event, state)
        if text is None:
            return None
        row: dict[str, Any] = {"at": iso(event.at), "type": type(event).__name__, "text": text}
        return {**row, "output": list(output)} if output else row

    async def _result(self, event: events.CallSettled) -> Mapping[str, Any] | None:
        if event.blob is None:
            return event.result
        body = await self._service.ledger.blob(event.blob)
        return None if body is None else msgspec.json.decode(body)


def _what(call: events.CallIntended) -> str:
    return f"check {line(call.criterion_id)}" if call.purpose == "check" else f"call {line(call.tool)}"


def _arguments(args: Mapping[str, Any]) -> str:
    return line(compact(redacted(args)))


def _answer(event: events.ApprovalAnswered | events.ApprovalExpired) -> str:
    return "expired, which counts as no" if isinstance(event, events.ApprovalExpired) else operator_words(event)


def _said(event: events.ModelAnswered) -> str:
    """What a language model answered, and what that used."""
    if event.error is not None:
        return f"gave no answer: {line(event.error, LONGEST)}"
    cost = "" if event.cost_usd is None else f", ${figure(event.cost_usd)}"
    used = f"{event.tokens:,} tokens{cost}, {span(event.seconds)}"
    if event.answer is None:
        return f"answered ({used})"
    called = ", ".join(f"{line(call.name)} {_arguments(call.args or {})}" for call in event.answer.calls)
    words = [line(event.answer.text, LONGEST), f"calls {called}" if called else ""]
    return f"answered ({used}): {'; '.join(filter(None, words)) or 'nothing'}"


def _words(event: AnyEvent, state: MissionState) -> str | None:
    match event:
        case events.MissionCreated():
            return f"created: {line(state.mission.directive, 200)}"
        case events.RunClaimed():
            mode = f" in mode {event.mode}" if event.mode else ""
            return f"driven by process {event.pid} on {line(event.host)}{mode}"
        case events.IterationProposed():
            reasons = "; ".join(line(one, LONGEST) for one in event.failed)
            why = f": {line(event.rationale, LONGEST)}" if event.rationale else ""
            what = "a script" if event.script is not None else counted(len(event.calls), "call")
            said = f"failed: {reasons}" if reasons else f"proposes {what}{why}"
            return f"iteration {event.iteration + 1}: {event.proposer} {said}"
        case events.CallRefused():
            return f"call {line(event.tool)} {_arguments(event.args)}: {event.outcome}: {line(event.reason, LONGEST)}"
        case events.ScriptEnded():
            return None if event.error is None else f"script failed: {line(event.error, LONGEST)}"
        case events.IterationEnded():
            rationale = f": {line(event.rationale, LONGEST)}" if event.rationale else ""
            return f"iteration {event.iteration + 1}: {event.verdict} ({event.reason}){rationale}"
        case events.MissionWarned():
            return f"warning: {line(event.message, LONGEST)}"
        case events.WaitBegan():
            return f"waiting for {event.waiting_for}" + (f" ({line(event.detail)})" if event.detail else "")
        case events.MissionFailed():
            return f"failed: {line(event.error, LONGEST)}"
        case events.MissionEnded():
            return f"{event.status} ({event.reason})"
        case events.OperatorEvent():
            return operator_words(event)
        case _:
            return None


def operator_words(event: events.OperatorEvent) -> str:
    """What the operator ordered or answered."""
    answered = isinstance(event, events.ApprovalAnswered)
    what = _ANSWERS[event.answer] if answered else _ORDERS.get(type(event), type(event).__name__)
    way = f" ({event.channel})" if answered and event.channel else ""
    by = line(event.by).removesuffix(way) + way  # a person at the terminal is `root (terminal)` already
    return f"{what} by {by}" + (f": {line(event.reason, LONGEST)}" if event.reason else "")


_ANSWERS: dict[events.Permission, str] = {
    "once": "approved once",
    "arguments": "approved for these arguments",
    "mission": "approved for this mission",
    "denied": "denied",
}
_ORDERS: dict[type[Any], str] = {
    events.MissionPaused: "paused",
    events.MissionResumed: "resumed",
    events.AbortOrdered: "abort ordered",
    events.CompletionOrdered: "completion ordered",
    events.BudgetExtended: "budget extended",
    events.ApprovalShown: "question seen whole",
}
