"""What a proposer asks of a language model, whoever's it is.

Owns: the role `LanguageModel`, its question and what can go wrong. The answer is `model.events.ModelAnswer`, because
it is stored. Knows no provider, no protocol and no ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pursuit.model.events import ModelAnswer
from pursuit.proposers.contract import Past
from pursuit.proposers.prices import Priced


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as a model is shown it. In a request its name is one that providers accept."""

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
        """The bytes of everything that the model is shown."""
        tools = sum(len(msgspec.json.encode([tool.name, tool.description, tool.schema])) for tool in self.tools)
        return len(self.system.encode()) + len(self.prompt.encode()) + tools

    def digest(self) -> str:
        """A fingerprint of everything that the model is shown."""
        shown = [self.system, self.prompt, [[tool.name, tool.description, tool.schema] for tool in self.tools]]
        return hashlib.sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()


class NoAnswer(Exception):
    """The model gave no answer, and asking it the same again at once is of no use."""


class NoAnswerYet(Exception):
    """Somebody outside must do something first: the mission waits, and the question is asked again then."""


class OutOfBudget(Exception):
    """There is nothing left to ask with; `cap` is the verdict's reason."""

    def __init__(self, cap: str) -> None:
        super().__init__(cap)
        self.cap = cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What asking a model takes: its price (None if nobody knows it), and the shortest answer it can be asked for."""

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
        """What asking it takes of a budget; None if it never tells what it used up."""
        ...

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Asks. Raises `NoAnswer` or `NoAnswerYet`; cancelling it gives up the request.

        Asking is a read: a question whose answer was lost is asked again.
        """
        ...


class Models(Protocol):
    """Where language models come from by their names."""

    def open(self, name: str) -> LanguageModel:
        """The model of this name; nothing is connected yet."""
        ...

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable` or `ExtraMissing` if it cannot be asked from here."""
        ...

    def priced(self, name: str) -> bool:
        """Whether it is known what it costs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the engine gives a proposer for one run.

    `tools` are the mission's, by their full names. Whatever `record` wraps is asked for each answer once, also across
    a crash, and is counted. `past` reads what has happened so far. `sampler` is the model of the client that drives, if
    it has one. `lessons` are those of earlier missions that may help: data, not instructions.
    """

    tools: Sequence[OfferedTool]
    record: Callable[[LanguageModel], LanguageModel]
    past: Past
    sampler: LanguageModel | None = None
    lessons: Sequence[str] = ()
