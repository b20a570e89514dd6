"""Uses an MCP server object of the official SDK as an upstream, without a process and without a network.

The server's own annotations are believed here, because the object is yours: `probe` is read-only.
"""

import tempfile
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from pursuit import Budget, Mission, Runtime, ScriptProposer, metric, predicate, succeeded

server = MCPServer("tank")
level = 20.0


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def probe() -> dict:
    """How full the tank is, in per cent."""
    return {"metrics": {"level": level}}


@server.tool()
def fill(amount: float) -> dict:
    """Adds to the tank; what does not fit runs over."""
    global level
    level = min(100.0, level + amount)
    return {"filled": amount}


SCRIPT = """
missing = 80 - tank.probe()["metrics"]["level"]
if missing > 0:
    tank.fill(amount=min(25, missing))
tank.probe()
"""

MISSION = Mission(
    directive="Fill the tank to 80 per cent, and not over 85.",
    criteria=[metric("level") >= 80, predicate("max(obs['metric_history']['level']) <= 85"), succeeded("tank.fill")],
    budget=Budget(max_iterations=10),
    allow_all_tools=True,
    proposer=ScriptProposer(script=SCRIPT),
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"tank": server}) as runtime:
            report = await runtime.pursue(MISSION)
    print(f"{report.status}: level {report.metric('level'):g} after {report.data['calls']['by_outcome']['ok']} calls")


if __name__ == "__main__":
    anyio.run(main)
