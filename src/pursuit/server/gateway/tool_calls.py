"""Answers `tools/call`: finds the server of the tool, has the call authorized, and returns the result.

A call may also come from the tools of the tool search, or run as a task of the gateway, whether the server supports
tasks or not. Each call takes the same path: `ToolCalls.resolve`, the `on_tool_call` middleware, `ToolCalls.perform`.

Invariant: no call reaches a server unless the authorizer permits it; the server's own result is not changed, and a
failure that a model should read is a tool's result.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from pydantic import Field

from pursuit.core.approvals import APPROVAL_ID
from pursuit.core.base_model import InputModel, Whole
from pursuit.core.tools import OUTCOME_META_KEY, CallFailed, Tool
from pursuit.errors import Fault, UpstreamUnavailable, ValidationFailed
from pursuit.server.errors import Context, as_object, capabilities_of, modern_result, sendable
from pursuit.server.gateway.authorization import Authorizer
from pursuit.server.gateway.clients import ClientRequest, GatewayClient, OutboundFilter
from pursuit.server.gateway.lists import Lists
from pursuit.server.gateway.pending_input import PROGRESS
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.resources import GatewayResources
from pursuit.server.gateway.upstreams import Upstreams
from pursuit.server.tasks.promotion import TaskPlan, When
from pursuit.server.tasks.protocol import without_tasks
from pursuit.service.approvals import Approvals
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.record import finite
from pursuit.upstream.client import TASK_TTL_MS
from pursuit.upstream.fixed_patterns import WORD
from pursuit.upstream.listing import is_offered
from pursuit.upstream.pins import unlisted
from pursuit.upstream.tasks import task_generation, task_support

SEARCH_SERVER = "tools"
"""The prefix of the names of the search's tools; none of several servers may have this name."""

MAX_FOUND = 50
TASK_PROGRESS_TOKEN = "pursuit-task"  # noqa: S105 - a server reports progress under it
LOOK_EVERY = 1.0
_FEW = 10
MAX_DESCRIBED = 20
_READ_ONLY = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}

