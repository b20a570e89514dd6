"""A language model whose answers are durable and paid for once.

Each question is recorded before it is sent, and its answer before it is used. An answer that is in the ledger is never
asked for again; a question without an answer may be asked again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio
import msgspec

from pursuit.core.budgets import LEAST_ANSWER, RemainingBudget, estimate
from pursuit.core.events import Event, ModelAnswer, ModelAnswered, ModelAsked
from pursuit.core.state import MissionState
from pursuit.engine.context import Run, Tools
from pursuit.proposers.language import (
    LanguageModel,
    ModelRequest,
    NoAnswer,
    NoAnswerYet,
    OfferedTool,
    OutOfBudget,
    Priced,
    Terms,
)


@dataclass(slots=True, kw_only=True)
class _Use:
    input_tokens: int
    output_tokens: int


def affordable(state: MissionState, request: ModelRequest, terms: Terms | None) -> ModelRequest:
    """The request, with its longest answer cut to what the budget leaves. Raises `OutOfBudget`.

    The estimate of the question and the longest answer together fit into what is left of every cap; where they do not,
    nothing is asked. Without `terms` the model does not report what an answer used: then only what is left counts.
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
    read = estimate(request.size, state.densest)
    if tokens is not None:
        longest = min(longest, int(tokens) - read)
        if longest < least:
            raise OutOfBudget("max_tokens")
    if cost is not None and terms.price is not None:
        longest = _payable(terms.price, cost, read, longest)
        if longest < least:
            raise OutOfBudget("max_cost")
    return replace(request, max_tokens=longest)


def _payable(price: Priced, cost: float, read: int, longest: int) -> int:
    """The most tokens of an answer, up to the longest, that can be paid for; -1 if the question itself cannot."""
    if price.of(_Use(input_tokens=read, output_tokens=longest)) <= cost:
        return longest
    low, high = -1, longest  # a price may have tiers, so this bisects instead of dividing
    while high - low > 1:
        middle = (low + high) // 2
        if price.of(_Use(input_tokens=read, output_tokens=middle)) <= cost:
            low = middle
        else:
            high = middle
    return low


def offered(state: MissionState, host: Tools) -> list[OfferedTool]:
    """The tools of the mission that are there now."""
    return [
        OfferedTool(name=name, description=tool.description, schema=tool.input_schema)
        for name in state.tools
        if (tool := host.get(name)) is not None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel:
    """The same model, asked through the ledger."""

    run: Run
    model: LanguageModel

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.model.name

    @property
    def terms(self) -> Terms | None:
        """The model's own terms."""
        return self.model.terms

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """The recorded answer to this attempt of this iteration, or a new one. Raises `OutOfBudget`, too."""
        known = self.run.state.answers.get(request.attempt)
        if known is None:
            request = affordable(self.run.state, request, self.terms)
            await self._intend(request)
            known = await self._ask(request)
        return await self._read(known)

    async def _intend(self, request: ModelRequest) -> None:
        asked = ModelAsked(
            at=self.run.clock.now(),
            iteration=request.iteration,
            attempt=request.attempt,
            model=self.name,
            digest=request.digest(),
            size=request.size,
            estimate=0 if self.terms is None else estimate(request.size, self.run.state.densest),
        )

        def intend(state: MissionState) -> Sequence[Event]:
            return () if state.stopped else [asked]

        if not await self.run.journal.record(intend):
            raise NoAnswerYet("the mission was stopped")

    async def _ask(self, request: ModelRequest) -> ModelAnswered:
        """Asks within the mission's time; the answer is durable before it is used."""
        began = self.run.clock.monotonic()
        answer: ModelAnswer | None = None
        error: str | None = None
        with self.run.deadline(self.run.settings.model_timeout) as limit:
            try:
                answer = await self.model.answer(request)
            except NoAnswer as failed:
                error = str(failed)
        if limit.ran_out:
            error = f"{self.name}: {limit.why()}"
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
            cost_usd=None if answer is None else answer.cost_usd,
            seconds=int(seconds * 1e6) / 1e6,
            elapsed=self.run.elapsed(),
        )
        self.run.journal.stage(event, None if blob is None else {blob: body})
        with anyio.CancelScope(shield=True):  # the answer is paid for, also if the driver is cancelled now
            await self.run.journal.flush()
        return event

    async def _read(self, known: ModelAnswered) -> ModelAnswer:
        if known.answer is not None:
            return known.answer
        body = None if known.blob is None else await self.run.ledger.blob(known.blob)
        if body is None:
            raise NoAnswer(known.error or "the recorded answer is not in the ledger any more")
        return msgspec.json.decode(body, type=ModelAnswer)
