"""An MCP server that evaluates one of the designs from the literature: `python -m pursuit.demo.workbench NAME`.

Its only tool, `evaluate`, is stateless and knows neither best values nor targets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from pursuit.demo.designs import DESIGNS, evaluate, problem_of, tells


def build_server(name: str) -> Server[Any]:
    tool = Tool(
        name="evaluate",
        description=f"Computes {tells(name)}.",
        input_schema=problem_of(name)["submission"],
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )

    async def listed(_ctx: Any, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    async def called(_ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        if params.name != tool.name:
            return _error(f"there is no tool {params.name!r}")
        try:
            body: dict[str, Any] = {"metrics": evaluate(name, params.arguments or {})}
        except ValueError as error:
            return _error(str(error))
        text = TextContent(type="text", text=json.dumps(body))
        return CallToolResult(content=[text], structured_content=body)

    return Server(f"workbench-{name}", version="1", on_list_tools=listed, on_call_tool=called)


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def main(argv: Sequence[str]) -> int:
    """Serves over standard input and output until it is closed."""
    if len(argv) != 1 or argv[0] not in DESIGNS:
        sys.stderr.write(f"usage: python -m pursuit.demo.workbench {{{','.join(DESIGNS)}}}\n")
        return 2
    anyio.run(_serve, argv[0])
    return 0


async def _serve(name: str) -> None:
    server = build_server(name)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
