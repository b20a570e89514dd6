"""`pursuit logs`: what a mission did, in order: turns, calls and their outcomes, questions, warnings, failing checks.

Arguments are redacted as in the audit. Each entry is one line; the end of a failing command's output follows it,
indented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pursuit.cli.console import clean, counted, line
from pursuit.core import events
from pursuit.core.audit import redacted
from pursuit.core.events import AnyEvent
from pursuit.core.report import exit_code_of, iso, output_tail
from pursuit.core.state import MissionState
from pursuit.reports.wording import compact, figure, local_iso, span, waits
from pursuit.service.service import Service

MAX_TEXT = 400
"""Characters of an answer, an error or a rationale on its line; `--json` does not truncate them."""


class Log:
    """Turns the events of a mission into log entries, in order."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._calls: dict[str, events.CallIntended] = {}
        self._asked: dict[str, events.ApprovalAsked] = {}
        self._model = ""

    async def entry(self, event: AnyEvent, state: MissionState) -> dict[str, Any] | None:
        """Returns the entry of an event as JSON; None if the event has no entry."""
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
                    text += f": {line(event.error, MAX_TEXT)}"
            case events.ApprovalAsked():
                self._asked[event.approval_id] = event
                text = f"question {event.approval_id}: {event.tool} {_arguments(event.args)} ({line(event.reason)})"
            case events.ApprovalAnswered() | events.ApprovalExpired():
                asked = self._asked.pop(event.approval_id, None)
                what = "" if asked is None else f" ({asked.tool})"
                answered = isinstance(event, events.ApprovalAnswered)
                said = operator_words(event) if answered else "expired, which counts as denied"
                text = f"question {event.approval_id}{what}: {said}"
            case events.ModelAsked():
                self._model = event.model
                again = f", request {event.attempt + 1}" if event.attempt else ""
                text = f"iteration {event.iteration + 1}: asked {line(event.model)}{again}"
            case events.ModelAnswered():
                text = f"iteration {event.iteration + 1}: {line(self._model)} {_said(event)}"
            case events.ConversationCompacted():
                text = f"the conversation was compacted: a summary replaces {event.replaced} exchanges"
            case _:
                text = log_line(event, state)
        if text is None:
            return None
        row: dict[str, Any] = {"at": iso(event.at), "type": type(event).__name__, "text": text}
        return {**row, "output": list(output)} if output else row

    async def _result(self, event: events.CallSettled) -> Mapping[str, Any] | None:
        if event.blob is None:
            return event.result
        body = await self._service.ledger.blob(event.blob)
        return None if body is None else msgspec.json.decode(body)


def entry_lines(row: Mapping[str, Any] | None) -> Iterator[str]:
    if row is not None:
        yield f"{local_iso(row['at'])}\t{row['text']}"
        yield from (f"    {clean(text)}" for text in row.get("output", ()))


def _what(call: events.CallIntended) -> str:
    return f"check {line(call.criterion_id)}" if call.purpose == "check" else f"call {line(call.tool)}"


def _arguments(args: Mapping[str, Any]) -> str:
    return line(compact(redacted(args)))


def _said(event: events.ModelAnswered) -> str:
    if event.error is not None:
        return f"did not answer: {line(event.error, MAX_TEXT)}"
    cost = "" if event.cost_usd is None else f", ${figure(event.cost_usd)}"
    used = f"{event.tokens:,} tokens{cost}, {span(event.seconds)}"
    if event.answer is None:
        return f"answered ({used})"
    called = ", ".join(f"{line(call.name)} {_arguments(call.args or {})}" for call in event.answer.calls)
    words = [line(event.answer.text, MAX_TEXT), f"calls {called}" if called else ""]
    return f"answered ({used}): {'; '.join(filter(None, words)) or 'nothing'}"


def log_line(event: AnyEvent, state: MissionState) -> str | None:
    match event:
        case events.MissionCreated():
            return f"created: {line(state.mission.directive, 200)}"
        case events.RunClaimed():
            mode = f" in mode {event.mode}" if event.mode else ""
            return f"driven by process {event.pid} on {line(event.host)}{mode}"
        case events.IterationProposed():
            reasons = "; ".join(line(one, MAX_TEXT) for one in event.failed)
            why = f": {line(event.rationale, MAX_TEXT)}" if event.rationale else ""
            what = "a script" if event.script is not None else counted(len(event.calls), "call")
            said = f"failed: {reasons}" if reasons else f"proposes {what}{why}"
            return f"iteration {event.iteration + 1}: {event.proposer} {said}"
        case events.CallRefused():
            return f"call {line(event.tool)} {_arguments(event.args)}: {event.outcome}: {line(event.reason, MAX_TEXT)}"
        case events.ScriptEnded():
            return None if event.error is None else f"script failed: {line(event.error, MAX_TEXT)}"
        case events.IterationEnded():
            rationale = f": {line(event.rationale, MAX_TEXT)}" if event.rationale else ""
            return f"iteration {event.iteration + 1}: {event.verdict} ({event.reason}){rationale}"
        case events.MissionWarned():
            return f"warning: {line(event.message, MAX_TEXT)}"
        case events.WaitBegan():
            return waits(event.waiting_for, event.detail, iso(event.until))
        case events.MissionFailed():
            return f"failed: {line(event.error, MAX_TEXT)}"
        case events.MissionEnded():
            return f"{event.status} ({event.reason})"
        case events.OperatorEvent():
            return operator_words(event)
        case _:
            return None


def operator_words(event: events.OperatorEvent) -> str:
    answered = isinstance(event, events.ApprovalAnswered)
    what = _ANSWERS[event.answer] if answered else _ORDERS.get(type(event), type(event).__name__)
    way = f" ({event.channel})" if answered and event.channel else ""
    by = line(event.by).removesuffix(way) + way  # `by` may end with it already: `root (terminal)`
    return f"{what} by {by}" + (f": {line(event.reason, MAX_TEXT)}" if event.reason else "")


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
    events.ApprovalShown: "full arguments of a question shown",
}
