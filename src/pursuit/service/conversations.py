"""Shows and replays the conversation of a mission with its language model, and the next request.

Invariant: an earlier request is rebuilt from the events before it; the digest that was recorded when it was sent tells
whether the rebuilt request is identical.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from pursuit.core.decision import decide
from pursuit.core.events import (
    AnyEvent,
    ConversationCompacted,
    IterationEnded,
    ModelAnswer,
    ModelAnswered,
    ModelAsked,
    decoded,
)
from pursuit.core.fold import advance, fold
from pursuit.core.history import Shown
from pursuit.core.state import MissionState
from pursuit.core.tools import OWN_TOOLS
from pursuit.engine.driver import Driver
from pursuit.engine.journal import require_id, unknown_mission
from pursuit.engine.lessons import lessons_for
from pursuit.engine.models import affordable, offered
from pursuit.errors import InvalidArgument, ModelUnavailable, PursuitError
from pursuit.ledger.contract import Ledger
from pursuit.proposers import language
from pursuit.proposers.contract import DrivingPlace, ModelAsker, NoModels, ProposerContext, kind_of


class CallText(Shown, frozen=True, kw_only=True):
    tool: str
    args: Any


class MessageText(Shown, frozen=True, kw_only=True):
    """A message as the model reads it: an answer with its calls, a result with its tool and media types."""

    role: str
    tool: str | UnsetType = UNSET
    text: str
    calls: list[CallText] | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    media: tuple[str, ...] = ()


class RequestUse(Shown, frozen=True, kw_only=True):
    input: int
    cached: int
    output: int
    reasoning: int
    cost_usd: float | None


class RequestText(Shown, frozen=True, kw_only=True):
    """A request to a model; a sent one has its `model`, and is `exact` if the rebuilt bytes are identical."""

    iteration: int
    request: int
    purpose: str
    digest: str
    system: str
    messages: list[MessageText]
    tools: list[language.OfferedTool]
    tokens: dict[str, int]
    max_tokens: int | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    exact: bool | UnsetType = UNSET
    used: RequestUse | UnsetType = UNSET


class ConversationText(Shown, frozen=True, kw_only=True):
    mission_id: str = msgspec.field(name="session_id")
    requests: list[RequestText]


class ReplayUse(Shown, frozen=True, kw_only=True):
    tokens: int
    cost_usd: float | None


class RequestReplay(Shown, frozen=True, kw_only=True):
    """A recorded request, rebuilt; with a `model`, also that model's answer now."""

    iteration: int
    request: int
    same_request: bool
    calls: list[CallText]
    model: str | UnsetType = UNSET
    same_calls: bool | UnsetType = UNSET
    used: ReplayUse | UnsetType = UNSET
    new_calls: list[CallText] | UnsetType = UNSET

    @property
    def is_same(self) -> bool:
        return self.same_request and self.same_calls is not False


