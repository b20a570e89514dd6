"""A client made of `mcp` 1.30 whose model proposes: run it with the Python of `.venv-mcp1`.

    mcp1_sampling.py TARGET MODE

TARGET is an URL, or a JSON object with the command, args, cwd and env of a server. MODE is `native` (the client
declares that its model can be given tools) or `words`. It prints what it was asked and answered as one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from mcp import types
from mcp1_client import connected
from sampling_mission import MISSION, TOOL, args_for, in_words


class Model:
    """Takes one step in each answer."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __call__(
        self, _context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools:
        number = len(self.asked)
        self.asked.append(params.model_dump(mode="json", by_alias=True, exclude_none=True))
        if params.tools:
            use = types.ToolUseContent(type="tool_use", name=TOOL, id=str(number), input=args_for(number))
            return types.CreateMessageResultWithTools(
                role="assistant", content=[use], model="one-thirty", stopReason="toolUse"
            )
        text = types.TextContent(type="text", text=in_words(number))
        return types.CreateMessageResult(role="assistant", content=text, model="one-thirty")


async def main(target: str, mode: str) -> None:
    model = Model()
    tools = types.SamplingToolsCapability() if mode == "native" else None
    able = {"sampling_callback": model, "sampling_capabilities": types.SamplingCapability(tools=tools)}
    async with connected(target, **able) as session:
        await session.initialize()
        started = (await session.call_tool("mission_start", MISSION)).structuredContent
        run = {"session_id": started["session_id"], "max_iterations_this_call": 10}
        answer = (await session.call_tool("mission_iterate", run)).structuredContent
    print(json.dumps({"started": started, "answer": answer, "asked": model.asked}))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
