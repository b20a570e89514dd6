"""An MCP server, over stdio, with the welded beam design problem: `python -m pursuit.demo.welded_beam`.

Any MCP client can use it. `certify` succeeds only for a design that satisfies every constraint, without tolerance.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from pursuit.demo.designs import Beam

# Published designs are rounded, so `evaluate` tolerates this much, relative to each limit; `certify` tolerates nothing.
TOLERANCE = 1e-6
DELAY_VARIABLE = "PURSUIT_DEMO_DELAY_MS"

WeldHeight = Annotated[float, Field(ge=0.1, le=2.0, description="height of the weld, in inches")]
WeldLength = Annotated[float, Field(ge=0.1, le=10.0, description="length of the weld, in inches")]
BarHeight = Annotated[float, Field(ge=0.1, le=10.0, description="height of the bar, in inches")]
BarThickness = Annotated[float, Field(ge=0.1, le=2.0, description="thickness of the bar, in inches")]


def evaluation(beam: Beam) -> dict[str, Any]:
    violations = beam.violations()
    worst = max(violations.values(), default=0.0)
    metrics = {
        "cost": beam.cost,
        "max_violation": worst,
        "shear_stress": beam.shear_stress,
        "bending_stress": beam.bending_stress,
        "deflection": beam.deflection,
        "buckling_load": beam.buckling_load,
    }
    return {"metrics": metrics, "feasible": worst <= TOLERANCE, "violations": violations}


def certificate(beam: Beam) -> dict[str, Any]:
    """The certificate of a design; raises `ToolError` with all violated constraints."""
    if violations := beam.violations():
        failing = ", ".join(f"{name} by {value:.3g} of its limit" for name, value in violations.items())
        raise ToolError(f"not certified; violated: {failing}")
    return {"metrics": {"certified_cost": beam.cost}, "events": [{"event_name": "certified", "cost": beam.cost}]}


def build_server(*, delay_ms: float = 0.0) -> MCPServer:
    """The server; `delay_ms` makes each evaluation take that long, so that a person can watch."""
    instructions = "Find the cheapest welded beam that holds, then have it certified."
    server = MCPServer("welded-beam", version="1", instructions=instructions, log_level="WARNING")
    computes = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    certifies = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=computes, structured_output=True)
    async def evaluate(h: WeldHeight, l: WeldLength, t: BarHeight, b: BarThickness) -> dict[str, Any]:  # noqa: E741
        """Computes cost, stresses and the worst relative constraint violation (0 means none) of a design."""
        await anyio.sleep(delay_ms / 1000)
        return evaluation(Beam(h=h, l=l, t=t, b=b))

    @server.tool(annotations=certifies, structured_output=True)
    async def certify(h: WeldHeight, l: WeldLength, t: BarHeight, b: BarThickness) -> dict[str, Any]:  # noqa: E741
        """Certifies a design that satisfies every constraint; fails with the reasons otherwise."""
        return certificate(Beam(h=h, l=l, t=t, b=b))

    # The decorators register them; the type checker wants each name to be used.
    _ = evaluate, certify
    return server


def main() -> None:
    """Serves over standard input and output until it is closed; `PURSUIT_DEMO_DELAY_MS` makes each evaluation slow."""
    build_server(delay_ms=float(os.environ.get(DELAY_VARIABLE) or 0)).run()


if __name__ == "__main__":
    main()
