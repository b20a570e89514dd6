"""Language models of providers, asked directly over their own APIs, with another try where that may help.

`pydantic_ai` is imported when the first model is opened, and nowhere else.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from pursuit.core.events import ModelAnswer
from pursuit.errors import ExtraMissing, ModelUnavailable
from pursuit.proposers.language import ModelRequest, NoAnswer, Price, Terms, price_of
from pursuit.proposers.text_calls import storable, wanted_call

if TYPE_CHECKING:
    from pydantic_ai.exceptions import AgentRunError
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

LONGEST_REASON = 1_000
SHORTEST_ANSWER = 16
"""OpenAI's newer API refuses a smaller maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a request is tried, and the pauses between the tries, which double."""

    tries: int = 6
    first_pause: float = 0.5
    longest_pause: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """Every provider of pydantic-ai; keys and addresses come from the environment, as each provider names them.

    `prices` are the operator's own, by the model's full name; they take precedence over the known ones.
    """

    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    retries: Retries = Retries()

    def open(self, name: str) -> ProviderModel:
        """The model of this name; nothing is connected yet."""
        return ProviderModel(name=name, own_price=self.prices.get(name), retries=self.retries)

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable` or `ExtraMissing` if it cannot be asked from here."""
        await _opened(name)

    def priced(self, name: str) -> bool:
        """Whether its price is known."""
        return price_of(name, self.prices.get(name)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderModel:
    """One model of one provider."""

    name: str
    own_price: Price | None = None
    retries: Retries = Retries()

    @property
    def terms(self) -> Terms:
        """Its price, and the smallest maximum that its provider accepts for an answer."""
        short = not _spelt(self.name).startswith(("openai:", "openai-responses:"))
        return Terms(price=price_of(self.name, self.own_price), least_answer=1 if short else SHORTEST_ANSWER)

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Asks, again after a pause where that may help; the mission's own deadline still holds."""
        async with await _opened(self.name) as model:
            pause, lost = self.retries.first_pause, 0
            for left in reversed(range(self.retries.tries)):
                try:
                    return self._read(await self._send(model, request), lost)
                except NoAnswer as failed:
                    raise NoAnswer(f"{self.name}: {failed}{_charged(lost)}") from failed.__cause__
                except _Again as failed:
                    lost += failed.unknown
                    wait = pause if failed.after is None else failed.after
                    if not left or wait > self.retries.longest_pause:
                        raise NoAnswer(f"{self.name}: {failed}{_charged(lost)}") from None
                await anyio.sleep(wait)
                pause *= 2
        raise NoAnswer(f"{self.name}: no answer")

    async def _send(self, model: Model, request: ModelRequest) -> ModelResponse:
        from pydantic_ai import exceptions as known  # noqa: PLC0415 - loaded with the first model
        from pydantic_ai.direct import model_request  # noqa: PLC0415
        from pydantic_ai.messages import ModelRequest as Message  # noqa: PLC0415
        from pydantic_ai.messages import UserPromptPart  # noqa: PLC0415
        from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415
        from pydantic_ai.settings import ModelSettings  # noqa: PLC0415
        from pydantic_ai.tools import ToolDefinition  # noqa: PLC0415

        tools = [
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=dict(tool.schema), strict=False
            )
            for tool in request.tools
        ]
        settings = ModelSettings(max_tokens=request.max_tokens, max_retries=0)
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        try:
            return await model_request(
                model,
                [Message(parts=[UserPromptPart(content=request.prompt)], instructions=request.system)],
                model_settings=settings,
                model_request_parameters=ModelRequestParameters(function_tools=tools),
            )
        except (known.ModelAPIError, known.UnexpectedModelBehavior) as error:
            raise _judged(error) from None
        except Exception as error:  # the boundary: a provider's library may raise anything
            raise NoAnswer(f"{type(error).__name__}: {_plain(error)}") from error

    def _read(self, response: ModelResponse, lost: int) -> ModelAnswer:
        from pydantic_ai.messages import TextPart, ToolCallPart  # noqa: PLC0415 - loaded with the first model

        calls = [wanted_call(part.tool_name, part.args) for part in response.parts if isinstance(part, ToolCallPart)]
        said = [part.content for part in response.parts if isinstance(part, TextPart)]
        usage = response.usage
        price = self.terms.price
        return ModelAnswer(
            calls=calls,
            text=storable("\n".join(said)),
            model=response.model_name or self.name,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=None if price is None else price.of(usage),
            cut=response.finish_reason == "length",
            lost=lost,
        )


class _Again(Exception):
    """A failure that may pass; `after` is when the provider wants to be asked again.

    `unknown` if the request was sent and not answered.
    """

    def __init__(self, message: str, after: float | None, *, unknown: bool) -> None:
        super().__init__(message)
        self.after = after
        self.unknown = unknown


def _charged(lost: int) -> str:
    if not lost:
        return ""
    return f"; requests that were sent and not answered: {lost}, and whether the provider charges for them is not known"


def _judged(error: AgentRunError) -> Exception:
    """The error to raise: `_Again` if another try may help."""
    from pydantic_ai import exceptions as known  # noqa: PLC0415 - loaded with the first model

    passing = (
        known.ModelRateLimitError,
        known.ModelUnavailableError,
        known.ModelServerError,
        known.ModelConnectionError,
        known.ModelRequestTimeout,
        known.UnexpectedModelBehavior,
    )
    status = error.status_code if isinstance(error, known.ModelHTTPError) else None
    if isinstance(error, passing) or (status is not None and (status in (408, 409, 429) or status >= 500)):
        broken = isinstance(error, known.ModelConnectionError) and error.phase not in ("pool", "connect")
        unknown = broken or isinstance(error, known.ModelRequestTimeout)
        return _Again(_plain(error), getattr(error, "retry_after", None), unknown=unknown)
    return NoAnswer(_plain(error))


async def _opened(name: str) -> Model:
    """The library's own model, made in a thread: the first import takes a second or more."""
    return await anyio.to_thread.run_sync(_model, name)


def _model(name: str) -> Model:
    """Raises `ModelUnavailable` if the library does not know the model or its key is missing, and `ExtraMissing`."""
    try:
        from pydantic_ai.exceptions import UserError  # noqa: PLC0415 - the extra may not be installed
        from pydantic_ai.models import infer_model  # noqa: PLC0415
    except ImportError:
        raise ExtraMissing(
            "a language model needs an extra that is not installed: pip install 'pursuit[models]'", extra="models"
        ) from None
    try:
        warnings.filterwarnings("ignore", message=r"The model '.*' is deprecated", category=DeprecationWarning)
        return infer_model(_spelt(name))
    except (UserError, ValueError) as error:
        raise ModelUnavailable(f"{name}: {_unusable(name, _plain(error))}", model=name) from None
    except ImportError as error:
        raise ExtraMissing(
            f"{name} needs a package that is not installed; `pip install 'pursuit[models]'` brings Anthropic and "
            f"OpenAI, others: {_plain(error)}",
            extra="models",
        ) from None


def _unusable(name: str, said: str) -> str:
    """Why a model cannot be asked, and what to set; the library's text names its own classes."""
    variable = re.search(r"[Ss]et the `([A-Z][A-Z0-9_]*)`", said)
    if variable is None:
        return said.partition(" To try Pydantic AI")[0]
    provider = name.partition(":")[0]
    what = "your key" if variable[1].endswith(("_KEY", "_TOKEN")) else "its address"
    own = (
        "; a server of your own that speaks OpenAI's API needs OPENAI_BASE_URL instead" if provider == "openai" else ""
    )
    return f"the environment variable {variable[1]} is not set; set it to {what} for {provider}{own}"


def _spelt(name: str) -> str:
    """The model's name for the library: servers that are only compatible with OpenAI speak its older API."""
    provider, _, model = name.partition(":")
    compatible = provider == "openai" and "api.openai.com" not in os.environ.get("OPENAI_BASE_URL", "api.openai.com")
    return f"openai-chat:{model}" if compatible else name


def _plain(error: Exception) -> str:
    """The reason on one line, without keys."""
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET")) and len(value) > 5:
            text = text.replace(value, "***")
    return text[:LONGEST_REASON] or type(error).__name__