class VerdictReplay(Shown, frozen=True, kw_only=True):
    iteration: int
    verdict: str
    same_verdict: bool

    @property
    def is_same(self) -> bool:
        return self.same_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    ledger: Ledger
    driver: Driver

    async def shown(self, mission_id: str, iteration: int | None = None) -> ConversationText:
        """The requests of an iteration as they were sent, or the next request."""
        events = await self._events(mission_id)
        if iteration is None:
            state = fold(events)
            rows = [_row(one, None, None) for one in ([] if state is None else await self._next(mission_id, state))]
            return ConversationText(mission_id=mission_id, requests=rows)
        rows = [
            _row(request, asked, answered)
            async for asked, answered, request in self._requests(mission_id, events)
            if asked.iteration == iteration
        ]
        if not rows:
            raise InvalidArgument(f"no request of iteration {iteration + 1} of {mission_id} is recorded")
        return ConversationText(mission_id=mission_id, requests=rows)

    async def replayed(self, mission_id: str, name: str | None = None) -> AsyncIterator[RequestReplay | VerdictReplay]:
        """Yields each recorded request, rebuilt by this release, and each verdict, decided again from its facts.

        With `name`, sends each request with the recorded results to that model, up to the first answer that differs.
        Raises `ModelUnavailable` if the model cannot be used.
        """
        events, model = await self._events(mission_id), None
        if name is not None:
            models = self.driver.place.access.models
            await models.check(name)
            model = models.open(name)
        async for asked, answered, request in self._requests(mission_id, events):
            if asked.purpose == "summary":
                continue
            recorded = None if answered is None else await language.read_answer(answered, self.ledger.blob)
            row = RequestReplay(
                iteration=asked.iteration,
                request=asked.attempt,
                same_request=request.digest() == asked.digest,
                calls=_calls(recorded),
            )
            if model is None or recorded is None:
                yield row
                continue
            thinking = 0 if model.terms is None else model.terms.thinking(request.settings)
            try:
                answer = await model.answer(replace(request, max_tokens=request.max_tokens + thinking))
            except language.NoAnswer as error:
                raise ModelUnavailable(str(error), model=name) from error
            same, now = _calls(answer) == row.calls, _calls(answer)
            used = ReplayUse(tokens=answer.input_tokens + answer.output_tokens, cost_usd=answer.cost_usd)
            yield msgspec.structs.replace(row, model=model.name, same_calls=same, used=used, new_calls=now)
            if not same:
                return
        for event in events:
            if isinstance(event, IterationEnded):
                decided = decide(event.facts)
                same = (decided.verdict, decided.reason) == (event.verdict, event.reason)
                yield VerdictReplay(iteration=event.iteration, verdict=decided.verdict, same_verdict=same)

    async def _events(self, mission_id: str) -> list[AnyEvent]:
        require_id(mission_id)
        events = list(decoded(await self.ledger.read(mission_id)))
        if not events:
            raise unknown_mission(mission_id)
        return events

    async def _requests(
        self, mission_id: str, events: Sequence[AnyEvent]
    ) -> AsyncIterator[tuple[ModelAsked, ModelAnswered | None, language.ModelRequest]]:
        """Yields each answered request as it was built then, and the last one even without an answer."""
        answers = {
            (one.iteration, one.attempt): one
            for one in events
            if isinstance(one, ModelAnswered) and one.purpose == "turn" and one.error is None
        }
        last = {
            (one.iteration, one.attempt): place
            for place, one in enumerate(events)
            if isinstance(one, ModelAsked) and one.purpose == "turn"
        }
        state: MissionState | None = None
        kept: dict[str, Any] = {}
        for place, event in enumerate(events):
            if isinstance(event, ModelAsked) and state is not None and state.conversation.began is not None:
                state.conversation.tools_offered = event.tools or state.conversation.tools_offered
                key = (event.iteration, event.attempt)
                if event.purpose == "turn" and last[key] == place:
                    async with self._opened(mission_id, state, event, kept) as asker:
                        request = await asker.request(state, said=event.said)
                    yield event, answers.get(key), request
                following = events[place + 1] if place + 1 < len(events) else None
                if event.purpose == "summary" and isinstance(following, ModelAnswered):
                    for request in await self._summary(mission_id, deepcopy(state), event):
                        yield event, following, request
            state = advance(state, event)

    async def _summary(self, mission_id: str, state: MissionState, asked: ModelAsked) -> list[language.ModelRequest]:
        """The request for a summary; the same state and window always give the same request."""
        found: list[language.ModelRequest] = []
        async with self._opened(mission_id, state, asked, {}, found) as asker:
            await asker.propose(state, ())
        return found

    @asynccontextmanager
    async def _opened(
        self,
        mission_id: str,
        state: MissionState,
        asked: ModelAsked,
        kept: dict[str, Any],
        found: list[language.ModelRequest] | None = None,
    ) -> AsyncGenerator[ModelAsker]:
        """The proposer as it was at a request; `found` collects its requests instead of sending them to models."""
        window = None if state.conversation.began is None else state.conversation.began.window
        unasked = language.NoSampler(name=asked.model, terms=language.Terms(window=window))
        access = language.ModelAccess(models=_Unasked(unasked.terms), tools_bytes=1 << 30, kept=kept)

        def unsent(model: language.LanguageModel) -> language.LanguageModel:
            return _Unsent(model, state, [] if found is None else found)

        means = replace(
            await self._means(mission_id, state),
            record=unsent,
            compact=_not_cut,
            now=lambda: asked.at,
            sampler=unasked,
            place=DrivingPlace(access=access),
        )
        settings = state.mission.proposer
        async with kind_of(settings.kind).open(settings, means) as asker:
            yield cast("ModelAsker", asker)

    async def _next(self, mission_id: str, state: MissionState) -> list[language.ModelRequest]:
        """The request that a run would send now, if the budget allows one: for the next turn, or for a summary.

        The mission's own proposer builds it; its events change only this state and are not stored.
        """
        found: list[language.ModelRequest] = []

        def unsent(model: language.LanguageModel) -> language.LanguageModel:
            return _Unsent(model, state, found)

        async def compact(event: ConversationCompacted) -> None:
            advance(state, event)

        lessons = await lessons_for(self.ledger, mission_id, state, self.driver.settings.memory_lessons)
        means = replace(await self._means(mission_id, state), record=unsent, compact=compact, lessons=lessons)
        kind, settings, place = kind_of(state.mission.proposer.kind), state.mission.proposer, self.driver.place
        with suppress(PursuitError):  # without a key the model's window is not known
            await kind.ready(settings, mission_id, state.mission, place)
        async with kind.open(settings, replace(means, place=place)) as proposer:
            await proposer.propose(state, ())
        return found

    async def _means(self, mission_id: str, state: MissionState) -> ProposerContext:
        settings = state.mission.proposer
        if not settings.ASKS_MODEL:
            raise InvalidArgument(f"{mission_id} does not use a language model: its proposer is {settings.kind}")
        tools = await self._tools(state)
        return ProposerContext(
            mission=state.mission,
            tools=lambda: tools,
            blob=self.ledger.blob,
            mission_id=mission_id,
            now=self.driver.clock.now,
        )

    async def _tools(self, state: MissionState) -> list[language.OfferedTool]:
        body = (
            None
            if state.conversation.tools_offered is None
            else await self.ledger.blob(state.conversation.tools_offered)
        )
        if body is None:
            return offered(state, await self.driver.source.tools_for(state.tools, state.mission.policy, state.callers))
        names = language.ToolNames([*state.tools, *OWN_TOOLS])
        rows: list[tuple[str, str, dict[str, Any]]] = msgspec.json.decode(body)
        return [
            language.OfferedTool(name=meant, description=description, schema=schema)
            for shown, description, schema in rows
            if (meant := names.meant(shown)) is not None
        ]


