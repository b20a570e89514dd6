"""A coding agent written with the official Python SDK of the Agent Client Protocol: the other side of our client.

The SDK validates each message that it gets. In its first turn the agent asks for two permissions, by kinds, and writes
a wrong file; in the second it writes the right one. What it heard goes to the file in its first argument.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import acp
from acp import schema

HEARD = Path(sys.argv[1])


class Repairs(acp.Agent):
    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> schema.InitializeResponse:
        self.hear("initialize", protocol_version, more["client_info"].name)
        return schema.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(load_session=True),
            agent_info=schema.Implementation(name="sdk", version="0.12"),
        )

    async def new_session(self, cwd: str, **more: Any) -> schema.NewSessionResponse:
        self.hear("new", cwd, [one.name for one in more["mcp_servers"]])
        return schema.NewSessionResponse(session_id="one")

    async def load_session(self, cwd: str, session_id: str, **more: Any) -> None:
        self.hear("load", cwd, session_id)

    async def cancel(self, session_id: str, **more: Any) -> None:
        self.hear("cancel", session_id)

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> schema.PromptResponse:
        self.hear("prompt", prompt[0].text)
        again = sum(json.loads(line)[0] == "prompt" for line in HEARD.read_text(encoding="utf-8").splitlines()) > 1
        await self.client.session_update(session_id, acp.update_agent_thought_text("Let me see."))
        await self.client.session_update(session_id, acp.update_plan([acp.plan_entry("repair")]))
        edit = acp.start_edit_tool_call("e", "edit lib.py", "lib.py", "new")
        await self.client.session_update(session_id, edit)
        for call in (edit, acp.start_tool_call("x", "git push", kind="execute", raw_input={"command": "git push"})):
            self.hear("answer", await self.ask(session_id, call))
        Path("lib.py").write_text(f"def value():\n    return {2 if again else 3}\n", encoding="utf-8")
        await self.client.session_update(session_id, acp.update_tool_call("e", status="completed"))
        await self.client.session_update(session_id, acp.update_agent_message_text("Done."))
        usage = schema.Usage(total_tokens=70, input_tokens=50, output_tokens=20)
        return schema.PromptResponse(stop_reason="end_turn", usage=usage)

    async def ask(self, session_id: str, call: schema.ToolCallStart) -> str | None:
        options = [
            schema.PermissionOption(option_id="a", name="Always", kind="allow_always"),
            schema.PermissionOption(option_id="n", name="No", kind="reject_once"),
            schema.PermissionOption(option_id="y", name="Yes", kind="allow_once"),
        ]
        update = schema.ToolCallUpdate(**call.model_dump(exclude={"session_update"}))
        said = await self.client.request_permission(options=options, session_id=session_id, tool_call=update)
        return getattr(said.outcome, "option_id", None)

    def hear(self, *row: Any) -> None:
        with HEARD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Repairs()))
