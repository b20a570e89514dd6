"""Asks the model of the MCP client that drives a mission, by `sampling/createMessage`.

Before 2026-07-28 the server sends the request during the call. Since then the call returns the request, and the
answer comes with the client's next call.
Invariant: each result of a client is an answer or a `NoAnswer` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResultWithTools,
    ImageContent,
    ModelPreferences,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)
from pydantic import ValidationError

from pursuit.core.events import ModelAnswer, Request
from pursuit.proposers.language import (
    AssistantMessage,
    Message,
    ModelRequest,
    NoAnswer,
    NoAnswerYet,
    UserMessage,
    storable,
    wanted_call,
)
from pursuit.proposers.model.conversation import quoted
from pursuit.proposers.model.text_calls import describe_tools, read_calls
from pursuit.server.errors import Context, as_object

NAME = "sampling"
MAX_UNANSWERED = 3
"""The number of unanswered repetitions of a request that count as a failure of the proposer."""

CALL_AGAIN = "the client's model proposes: call mission_iterate again; the server then asks the model"
MAX_REASON = 500
_WHY = "pursuit/reason"


def declares_sampling(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.sampling is not None


def question_names(iteration: int, attempt: int, compactions: int) -> dict[Request, str]:
    """The names of the requests of an attempt at an iteration; repeated requests have the same name."""
    name = f"{NAME}-{iteration}-{attempt}"
    return {"turn": name, "summary": f"{name}-summary-{compactions}"}


class _Form:
    """The form of requests for a client: with tools, or with the tools described in the prompt."""

    def __init__(self, ctx: Context, preferences: Mapping[str, Any] | None) -> None:
        capabilities = ctx.session.client_capabilities
        sampling = None if capabilities is None else capabilities.sampling
        self.native = sampling is not None and sampling.tools is not None
        self._preferences = None if preferences is None else ModelPreferences.model_validate(preferences, by_name=False)

    def filled(self, request: ModelRequest) -> CreateMessageRequest:
        """The request to the client; the tools are in the prompt if the client's model does not support tools."""
        messages = request.messages
        if not self.native:
            first, *rest = messages
            told = describe_tools(request.tools)
            messages = [UserMessage(f"{told}\n\n{first.text}"), *rest] if isinstance(first, UserMessage) else messages
        params = CreateMessageRequestParams(
            messages=_merged(_message(one, native=self.native) for one in messages),
            system_prompt=request.system,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            model_preferences=self._preferences,
        )
        if self.native:
            params.tools = [
                Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema))
                for tool in request.tools
            ]
            params.tool_choice = ToolChoice(mode="auto")
        return CreateMessageRequest(params=params)

    def read(self, result: CreateMessageResultWithTools) -> ModelAnswer:
        """The answer; its usage counts as zero, because MCP does not report it."""
        calls = [
            wanted_call(part.name, part.input, part.id)
            for part in result.content_as_list
            if isinstance(part, ToolUseContent)
        ]
        text = storable("\n".join(part.text for part in result.content_as_list if isinstance(part, TextContent)))
        if not calls and not self.native:
            calls, text = read_calls(text)
        model = storable(result.model)[:200]
        return ModelAnswer(calls=calls, text=text, model=model, cut=result.stop_reason == "maxTokens")


def _message(message: Message, *, native: bool) -> tuple[Literal["user", "assistant"], list[Any]]:
    """A message in MCP's form: with calls and results, or as text for a model without tools."""
    if isinstance(message, UserMessage):
        return "user", [TextContent(text=message.text)]
    if isinstance(message, AssistantMessage):
        answer = message.answer
        texts = [TextContent(text=answer.text)] if answer.text else []
        if native:
            calls = [ToolUseContent(name=call.name, id=call.id, input=call.args or {}) for call in answer.calls]
            return "assistant", [*texts, *calls]
        rows = [{"tool": call.name, "args": call.args or {}} for call in answer.calls]
        return "assistant", [TextContent(text=json.dumps({"why": answer.text, "calls": rows}))]
    media = [
        (ImageContent if one.type.startswith("image/") else AudioContent)(data=one.data, mime_type=one.type)
        for one in message.media
    ]
    if native:
        content: list[ContentBlock] = [*([TextContent(text=message.text)] if message.text else []), *media]
        return "user", [ToolResultContent(tool_use_id=message.call_id, content=content, is_error=message.failed)]
    return "user", [TextContent(text=f"The result of {message.tool}:\n{quoted(message.text)}"), *media]


