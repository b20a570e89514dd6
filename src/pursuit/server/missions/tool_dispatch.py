"""Declares MCP tools and dispatches calls to them.

A `ServerTool` holds everything about one tool: name, arguments, result and handler. The `mission_*` tools, the `task_*`
tools and the configured commands all go through the same `ToolDispatch`, as a plain call or as a task.
Invariant: a refused call is a tool result with `code`, `message` and `details`; only a message that breaks the protocol
is a protocol error. What the argument model refuses, the input schema does not promise.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
    ToolExecution,
)
from pydantic import ValidationError

from pursuit.core.base_model import LARGEST, InputModel, faults_of
from pursuit.core.patterns import MAX_EXPRESSION, MAX_PATH, MAX_PATTERN, MAX_SCRIPT
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.server.errors import Context, one_page
from pursuit.server.missions.elicitation import AskClient, Elicitation
from pursuit.server.tasks.promotion import DetachedSession, Plan, detached
from pursuit.tasks.execution import TaskContext

Schema = dict[str, Any]
Result = dict[str, Any]
"""A `CallToolResult` as a plain mapping, which takes half the time of a model."""

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TIME: Schema = {"type": "string", "description": "ISO 8601, UTC"}
MOST_ROWS = 20
"""Rows of a list that the text for people shows."""


def array(items: Schema) -> Schema:
    """The schema of an array of these."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """The schema of an object with these keys; later releases may add keys."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """One tool.

    `arguments` is the model that parses a call's arguments, or the JSON Schema of a handler that checks them itself.
    `descriptions` explains the arguments by name. `refusal` is what the structured content of a refused call has beside
    the error. `plan` says what a call is as a task; without it no call of the tool becomes one.
    """

    name: str
    title: str | None
    description: str
    arguments: type[InputModel] | Schema
    result: Schema
    annotations: ToolAnnotations
    handler: Callable[[Context, Any], Awaitable[Result]]
    descriptions: Mapping[str, str] = field(default_factory=dict[str, str])
    refusal: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan: Callable[[Context, Any], Awaitable[Plan]] | None = None

    def declared(self) -> Tool:
        """The tool as `tools/list` shows it."""
        model = self.arguments
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=model if isinstance(model, dict) else _input_schema(model, self.descriptions),
            output_schema=self.result,
            annotations=self.annotations,
            execution=None if self.plan is None else ToolExecution(task_support="optional"),
        )

    def parse(self, given: Mapping[str, Any]) -> Any:
        """The arguments as the handler takes them; raises `ValidationFailed` with every fault."""
        model = self.arguments
        if isinstance(model, dict):
            return given
        try:
            return model.model_validate(given)
        except ValidationError as error:
            raise ValidationFailed(faults_of(error, model)) from None
        except RecursionError:
            raise ValidationFailed([Fault(field="(input)", reason="nests too deep")]) from None


def result(body: Mapping[str, Any], lines: Sequence[str], *, is_error: bool = False) -> Result:
    """A tool's result: structured for programs, a few lines for people."""
    text = "\n".join(lines).encode(errors="replace").decode()
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "structuredContent": body,
        "isError": is_error,
    }


def page_lines(rows: Sequence[str], answer: Mapping[str, Any], *, none: str) -> list[str]:
    """The first rows of a page of a list, how many more there are, and where the next page begins."""
    lines = list(rows[:MOST_ROWS]) or [none]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more on this page")
    if "next_cursor" in answer:
        lines.append(f"next_cursor: {answer['next_cursor']}")
    return lines


