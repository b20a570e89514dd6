"""The `LanguageModel` protocol, its request and its errors, whichever provider or client has the model.

A request is a conversation in a form of our own; each provider's and client's module turns it into theirs. The answer
is `core.events.ModelAnswer`, because it is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec

from pursuit.core.events import ModelAnswer, ModelAnswered, Request
from pursuit.upstream.fixed_patterns import SECRET_TEXT

_SAME = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google", "google-vertex": "google"}
_PER = 1_000_000


class Used(Protocol):
    """What a request used: the tokens read, those of them that came from the provider's cache, and those written."""

    input_tokens: int
    cache_read_tokens: int
    output_tokens: int


Charge = Callable[[Used], float]
"""The dollars for a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens, as the operator sets them; without `cached`, cached tokens cost as others."""

    input: float
    output: float
    cached: float | None = None

    def __call__(self, used: Used) -> float:
        """Dollars for a request."""
        cached = 0 if self.cached is None else used.cache_read_tokens
        read = (used.input_tokens - cached) * self.input + cached * (self.cached or 0.0)
        return round((read + used.output_tokens * self.output) / _PER, 9)


@cache
def price_of(name: str, own: Price | None = None) -> Charge | None:
    """The price of a model by its full name (`provider:model`), or None if it is not known."""
    if own is not None:
        return own
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - comes with the extra
    except ImportError:
        return None
    provider, _, model = name.partition(":")
    provider = _SAME.get(provider, provider)

    def charge(used: Used) -> float:
        return round(float(calc_price(used, model, provider_id=provider).total_price), 9)

    try:
        calc_price(Usage(input_tokens=0, output_tokens=_PER), model, provider_id=provider)
    except LookupError:
        return None
    return charge


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as a model sees it. In a request its name is one that providers accept."""

    name: str
    description: str
    schema: Mapping[str, Any]


OWN_SETTINGS = ("extra_body", "extra_headers", "max_retries", "max_tokens", "model")
"""Settings of a request that the mission's own keys and its budget decide; a mission's `settings` may not have them."""
ROOM = 64 * 1024
LONGEST_DESCRIPTION = 1_024
CHARACTERS = 4
"""Characters of a token, for limits that must not depend on what a provider counted."""
Blob = Callable[[str], Awaitable[bytes | None]]


class Offer(NamedTuple):
    """The tools that fit, and the names of the others."""

    tools: list[OfferedTool]
    left_off: list[str]


def as_row(tool: OfferedTool) -> str:
    """A tool on one line of ASCII, in which nothing can look like another line; a provider's form is never longer."""
    return json.dumps({"tool": tool.name, "description": tool.description, "args": tool.schema}, default=str)


def offer(tools: Sequence[OfferedTool], room: int = ROOM) -> Offer:
    """The tools in their order, each whole; one that does not fit is left off, a smaller one after it may fit."""
    found = Offer([], [])
    for tool in tools:
        size = len(as_row(tool)) + 1
        if size > room:
            found.left_off.append(tool.name)
        else:
            room -= size
            found.tools.append(tool)
    return found


LONGEST_NAME = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 10


class ToolNames:
    """Tool names as providers accept them: `server.tool` is `server__tool`, with a digest if too long or not unique.

    Each name has at most 64 characters of `[A-Za-z0-9_-]`, begins with a letter and means one tool. The same tools
    always get the same names, in whatever order they come.
    """

    def __init__(self, names: Iterable[str], *, reserved: Iterable[str] = ()) -> None:
        tools = sorted(set(names))
        taken = Counter(_plain(name) for name in tools)
        taken.update(reserved)
        self._shown = {name: self._free(name, taken) for name in tools}
        self._meant = {shown: name for name, shown in self._shown.items()}

    @staticmethod
    def _free(name: str, taken: Counter[str]) -> str:
        plain = _plain(name)
        if len(plain) <= LONGEST_NAME and taken[plain] == 1:
            return plain
        salt = 0
        while True:  # the name of one tool may equal that of another with its digest
            digest = hashlib.sha256(f"{salt}:{name}".encode(errors="replace")).hexdigest()[:_HASH]
            shown = f"{plain[: LONGEST_NAME - _HASH - 1]}_{digest}"
            if not taken[shown]:
                taken[shown] += 1
                return shown
            salt += 1

    def shown(self, name: str) -> str:
        """What a model sees instead of a tool's full name."""
        return self._shown.get(name) or _plain(name)[:LONGEST_NAME]

    def meant(self, shown: str) -> str | None:
        """The full name of the tool that a model means; it may also write the full name itself."""
        return self._meant.get(shown) or (shown if shown in self._shown else None)

    def all(self) -> list[str]:
        """All names that the model sees."""
        return list(self._meant)


