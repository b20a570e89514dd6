"""Whether a call may pass: policy, a person's yes, and the record of what was let through.

Owns: what a refusal says, how the person behind a client is asked, and when a line of the audit trail is written. Does
not know: servers. Invariant: what may write is in the ledger before it is sent; a yes counts for the call, or for the
tool with exactly these arguments, that it was given for.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from pursuit.core.gateway import GatewayOutcome, narrow_scope
from pursuit.core.tools import CallFailed, Tool, UpstreamError
from pursuit.errors import LedgerUnavailable
from pursuit.policy.rules import Layers, OperatorPolicy, decide
from pursuit.policy.traits import tool_approval_description
from pursuit.server.approval_form import filled, form, how_to_approve
from pursuit.server.errors import caller_of, may_approve, sendable
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.protocol_versions import as_object
from pursuit.server.logs import event
from pursuit.service.audit import Caller
from pursuit.service.gateway import GatewayJournal

FORM = form(where="until the gateway ends")
Note = Callable[[Mapping[str, Any]], None]
_ROUND_TRIP_KEYS = ("inputResponses", "requestState")
_PASSED = "pursuit-passed-"
_TICKET = 32
_ASKED = "pursuit-asked-"
MOST_PASSED = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """What became of a call at the gate: it passes, is refused, or a person must be asked first.

    `asked` is whether policy wanted a yes, and `leg` what the client says to the server in this leg of its call.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    refusal: str | None = None
    question: Mapping[str, Any] | None = None
    asked: bool = False
    leg: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters for the server: with its own state instead of ours, and without what answered us."""
        if not self.asked:
            return params
        return {**{key: value for key, value in params.items() if key not in _ROUND_TRIP_KEYS}, **self.leg}


class Authorizer:
    """Asks policy, which `layers` gives anew each time, and people; writes to the journal."""

    def __init__(self, layers: Callable[[Caller], Layers], journal: GatewayJournal) -> None:
        self._layers = layers
        self._journal = journal
        self._tickets: dict[str, str] = {}

    def lets_through(self, visit: ClientRequest, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether policy allows it without asking anybody."""
        return decide(self._layers(caller_of(visit.ctx)), tool, arguments).decision == "allow"

    async def admit(self, visit: ClientRequest, tool: Tool, arguments: Mapping[str, Any]) -> Authorization:
        """Decides about a call; where policy asks and the client's person may answer, they are asked."""
        caller = caller_of(visit.ctx)
        ruling = decide(self._layers(caller), tool, arguments)
        if ruling.decision == "allow":
            return Authorization(tool=tool, arguments=arguments, caller=caller)
        if ruling.decision == "deny":
            return await self._refused(
                tool, arguments, caller, f"{tool.qualified} is denied by policy: {ruling.reason}"
            )
        scope = narrow_scope(caller.who, tool.qualified, arguments)
        state: Any = visit.params.get("requestState")
        if isinstance(state, str) and state.startswith(_PASSED):
            ticket = state[: len(_PASSED) + _TICKET]
            if self._tickets.get(ticket) == scope:
                # Spent: whoever comes again with it is asked again.
                del self._tickets[ticket]
                return Authorization(tool=tool, arguments=arguments, caller=caller, asked=True, leg=_leg(visit.params))
        return await self._ask(visit, tool, arguments, caller, ruling.reason)

    async def appoint(self, visit: ClientRequest, tool: Tool, arguments: Mapping[str, Any]) -> Authorization:
        """Decides about a call that the operator makes: nobody is asked about it, and only a denial holds it up."""
        caller = caller_of(visit.ctx)
        why = denial(self._layers(caller).operator, tool, arguments)
        if why is not None:
            return await self._refused(tool, arguments, caller, why)
        return Authorization(tool=tool, arguments=arguments, caller=caller)

    async def _ask(
        self, visit: ClientRequest, tool: Tool, arguments: Mapping[str, Any], caller: Caller, reason: str
    ) -> Authorization:
        """Looks for a yes in the ledger, and asks for one if there is none."""
        description = tool_approval_description(tool, arguments, reason)
        ask = partial(
            self._journal.ask, tool.qualified, arguments, description=description, reason=reason, caller=caller
        )
        question = await ask()
        if question.granted is None and visit.guest.fills_forms and may_approve(visit.ctx):
            asking = await self._put(visit, question.approval_id, description, caller)
            if asking is not None:
                return Authorization(tool=tool, arguments=arguments, caller=caller, question=asking)
            question = await ask()
        if question.granted is None:
            how = (
                f"{tool.qualified} needs a person's yes ({reason}). The operator can give it with "
                f"{how_to_approve(question.approval_id)}, or with a rule in the configuration; then call again."
            )
            return await self._refused(tool, arguments, caller, how)
        if not question.granted:
            return await self._refused(
                tool, arguments, caller, f"{tool.qualified} was denied by {question.by or 'a person'}"
            )
        return Authorization(tool=tool, arguments=arguments, caller=caller, asked=True, leg=_leg(visit.params))

    async def _put(
        self, visit: ClientRequest, approval_id: str, description: str, caller: Caller
    ) -> dict[str, Any] | None:
        """Puts the question to the person: in the old era at once, in the new one by the result that is returned."""
        params = {"mode": "form", "message": sendable(description), "requestedSchema": FORM}
        if not visit.guest.modern:
            try:
                answer: Mapping[str, Any] = await visit.ask(
                    "elicitation/create", params, seconds=self._journal.patience
                )
            except UpstreamError:
                return None
            await self._take(approval_id, answer, caller)
            return None
        state, given = visit.params.get("requestState"), visit.params.get("inputResponses")
        if state == f"{_ASKED}{approval_id}":
            await self._take(approval_id, as_object(given).get(approval_id), caller)
            return None
        return {
            "resultType": "input_required",
            "inputRequests": {approval_id: {"method": "elicitation/create", "params": params}},
            "requestState": f"{_ASKED}{approval_id}",
        }

    async def _take(self, approval_id: str, said: object, caller: Caller) -> None:
        """Stores a person's answer; a dismissed question stays open."""
        answer = filled(said)
        if answer is not None:
            by = Caller(who=caller.who, transport="elicitation", client=caller.client)
            await self._journal.answer(approval_id, answer.answer, by=str(by), reason=answer.reason)

    def result(self, passage: Authorization, result: dict[str, Any]) -> dict[str, Any]:
        """The result for the client: a question of the server carries a ticket, so that nobody is asked twice.

        It stands for the yes in the next leg of this call, and in that one only; the server's own state travels inside.
        """
        if not passage.asked or result.get("resultType") != "input_required":
            return result
        if len(self._tickets) >= MOST_PASSED:
            self._tickets.clear()
        ticket = f"{_PASSED}{secrets.token_hex(_TICKET // 2)}"
        self._tickets[ticket] = narrow_scope(passage.caller.who, passage.tool.qualified, passage.arguments)
        state = result.get("requestState")
        return {**result, "requestState": ticket if state is None else f"{ticket}+{state}"}

    async def _refused(self, tool: Tool, arguments: Mapping[str, Any], caller: Caller, why: str) -> Authorization:
        event(_log, logging.INFO, "refused", tool=tool.qualified, who=str(caller), why=why)
        await self._journal.refused(tool.qualified, arguments, why, by=str(caller))
        return Authorization(tool=tool, arguments=arguments, caller=caller, refusal=why)

    @asynccontextmanager
    async def recorded(self, passage: Authorization) -> AsyncGenerator[Note | None]:
        """Writes what may write to the ledger, before and after; what only reads is a line of the log."""
        tool, who = passage.tool, str(passage.caller)
        if tool.traits.read_only:
            event(_log, logging.DEBUG, "reads", tool=tool.qualified, who=who)
            yield None
            return
        try:
            call_id = await self._journal.intended(tool.qualified, passage.arguments, by=who)
        except LedgerUnavailable as error:
            reason = f"not sent: what may write must be recorded first, and {error.message}"
            raise CallFailed(reason, sent=False) from None
        settled = _Settled()
        try:
            yield settled.note
        except (UpstreamError, CallFailed) as error:
            settled.failed(error)
            raise
        except anyio.get_cancelled_exc_class():
            settled.outcome, settled.why = "cancelled", "while it was under way"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._settle(call_id, settled)

    async def _settle(self, call_id: str, settled: _Settled) -> None:
        try:
            await self._journal.settled(call_id, settled.outcome, settled.why)
        except LedgerUnavailable as error:
            # The call was made: its client gets the result, and the trail says that the outcome is unknown.
            _log.error("the outcome of %s could not be recorded: %s", call_id, error.message)


