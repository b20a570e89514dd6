"""Decides whether a call may be made: by policy, by a person's approval. Writes the audit record.

Invariant: a call that may write is in the ledger before it is sent; an approval counts for its call, or for its tool
with exactly its arguments.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from pursuit.config.servers import ServerConfig
from pursuit.core.approvals import call_scope
from pursuit.core.events import Channel
from pursuit.core.gateway_events import GatewayOutcome
from pursuit.core.tools import CallFailed, Tool, Traits, UpstreamError
from pursuit.errors import LedgerUnavailable, LimitReached
from pursuit.policy.rules import Layers, OperatorPolicy, Ruling, decide, decide_request
from pursuit.policy.traits import MAX_FORM, question_texts
from pursuit.server.approval_form import approval_schema, how_to_approve, store_answer
from pursuit.server.errors import READS, Context, as_object, caller_of, elicitation_channel, sendable, wire_error
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.protocol_versions import ROUND_TRIP_KEYS
from pursuit.server.logs import event
from pursuit.service.approvals import Approvals, may_answer
from pursuit.service.audit import Audit, Caller
from pursuit.service.gateway_journal import GatewayJournal
from pursuit.upstream.pins import Pins
from pursuit.upstream.resource_tools import READ_TRAITS

FORM = approval_schema(where="until the gateway ends")
Note = Callable[[Mapping[str, Any]], None]
MAX_TICKETS = 10_000
_TICKET_PREFIX = "pursuit-passed-"
_TICKET_LENGTH = 32
_QUESTION_PREFIX = "pursuit-asked-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """The decision about a call: it may be made, is refused, or a person must be asked first.

    `approved` is true if policy required an approval. `round_trip` is the client's message to the server in this round
    trip of the call.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    refusal: str | None = None
    question: Mapping[str, Any] | None = None
    approved: bool = False
    round_trip: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters for the server: with its own state, and without the answers to the gateway."""
        if not self.approved:
            return params
        return {**{key: value for key, value in params.items() if key not in ROUND_TRIP_KEYS}, **self.round_trip}

    @property
    def scope(self) -> str:
        tool, client = self.tool, self.caller.scope
        return call_scope(tool.qualified, self.arguments, digest=tool.digest or None, client=client)


@dataclass(slots=True, eq=False, kw_only=True)
class Authorizer:
    """Asks policy (`layers` gives it for each caller) and people; writes to the journal."""

    layers: Callable[[Caller], Layers]
    journal: GatewayJournal
    approvals: Approvals
    audit: Audit
    channels: Collection[Channel]
    pins: Pins | None
    _tickets: dict[str, str] = field(init=False, default_factory=dict[str, str])

    def allows(self, request: ClientRequest, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        return decide(self.layers(caller_of(request.ctx)), tool, arguments).decision == "allow"

    async def denied(self, ctx: Context, server: str, method: str, params: Mapping[str, Any]) -> str | None:
        """Why policy denies a request that is not a call, with these parameters for the server; None if it does not."""
        call = _request(ctx, server, method, params)
        ruling = decide_request(self.layers(call.caller), call.tool, call.arguments)
        if ruling.decision == "allow":
            return None
        asks = ", and only for a call of a tool can a person be asked" if ruling.decision == "ask" else ""
        why = f"{call.tool.qualified} is denied by policy: {ruling.reason}{asks}"
        return (await self._refused(call, why)).refusal

    @asynccontextmanager
    async def custom(self, ctx: Context, config: ServerConfig, *, relayed: bool = False) -> AsyncGenerator[Note | None]:
        """Records a request or notification outside of the protocol, before and after.

        Raises `MCPError` if the server's configuration does not list its method, or if policy denies it and it is not
        `relayed`.
        """
        method, params = ctx.method, ctx.params or {}
        call = _request(ctx, config.name, method, params)
        if not any(fnmatchcase(method, pattern) for pattern in config.methods):
            why = f"{sendable(method)} is not in the protocol, and servers.{config.name}.methods does not list it"
            await self._refused(call, why)
            raise MCPError(METHOD_NOT_FOUND, why)
        if not relayed and (why := await self.denied(ctx, config.name, method, params)) is not None:
            raise MCPError(INVALID_REQUEST, why)
        async with self.recorded(call) as note:
            yield note

    async def authorize(self, request: ClientRequest, tool: Tool, arguments: Mapping[str, Any]) -> Authorization:
        """Decides about a call; asks the client's user if policy requires an approval and this user may give it."""
        if tool.changes is not None and self.pins is not None:
            tool = await self.pins.look_again(tool)
        call = Authorization(tool=tool, arguments=arguments, caller=caller_of(request.ctx))
        if request.operator:
            # The operator's own call needs no approval; a denial counts.
            why = denial(self.layers(call.caller).operator, tool, arguments)
            return call if why is None else await self._refused(call, why)
        ruling = decide(self.layers(call.caller), tool, arguments)
        if ruling.decision == "allow":
            return call
        if ruling.decision == "deny":
            return await self._refused(call, f"{tool.qualified} is denied by policy: {ruling.reason}")
        state: Any = request.params.get("requestState")
        if isinstance(state, str) and state.startswith(_TICKET_PREFIX):
            ticket = state[: len(_TICKET_PREFIX) + _TICKET_LENGTH]
            if self._tickets.get(ticket) == call.scope:
                # A ticket is valid once: a second request with it needs another approval.
                del self._tickets[ticket]
                return replace(call, approved=True, round_trip=_round_trip(request.params))
        try:
            return await self._ask(request, call, ruling)
        except LimitReached as error:
            raise wire_error(error) from error

    async def _ask(self, request: ClientRequest, call: Authorization, ruling: Ruling) -> Authorization:
        """Looks for an approval in the ledger, and asks for one if there is none."""
        name, reason, changes = call.tool.qualified, ruling.reason, ruling.changes
        description, text = question_texts(call.tool, call.arguments, reason, changes)
        ask = partial(
            self.journal.ask,
            call.tool,
            call.arguments,
            description=description,
            reason=reason,
            caller=call.caller,
            require=ruling.require,
            cut=text != description,
            changes=changes,
        )
        question = await ask()
        can_ask = request.client.has_forms and len(text) <= MAX_FORM
        channel = elicitation_channel(request.ctx, self.channels) if can_ask else None
        may = channel is not None and question is not None and may_answer(call.caller, channel, question)
        if question is not None and not question.answered and channel is not None and may:
            asking = await self._elicit(request, question.approval_id, text, call.caller, channel)
            if asking is not None:
                return replace(call, question=asking)
            question = await ask()
        if question is not None and not question.answered:
            people = "a person's approval" if question.require == 1 else f"the approval of {question.require} people"
            so_far = f"; {len(question.said)} of {question.require} approved" if question.said else ""
            how = (
                f"{name} needs {people} ({reason}{so_far}). The operator can give it with "
                f"{how_to_approve(question.approval_id)}, or with a rule in the configuration; then call again."
            )
            return await self._refused(call, how)
        if question is not None and not question.granted:
            return await self._refused(call, f"{name} was denied by {question.by or 'a person'}")
        if changes is not None:  # the tool is accepted; the call itself may still need an approval
            return await self.authorize(request, replace(call.tool, changes=None), call.arguments)
        return replace(call, approved=True, round_trip=_round_trip(request.params))

    async def _elicit(
        self, request: ClientRequest, approval_id: str, text: str, caller: Caller, channel: Channel
    ) -> dict[str, Any] | None:
        """Asks the client's user: a legacy client during the call, a modern one by the returned questions."""
        message = text.encode(errors="replace").decode()
        params = {"mode": "form", "message": message, "requestedSchema": FORM}
        store = partial(
            store_answer, self.approvals, approval_id, caller=caller, channel=channel, stream=self.journal.stream
        )
        if not request.client.modern:
            try:
                answer = await request.ask("elicitation/create", params, seconds=self.journal.patience)
            except UpstreamError:
                return None
            await store(said=answer)
            return None
        state, answers = request.params.get("requestState"), request.params.get("inputResponses")
        if state == f"{_QUESTION_PREFIX}{approval_id}":
            await store(said=as_object(answers).get(approval_id))
            return None
        return {
            "resultType": "input_required",
            "inputRequests": {approval_id: {"method": "elicitation/create", "params": params}},
            "requestState": f"{_QUESTION_PREFIX}{approval_id}",
        }

    def result(self, call: Authorization, result: dict[str, Any]) -> dict[str, Any]:
        """The result for the client; the `requestState` of a server's question carries a ticket.

        The ticket represents the approval in the next round trip of this call, so the person is asked once; the
        server's own state follows it.
        """
        if not call.approved or result.get("resultType") != "input_required":
            return result
        if len(self._tickets) >= MAX_TICKETS:
            self._tickets.clear()
        ticket = f"{_TICKET_PREFIX}{secrets.token_hex(_TICKET_LENGTH // 2)}"
        self._tickets[ticket] = call.scope
        state = result.get("requestState")
        return {**result, "requestState": ticket if state is None else f"{ticket}+{state}"}

    async def _refused(self, call: Authorization, why: str) -> Authorization:
        event(_log, logging.INFO, "refused", tool=call.tool.qualified, who=str(call.caller), why=why)
        await self.journal.refused(call.tool.qualified, call.arguments, why, by=str(call.caller))
        return replace(call, refusal=why)

    @asynccontextmanager
    async def recorded(self, call: Authorization) -> AsyncGenerator[Note | None]:
        """Records a call that may write, before and after; if configured, also a call that only reads."""
        tool, who = call.tool, str(call.caller)
        if tool.traits.read_only:
            event(_log, logging.DEBUG, "reads", tool=tool.qualified, who=who)
            await self.audit.read(call.caller, f"call {tool.qualified}", None, call.arguments)
            yield None
            return
        try:
            call_id = await self.journal.intended(tool.qualified, call.arguments, by=who)
        except LedgerUnavailable as error:
            reason = f"not sent: a call that may write must be recorded first, but {error.message}"
            raise CallFailed(reason, sent=False) from None
        outcome: GatewayOutcome = "unknown"
        why: str | None = None

        def note(result: Mapping[str, Any]) -> None:
            nonlocal outcome
            asks, failed = result.get("resultType") == "input_required", result.get("isError") is True
            outcome = "asked" if asks else "failed" if failed else "ok"

        try:
            yield note
        except (UpstreamError, CallFailed) as error:
            outcome, why = (error.outcome if isinstance(error, CallFailed) else "failed"), str(error)
            raise
        except anyio.get_cancelled_exc_class():
            outcome, why = "cancelled", "during the call"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self.journal.settled(call_id, outcome, why)
                except LedgerUnavailable as error:
                    # The call was made: its client gets the result, and the record has the outcome `unknown`.
                    _log.error("the outcome of %s could not be recorded: %s", call_id, error.message)


def _request(ctx: Context, server: str, method: str, params: Mapping[str, Any]) -> Authorization:
    """A request that is not a call; its tool is named after its method."""
    traits = READ_TRAITS if method in READS else Traits()
    tool = Tool(server=server, name=method, input_schema={}, definition={}, traits=traits, method=method)
    arguments = {key: value for key, value in params.items() if key != "_meta"}
    return Authorization(tool=tool, arguments=arguments, caller=caller_of(ctx))


def denial(policy: OperatorPolicy, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Why the operator's own rules forbid a call that needs no approval; None if they do not."""
    ruling = decide(Layers(operator=replace(policy, mode="auto")), tool, arguments)
    return f"{tool.qualified} is denied by policy: {ruling.reason}" if ruling.decision == "deny" else None


def _round_trip(params: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a client's message that is for the server, in a call that needed an approval."""
    given = {key: params[key] for key in ROUND_TRIP_KEYS if key in params}
    state = given.get("requestState")
    if not isinstance(state, str):
        return given
    if state.startswith(_QUESTION_PREFIX):
        return {}
    if state.startswith(_TICKET_PREFIX):
        del given["requestState"]
        _, found, own = state.partition("+")
        return {**given, "requestState": own} if found else given
    return given
