"""The `LanguageModel` protocol, its request and its errors, for every provider and client.

A request is a conversation in our own format; the module of each provider or client converts it. The answer is
`core.events.ModelAnswer`, because it is stored.
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
from typing import Any, Literal, NamedTuple, Protocol, Self, cast

import msgspec

from pursuit.core.events import ModelAnswer, ModelAnswered, Request, WantedCall
from pursuit.upstream.fixed_patterns import SECRET_TEXT

_SAME = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google", "google-vertex": "google"}
_PER = 1_000_000


class Used(Protocol):
    """The use of a request: tokens read, those of them from the provider's cache, and tokens written."""

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
    """A tool as a model sees it. In a request its name has a form that providers accept."""

    name: str
    description: str
    schema: Mapping[str, Any]


OWN_SETTINGS = ("extra_body", "extra_headers", "max_retries", "max_tokens", "model")
"""Settings of a request that the mission's own keys and its budget set; `settings` may not contain them."""
ROOM = 64 * 1024
MAX_DESCRIPTION = 1_024
CHARACTERS = 4
"""Characters of a token, for limits that must not depend on a provider's count."""
Blob = Callable[[str], Awaitable[bytes | None]]


class Offer(NamedTuple):
    tools: list[OfferedTool]
    left_off: list[str]


def as_row(tool: OfferedTool) -> str:
    """A tool on one line of ASCII, which cannot imitate another line; a provider's form is never longer."""
    return json.dumps({"tool": tool.name, "description": tool.description, "args": tool.schema}, default=str)


def offer(tools: Sequence[OfferedTool], room: int = ROOM) -> Offer:
    """The complete tools that fit, in order; a tool that does not fit is skipped, and a smaller later one may fit."""
    found = Offer([], [])
    for tool in tools:
        size = len(as_row(tool)) + 1
        if size > room:
            found.left_off.append(tool.name)
        else:
            room -= size
            found.tools.append(tool)
    return found


MAX_NAME = 64
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
        if len(plain) <= MAX_NAME and taken[plain] == 1:
            return plain
        salt = 0
        while True:  # the name of one tool may equal that of another with its digest
            digest = hashlib.sha256(f"{salt}:{name}".encode(errors="replace")).hexdigest()[:_HASH]
            shown = f"{plain[: MAX_NAME - _HASH - 1]}_{digest}"
            if not taken[shown]:
                taken[shown] += 1
                return shown
            salt += 1

    def shown(self, name: str) -> str:
        return self._shown.get(name) or _plain(name)[:MAX_NAME]

    def meant(self, shown: str) -> str | None:
        """The full name of the tool that a model names; the model may write the full name, too."""
        return self._meant.get(shown) or (shown if shown in self._shown else None)

    def all(self) -> list[str]:
        return list(self._meant)


def _plain(name: str) -> str:
    plain = _ODD.sub("_", name.replace(".", "__"))
    return plain if plain[:1].isascii() and plain[:1].isalpha() else f"t_{plain}"


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """A message of Pursuit for the operator."""

    text: str


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    answer: ModelAnswer


class Media(msgspec.Struct, frozen=True):
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
"""Bytes of text that an image or a sound counts as: 1,600 tokens, as Anthropic counts for a large image."""


def body_of(message: Message) -> bytes:
    """The bytes of a message that a model sees: for an answer, the provider's own parts if there are any."""
    if not isinstance(message, AssistantMessage):
        return msgspec.json.encode(message)
    answer = message.answer
    return msgspec.json.encode([answer.text, answer.calls] if answer.native is None else answer.native.get("parts"))


def size_of(message: Message, body: bytes) -> int:
    """The size of a message in bytes. Each image counts as `MEDIA_BYTES`, not as its encoded size."""
    media = message.media if isinstance(message, ToolMessage) else ()
    return len(body) - sum(len(one.data) - MEDIA_BYTES for one in media)


class MeasuredRequest:
    """The size and the fingerprint of messages, updated as the conversation grows."""

    __slots__ = ("_hash", "size")

    def __init__(self, before: MeasuredRequest | None = None) -> None:
        self.size = 0 if before is None else before.size
        self._hash: Any = hashlib.sha256() if before is None else before._hash.copy()

    def add(self, messages: Iterable[Message]) -> Self:
        for message in messages:
            body = body_of(message)
            self.size += size_of(message, body)
            self._hash.update(body)
        return self

    def digest(self, *more: bytes) -> str:
        """The fingerprint of the messages and of the other parts of a request."""
        whole = self._hash.copy()
        for part in more:
            whole.update(part)
        return whole.hexdigest()


def encoded_tools(tools: Sequence[OfferedTool]) -> bytes:
    return msgspec.json.encode([[tool.name, tool.description, tool.schema] for tool in tools])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request: the system text, the conversation and the tools.

    `attempt` counts from 0 within an iteration; `max_tokens` limits only the answer. `first` and `said` are the first
    message and the new text at the end, which are recorded. `on_words` gets the answer as it arrives.
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
    """The number of oldest exchanges that the answer replaces, if it is a summary."""
    compactions: int = 0
    """The number of earlier cuts of the conversation."""
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


