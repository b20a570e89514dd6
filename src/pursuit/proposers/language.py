"""The `LanguageModel` protocol, its question and its errors, whichever provider or client has the model.

The answer is `core.events.ModelAnswer`, because it is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pursuit.core.events import ModelAnswer
from pursuit.proposers.contract import Past

_SAME = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google", "google-vertex": "google"}
_PER = 1_000_000


class Used(Protocol):
    """What a request used: the tokens read and written."""

    input_tokens: int
    output_tokens: int


class Priced(Protocol):
    """A price."""

    def of(self, used: Used) -> float:
        """Dollars for a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens, as the operator sets them."""

    input: float
    output: float

    def of(self, used: Used) -> float:
        """Dollars for a request."""
        return round((used.input_tokens * self.input + used.output_tokens * self.output) / _PER, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A price that `genai-prices` knows, tiers and caches included."""

    provider: str
    model: str

    def of(self, used: Used) -> float:
        from genai_prices import calc_price  # noqa: PLC0415 - its data loads with the first price

        return round(float(calc_price(used, self.model, provider_id=self.provider).total_price), 9)


def price_of(name: str, own: Price | None = None) -> Priced | None:
    """The price of a model by its full name (`provider:model`), or None if it is not known."""
    if own is not None:
        return own
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - comes with the extra
    except ImportError:
        return None
    provider, _, model = name.partition(":")
    provider = _SAME.get(provider, provider)
    try:
        calc_price(Usage(input_tokens=0, output_tokens=_PER), model, provider_id=provider)
    except LookupError:
        return None
    return _Known(provider=provider, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as a model sees it. In a request its name is one that providers accept."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question. `attempt` counts from 0 within an iteration; `max_tokens` bounds the answer alone."""

    system: str
    prompt: str
    tools: tuple[OfferedTool, ...] = ()
    iteration: int = 0
    attempt: int = 0
    max_tokens: int = 4_096
    temperature: float | None = None

    @property
    def size(self) -> int:
        """The bytes of everything that the model sees."""
        tools = sum(len(msgspec.json.encode([tool.name, tool.description, tool.schema])) for tool in self.tools)
        return len(self.system.encode()) + len(self.prompt.encode()) + tools

    def digest(self) -> str:
        """A fingerprint of everything that the model sees."""
        shown = [self.system, self.prompt, [[tool.name, tool.description, tool.schema] for tool in self.tools]]
        return hashlib.sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()


class NoAnswer(Exception):
    """The model gave no answer, and asking again at once cannot help."""


class NoAnswerYet(Exception):
    """A client must act first: the mission waits, and then the question is asked again."""


class OutOfBudget(Exception):
    """The budget does not allow the question; `cap` is the verdict's reason."""

    def __init__(self, cap: str) -> None:
        super().__init__(cap)
        self.cap = cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price of a model (None if it is not known), and the shortest answer that it can be asked for."""

    price: Priced | None = None
    least_answer: int = 1


class LanguageModel(Protocol):
    """A language model that can call tools."""

    @property
    def name(self) -> str:
        """What it is called, for the ledger and for people."""
        ...

    @property
    def terms(self) -> Terms | None:
        """What asking it takes of a budget; None if it never reports what it used."""
        ...

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Asks. Raises `NoAnswer` or `NoAnswerYet`; cancelling it gives up the request.

        Asking changes nothing, so a question whose answer was lost is asked again.
        """
        ...


class Models(Protocol):
    """Opens language models by their names."""

    def open(self, name: str) -> LanguageModel:
        """The model of this name; nothing is connected yet."""
        ...

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable` or `ExtraMissing` if it cannot be asked from here."""
        ...

    def priced(self, name: str) -> bool:
        """Whether its price is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerContext:
    """What the engine gives a proposer for one run.

    `tools` are the mission's, by their full names. A model that `record` wraps is asked once for each answer, also
    across a crash, and its use is counted. `past` reads the events so far. `sampler` is the model of the client that
    drives, if it has one. `lessons` are those of similar missions: data, not instructions.
    """

    tools: Sequence[OfferedTool]
    record: Callable[[LanguageModel], LanguageModel]
    past: Past
    sampler: LanguageModel | None = None
    lessons: Sequence[str] = ()
