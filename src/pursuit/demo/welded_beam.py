"""An MCP server, over stdio, with the welded beam design problem: `python -m pursuit.demo.welded_beam`.

Any MCP client can use it. `certify` succeeds only for a design that violates no constraint at all, without tolerance.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Annotated

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from pursuit.demo.designs import Beam

# Published designs are rounded, so `evaluate` tolerates this much, relative to each limit; `certify` tolerates nothing.
TOLERANCE = 1e-6
DELAY_VARIABLE = "PURSUIT_DEMO_DELAY_MS"

WeldHeight = Annotated[float, Field(ge=0.1, le=2.0, description="height of the weld, in inches")]
WeldLength = Annotated[float, Field(ge=0.1, le=10.0, description="length of the weld, in inches")]
BarHeight = Annotated[float, Field(ge=0.1, le=10.0, description="height of the bar, in inches")]
BarThickness = Annotated[float, Field(ge=0.1, le=2.0, description="thickness of the bar, in inches")]


class BeamMetrics(BaseModel, frozen=True):
    """The numbers of one design."""

    cost: float
    max_violation: float
    shear_stress: float
    bending_stress: float
    deflection: float
    buckling_load: float


class Evaluation(BaseModel, frozen=True):
    """The result of `evaluate`."""

    metrics: BeamMetrics
    feasible: bool
    violations: dict[str, float]


class CertifiedMetrics(BaseModel, frozen=True):
    """The number that a certificate guarantees."""

    certified_cost: float


class CertifiedEvent(BaseModel, frozen=True):
    """Says that a design was certified."""

    event_name: str
    cost: float


class Certificate(BaseModel, frozen=True):
    """The result of `certify`."""

    metrics: CertifiedMetrics
    events: list[CertifiedEvent]


def evaluation(beam: Beam) -> Evaluation:
    """All numbers of a design, feasible or not."""
    violations = beam.violations()
    worst = max(violations.values(), default=0.0)
    metrics = BeamMetrics(
        cost=beam.cost,
        max_violation=worst,
        shear_stress=beam.shear_stress,
        bending_stress=beam.bending_stress,
        deflection=beam.deflection,
        buckling_load=beam.buckling_load,
    )
    return Evaluation(metrics=metrics, feasible=worst <= TOLERANCE, violations=violations)


def certificate(beam: Beam) -> Certificate:
    """The certificate of a design; raises `ToolError` with every constraint that it violates."""
    if violations := beam.violations():
        failing = ", ".join(f"{name} by {value:.3g} of its limit" for name, value in violations.items())
        raise ToolError(f"not certified; violated: {failing}")
    return Certificate(
        metrics=CertifiedMetrics(certified_cost=beam.cost),
        events=[CertifiedEvent(event_name="certified", cost=beam.cost)],
    )


def build_server(*, delay_ms: float = 0.0) -> MCPServer:
    """The server; `delay_ms` makes each evaluation take that long, so that a person can watch."""
    instructions = "Find the cheapest welded beam that holds, then have it certified."
    server = MCPServer("welded-beam", version="1", instructions=instructions, log_level="WARNING")
    computes = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    certifies = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=computes, structured_output=True)
    async def evaluate(h: WeldHeight, l: WeldLength, t: BarHeight, b: BarThickness) -> Evaluation:  # noqa: E741
        """Computes cost, stresses and the worst relative constraint violation (0 means none) of a design."""
        await anyio.sleep(delay_ms / 1000)
        return evaluation(Beam(h=h, l=l, t=t, b=b))

    @server.tool(annotations=certifies, structured_output=True)
    async def certify(h: WeldHeight, l: WeldLength, t: BarHeight, b: BarThickness) -> Certificate:  # noqa: E741
        """Certifies a design that violates no constraint; fails, with the reasons, for any other."""
        return certificate(Beam(h=h, l=l, t=t, b=b))

    # The decorators register them; the type checker wants each name to be used.
    _ = evaluate, certify
    return server


def main(argv: Sequence[str] | None = None) -> None:
    """Serves over standard input and output until it is closed."""
    parser = argparse.ArgumentParser(prog="python -m pursuit.demo.welded_beam", description=(__doc__ or "")[:104])
    parser.add_argument(
        "--delay-ms",
        type=_delay,
        default=os.environ.get(DELAY_VARIABLE, "0"),
        help=f"make each evaluation take this long (default: ${DELAY_VARIABLE}, or 0)",
    )
    build_server(delay_ms=parser.parse_args(argv).delay_ms).run()


def _delay(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 60_000:
        raise argparse.ArgumentTypeError("must lie between 0 and 60000 milliseconds")
    return value


if __name__ == "__main__":
    main()