def wanted_call(name: object, args: object, call_id: str = "") -> WantedCall:
    """One call as the model wrote it; arguments that the ledger cannot store are malformed."""
    try:
        encoded = args if isinstance(args, str) else msgspec.json.encode({} if args is None else args)
        read: object = msgspec.json.decode(encoded) if encoded.strip() else {}
    except (TypeError, ValueError, RecursionError):
        read = None
    shown = storable(str(name))[:200]
    if isinstance(read, dict):
        return WantedCall(name=shown, args=cast("dict[str, Any]", read), id=storable(call_id))
    return WantedCall(name=shown, malformed=storable(str(args)[:1_000]), id=storable(call_id))


def storable(text: str) -> str:
    return text.encode(errors="replace").decode()


def hide_keys(text: str) -> str:
    """The text without the keys in this process's environment, and without bearer tokens."""
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")) and len(value) > 5:
            text = text.replace(value, "***")
    return SECRET_TEXT.sub(lambda found: f"{found[1] or ''}***", text)


class NoAnswer(Exception):
    """The model gave no answer, and an immediate retry cannot help."""


class Unreachable(NoAnswer):
    """The provider is down, busy or silent: a later retry may help, at the earliest in `after` seconds.

    `lost` requests were sent without an answer; `limited` tells that a usage limit is reached.
    """

    def __init__(self, message: str, after: float | None = None, *, lost: int = 0, limited: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.lost = lost
        self.limited = limited


Refusal = Literal["key", "length", "content", "other"]


class Rejected(NoAnswer):
    """The provider refuses such requests: a wrong key, text longer than its window, unsupported content.

    `lost` as in `Unreachable`.
    """

    def __init__(self, message: str, kind: Refusal = "other", *, lost: int = 0) -> None:
        super().__init__(message)
        self.kind: Refusal = kind
        self.lost = lost


class NoAnswerYet(Exception):
    """A client must act first: the mission waits, and then sends the request again."""


class OutOfBudget(Exception):
    """The budget does not allow the request; `cap` is the verdict's reason."""

    def __init__(self, cap: str) -> None:
        super().__init__(cap)
        self.cap = cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price of a model (None if it is not known), and the minimum length of an answer to request.

    `thinking` is the number of tokens in the longest answer that such settings reserve for thoughts.
    """

    price: Charge | None = None
    least_answer: int = 1
    thinking: Callable[[Mapping[str, Any]], int] = field(default=lambda _settings: 0)
    window: int | None = None
    """The maximum tokens of a request and its answer together; None if it is not known."""


class LanguageModel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def terms(self) -> Terms | None: ...

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Sends the request. Raises `NoAnswer` or `NoAnswerYet`; cancellation abandons the request.

        A request changes nothing, so it is sent again if its answer was lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class WrappedModel:
    """Base of wrappers: has the name and the terms of the wrapped model."""

    model: LanguageModel

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def terms(self) -> Terms | None:
        return self.model.terms


@dataclass(frozen=True, slots=True)
class NoSampler:
    """Stands in for the client's model while no client drives the mission."""

    name: str = "(no client)"
    terms: Terms | None = None

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        raise NoAnswerYet(
            "this mission needs the model of an MCP client: a client that declares sampling must call mission_iterate"
        )


class Models(Protocol):
    def open(self, name: str) -> LanguageModel: ...

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable` or `ExtraMissing` if the model cannot be used from here."""
        ...

    async def aclose(self) -> None: ...

    def priced(self, name: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The number of immediate attempts, and the pauses between them, which double.

    A provider that demands a pause longer than `longest_pause` is retried later. A stream that is silent for `stall`
    seconds is abandoned.
    """

    tries: int = 4
    first_pause: float = 0.5
    longest_pause: float = 10.0
    stall: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a conversation continues when its model cannot be reached, and when it is cut.

    After `failures` failures in a row, the next model of the mission's `fallback` is used, if there is one. The
    pauses between attempts double. A request that fills more than `full` of the window is cut; the newest exchanges
    that fit into `kept` of it stay; results of more than `large` tokens are removed first. A request that the provider
    refuses for its length or its content is sent again without a part of it, at most `cuts` times in a row; the window
    then counts as `narrower` than that request.
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
    """The access of this process to language models; `tools_bytes` limits the description of all tools.

    `kept` holds data that a kind keeps between runs.
    """

    models: Models
    tools_bytes: int = ROOM
    patience: Patience = field(default_factory=Patience)
    kept: dict[str, Any] = field(default_factory=dict[str, Any])


async def read_answer(answered: ModelAnswered, blob: Blob) -> ModelAnswer | None:
    """A recorded answer, loaded from its blob if large."""
    if answered.answer is not None or answered.blob is None:
        return answered.answer
    body = await blob(answered.blob)
    return None if body is None else msgspec.json.decode(body, type=ModelAnswer)