def denial(policy: OperatorPolicy, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Why the operator's own rules forbid a call that nobody need be asked about; None if they do not."""
    ruling = policy.decide(tool, arguments)
    return f"{tool.qualified} is denied by policy: {ruling.reason}" if ruling.decision == "deny" else None


class _Settled:
    """What became of a call; unknown until somebody says."""

    def __init__(self) -> None:
        self.outcome: GatewayOutcome = "unknown"
        self.why: str | None = None

    def note(self, result: Mapping[str, Any]) -> None:
        asked, wrong = result.get("resultType") == "input_required", result.get("isError") is True
        self.outcome = "asked" if asked else "failed" if wrong else "ok"

    def failed(self, error: UpstreamError | CallFailed) -> None:
        self.outcome, self.why = (error.outcome if isinstance(error, CallFailed) else "failed"), str(error)


def _leg(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a client says to the server in a call that policy asked about: not what it said to us."""
    said = {key: params[key] for key in _ROUND_TRIP_KEYS if key in params}
    state = said.get("requestState")
    if not isinstance(state, str):
        return said
    if state.startswith(_ASKED):
        return {}
    if state.startswith(_PASSED):
        del said["requestState"]
        _, theirs, own = state.partition("+")
        return {**said, "requestState": own} if theirs else said
    return said