def _plain(name: str) -> str:
    plain = _ODD.sub("_", name.replace(".", "__"))
    return plain if plain[:1].isascii() and plain[:1].isalpha() else f"t_{plain}"


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """What Pursuit says for the operator."""

    text: str


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    """An answer of the model, as it gave it."""

    answer: ModelAnswer


class Media(msgspec.Struct, frozen=True):
    """An image or a sound in a result, in base64."""

    type: str
    data: str


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", omit_defaults=True):
    """The result of one call; `failed` if it was refused or did not succeed."""

    call_id: str
    tool: str
    text: str
    failed: bool = False
    media: tuple[Media, ...] = ()


Message = UserMessage | AssistantMessage | ToolMessage


MEDIA_BYTES = 6_400
"""What an image or a sound counts as in bytes of text: 1,600 tokens, as many as Anthropic counts for a large image."""


def body_of(message: Message) -> bytes:
    """What a model sees of a message: of an answer the provider's own parts, if it gave any."""
    if not isinstance(message, AssistantMessage):
        return msgspec.json.encode(message)
    answer = message.answer
    return msgspec.json.encode([answer.text, answer.calls] if answer.native is None else answer.native.get("parts"))


def size_of(message: Message, body: bytes) -> int:
    """How many bytes of text a message counts as: an image is not read as text."""
    media = message.media if isinstance(message, ToolMessage) else ()
    return len(body) - sum(len(one.data) - MEDIA_BYTES for one in media)


class MeasuredRequest:
    """The size and the fingerprint of messages, which grow with the conversation instead of being made anew."""

    __slots__ = ("_hash", "size")

    def __init__(self, before: MeasuredRequest | None = None) -> None:
        self.size = 0 if before is None else before.size
        self._hash: Any = hashlib.sha256() if before is None else before._hash.copy()

    def add(self, messages: Iterable[Message]) -> Self:
        """Counts further messages."""
        for message in messages:
            body = body_of(message)
            self.size += size_of(message, body)
            self._hash.update(body)
        return self

    def digest(self, *more: bytes) -> str:
        """The fingerprint of the messages and of what else a request has."""
        whole = self._hash.copy()
        for part in more:
            whole.update(part)
        return whole.hexdigest()


def encoded_tools(tools: Sequence[OfferedTool]) -> bytes:
    """The tools as the ledger stores them."""
    return msgspec.json.encode([[tool.name, tool.description, tool.schema] for tool in tools])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request: the system text, the conversation and the tools.

    `attempt` counts from 0 within an iteration; `max_tokens` bounds the answer alone. `first` and `said` are the first
    message and what is new at the end: with them the conversation is recorded. `on_words` hears the answer as it comes.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[OfferedTool, ...] = ()
    iteration: int = 0
    attempt: int = 0
    max_tokens: int = 4_096
    temperature: float | None = None
    first: str = ""
    said: str = ""
    words_told: int = 0
    window: int = 0
    purpose: Request = "turn"
    replaces: int = 0
    """How many of the oldest exchanges the answer replaces, if it is a summary."""
    compactions: int = 0
    """How often the conversation was cut before."""
    stream: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cache_key: str = ""
    on_words: Callable[[str], None] | None = field(default=None, compare=False)
    tools_body: bytes = field(default=b"", compare=False)
    measured: MeasuredRequest = field(default_factory=MeasuredRequest, compare=False)

    def __post_init__(self) -> None:
        if self.tools and not self.tools_body:
            object.__setattr__(self, "tools_body", encoded_tools(self.tools))
        if self.messages and not self.measured.size:
            object.__setattr__(self, "measured", MeasuredRequest().add(self.messages))

    @property
    def size(self) -> int:
        """The bytes of everything that the model sees."""
        return len(self.system.encode()) + self.measured.size + len(self.tools_body)

    def digest(self) -> str:
        """A fingerprint of everything that the model sees."""
        return self.measured.digest(self.system.encode(), self.tools_body)


