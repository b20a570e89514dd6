"""Asks the user or the model of an MCP client, according to the client's protocol version.

Before 2026-07-28 the server sends `elicitation/create` during the call. Since then the call returns `input_required`,
and the client repeats the call with the answers. The returned state is signed: only the client that was asked can
answer, and only for the same mission and questions.
Invariant: a person is asked only if the client declares elicitation and the operator lists its channel, and sees the
full arguments; a dismissed question stays open. Questions and answers are stored in the ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequest, InputRequiredResult

from pursuit.core.events import Channel
from pursuit.core.state import MissionState
from pursuit.errors import InvalidArgument, advice
from pursuit.server.approval_form import approval_schema, how_to_approve, store_answer
from pursuit.server.errors import Context, answerable, caller_of, elicitation_channel, is_modern
from pursuit.server.sampling import CarriedModel, ClientModel, PushedModel, declares_sampling, question_names
from pursuit.server.signing import Signer
from pursuit.server.tasks.promotion import DetachedSession
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller

Ask = Callable[[Mapping[str, Mapping[str, Any]]], Awaitable[Mapping[str, Any]]]
LOOK_SECONDS = 1.0
MAX_ROUNDS = 8
"""The SDK's client stops after ten rounds."""

MAX_ROUNDS_OF_A_TASK = 90
"""Less than `promotion.MAX_ROUNDS`, at which the task would fail."""
SAMPLING = f"{CarriedModel.name}-"
FORM = approval_schema(where="in this mission")


