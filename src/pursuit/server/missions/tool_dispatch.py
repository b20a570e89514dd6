"""Declares MCP tools and dispatches calls to them.

A `ServerTool` holds everything about one tool: name, arguments, result and handler. The `mission_*` tools, the `task_*`
tools and the configured commands all go through the same `ToolDispatch`, as a plain call or as a task.
Invariant: a refused call is a tool result with `code`, `message` and `details`; only malformed messages are protocol
errors. Every structured content, including refusals, matches the tool's output schema: clients on the TypeScript SDK
1.x validate it and otherwise report only the mismatch.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, get_type_hints

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    InputRequiredResult,
    Tool,
    ToolAnnotations,
    ToolExecution,
)
from pydantic import ValidationError

from pursuit.core.base_model import InputModel, faults_of
from pursuit.core.truncate import cut_text
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.server.errors import APP_URI, Context
from pursuit.server.missions.elicitation import AskClient, Elicitation
from pursuit.server.tasks.promotion import DetachedSession, TaskPlan, detached
from pursuit.tasks.execution import TaskContext

Schema = dict[str, Any]
Result = dict[str, Any]
"""A `CallToolResult` as a plain mapping, twice as fast as a model."""

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
MAX_DETAILS = 4_000
"""Maximum characters of a refusal's details in its text."""


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """The schema of an object with at least these keys."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _with_refusal(schema: Schema) -> Schema:
    """The schema of a result or a refusal (`code`, `message`, `details`)."""
    said = {key: value for key, value in schema.items() if key != "required"}
    return {**said, "anyOf": [{"required": schema["required"]}, {"required": ["code"]}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """One tool.

    `arguments` is the model that parses a call's arguments, or the JSON Schema of a handler that checks them itself.
    `descriptions` explains arguments that their model does not describe; `in_words` lists fields whose schema is part
    of their description, which halves its size. `refusal` is the structured content of a refused call beside the error.
    `plan` describes a call as a task; without it, calls of the tool never become tasks. With `app`, clients with MCP
    Apps show its result as the view of a mission. With `looks`, its handlers look the mission up as their client; for
    other tools, the dispatch refuses missions that the client may not see.
    """

    name: str
    title: str | None
    description: str
    arguments: type[InputModel] | Schema
    result: Schema
    handler: Callable[[Context, Any], Awaitable[Result]]
    annotations: ToolAnnotations = field(default_factory=lambda: READS)
    descriptions: Mapping[str, str] = field(default_factory=dict[str, str])
    in_words: Collection[str] = ()
    refusal: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan: Callable[[Context, Any], Awaitable[TaskPlan]] | None = None
    app: bool = False
    looks: bool = False

    @classmethod
    def of(cls, handler: Callable[[Any, Any], Awaitable[Result]], title: str, result: Schema, **more: Any) -> Self:
        """Makes a tool from a method: its name, its docstring, and the type of its argument `asked`."""
        return cls(
            name=handler.__name__,
            title=title,
            description=" ".join((handler.__doc__ or "").split()),
            arguments=get_type_hints(handler)["asked"],
            result=result,
            handler=handler,
            **more,
        )

    def declared(self, input_schema: Schema) -> Tool:
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=input_schema,
            output_schema=_with_refusal(self.result),
            annotations=self.annotations,
            execution=None if self.plan is None else ToolExecution(task_support="optional"),
            _meta={"ui": {"resourceUri": APP_URI}} if self.app else None,
        )

    def parse(self, given: Mapping[str, Any]) -> Any:
        """Parses the arguments for the handler; raises `ValidationFailed` with every fault."""
        model = self.arguments
        if isinstance(model, dict):
            return given
        try:
            return model.model_validate(given)
        except ValidationError as error:
            raise ValidationFailed(faults_of(error, model)) from None
        except RecursionError:
            raise ValidationFailed([Fault(field="(input)", reason="is nested too deeply")]) from None


def result(body: Mapping[str, Any], lines: Sequence[str], *, is_error: bool = False) -> Result:
    """A tool's result: structured for programs, lines for models and people."""
    text = "\n".join(lines).encode(errors="replace").decode()
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "structuredContent": body,
        "isError": is_error,
    }