class ToolDispatch:
    """Answers `tools/list` and `tools/call`, and plans calls as tasks."""

    def __init__(self, tools: Sequence[ServerTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    async def list(self, _ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """All tools, on one page."""
        one_page(params)
        return self._listing

    def input_schema(self, name: str) -> Schema | None:
        """What a tool takes; None if there is no such tool."""
        return next((tool.input_schema for tool in self._listing.tools if tool.name == name), None)

    async def call(self, ctx: Context, params: CallToolRequestParams) -> Result | InputRequiredResult:
        """Answers a call; a refusal is a result, too."""
        tool = self._find(params.name)
        try:
            return await tool.handler(ctx, tool.parse(params.arguments or {}))
        except (PursuitError, AskClient, BaseExceptionGroup) as error:
            match _unwrapped(error):
                case AskClient() as questions:
                    return questions.result
                case PursuitError() as refused:
                    return _refusal(refused, tool.refusal)
                case _:
                    raise

    async def plan(self, ctx: Context) -> Plan:
        """What the call of a request would be as a task."""
        params = _call_params(ctx.params or {})
        tool = self._find(params.name)
        if tool.plan is None:
            return Plan(title=tool.name, when="never")
        return await tool.plan(ctx, tool.parse(params.arguments or {}))

    def _find(self, name: str) -> ServerTool:
        tool = self._tools.get(name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name[:100]!r}; there are {', '.join(self._tools)}")
        return tool

    @cached_property
    def _listing(self) -> ListToolsResult:
        return ListToolsResult(tools=[tool.declared() for tool in self._tools.values()])


class DetachedCall:
    """One call whose client does not wait for it; repeated with the client's answers until it ends."""

    def __init__(self, dispatch: ToolDispatch, elicitation: Elicitation, ctx: Context) -> None:
        self._dispatch = dispatch
        self._ctx = ctx
        self._elicitation = elicitation
        self._session = DetachedSession(ctx.session)
        self.long = anyio.Event()

    def attach(self, task: TaskContext) -> None:
        """Progress goes to this task from here on."""
        self._session.task = task

    async def answered_elsewhere(self, questions: Mapping[str, Any]) -> None:
        """Returns when the mission waits for none of these questions any more."""
        arguments = _call_params(self._ctx.params or {}).arguments or {}
        await self._elicitation.until_answered(str(arguments.get("session_id")), questions)

    async def perform(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes the call."""
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
    """The one error inside the groups that task groups wrapped it in."""
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
    return result(body, lines, is_error=True)


# The lengths that validators in `core` check and pydantic cannot put into a schema: definition, field, least, most.
_LENGTHS = (
    ("Predicate", "expression", 1, MAX_EXPRESSION),
    ("Expectation", "predicate", 1, MAX_EXPRESSION),
    ("ScriptProposer", "script", 1, MAX_SCRIPT),
    ("Proposal", "script", 1, MAX_SCRIPT),
    ("ObserveRule", "regex", 0, MAX_PATTERN),
    ("ObserveRule", "jmespath", 1, MAX_PATH),
)
# Bounds beside a validator of ours keep pydantic's own names.
_KEYWORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _input_schema(model: type[InputModel], descriptions: Mapping[str, str]) -> Schema:
    """The arguments as JSON Schema, each with its description."""
    schema = cast("Schema", _plain(model.model_json_schema()))
    schema.pop("description", None)
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    for definition in definitions.values():
        if "const" in definition["properties"].get("kind", {}):
            definition["required"] = ["kind", *definition.get("required", ())]
            definition["properties"]["kind"].pop("default", None)
    for name, key, least, most in _LENGTHS:
        if name in definitions:
            declared = definitions[name]["properties"][key]
            text = next((form for form in declared.get("anyOf", ()) if form["type"] == "string"), declared)
            text.update(minLength=least, maxLength=most)
    for name, text in descriptions.items():
        schema["properties"][name]["description"] = text
    return schema


def _plain(value: Any) -> Any:
    """A schema of pydantic's in the keywords of JSON Schema alone, without titles and defaults that say nothing."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    plain: Schema = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key == "properties":
            plain[key] = {name: _plain(inner) for name, inner in item.items()}
        elif not (
            key in ("title", "discriminator")
            or (key == "default" and (item is None or isinstance(item, dict)))
            or (key in _KEYWORDS and abs(item) >= LARGEST)
        ):
            plain[_KEYWORDS.get(key, key)] = _plain(item)
    return plain
