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
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from pursuit.errors import LedgerUnavailable
from pursuit.model.gateway import GatewayOutcome, narrow_scope
from pursuit.service.caller import Caller
from pursuit.service.gateway import GatewayJournal
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import sendable
from pursuit.surfaces.mcp.forms import filled, form
from pursuit.surfaces.mcp.gateway.eras import as_object
from pursuit.surfaces.mcp.gateway.guests import Visit
from pursuit.tools.contract import CallFailed, Tool, UpstreamError
from pursuit.tools.policy import Layers, decide
from pursuit.tools.predicates import tool_approval_description

FORM = form(where="until the gateway ends")
Note = Callable[[Mapping[str, Any]], None]
_PASSED = "pursuit-passed-"
_ASKED = "pursuit-asked-"
MOST_PASSED = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What became of a call at the gate: it passes, is refused, or a person must be asked first.

    `ticket` stands for a yes that holds for all legs of one call: the server's own state travels inside of it.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    refusal: str | None = None
    question: Mapping[str, Any] | None = None
    ticket: str | None = None
    state: Any = None

    def params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters for the server: with its own state instead of ours, and without what answered us."""
        if self.ticket is None:
            return params
        body = {key: value for key, value in params.items() if key != "requestState"}
        if self.state is None:
            body.pop("inputResponses", None)
            return body
        return {**body, "requestState": self.state}

    def result(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result for the client: a question of the server carries the ticket, so that nobody is asked twice."""
        if self.ticket is None or result.get("resultType") != "input_required":
            return result
        return {**result, "requestState": f"{self.ticket}{_state_text(result.get('requestState'))}"}


class Gate:
    """Asks policy, which `layers` gives anew each time, and people; writes to the journal."""

    def __init__(self, layers: Callable[[], Layers], journal: GatewayJournal) -> None:
        self._layers = layers
        self._journal = journal
        self._tickets: dict[str, str] = {}

    def lets_through(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether policy allows it without asking anybody."""
        return decide(self._layers(), tool, arguments).decision == "allow"

    async def admit(self, visit: Visit, tool: Tool, arguments: Mapping[str, Any]) -> Passage:
        """Decides about a call; asks the person behind the client where policy wants one asked and it can be done."""
        ruling = decide(self._layers(), tool, arguments)
        caller = caller_of(visit.ctx)
        if ruling.decision == "allow":
            return Passage(tool=tool, arguments=arguments, caller=caller)
        if ruling.decision == "deny":
            return await self._refused(
                tool, arguments, caller, f"{tool.qualified} is denied by policy: {ruling.reason}"
            )
        scope = narrow_scope(caller.who, tool.qualified, arguments)
        state: Any = visit.params.get("requestState")
        if isinstance(state, str) and state.startswith(_PASSED):
            ticket = state[: len(_PASSED) + 32]
            if self._tickets.get(ticket) == scope:
                return Passage(
                    tool=tool, arguments=arguments, caller=caller, ticket=ticket, state=_state_of(state[len(ticket) :])
                )
        return await self._ask(visit, tool, arguments, caller, ruling.reason)

    async def _ask(
        self, visit: Visit, tool: Tool, arguments: Mapping[str, Any], caller: Caller, reason: str
    ) -> Passage:
        """Looks for a yes in the ledger, and asks for one if there is none."""
        description = tool_approval_description(tool, arguments, reason)
        ask = partial(
            self._journal.ask, tool.qualified, arguments, description=description, reason=reason, caller=caller
        )
        question = await ask()
        if question.granted is None and visit.guest.can("elicitation"):
            asking = await self._put(visit, question.approval_id, description, caller)
            if asking is not None:
                return Passage(tool=tool, arguments=arguments, caller=caller, question=asking)
            question = await ask()
        if question.granted is None:
            how = (
                f"{tool.qualified} needs a person's yes ({reason}). The operator can give it with "
                f"`pursuit approve {question.approval_id}`, or with a rule in the configuration; then call again."
            )
            return await self._refused(tool, arguments, caller, how)
        if not question.granted:
            return await self._refused(
                tool, arguments, caller, f"{tool.qualified} was denied by {question.by or 'a person'}"
            )
        return Passage(tool=tool, arguments=arguments, caller=caller, ticket=self._ticket(tool, arguments, caller))

    async def _put(self, visit: Visit, approval_id: str, description: str, caller: Caller) -> dict[str, Any] | None:
        """Puts the question to the person: in the old era at once, in the new one by the result that is returned."""
        params = {"mode": "form", "message": sendable(description), "requestedSchema": FORM}
        if not visit.guest.modern:
            try:
                answer: Mapping[str, Any] = await visit.ask("elicitation/create", params)
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

    def _ticket(self, tool: Tool, arguments: Mapping[str, Any], caller: Caller) -> str:
        if len(self._tickets) >= MOST_PASSED:
            self._tickets.clear()
        ticket = f"{_PASSED}{secrets.token_hex(16)}"
        self._tickets[ticket] = narrow_scope(caller.who, tool.qualified, arguments)
        return ticket

    async def _refused(self, tool: Tool, arguments: Mapping[str, Any], caller: Caller, why: str) -> Passage:
        event(_log, logging.INFO, "refused", tool=tool.qualified, who=str(caller), why=why)
        await self._journal.refused(tool.qualified, arguments, why, by=str(caller))
        return Passage(tool=tool, arguments=arguments, caller=caller, refusal=why)

    @asynccontextmanager
    async def recorded(self, passage: Passage) -> AsyncGenerator[Note | None]:
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


class _Settled:
    """What became of a call; unknown until somebody says."""

    def __init__(self) -> None:
        self.outcome: GatewayOutcome = "unknown"
        self.why: str | None = None

    def note(self, result: Mapping[str, Any]) -> None:
        asked, wrong = result.get("resultType") == "input_required", result.get("isError") is True
        self.outcome = "asked" if asked else "failed" if wrong else "ok"

    def failed(self, error: UpstreamError | CallFailed) -> None:
        unknown = isinstance(error, CallFailed) and error.sent
        self.outcome, self.why = ("unknown" if unknown else "failed"), str(error)


def _state_text(state: Any) -> str:
    return "" if state is None else f"+{state}"


def _state_of(text: str) -> str | None:
    return text[1:] if text.startswith("+") else None
