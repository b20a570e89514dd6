"""Looks into the conversation of a mission with its language model: what was sent, what is sent next, and replays.

Invariant: a request of the past is rebuilt from the events before it; its digest, which was recorded when it was sent,
says whether it is the same to the byte.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from pursuit.core.decision import decide
from pursuit.core.events import (
    AnyEvent,
    ConversationCompacted,
    IterationEnded,
    ModelAnswer,
    ModelAnswered,
    ModelAsked,
)
from pursuit.core.fold import advance
from pursuit.core.history import decoded
from pursuit.core.state import MissionState
from pursuit.core.tools import OWN_TOOLS
from pursuit.engine.driver import Driver
from pursuit.engine.lessons import lessons_for
from pursuit.engine.models import affordable, offered
from pursuit.errors import InvalidArgument, PursuitError
from pursuit.ledger.contract import Ledger
from pursuit.proposers.contract import DrivingPlace, ModelAsker, NoModels, ProposerContext, kind_of
from pursuit.proposers.language import (
    CHARACTERS,
    AssistantMessage,
    LanguageModel,
    ModelAccess,
    ModelRequest,
    NoAnswerYet,
    NoSampler,
    OfferedTool,
    Terms,
    ToolMessage,
    ToolNames,
    WrappedModel,
    body_of,
    read_answer,
    size_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The conversations in a ledger."""

    ledger: Ledger
    driver: Driver

    async def shown(self, mission_id: str, iteration: int | None = None) -> dict[str, Any]:
        """The requests of an iteration as they were sent, or the one that is sent next."""
        events = await self._events(mission_id)
        if iteration is None:
            rows = [_row(request, None, None) for request in await self._next(mission_id, _folded(events))]
            return {"session_id": mission_id, "requests": rows}
        rows = [
            _row(request, asked, answered)
            async for asked, answered, request in self._requests(mission_id, events)
            if asked.iteration == iteration
        ]
        if not rows:
            raise InvalidArgument(f"no request of iteration {iteration + 1} of {mission_id} is recorded")
        return {"session_id": mission_id, "requests": rows}

    async def replayed(self, mission_id: str, model: LanguageModel | None = None) -> AsyncIterator[dict[str, Any]]:
        """Each recorded request, rebuilt by this release, and each verdict, decided again from its facts.

        With a model, it is asked each request in turn, with the recorded results, up to the first answer that differs.
        """
        events = await self._events(mission_id)
        async for asked, answered, request in self._requests(mission_id, events):
            if asked.purpose == "summary":
                continue
            recorded = None if answered is None else await read_answer(answered, self.ledger.blob)
            row: dict[str, Any] = {
                "iteration": asked.iteration,
                "request": asked.attempt,
                "same_request": request.digest() == asked.digest,
                "calls": _calls(recorded),
            }
            if model is None or recorded is None:
                yield row
                continue
            thinking = 0 if model.terms is None else model.terms.thinking(request.settings)
            answer = await model.answer(replace(request, max_tokens=request.max_tokens + thinking))
            same = _calls(answer) == _calls(recorded)
            used = {"tokens": answer.input_tokens + answer.output_tokens, "cost_usd": answer.cost_usd}
            yield {**row, "model": model.name, "same_calls": same, "used": used, "new_calls": _calls(answer)}
            if not same:
                return
        for event in events:
            if isinstance(event, IterationEnded):
                decided = decide(event.facts)
                same = (decided.verdict, decided.reason) == (event.verdict, event.reason)
                yield {"iteration": event.iteration, "verdict": decided.verdict, "same_verdict": same}

    async def _events(self, mission_id: str) -> list[AnyEvent]:
        return list(decoded(await self.ledger.read(mission_id)))

    async def _requests(
        self, mission_id: str, events: Sequence[AnyEvent]
    ) -> AsyncIterator[tuple[ModelAsked, ModelAnswered | None, ModelRequest]]:
        """Each request that was answered, and the last one if it was not, as it was built then."""
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

    async def _summary(self, mission_id: str, state: MissionState, asked: ModelAsked) -> list[ModelRequest]:
        """The request for a summary, which the same state and the same window give again."""
        found: list[ModelRequest] = []
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
        found: list[ModelRequest] | None = None,
    ) -> AsyncGenerator[ModelAsker]:
        """The proposer as it was at a request; its models are not asked, and `found` gets what they are sent."""
        window = None if state.conversation.began is None else state.conversation.began.window
        unasked = NoSampler(name=asked.model, terms=Terms(window=window))
        access = ModelAccess(models=_Unasked(unasked.terms), tools_bytes=1 << 30, kept=kept)

        def unsent(model: LanguageModel) -> LanguageModel:
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
        async with kind_of(settings).open(settings, means) as asker:
            yield cast("ModelAsker", asker)

    async def _next(self, mission_id: str, state: MissionState) -> list[ModelRequest]:
        """The request that a run would send now, if the budget allows one: the next one, or one for a summary.

        The mission's own proposer builds it, and what it would record changes this state alone.
        """
        found: list[ModelRequest] = []

        def unsent(model: LanguageModel) -> LanguageModel:
            return _Unsent(model, state, found)

        async def compact(event: ConversationCompacted) -> None:
            advance(state, event)

        lessons = await lessons_for(self.ledger, mission_id, state, self.driver.settings.memory_lessons)
        means = replace(await self._means(mission_id, state), record=unsent, compact=compact, lessons=lessons)
        kind, settings, place = kind_of(state.mission.proposer), state.mission.proposer, self.driver.place
        with suppress(PursuitError):  # without a key the model's window is not known
            await kind.ready(settings, mission_id, state.mission, place)
        async with kind.open(settings, replace(means, place=place)) as proposer:
            await proposer.propose(state, ())
        return found

    async def _means(self, mission_id: str, state: MissionState) -> ProposerContext:
        settings = state.mission.proposer
        if not settings.ASKS_MODEL:
            raise InvalidArgument(f"{mission_id} has no language model: its proposer is {settings.kind}")
        tools = await self._tools(state)
        return ProposerContext(
            mission=state.mission,
            tools=lambda: tools,
            blob=self.ledger.blob,
            mission_id=mission_id,
            now=self.driver.clock.now,
        )

    async def _tools(self, state: MissionState) -> list[OfferedTool]:
        """The tools that the model was offered, or those that it is offered first."""
        body = (
            None
            if state.conversation.tools_offered is None
            else await self.ledger.blob(state.conversation.tools_offered)
        )
        if body is None:
            return offered(state, await self.driver.source.tools_for(state.tools, state.mission.policy, state.callers))
        names = ToolNames([*state.tools, *OWN_TOOLS])
        rows: list[tuple[str, str, dict[str, Any]]] = msgspec.json.decode(body)
        return [
            OfferedTool(name=meant, description=description, schema=schema)
            for shown, description, schema in rows
            if (meant := names.meant(shown)) is not None
        ]


