"""An MCP server that passes the official conformance suite, over stdio and over streamable HTTP on loopback.

Owns: what is offered besides tools, and the transports. The upstream of the gateway under the suite, and what the suite
is run against to know what passes without one. Invariant: which transport is used changes nothing of what it says.

    fixture_server.py          serves on stdin and stdout
    fixture_server.py --http   serves on a free port, after one line of JSON that says where

With `--no-tasks` it knows none: every call is answered when it has ended.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import warnings
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
import uvicorn
from fixture_call import Call, Context, InputNeeded, ToolFailed, field, form, whole
from fixture_tasks import Tasks
from fixture_tools import TEXT, TOOLS, embedded, image, picture, text, tool
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

NAME = "pursuit-conformance-fixture"
NO_TASKS = "--no-tasks"
STATE_KEY = b"the same in every process of the fixture"
TEMPLATE = re.compile(r"test://template/([^/]+)/data")
RESOURCES = {
    "test://static-text": ("text/plain", "This is the content of the static text resource."),
    "test://static-binary": ("image/png", None),
    "test://watched-resource": ("text/plain", "This is watched."),
}
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
CACHED = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")


async def list_tools(ctx: Context, params: Any) -> Any:
    return whole(tools=[one.listed() for one in TOOLS.values()])


async def list_resources(ctx: Context, params: Any) -> Any:
    listed = [
        {"uri": uri, "name": uri.removeprefix("test://"), "description": "for the suite", "mimeType": mime}
        for uri, (mime, _) in RESOURCES.items()
    ]
    return whole(resources=listed)


async def list_templates(ctx: Context, params: Any) -> Any:
    template = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
    return whole(resourceTemplates=[template | {"description": "for the suite"}])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    if found := TEMPLATE.fullmatch(uri):
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        return whole(contents=[{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}])
    if uri not in RESOURCES:
        code = types.INVALID_PARAMS if Call(ctx).modern else -32002
        raise MCPError(code, "Resource not found", {"uri": uri})
    mime, words = RESOURCES[uri]
    return whole(
        contents=[{"uri": uri, "mimeType": mime, **({"blob": picture()} if words is None else {"text": words})}]
    )


async def list_prompts(ctx: Context, params: Any) -> Any:
    listed = [
        {
            "name": name,
            "description": "for the suite",
            "arguments": [{"name": one, "description": "any text", "required": True} for one in arguments],
        }
        for name, arguments in PROMPTS.items()
    ]
    return whole(prompts=listed)


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Any:
    call = Call(ctx)
    given = call.arguments
    if lacking := [one for one in PROMPTS.get(params.name, ()) if one not in given]:
        raise MCPError(types.INVALID_PARAMS, f"missing arguments: {', '.join(lacking)}")
    match params.name:
        case "test_simple_prompt":
            said = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            said = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            said = [resource, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            said = [image(), text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            question = form("What context should the prompt use?", context=TEXT)
            try:
                answers = await call.answers({"user_context": question})
            except InputNeeded as needed:
                return needed.result()
            said = [text(f"The context: {field(answers['user_context'], 'context')}")]
        case _:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name}")
    return whole(messages=[{"role": "user", "content": block} for block in said])


async def complete(ctx: Context, params: types.CompleteRequestParams) -> Any:
    values = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
    return whole(completion={"values": values, "total": len(values), "hasMore": False})


async def accept(ctx: Context, params: Any) -> Any:
    """Subscriptions and log levels of the old era: taken, and nothing more."""
    return {}


def build(running: anyio.abc.TaskGroup) -> Server[Any]:
    """The server; its tasks run in `running`."""
    bus, tasks = InMemorySubscriptionBus(), Tasks(running, known=NO_TASKS not in sys.argv[1:])

    @tool()
    async def test_trigger_tool_change(call: Call) -> str:
        """Says that the tools have changed."""
        await bus.publish(ToolsListChanged())
        await call.ctx.session.send_tool_list_changed()
        return "told"

    @tool()
    async def test_trigger_prompt_change(call: Call) -> str:
        """Says that the prompts have changed."""
        await bus.publish(PromptsListChanged())
        await call.ctx.session.send_prompt_list_changed()
        return "told"

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Any:
        asked, call = TOOLS.get(params.name), Call(ctx)
        if asked is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
        try:
            if (task := await tasks.begin(asked, call)) is not None:
                return task
            got = await asked.body(call)
        except InputNeeded as needed:
            return needed.result()
        except ToolFailed as error:
            return whole(content=[text(str(error))], isError=True)
        return whole(content=got if isinstance(got, list) else [text(got)])

    server: Server[Any] = Server(
        NAME,
        version="1",
        cache_hints={method: CacheHint(ttl_ms=60_000, scope="public") for method in CACHED},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=accept,
        on_unsubscribe_resource=accept,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accept)
    server.middleware.append(RequestStateBoundary(RequestStateSecurity(keys=[STATE_KEY]), default_audience=NAME))
    tasks.offer(server)
    return server


class Kept(EventStore):
    """Every message of the old era's streams, for a client that comes back to one."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self._events):
            return None
        stream, _ = self._events[int(last_event_id) - 1]
        for number, (of, message) in enumerate(tuple(self._events), 1):
            if of == stream and number > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def over_stdio(server: Server[Any]) -> None:
    everything = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(everything))


async def over_http(server: Server[Any]) -> None:
    app = server.streamable_http_app(event_store=Kept(), retry_interval=100)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"}), flush=True)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve([listening])


async def main() -> None:
    async with anyio.create_task_group() as running:
        server = build(running)
        await (over_http if "--http" in sys.argv[1:] else over_stdio)(server)
        running.cancel_scope.cancel()


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(main)