@dataclass(frozen=True, slots=True)
class _Unasked(NoModels):
    terms: language.Terms | None

    def open(self, name: str) -> language.LanguageModel:
        return language.NoSampler(name=name, terms=self.terms)


@dataclass(frozen=True, slots=True)
class _Unsent(language.WrappedModel):
    state: MissionState
    found: list[language.ModelRequest]

    async def answer(self, request: language.ModelRequest) -> ModelAnswer:
        self.found.append(affordable(self.state, request, self.terms))
        raise language.NoAnswerYet("nothing is sent")


async def _not_cut(_event: ConversationCompacted) -> None:
    """Does nothing: compactions of earlier conversations are already recorded."""
    raise language.NoAnswerYet("nothing is recorded")


def _calls(answer: ModelAnswer | None) -> list[CallText]:
    return [] if answer is None else [CallText(tool=call.name, args=call.args) for call in answer.calls]


def _row(request: language.ModelRequest, asked: ModelAsked | None, answered: ModelAnswered | None) -> RequestText:
    digest = request.digest()
    row = RequestText(
        iteration=request.iteration,
        request=request.attempt,
        purpose=request.purpose,
        digest=digest,
        system=request.system,
        messages=[_message(one) for one in request.messages],
        tools=list(request.tools),
        tokens=_tokens(request),
    )
    if asked is None:
        row = msgspec.structs.replace(row, max_tokens=request.max_tokens, settings=dict(request.settings))
    else:
        row = msgspec.structs.replace(row, model=asked.model, exact=digest == asked.digest)
    if answered is None:
        return row
    used = RequestUse(
        input=answered.read,
        cached=answered.cached,
        output=answered.tokens - answered.read,
        reasoning=answered.reasoning,
        cost_usd=answered.cost_usd,
    )
    return msgspec.structs.replace(row, used=used)


def _message(message: Any) -> MessageText:
    match message:
        case language.AssistantMessage():
            return MessageText(role="assistant", text=message.answer.text, calls=_calls(message.answer))
        case language.ToolMessage():
            media = tuple(one.type for one in message.media)
            return MessageText(role="tool", tool=message.tool, text=message.text, failed=message.failed, media=media)
        case _:
            return MessageText(role="user", text=message.text)


def _tokens(request: language.ModelRequest) -> dict[str, int]:
    parts = {"system": len(request.system), "tools": len(request.tools_body)}
    parts |= dict.fromkeys(("first message", "later messages", "answers", "results"), 0)
    for place, message in enumerate(request.messages):
        size = language.size_of(message, language.body_of(message))
        match message:
            case language.AssistantMessage():
                parts["answers"] += size
            case language.ToolMessage():
                parts["results"] += size
            case _:
                parts["later messages" if place else "first message"] += size
    return {name: size // language.CHARACTERS for name, size in parts.items()}