@dataclass(frozen=True, slots=True)
class _Unasked(NoModels):
    """Opens models that are not asked."""

    terms: Terms | None

    def open(self, name: str) -> LanguageModel:
        """A model of this name."""
        return NoSampler(name=name, terms=self.terms)


@dataclass(frozen=True, slots=True)
class _Unsent(WrappedModel):
    """A model that is not asked; its requests are kept as they would be sent."""

    state: MissionState
    found: list[ModelRequest]

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Keeps the request."""
        self.found.append(affordable(self.state, request, self.terms))
        raise NoAnswerYet("nothing is sent")


async def _not_cut(_event: ConversationCompacted) -> None:
    """A cut of a conversation of the past is already recorded."""
    raise NoAnswerYet("nothing is recorded")


def _folded(events: Sequence[AnyEvent]) -> MissionState:
    state: MissionState | None = None
    for event in events:
        state = advance(state, event)
    if state is None:
        raise InvalidArgument("there is no such mission")
    return state


def _calls(answer: ModelAnswer | None) -> list[dict[str, Any]]:
    return [] if answer is None else [{"tool": call.name, "args": call.args} for call in answer.calls]


def _row(request: ModelRequest, asked: ModelAsked | None, answered: ModelAnswered | None) -> dict[str, Any]:
    """A request for people and programs: its messages, its tools, and where its tokens go."""
    row: dict[str, Any] = {
        "iteration": request.iteration,
        "request": request.attempt,
        "purpose": request.purpose,
        "digest": request.digest(),
        "system": request.system,
        "messages": [_message(one) for one in request.messages],
        "tools": [
            {"name": tool.name, "description": tool.description, "schema": dict(tool.schema)} for tool in request.tools
        ],
        "tokens": _tokens(request),
    }
    if asked is None:
        row |= {"max_tokens": request.max_tokens, "settings": dict(request.settings)}
    else:
        row |= {"model": asked.model, "exact": request.digest() == asked.digest}
    if answered is not None:
        used = {"input": answered.read, "cached": answered.cached, "output": answered.tokens - answered.read}
        row["used"] = {**used, "reasoning": answered.reasoning, "cost_usd": answered.cost_usd}
    return row


def _message(message: Any) -> dict[str, Any]:
    if isinstance(message, AssistantMessage):
        return {"role": "assistant", "text": message.answer.text, "calls": _calls(message.answer)}
    if isinstance(message, ToolMessage):
        media = {"media": [one.type for one in message.media]} if message.media else {}
        return {"role": "tool", "tool": message.tool, "text": message.text, "failed": message.failed, **media}
    return {"role": "user", "text": message.text}


def _tokens(request: ModelRequest) -> dict[str, int]:
    """Where the room goes, in estimated tokens."""
    parts = {"system": len(request.system), "tools": len(request.tools_body)}
    parts |= dict.fromkeys(("first message", "later messages", "answers", "results"), 0)
    for place, message in enumerate(request.messages):
        size = size_of(message, body_of(message))
        match message:
            case AssistantMessage():
                parts["answers"] += size
            case ToolMessage():
                parts["results"] += size
            case _:
                parts["later messages" if place else "first message"] += size
    return {name: size // CHARACTERS for name, size in parts.items()}
