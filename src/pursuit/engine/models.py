"""A language model whose answers are durable and paid for once.

Each request is recorded before it is sent, and its answer before it is used. A request with an answer in the ledger
is never sent again; an unanswered request may be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec

from pursuit.core.budgets import LEAST_ANSWER, RemainingBudget, expected
from pursuit.core.events import (
    ConversationBegan,
    ConversationCompacted,
    Event,
    ModelAnswer,
    ModelAnswered,
    ModelAsked,
)
from pursuit.core.state import MissionState
from pursuit.core.tools import OWN_TOOLS
from pursuit.engine.context import Run
from pursuit.proposers.language import (
    Charge,
    ModelRequest,
    NoAnswer,
    NoAnswerYet,
    OfferedTool,
    OutOfBudget,
    Rejected,
    Terms,
    Unreachable,
    WrappedModel,
    read_answer,
)
from pursuit.upstream.host import UpstreamTools


@dataclass(slots=True, kw_only=True)
class _Use:
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0


NO_SUMMARY = "The older part of the conversation was omitted without a summary."


def affordable(state: MissionState, request: ModelRequest, terms: Terms | None) -> ModelRequest:
    """The request, with its maximum answer reduced to the remaining budget. Raises `OutOfBudget`.

    The estimate of the request plus the maximum answer must fit into the rest of every cap; otherwise nothing is
    sent. Without `terms` the model does not report usage: then only the remaining amounts are checked.
    """
    left = RemainingBudget(state).left
    tokens, cost = left.get("max_tokens"), left.get("max_cost_usd")
    if tokens is not None and tokens <= 0:
        raise OutOfBudget("max_tokens")
    if cost is not None and cost <= 0:
        raise OutOfBudget("max_cost")
    if terms is None:
        return request if tokens is None else replace(request, max_tokens=min(request.max_tokens, int(tokens)))
    longest = max(request.max_tokens, terms.least_answer)
    least = max(min(longest, LEAST_ANSWER), terms.least_answer)
    thinking = terms.thinking(request.settings)
    longest, least = longest + thinking, least + thinking
    read = expected(state, request.size)
    if tokens is not None:
        longest = min(longest, int(tokens) - read)
        if longest < least:
            raise OutOfBudget("max_tokens")
    if cost is not None and terms.price is not None:
        longest = _payable(terms.price, cost, read, longest)
        if longest < least:
            raise OutOfBudget("max_cost")
    return replace(request, max_tokens=longest)


def _payable(price: Charge, cost: float, read: int, longest: int) -> int:
    """The most tokens of an answer, up to the longest, that the budget can pay; -1 if it cannot pay the request."""
    if price(_Use(input_tokens=read, output_tokens=longest)) <= cost:
        return longest
    low, high = -1, longest  # a price may have tiers, so this bisects instead of dividing
    while high - low > 1:
        middle = (low + high) // 2
        if price(_Use(input_tokens=read, output_tokens=middle)) <= cost:
            low = middle
        else:
            high = middle
    return low


def offered(state: MissionState, host: UpstreamTools) -> list[OfferedTool]:
    """The tools of the mission that are available now, and those that every language model has."""
    found = [
        OfferedTool(name=name, description=tool.description, schema=tool.input_schema)
        for name in state.tools
        if (tool := host.get(name)) is not None
    ]
    if not state.mission.proposer.ASKS_MODEL:
        return found
    own = [tool for name, tool in OWN_TOOLS.items() if name not in state.tools]
    return [
        *found,
        *(OfferedTool(name=tool.qualified, description=tool.description, schema=tool.input_schema) for tool in own),
    ]


class LiveWords:
    """The live output of a model, in a file for other processes; deleted once the answer is recorded.

    It is for people who watch: nothing depends on the file, and errors in writing it are ignored.
    """

    def __init__(self, folder: Path | None, mission_id: str) -> None:
        self._file = None if folder is None else folder / mission_id

    def hear(self, words: str) -> None:
        """Adds output as it arrives."""
        if self._file is None:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            with self._file.open("a", encoding="utf-8", errors="replace") as file:
                file.write(words)

    def clear(self) -> None:
        """Deletes the output."""
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel(WrappedModel):
    """A model whose requests and answers go through the ledger."""

    run: Run
    words: LiveWords

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """The recorded answer to this request of this iteration, or a new one. Also raises `OutOfBudget`."""
        known = self.run.state.conversation.answers.get(request.attempt) if request.purpose == "turn" else None
        if known is None:
            if await self.run.held():
                raise NoAnswerYet("the mission was stopped")
            request = affordable(self.run.state, request, self.terms)
            await self._intend(request)
            known = await self._ask(request)
        answer = await read_answer(known, self.run.journal.blob)
        if answer is None:
            raise NoAnswer(known.error or "the recorded answer is no longer in the ledger")
        return answer

    async def _intend(self, request: ModelRequest) -> None:
        """Records the request, and the tools if they are new."""
        state = self.run.state
        now = self.run.clock.now()
        tools = hashlib.sha256(request.tools_body).hexdigest()
        tokens = 0 if self.terms is None else expected(state, request.size)
        price = None if self.terms is None else self.terms.price
        dollars = 0.0 if price is None else price(_Use(input_tokens=tokens, output_tokens=0))
        asked = ModelAsked(
            at=now,
            iteration=request.iteration,
            attempt=request.attempt,
            model=self.name,
            digest=request.digest(),
            size=request.size,
            estimate=tokens,
            estimate_usd=dollars,
            said=request.said,
            words_told=request.words_told,
            tools=None if tools == state.conversation.tools_offered else tools,
            purpose=request.purpose,
        )
        began = ConversationBegan(at=now, system=request.system, first=request.first, window=request.window)

        def intend(state: MissionState) -> Sequence[Event]:
            if state.stopped:
                return ()
            return [asked] if state.conversation.began is not None else [began, asked]

        blobs = {} if asked.tools is None else {tools: request.tools_body}
        if not await self.run.journal.record(intend, blobs):
            raise NoAnswerYet("the mission was stopped")

    async def _ask(self, request: ModelRequest) -> ModelAnswered:
        """Asks within the mission's time; the answer is durable before it is used.

        Raises `Unreachable` and `Rejected`: then no answer is recorded, because the request is sent again.
        """
        began = self.run.clock.monotonic()
        answer: ModelAnswer | None = None
        error: str | None = None
        self.words.clear()
        limit = self.run.deadline(self.run.settings.model_timeout)
        try:
            with limit:
                answer = await self.model.answer(replace(request, on_words=self.words.hear))
        except (Unreachable, Rejected):
            raise
        except NoAnswer as failed:
            error = str(failed)
        finally:
            self.words.clear()
        if limit.ran_out:
            raise Unreachable(f"{self.name}: {limit.why()}", lost=1)
        seconds = self.run.clock.monotonic() - began
        body = b"" if answer is None else msgspec.json.encode(answer)
        blob = hashlib.sha256(body).hexdigest() if len(body) > self.run.settings.inline_result else None
        event = ModelAnswered(
            at=self.run.clock.now(),
            iteration=request.iteration,
            attempt=request.attempt,
            answer=answer if blob is None else None,
            blob=blob,
            error=error,
            tokens=0 if answer is None else answer.input_tokens + answer.output_tokens,
            read=0 if answer is None else answer.input_tokens,
            cached=0 if answer is None else answer.cached_tokens,
            reasoning=0 if answer is None else answer.reasoning_tokens,
            cost_usd=None if answer is None else answer.cost_usd,
            lost=0 if answer is None else answer.lost,
            seconds=int(seconds * 1e6) / 1e6,
            elapsed=self.run.elapsed(),
            purpose=request.purpose,
        )
        self.run.journal.stage(event, None if blob is None else {blob: body})
        if request.purpose == "turn" and answer is not None:
            # Stored with the next commit, which precedes any effect of the answer and any wait.
            return event
        if answer is not None:
            summary = answer.text.strip() or NO_SUMMARY
            self.run.journal.stage(
                ConversationCompacted(
                    at=event.at, iteration=request.iteration, replaced=request.replaces, summary=summary
                )
            )
        with anyio.CancelScope(shield=True):  # the answer costs money even if the driver is cancelled now
            await self.run.journal.flush()
        return event
