"""A provider's language model, used over the provider's own API, with retries where they may help.

It keeps its connections as long as the process uses it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast, get_args

import anyio
import anyio.to_thread
import msgspec
from pydantic import TypeAdapter
from pydantic_ai import exceptions as known
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as Asked
from pydantic_ai.models import KnownModelName, Model, ModelRequestParameters, infer_model
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP, anthropic_model_profile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from pursuit.core.base_model import nearest
from pursuit.core.events import ModelAnswer
from pursuit.errors import ExtraMissing, ModelUnavailable
from pursuit.proposers.language import (
    OWN_SETTINGS,
    AssistantMessage,
    ModelRequest,
    Price,
    Refusal,
    Rejected,
    Retries,
    Terms,
    ToolMessage,
    Unreachable,
    UserMessage,
    hide_keys,
    price_of,
    storable,
    wanted_call,
)

MAX_REASON = 1_000
SHORTEST_ANSWER = 16
"""OpenAI's newer API refuses a smaller maximum."""
_LEFT_OUT = ("usage", "timestamp", "run_id", "conversation_id", "metadata", "kind", "provider_url")
"""Parts of an answer that are stored elsewhere, or mean nothing to the provider; they are not kept."""


@dataclass(slots=True, kw_only=True)
class ProviderModel:
    name: str
    own_price: Price | None
    retries: Retries
    window: int | None = None
    _live: Model | None = None

    def find_window(self) -> None:
        """Finds the model's window. Raises `ModelUnavailable` or `ExtraMissing` if it cannot be used from here."""
        self.window = _inferred(self.name).profile.get("context_window")

    @property
    def terms(self) -> Terms:
        """The model's price, its window, and the smallest maximum that its provider accepts for an answer."""
        short = not _spelt(self.name).startswith(("openai:", "openai-responses:"))
        least = 1 if short else SHORTEST_ANSWER
        price = price_of(self.name, self.own_price)
        return Terms(price=price, least_answer=least, thinking=self._thinking, window=self.window)

    def _thinking(self, settings: Mapping[str, Any]) -> int:
        """Anthropic counts thoughts as part of the answer, and refuses a maximum that is not above their budget."""
        provider, _, model = self.name.partition(":")
        own, level = settings.get("anthropic_thinking"), settings.get("thinking")
        if provider != "anthropic" or not (own or level):
            return 0
        if own:
            budget = cast("Mapping[str, Any]", own).get("budget_tokens") if isinstance(own, Mapping) else None
            return budget if isinstance(budget, int) else 0
        profile = cast("Mapping[str, Any]", anthropic_model_profile(model) or {})
        if profile.get("anthropic_supports_adaptive_thinking") or not profile.get("supports_thinking"):
            return 0
        return cast("Mapping[Any, int]", ANTHROPIC_THINKING_BUDGET_MAP).get(level, 0)

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Sends the request, with short pauses between retries that may help, within the mission's deadline."""
        pause, lost, tried = self.retries.first_pause, 0, 0
        while True:
            tried += 1
            try:
                return self._read(await self._send(await self._model(), request), lost)
            except Rejected as failed:
                if failed.kind == "key":  # the operator may repair it; other missions use the same client
                    await self.aclose()
                lost += failed.lost
                raise Rejected(f"{self.name}: {failed}{_charged(lost)}", failed.kind, lost=lost) from failed.__cause__
            except Unreachable as failed:
                lost += failed.lost
                wait = pause if failed.after is None else failed.after
                if tried >= self.retries.tries or wait > self.retries.longest_pause:
                    raise Unreachable(f"{self.name}: {failed}{_charged(lost)}", failed.after, lost=lost) from None
            await anyio.sleep(wait)
            pause *= 2

    async def aclose(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.__aexit__(None, None, None)

    async def _model(self) -> Model:
        """The library's model, created in a thread: importing its provider takes a second or more."""
        if self._live is None:
            made = await anyio.to_thread.run_sync(_inferred, self.name)
            if self._live is None:
                self._live = await made.__aenter__()
        return self._live

    async def _send(self, model: Model, request: ModelRequest) -> ModelResponse:
        tools = [
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=dict(tool.schema), strict=False
            )
            for tool in request.tools
        ]
        parameters = ModelRequestParameters(function_tools=tools)
        begun = anyio.Event()
        try:
            messages = model.prepare_messages(self._messages(request, model.system), parameters)
            settings = _settings(model, request)
            if self._thinking(request.settings) and _another_called(request, model.system):
                settings = cast("ModelSettings", {key: settings[key] for key in settings if key not in _THOUGHTS})
            if request.stream:
                return await self._stream(model, messages, settings, parameters, request, begun=begun)
            return await model_request(model, messages, model_settings=settings, model_request_parameters=parameters)
        except Unreachable:
            raise
        except (known.ModelAPIError, known.UnexpectedModelBehavior) as error:
            raise _judged(error, begun=begun.is_set()) from None
        except Exception as error:  # the boundary: a provider's library may raise anything
            reason = f"{type(error).__name__}: {_plain(error)}"
            if isinstance(error, OSError | EOFError | ValueError) or type(error).__module__.startswith("http"):
                raise Unreachable(reason, lost=1) from error
            raise Rejected(reason, lost=begun.is_set()) from error

    async def _stream(
        self,
        model: Model,
        messages: Sequence[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        request: ModelRequest,
        *,
        begun: anyio.Event,
    ) -> ModelResponse:
        """Streams the answer; retries if the stream stalls or breaks off."""
        hear: Callable[[str], None] = request.on_words or (lambda _words: None)
        tells_its_end = self.name.startswith(("openai", "anthropic:"))  # their streams always say why they end
        with anyio.move_on_after(self.retries.stall) as limit:
            async with model_request_stream(
                model, messages, model_settings=settings, model_request_parameters=parameters
            ) as stream:
                begun.set()
                async for event in stream:
                    limit.deadline = anyio.current_time() + self.retries.stall
                    match event:
                        case PartStartEvent(part=TextPart(content=words)) if words:
                            hear(words)
                        case PartDeltaEvent(delta=TextPartDelta(content_delta=words)):
                            hear(words)
                        case _:
                            pass
                response = stream.get()
            if response.state != "complete" or (response.finish_reason is None and tells_its_end):
                raise Unreachable("the stream of the answer broke off", lost=1)
            return response
        raise Unreachable(f"the stream of the answer stalled for {self.retries.stall:g} s", lost=1)

    @staticmethod
    def _messages(request: ModelRequest, provider: str) -> list[ModelMessage]:
        """The conversation in the library's form; results and the text after them are one message."""
        found: list[ModelMessage] = []
        parts: list[Any] = []
        for message in request.messages:
            if not isinstance(message, AssistantMessage):
                parts.append(_part(message))
                continue
            found += [Asked(parts=parts)] if parts else []
            found.append(_response(message.answer, provider))
            parts = []
        return [*found, Asked(parts=parts, instructions=request.system)]

    def _read(self, response: ModelResponse, lost: int) -> ModelAnswer:
        calls = [
            wanted_call(part.tool_name, part.args, part.tool_call_id)
            for part in response.parts
            if isinstance(part, ToolCallPart)
        ]
        said = [part.content for part in response.parts if isinstance(part, TextPart)]
        usage = response.usage
        price = self.terms.price
        return ModelAnswer(
            calls=calls,
            text=storable("\n".join(said)),
            model=response.model_name or self.name,
            native=_native(response),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            reasoning_tokens=usage.output_reasoning_tokens,
            cost_usd=None if price is None else price(usage),
            cut=response.finish_reason == "length",
            lost=lost,
        )


_RESPONSE = TypeAdapter(ModelResponse)


def _native(response: ModelResponse) -> dict[str, Any] | None:
    """The answer in the library's own parts, with thoughts and signatures; None if the ledger cannot store it."""
    try:
        found: dict[str, Any] = msgspec.json.decode(_RESPONSE.dump_json(response, exclude=set(_LEFT_OUT)))
    except (ValueError, UnicodeError):
        return None
    return {key: value for key, value in found.items() if value is not None}


def _response(answer: ModelAnswer, provider: str) -> ModelMessage:
    """An answer as it is sent back to its provider; for other providers, without the thoughts in it."""

    def fits(part: object) -> bool:
        if isinstance(part, ThinkingPart):  # the library would tell another provider's model that the user said them
            return part.provider_name in (None, provider)
        # Anthropic refuses an empty text, even if its own model wrote it beside a call.
        return not isinstance(part, TextPart) or bool(part.content.strip())

    if answer.native is not None:
        found = _RESPONSE.validate_python({"usage": {}, **answer.native})
        kept = [part for part in found.parts if fits(part)]
        return replace(found, parts=kept) if len(kept) < len(found.parts) else found
    parts: list[Any] = [TextPart(content=answer.text)] if answer.text.strip() else []
    parts += [ToolCallPart(tool_name=call.name, args=call.args or {}, tool_call_id=call.id) for call in answer.calls]
    return ModelResponse(parts=parts)


def _part(message: UserMessage | ToolMessage) -> Any:
    if isinstance(message, UserMessage):
        return UserPromptPart(content=message.text)
    content: Any = message.text
    if message.media:
        found = [BinaryContent.from_data_uri(f"data:{one.type};base64,{one.data}") for one in message.media]
        content = [message.text, *found] if message.text else found
    outcome = "failed" if message.failed else "success"
    return ToolReturnPart(tool_name=message.tool, content=content, tool_call_id=message.call_id, outcome=outcome)


def _settings(model: Model, request: ModelRequest) -> ModelSettings:
    """The settings of a request: the provider's cache if it has one, the mission's settings, and last the caps."""
    given: dict[str, Any] = {}
    if model.system == "anthropic":
        # Breakpoints after the tools, the system text and the last message: all before them is read from the cache.
        names = ("anthropic_cache_tool_definitions", "anthropic_cache_instructions", "anthropic_cache_messages")
        given.update(dict.fromkeys(names, True))
    elif model.system == "openai" and "api.openai.com" in (model.base_url or "") and request.cache_key:
        given["openai_prompt_cache_key"] = request.cache_key[:64]
    given.update({key: value for key, value in request.settings.items() if key not in OWN_SETTINGS})
    if request.temperature is not None:
        given["temperature"] = request.temperature
    return cast("ModelSettings", {**given, "max_tokens": request.max_tokens, "max_retries": 0})


_THOUGHTS = ("thinking", "anthropic_thinking")


def _another_called(request: ModelRequest, provider: str) -> bool:
    """True if another provider's model made calls since the last user message: Anthropic then refuses to think.

    Text beside the results of calls does not end such a turn.
    """
    for before, message in reversed(list(pairwise((None, *request.messages)))):
        if isinstance(message, UserMessage) and not isinstance(before, ToolMessage):
            return False
        if isinstance(message, AssistantMessage) and (message.answer.native or {}).get("provider_name") != provider:
            return True
    return False


def _charged(lost: int) -> str:
    if not lost:
        return ""
    return f"; {lost} requests were not answered; the provider may charge for them"


_REFUSALS: Mapping[int, Refusal] = {401: "key", 403: "key", 400: "content", 422: "content"}


def _judged(error: Exception, *, begun: bool) -> Exception:
    """The error to raise: `Unreachable` if a retry may help. An answer that had `begun` may be charged."""
    status = error.status_code if isinstance(error, known.ModelHTTPError) else 0
    passing = isinstance(error, known.ModelRateLimitError | known.ModelQuotaExceededError | known.ModelUnavailableError)
    refused = isinstance(error, known.ModelRequestRejectedError) or 400 <= status < 500
    if refused and not passing and status not in (408, 409, 429):
        if isinstance(error, known.ModelContextWindowExceededError) or status == 413:
            return Rejected(_plain(error), "length", lost=begun)
        return Rejected(_plain(error), _REFUSALS.get(status, "other"), lost=begun)
    broken = isinstance(error, known.ModelConnectionError) and error.phase not in ("pool", "connect")
    lost = begun or broken or isinstance(error, known.ModelRequestTimeout)
    limited = isinstance(error, known.ModelRateLimitError) or status == 429
    return Unreachable(_plain(error), getattr(error, "retry_after", None), lost=lost, limited=limited)


def _inferred(name: str) -> Model:
    """Raises `ModelUnavailable` if the library does not know the model or its key is missing, and `ExtraMissing`."""
    try:
        warnings.filterwarnings("ignore", message=r"The model '.*' is deprecated", category=DeprecationWarning)
        return infer_model(_spelt(name))
    except (known.UserError, ValueError) as error:
        providers = {str(one).partition(":")[0] for one in get_args(KnownModelName.__value__)}
        raise ModelUnavailable(f"{name}: {_unusable(name, _plain(error), providers)}", model=name) from None
    except ImportError as error:
        raise ExtraMissing(
            f"{name} needs a package that is not installed; `pip install 'pursuit[models]'` brings Anthropic and "
            f"OpenAI, others: {_plain(error)}",
            extra="models",
        ) from None


def _unusable(name: str, said: str, known: Collection[str]) -> str:
    """Why a model cannot be used, and what to set; the library's own text names its classes."""
    provider = name.partition(":")[0]
    if said.startswith("Unknown") and provider not in known:
        return f"unknown provider {provider!r}{nearest(provider, known, most=1)}"
    variable = re.search(r"[Ss]et the `([A-Z][A-Z0-9_]*)`", said)
    if variable is None:
        return said.partition(" To try Pydantic AI")[0]
    what = "your key" if variable[1].endswith(("_KEY", "_TOKEN")) else "its address"
    own = "; your own server with OpenAI's API needs OPENAI_BASE_URL instead" if provider == "openai" else ""
    return f"the environment variable {variable[1]} is not set; set it to {what} for {provider}{own}"


def _spelt(name: str) -> str:
    """The model's name for the library: servers that are only compatible with OpenAI use its older API."""
    provider, _, model = name.partition(":")
    compatible = provider == "openai" and "api.openai.com" not in os.environ.get("OPENAI_BASE_URL", "api.openai.com")
    return f"openai-chat:{model}" if compatible else name


def _plain(error: Exception) -> str:
    """The reason on one line, without keys."""
    match getattr(error, "body", None):
        case {"error": {"message": str(said)}} | {"message": str(said)}:
            text = f"HTTP {getattr(error, 'status_code', '')}: {said}"
        case _:
            text = str(error)
    return hide_keys(" ".join(text.split()))[:MAX_REASON] or type(error).__name__
