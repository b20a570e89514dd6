"""A language model whose answers are durable and paid for once.

Owns: the intent before a question, the answer after it, and what the budget says to both. Knows no provider.
Invariant: an answer that is in the ledger is never asked for again; what was asked without an answer may be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import msgspec

from pursuit.engine.afford import affordable
from pursuit.engine.run import Run, Tools
from pursuit.model.events import Event, ModelAnswer, ModelAnswered, ModelAsked
from pursuit.model.state import MissionState
from pursuit.model.tokens import estimate
from pursuit.proposers.language import LanguageModel, ModelRequest, NoAnswer, NoAnswerYet, OfferedTool, Terms


def offered(state: MissionState, host: Tools) -> list[OfferedTool]:
    """The tools of the mission that are there now."""
    tools = [(name, host.get(name)) for name in state.tools]
    return [
        OfferedTool(name=name, description=tool.description, schema=tool.input_schema)
        for name, tool in tools
        if tool is not None
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
        """Asks within the mission's time; what comes is durable before anybody sees it."""
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
        event = self._stage(request, answer, error, self.run.clock.monotonic() - began)
        with anyio.CancelScope(shield=True):  # it is paid for, whoever stops us now
            await self.run.journal.flush()
        return event

    def _stage(
        self, request: ModelRequest, answer: ModelAnswer | None, error: str | None, seconds: float
    ) -> ModelAnswered:
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
        return event

    async def _read(self, known: ModelAnswered) -> ModelAnswer:
        if known.answer is not None:
            return known.answer
        body = None if known.blob is None else await self.run.ledger.blob(known.blob)
        if body is None:
            raise NoAnswer(known.error or "the recorded answer is not in the ledger any more")
        return msgspec.json.decode(body, type=ModelAnswer)