class ToolDispatch:
    """Answers `tools/call`, and plans calls as tasks.

    `require` raises `SessionNotFound` if the client of a request may not see a mission.
    """

    def __init__(self, tools: Sequence[ServerTool], require: Callable[[Context, str], Awaitable[None]]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._require = require

    def only_reads(self, name: str) -> bool:
        tool = self.tools.get(name)
        return tool is not None and tool.annotations.read_only_hint is True

    async def call(self, ctx: Context, params: CallToolRequestParams) -> Result | InputRequiredResult:
        """Answers a call; a refusal is also a result."""
        tool = self._find(params.name)
        try:
            return await tool.handler(ctx, await self._parsed(ctx, tool, params))
        except (PursuitError, AskClient, BaseExceptionGroup) as error:
            match _unwrapped(error):
                case AskClient() as questions:
                    return questions.result
                case PursuitError() as refused:
                    return _refusal(refused, tool.refusal)
                case _:
                    raise

    async def plan(self, ctx: Context) -> TaskPlan:
        params = _call_params(ctx.params or {})
        tool = self._find(params.name)
        if tool.plan is None:
            return TaskPlan(title=tool.name, when="never")
        return await tool.plan(ctx, await self._parsed(ctx, tool, params))

    async def _parsed(self, ctx: Context, tool: ServerTool, params: CallToolRequestParams) -> Any:
        """Parses the arguments of a call; refuses missions that its client may not see."""
        asked = tool.parse(params.arguments or {})
        mission_id = getattr(asked, "session_id", None)
        if mission_id is not None and not tool.looks:
            await self._require(ctx, mission_id)
        return asked

    def _find(self, name: str) -> ServerTool:
        tool = self.tools.get(name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name[:100]!r}; known: {', '.join(self.tools)}")
        return tool


class DetachedCall:
    """A call whose client does not wait; repeated with the client's answers until it ends."""

    def __init__(self, dispatch: ToolDispatch, elicitation: Elicitation, ctx: Context) -> None:
        self._dispatch = dispatch
        self._ctx = ctx
        self._elicitation = elicitation
        self._session = DetachedSession(ctx.session)
        self.long = anyio.Event()

    def attach(self, task: TaskContext) -> None:
        self._session.task = task

    async def answered_elsewhere(self, questions: Mapping[str, Any]) -> None:
        arguments = _call_params(self._ctx.params or {}).arguments or {}
        await self._elicitation.until_answered(str(arguments.get("session_id")), questions)

    async def perform(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._dispatch.call(detached(self._ctx, self._session, params), _call_params(params))
        if isinstance(answer, InputRequiredResult):
            return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        return answer


def _call_params(params: Mapping[str, Any]) -> CallToolRequestParams:
    try:
        given = {key: value for key, value in params.items() if key != "task"}
        return CallToolRequestParams.model_validate(given, by_name=False)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "Invalid request parameters", "") from None


def _unwrapped(error: BaseException) -> BaseException:
    """The single error inside nested exception groups."""
    match error:
        case BaseExceptionGroup(exceptions=(inner,)):
            return _unwrapped(inner)
        case _:
            return error


def _refusal(error: PursuitError, beside: Mapping[str, Any]) -> Result:
    body = {**beside, **json.loads(json.dumps(error.as_dict(), default=str).encode(errors="replace"))}
    if "iterations" in error.details:
        body["iterations"] = body["details"].pop("iterations")
    lines = [f"{error.code}: {error.message}"]
    if isinstance(error, ValidationFailed):
        lines += [f"- {fault}" for fault in error.faults]
    elif body["details"]:
        lines.append(f"details: {cut_text(json.dumps(body['details'], ensure_ascii=False), MAX_DETAILS)}")
    return result(body, lines, is_error=True)