def hide_keys(text: str) -> str:
    """The text without the keys in this process's environment, and without bearer tokens."""
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")) and len(value) > 5:
            text = text.replace(value, "***")
    return SECRET_TEXT.sub(lambda found: f"{found[1] or ''}***", text)


class NoAnswer(Exception):
    """The model gave no answer, and asking again at once cannot help."""


class Unreachable(NoAnswer):
    """The provider is down, busy or silent: asking again later may help, at the earliest `after` seconds from now.

    `lost` requests were sent and not answered.
    """

    def __init__(self, message: str, after: float | None = None, *, lost: int = 0) -> None:
        super().__init__(message)
        self.after = after
        self.lost = lost


Refusal = Literal["key", "length", "content", "other"]


class Rejected(NoAnswer):
    """The provider refuses such requests: a wrong key, a text longer than its window, content that it cannot take.

    `lost` as in `Unreachable`.
    """

    def __init__(self, message: str, kind: Refusal = "other", *, lost: int = 0) -> None:
        super().__init__(message)
        self.kind: Refusal = kind
        self.lost = lost


class NoAnswerYet(Exception):
    """A client must act first: the mission waits, and then the question is asked again."""


class OutOfBudget(Exception):
    """The budget does not allow the question; `cap` is the verdict's reason."""

    def __init__(self, cap: str) -> None:
        super().__init__(cap)
        self.cap = cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price of a model (None if it is not known), and the shortest answer that it can be asked for.

    `thinking` is how many tokens of the longest answer such settings set aside for thoughts.
    """

    price: Charge | None = None
    least_answer: int = 1
    thinking: Callable[[Mapping[str, Any]], int] = field(default=lambda _settings: 0)
    window: int | None = None
    """How many tokens a request and its answer may have together; None if that is not known."""


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


@dataclass(frozen=True, slots=True)
class WrappedModel:
    """What stands around a model has its name and its terms."""

    model: LanguageModel

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.model.name

    @property
    def terms(self) -> Terms | None:
        """The model's own terms."""
        return self.model.terms


@dataclass(frozen=True, slots=True)
class NoSampler:
    """Stands in for the client's model while no client drives the mission."""

    name: str = "(no client)"
    terms: Terms | None = None

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Waits for a client."""
        raise NoAnswerYet(
            "this mission needs the model of an MCP client: a client that declares sampling must call mission_iterate"
        )


class Models(Protocol):
    """Opens language models by their names."""

    def open(self, name: str) -> LanguageModel:
        """The model of this name; nothing is connected yet."""
        ...

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable` or `ExtraMissing` if it cannot be asked from here."""
        ...

    async def aclose(self) -> None:
        """Closes the connections of all models."""
        ...

    def priced(self, name: str) -> bool:
        """Whether its price is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a conversation goes on when its model cannot be reached, and when it is cut.

    A model that fails `failures` times in a row gives way to the next of the mission's `fallback`, if there is one.
    The pauses between the tries double. A request that fills more than `full` of the window is cut; the newest
    exchanges stay as far as they fit into `kept` of it; results of more than `large` tokens go first. A request that
    the provider refuses for its length or its content is sent again without a part of it, at most `cuts` times in a
    row; a model's window is then `narrower` than what was sent.
    """

    failures: int = 2
    first_pause: float = 5.0
    longest_pause: float = 300.0
    full: float = 0.7
    kept: float = 0.2
    large: int = 500
    cuts: int = 4
    narrower: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """How this process asks language models; `tools_bytes` bounds the description of all tools.

    `kept` is what a kind keeps from one run to the next.
    """

    models: Models
    tools_bytes: int = ROOM
    patience: Patience = field(default_factory=Patience)
    kept: dict[str, Any] = field(default_factory=dict[str, Any])


async def read_answer(answered: ModelAnswered, blob: Blob) -> ModelAnswer | None:
    """A recorded answer, a large one from its blob."""
    if answered.answer is not None or answered.blob is None:
        return answered.answer
    body = await blob(answered.blob)
    return None if body is None else msgspec.json.decode(body, type=ModelAnswer)