def _merged(parts: Iterable[tuple[Literal["user", "assistant"], list[Any]]]) -> list[SamplingMessage]:
    """Merges messages so that roles alternate; MCP requires results of calls in separate messages."""
    found: list[SamplingMessage] = []
    kind: tuple[str, bool] | None = None
    for role, content in parts:
        before, kind = kind, (role, any(isinstance(one, ToolResultContent) for one in content))
        if kind == before:
            found[-1].content = [*found[-1].content_as_list, *content]
        else:
            found.append(SamplingMessage(role=role, content=content))
    for message in found:
        if len(message.content_as_list) == 1:
            message.content = message.content_as_list[0]
    return found


class PushedModel:
    """Asks during the call, before 2026-07-28."""

    name = NAME
    terms = None
    question = None

    def __init__(self, ctx: Context, preferences: Mapping[str, Any] | None) -> None:
        self._ctx = ctx
        self._form = _Form(ctx, preferences)

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        try:
            result = await self._ctx.session.send_request(
                self._form.filled(request), CreateMessageResultWithTools, metadata=related
            )
        except NoBackChannelError:
            raise NoAnswerYet(CALL_AGAIN) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise NoAnswerYet(CALL_AGAIN) from None
            raise NoAnswer(f"the client's model did not answer: {_line(error.message)}") from None
        except ValidationError:
            raise NoAnswer("the client's answer is not a valid sampling/createMessage result") from None
        return self._form.read(result)


class CarriedModel:
    """Uses the answers that the client brought, since 2026-07-28; keeps the first unanswered request.

    `brought` holds answers by request name. `unanswered` counts how often the client got the current request before.
    """

    name = NAME
    terms = None

    def __init__(
        self,
        ctx: Context,
        preferences: Mapping[str, Any] | None,
        *,
        brought: Mapping[str, object],
        may_ask: bool,
        unanswered: int = 0,
    ) -> None:
        self._form = _Form(ctx, preferences)
        self._brought = dict(brought)
        self._may_ask = may_ask
        self._unanswered = unanswered
        self.question: tuple[str, CreateMessageRequest] | None = None

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Returns the client's answer to this request, once."""
        name = question_names(request.iteration, request.attempt, request.compactions)[request.purpose]
        unanswered, self._unanswered = self._unanswered, 0
        if name in self._brought:
            return self._form.read(_result(self._brought.pop(name)))
        if unanswered >= MAX_UNANSWERED:
            raise NoAnswer(f"the client's model was asked {unanswered} times and did not answer")
        if self._may_ask:
            self.question = (name, self._form.filled(request))
        raise NoAnswerYet(CALL_AGAIN)


ClientModel = PushedModel | CarriedModel
"""A client's model; `question` is the named request that the client must answer before the mission can continue."""


def declined(why: str) -> dict[str, Any]:
    """The stored answer for a client that returned an error."""
    return {"action": "decline", "_meta": {_WHY: why[:MAX_REASON]}}


def _result(said: object) -> CreateMessageResultWithTools:
    given = as_object(said)
    if given.get("action") in ("decline", "cancel"):
        why = as_object(given.get("_meta")).get(_WHY)
        if why is not None:
            raise NoAnswer(f"the client's model did not answer: {_line(str(why))}")
        raise NoAnswer("the client's user refused the request to its model")
    try:
        return CreateMessageResultWithTools.model_validate(given, by_name=False)
    except ValidationError:
        raise NoAnswer("the client's answer is not a valid sampling/createMessage result") from None


def _line(text: str) -> str:
    return storable(" ".join(text.split()))[:MAX_REASON]