class AskClient(Exception):
    """Ends the call with questions; the client repeats the call with the answers."""

    def __init__(self, questions: Mapping[str, InputRequest], state: str) -> None:
        super().__init__("input required")
        self.result = InputRequiredResult(input_requests=dict(questions), request_state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswers:
    """The content of a repeated call: the call's first iteration, and whether its questions are now answered.

    `samples` holds the answers of the client's model, by question name.
    """

    first: int
    answered: bool
    samples: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Elicitation:
    _approvals: Approvals
    _seal: Callable[[], Signer]
    _state_of: Callable[[str], Awaitable[MissionState]]
    channels: Collection[Channel]

    def can_ask(self, ctx: Context, mission_id: str) -> bool:
        """True if the client declares elicitation, its user may answer, and it can be asked again."""
        if elicitation_channel(ctx, self.channels) is None:
            return False
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            return False
        return self._has_a_round(ctx, mission_id) if is_modern(ctx.protocol_version) else ctx.session.can_send_request

    def model_of(
        self, ctx: Context, mission_id: str, state: MissionState, answers: ClientAnswers | None
    ) -> ClientModel | None:
        """The client's own model, if the client has one."""
        proposer = state.mission.proposer
        if not declares_sampling(ctx):
            return None
        if not is_modern(ctx.protocol_version):
            return PushedModel(ctx, proposer.preferences()) if ctx.session.can_send_request else None
        return CarriedModel(
            ctx,
            proposer.preferences(),
            brought={} if answers is None else answers.samples,
            may_ask=self._has_a_round(ctx, mission_id),
            # A client that returns with answers is responsive.
            unanswered=state.conversation.unanswered
            if answers is None and state.conversation.asked_of == CarriedModel.name
            else 0,
        )

    def _has_a_round(self, ctx: Context, mission_id: str) -> bool:
        before = self._brought(ctx, mission_id)
        session: object = ctx.session
        is_task = isinstance(session, DetachedSession) and session.task is not None
        return before is None or before["rounds"] < (MAX_ROUNDS_OF_A_TASK if is_task else MAX_ROUNDS)

    async def take_answers(self, ctx: Context, mission_id: str, answers: Mapping[str, Any]) -> ClientAnswers:
        before = self._brought(ctx, mission_id)
        if before is None or not set(answers) <= set(before["questions"]):
            raise InvalidArgument(
                "these answers do not match a question that this client was asked in this call; call again without them"
            )
        channel = elicitation_channel(ctx, self.channels)
        refused = answers.keys() - answerable(ctx, answers, self.channels).keys()
        if refused:
            raise InvalidArgument(
                "this client's user may not answer approvals ([approvals] channels of the configuration, and "
                f"`{advice('pursuit token new --may approve-own')}`); nothing was changed; the operator answers with "
                + " and ".join(how_to_approve(name) for name in refused)
            )
        samples = {name: said for name, said in answers.items() if name.startswith(SAMPLING)}
        recorded = [
            await self._record(caller_of(ctx), channel, mission_id, name, said)
            for name, said in answers.items()
            if name not in samples
        ]
        return ClientAnswers(first=before["first"], answered=all(recorded), samples=samples)

    async def ask(self, ctx: Context, mission_id: str, first: int) -> bool:
        """Asks everything that this client's user may answer; True if all questions of the mission are answered now."""
        caller, channel = caller_of(ctx), elicitation_channel(ctx, self.channels)
        questions = await self._approvals.forms(mission_id, caller, channel)
        if is_modern(ctx.protocol_version) and questions:
            self.put(ctx, mission_id, _forms(questions), first)
        while questions:  # an approval for the whole mission may answer the following ones
            approval_id, text = next(iter(questions.items()))
            params = _params(text)
            try:
                answer = await ctx.session.elicit_form(params.message, params.requested_schema, ctx.request_id)
            except MCPError:  # it declared elicitation but cannot ask
                return False
            said = {"action": answer.action, "content": answer.content or {}}
            if not await self._record(caller, channel, mission_id, approval_id, said):
                return False
            questions = await self._approvals.forms(mission_id, caller, channel)
        return not await self._approvals.open(mission_id)

    def put(self, ctx: Context, mission_id: str, questions: Mapping[str, InputRequest], first: int) -> NoReturn:
        """Ends a call of 2026-07-28 with questions; `first` is the call's first iteration."""
        before = self._brought(ctx, mission_id)
        state = {
            "mission": mission_id,
            "who": caller_of(ctx).who,
            "questions": list(questions),
            "first": first,
            "rounds": 1 if before is None else before["rounds"] + 1,
        }
        raise AskClient(questions, self._seal().closed(state))

    def _brought(self, ctx: Context, mission_id: str) -> dict[str, Any] | None:
        """The state that we gave this client with our questions in this mission, if it returns it."""
        given: object = (ctx.params or {}).get("requestState")
        if not is_modern(ctx.protocol_version) or given is None:
            return None
        state = self._seal().opened(given)
        ours = state is not None and (state["mission"], state["who"]) == (mission_id, caller_of(ctx).who)
        return state if ours else None

    async def ask_later(self, ask: Ask, mission_id: str, caller: Caller, channel: Channel | None) -> bool:
        """Like `ask`, for a call whose client does not wait: `ask` returns when each question is answered."""
        forms = _forms(await self._approvals.forms(mission_id, caller, channel))
        if not forms:
            return False
        said = await ask({name: one.model_dump(mode="json", by_alias=True) for name, one in forms.items()})
        return all([await self._record(caller, channel, mission_id, name, answer) for name, answer in said.items()])

    async def is_open(self, mission_id: str, questions: Collection[str]) -> bool:
        state = await self._state_of(mission_id)
        asked = question_names(state.current_index, len(state.conversation.answers), state.conversation.compactions)
        if not state.terminal and set(questions) & set(asked.values()):
            return True
        return any(one.approval_id in questions for one in await self._approvals.open(mission_id))

    async def until_answered(self, mission_id: str, questions: Collection[str]) -> None:
        """Returns when each of these questions is answered by any caller, or has expired."""
        with self._approvals.ledger.wakeup(mission_id) as wakeup:
            while await self.is_open(mission_id, questions):
                with anyio.move_on_after(LOOK_SECONDS):  # an expiry wakes nobody
                    await wakeup.wait()

    async def _record(
        self, caller: Caller, channel: Channel | None, mission_id: str, approval_id: str, said: object
    ) -> bool:
        """Stores an answer; False if the question stays open: it was dismissed, or another person must approve."""
        if channel is not None:
            await store_answer(self._approvals, approval_id, said, caller=caller, channel=channel, stream=mission_id)
        return not await self.is_open(mission_id, {approval_id})


def _forms(questions: Mapping[str, str]) -> dict[str, InputRequest]:
    return {name: ElicitRequest(params=_params(text)) for name, text in questions.items()}


def _params(text: str) -> ElicitRequestFormParams:
    return ElicitRequestFormParams(message=text.encode(errors="replace").decode(), requested_schema=FORM)