Handler = Callable[[ClientRequest], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCall:
    """A call of a server's tool; `params` are those of the request, with the server's own name of the tool."""

    request: ClientRequest
    server: str
    params: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.params["name"]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments; empty if the client sends none."""
        return self.params.get("arguments") or {}

    def of(self, name: str, arguments: Mapping[str, Any]) -> Self:
        return replace(self, params={**self.params, "name": name, "arguments": dict(arguments)})


CallTool = Callable[[GatewayCall], Awaitable[dict[str, Any]]]
"""Makes a call. Raises `CallFailed` or `UpstreamUnavailable` if there is no result, `MCPError` for a server's error."""

ToolCallMiddleware = Callable[[GatewayCall, CallTool], Awaitable[dict[str, Any]]]
"""Wraps each call of a tool: it may pass the call on, change it, or answer it itself.

The server's definition of the tool is looked up inside `call_next`: that may wait for the server, and the middleware
limits the time.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class ToolCalls:
    """Calls tools of these servers; `default_timeout` is for tools without a configured timeout.

    `searchable` is true if there are tools besides those of the servers.
    """

    upstreams: Upstreams
    relay: Relay
    lists: Lists
    resources: GatewayResources
    authorizer: Authorizer
    default_timeout: Callable[[], float]
    info: Mapping[str, Any]
    outbound: OutboundFilter
    searchable: bool

    def resolve(self, request: ClientRequest) -> GatewayCall:
        """The call of a request; raises `MCPError`."""
        params = request.params
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, "tools/call needs the name of a tool")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise MCPError(INVALID_PARAMS, "the arguments of a tool must be an object")
        owner = self.upstreams.names.owner(name)
        if owner is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(name)}")
        server, own = owner
        return GatewayCall(request=request, server=server, params=params if own == name else {**params, "name": own})

    async def handle(self, request: ClientRequest, middleware: ToolCallMiddleware) -> dict[str, Any]:
        call = self.resolve(request)
        try:
            return await middleware(call, self.perform)
        except (CallFailed, UpstreamUnavailable) as error:
            unknown = isinstance(error, CallFailed) and error.outcome == "unknown"
            return tool_error(str(error), unknown=unknown)

    async def perform(self, call: GatewayCall) -> dict[str, Any]:
        request, upstream, arguments = call.request, self.upstreams[call.server], call.arguments
        tool = await self.lists.find(request, call.server, call.name)
        if tool is None:
            # Policy decides about a tool that its server does not list, without knowing its definition.
            config = upstream.config
            tool = Tool(
                server=call.server,
                name=call.name,
                input_schema={},
                definition={},
                operators=config.operators,
                changes=None if config.pin == "off" else unlisted(config, call.name),
            )
            passes = request.operator or self.authorizer.allows(request, tool, arguments)
            if not is_offered(config, call.name) or not passes:
                shown = self.upstreams.names.qualified(call.server, call.name)
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(shown)}")
        authorization = await self.authorizer.authorize(request, tool, arguments)
        if authorization.refusal is not None:
            return tool_error(authorization.refusal)
        if authorization.question is not None:
            return modern_result(request.method, authorization.question, self.info)
        timeout = tool.traits.timeout or upstream.config.timeouts.call
        # Without a configured timeout, only a call that a client waits for has one, unless it is known to be long.
        request.timeout.seconds = timeout or (None if request.detached or tool.long else self.default_timeout())
        params = authorization.params(call.params)
        if task_generation(await upstream.about()) == 1 and task_support(tool.definition) == "required":
            params = {**params, "task": {"ttl": TASK_TTL_MS}}
        result = await self.relay.send(
            request, upstream, params, around=lambda: self.authorizer.recorded(authorization)
        )
        return self.authorizer.result(authorization, self.resources.linked(call.server, result))

    async def plan(self, ctx: Context) -> TaskPlan:
        """The plan for a call as a task; every call can be one."""
        params = ctx.params or {}
        name = params.get("name")
        if not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, "tools/call needs the name of a tool")
        title, owner = sendable(name), self.upstreams.names.owner(name)
        if owner is None:
            if not self.searchable:
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {title}")
            return TaskPlan(title=title[:200], when="late", origin={})
        tool = await self.lists.find(DetachedRequest(ctx, params, self.outbound), *owner)
        origin = {"server": owner[0], "tool": owner[1]}
        return TaskPlan(title=title[:200], when="late" if tool is None else self._when(tool), origin=origin)

    def strict(self) -> bool:
        """True if the configuration of any tool says that its calls must be tasks."""
        return any(said.task_only for server in self.upstreams.values() for said in server.config.tools.values())

    def _when(self, tool: Tool) -> When:
        """A task from the beginning if the configuration says that it takes long, or the server requires a task."""
        settings = self.upstreams[tool.server].config.tools.get(tool.name)
        if settings is not None and settings.task_only:
            return "must be"
        if settings is not None and settings.long is not None:
            return "at once" if settings.long else "late"
        return "at once" if task_support(tool.definition) == "required" else "late"


def tool_error(text: str, *, unknown: bool = False) -> dict[str, Any]:
    """A tool's result that describes the failure; `unknown` if the call may have taken effect."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": sendable(text)}], "isError": True}
    if unknown:
        result["_meta"] = {OUTCOME_META_KEY: "unknown"}
    return result


def no_answer(error: CallFailed) -> MCPError:
    """The error for a client whose request is not a tool call and failed."""
    return MCPError(INTERNAL_ERROR, sendable(str(error)))


class SearchArguments(InputModel):
    """Find tools by words of their names and descriptions, the best first. Without words: all names."""

    query: str = Field("", description="A few words about the purpose of the tool.")
    limit: Annotated[Whole, Field(ge=1, le=MAX_FOUND)] = _FEW


class DescribeArguments(InputModel):
    """The full definitions of tools, with what they take and give."""

    names: Annotated[list[str], Field(min_length=1, max_length=MAX_DESCRIBED)]


class SearchedCallArguments(InputModel):
    """Call a tool by its name with its arguments, as its description gives them."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


_TOOLS: Mapping[str, tuple[type[InputModel], dict[str, Any]]] = {
    "search": (SearchArguments, {"title": "Find a tool", "annotations": _READ_ONLY}),
    "describe": (DescribeArguments, {"title": "Describe tools", "annotations": _READ_ONLY}),
    "call": (SearchedCallArguments, {"title": "Call a tool"}),
}
"""The tools of the search: their arguments, whose docstring is the description, and the rest of their definitions."""


def check_names(servers: Sequence[str]) -> None:
    """Raises `ValidationFailed` if a server's tools would have the names of the search's tools."""
    if SEARCH_SERVER in servers and len(servers) > 1:
        reason = "with --tool-search its tools would have the names of the search's tools; rename the server"
        raise ValidationFailed([Fault(field=f"servers.{SEARCH_SERVER}", reason=reason)])


class ToolSearch:
    """Three tools instead of all others: find a tool, read its definition, call it. `call` makes a call."""

    def __init__(self, upstreams: Upstreams, lists: Lists, call: Handler) -> None:
        check_names(upstreams.names.servers)
        self._lists = lists
        self._call = call
        self._names = {upstreams.names.spelled(SEARCH_SERVER, name): name for name in _TOOLS}

    async def list_tools(self, _request: ClientRequest) -> dict[str, Any]:
        known = [(shown, *_TOOLS[name]) for shown, name in self._names.items()]
        return {
            "tools": [
                {"name": shown, "description": model.__doc__, "inputSchema": model.model_json_schema(), **said}
                for shown, model, said in known
            ]
        }

    async def call_tool(self, request: ClientRequest) -> dict[str, Any]:
        shown = request.params.get("name")
        name = self._names.get(shown) if isinstance(shown, str) else None
        if name is None:
            *_, call = self._names
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(str(shown))}; call it with {call}")
        try:
            asked = _TOOLS[name][0](**as_object(request.params.get("arguments")))
        except ValidationFailed as error:
            return tool_error(f"{error.message}: {'; '.join(map(str, error.faults))}")
        match asked:
            case SearchArguments():
                return await self._search(request, asked)
            case DescribeArguments():
                return await self._describe(request, asked)
            case _:
                inner = ClientRequest(request.ctx, request.client)
                inner.params = {**request.params, **asked.model_dump()}
                return await self._call(inner)

    async def _search(self, request: ClientRequest, asked: SearchArguments) -> dict[str, Any]:
        tools = await self._lists.all_tools(request)
        found = ranked(tools, asked.query)[: asked.limit] if asked.query.strip() else tools
        rows = [{"name": tool["name"], "description": str(tool.get("description", ""))[:300]} for tool in found]
        lines = [f"{row['name']}: {row['description'].partition(chr(10))[0]}" for row in rows]
        return _result({"tools": rows, "of": len(tools)}, "\n".join(lines) or "no tool matches these words")

    async def _describe(self, request: ClientRequest, asked: DescribeArguments) -> dict[str, Any]:
        known = {tool["name"]: tool for tool in await self._lists.all_tools(request)}
        missing = [name for name in asked.names if name not in known]
        if missing:
            return tool_error(f"there is no tool {', '.join(missing)}; find one with {next(iter(self._names))}")
        found = [known[name] for name in asked.names]
        return _result({"tools": found}, json.dumps(found, ensure_ascii=False, indent=1))


def ranked(tools: list[Any], query: str) -> list[Any]:
    """The tools with words of the query: first by the number of words, then by words in the name."""
    wanted = set(WORD.findall(query.lower()))
    scored: list[tuple[int, int, int]] = []
    for index, tool in enumerate(tools):
        name = " ".join(WORD.findall(str(tool.get("name", "")).lower()))
        text = f"{name} {tool.get('title', '')} {tool.get('description', '')}".lower()
        hits = sum(word in text for word in wanted)
        if hits:
            scored.append((-hits, -sum(word in name for word in wanted), index))
    return [tools[index] for _, _, index in sorted(scored)]


def _result(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": sendable(text)}], "structuredContent": dict(body), "isError": False}


class DetachedRequest(ClientRequest):
    """A call whose client may have disconnected."""

    detached = True

    def __init__(self, ctx: Context, params: Mapping[str, Any], outbound: OutboundFilter) -> None:
        # The tasks are those of the gateway, so the server does not see that the client supports tasks.
        super().__init__(ctx, GatewayClient(without_tasks(capabilities_of(ctx)), outbound))
        self.params = {key: value for key, value in params.items() if key != "task"}
        self.task: TaskContext | None = None
        self.long = anyio.Event()
        self._handle_kept = False
        self._client_token = super().token

    def task_created(self) -> None:
        self.long.set()

    async def keep_task_handle(self, handle: Mapping[str, Any]) -> None:
        """Stores the handle of the server's task, so that another process can resume it after a crash."""
        if self.task is not None and not self._handle_kept:
            self._handle_kept = True
            await self.task.remember({"handle": handle})

    @property
    def token(self) -> Any:
        """The client's progress token, or a new one: the call may become a task that reports progress."""
        return TASK_PROGRESS_TOKEN if self._client_token is None else self._client_token

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Reports progress to the task, and to the client while it still waits."""
        if self.task is None:
            if method != PROGRESS or self._client_token is not None:
                await super().notify(method, params)
        elif method == PROGRESS:
            message = params.get("message")
            await self.task.update_status(
                message if isinstance(message, str) else None,
                done=finite(params.get("progress")),
                total=finite(params.get("total")),
            )


@dataclass(slots=True, eq=False)
class TaskPerformer:
    """Makes one call with `call`, and repeats it with each answer; `stream` is the gateway's stream."""

    ctx: Context
    call: Handler
    approvals: Approvals
    stream: str
    outbound: OutboundFilter
    long: anyio.Event = field(init=False, default_factory=anyio.Event)
    _task: TaskContext | None = field(init=False, default=None)
    _request: DetachedRequest | None = field(init=False, default=None)

    def attach(self, task: TaskContext) -> None:
        self._task = task
        if self._request is not None:
            self._request.task = task

    async def answered_elsewhere(self, questions: Mapping[str, Any]) -> None:
        """Returns when none of these is an open approval; only the client can answer a server's question."""
        ours = [key for key in questions if APPROVAL_ID.fullmatch(key)]
        if not ours:
            await anyio.sleep_forever()
        # No event announces the expiry of an approval.
        while any(one.approval_id in ours for one in await self.approvals.open(self.stream)):  # noqa: ASYNC110
            await anyio.sleep(LOOK_EVERY)

    async def perform(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self._request = DetachedRequest(self.ctx, params, self.outbound)
        self._request.task, self._request.long = self._task, self.long
        try:
            return await self.call(self._request)
        except CallFailed as error:
            raise no_answer(error) from None
