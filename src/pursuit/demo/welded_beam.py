"""An MCP server, over stdio, with the welded beam design problem: `python -m pursuit.demo.welded_beam`.

Owns: the formulas, the two tools and the command line. Knows nothing of missions: any MCP client can use it.
Invariant: `certify` succeeds only for a design that violates no constraint at all, without any tolerance.

A bar is welded to a wall and carries a load at its free end. Choose the weld's height `h` and length `l` and the
bar's height `t` and thickness `b`, in inches, so that it holds and costs as little as possible. This is the form
with seven constraints, first in S. S. Rao, "Engineering Optimization" (1996), and used since by K. Deb (2000) and
C. A. Coello Coello (2000): 6,000 lb at 14 in. The best cost that has been published for it is 1.724852.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

LOAD = 6_000.0  # lb
OVERHANG = 14.0  # in
YOUNG_MODULUS = 30e6  # psi
SHEAR_MODULUS = 12e6  # psi
MAX_SHEAR_STRESS = 13_600.0  # psi
MAX_BENDING_STRESS = 30_000.0  # psi
MAX_DEFLECTION = 0.25  # in
MAX_PARTIAL_COST = 5.0
MIN_WELD_HEIGHT = 0.125  # in

# Published designs are rounded, so `evaluate` forgives this much, relative to each limit; `certify` forgives nothing.
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
    """What `evaluate` answers."""

    metrics: BeamMetrics
    feasible: bool
    violations: dict[str, float]


class CertifiedMetrics(BaseModel, frozen=True):
    """The one number that a certificate vouches for."""

    certified_cost: float


class CertifiedEvent(BaseModel, frozen=True):
    """Says that a design was certified."""

    event_name: str
    cost: float


class Certificate(BaseModel, frozen=True):
    """What `certify` answers."""

    metrics: CertifiedMetrics
    events: list[CertifiedEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """One design and everything that follows from it."""

    h: float
    l: float  # noqa: E741  the literature's own name for the weld's length
    t: float
    b: float

    @property
    def cost(self) -> float:
        """Weld material and labour, and the bar's material."""
        return 1.10471 * self.h**2 * self.l + 0.04811 * self.t * self.b * (OVERHANG + self.l)

    @property
    def shear_stress(self) -> float:
        """Stress in the weld: the direct part and the torsional part, added as vectors."""
        lever = ((self.h + self.t) / 2) ** 2
        radius = sqrt(self.l**2 / 4 + lever)
        polar_moment = 2 * sqrt(2) * self.h * self.l * (self.l**2 / 12 + lever)
        direct = LOAD / (sqrt(2) * self.h * self.l)
        torsional = LOAD * (OVERHANG + self.l / 2) * radius / polar_moment
        return sqrt(direct**2 + direct * torsional * self.l / radius + torsional**2)

    @property
    def bending_stress(self) -> float:
        """Stress in the bar at the wall."""
        return 6 * LOAD * OVERHANG / (self.b * self.t**2)

    @property
    def deflection(self) -> float:
        """How far the free end sinks."""
        return 4 * LOAD * OVERHANG**3 / (YOUNG_MODULUS * self.b * self.t**3)

    @property
    def buckling_load(self) -> float:
        """The load at which the bar buckles sideways."""
        ideal = 4.013 * YOUNG_MODULUS * sqrt(self.t**2 * self.b**6 / 36) / OVERHANG**2
        return ideal * (1 - self.t / (2 * OVERHANG) * sqrt(YOUNG_MODULUS / (4 * SHEAR_MODULUS)))

    def constraints(self) -> dict[str, float]:
        """g1 to g7 in the literature's order, each relative to its limit: positive means violated."""
        partial_cost = 0.10471 * self.h**2 + 0.04811 * self.t * self.b * (OVERHANG + self.l)
        return {
            "shear_stress": self.shear_stress / MAX_SHEAR_STRESS - 1,
            "bending_stress": self.bending_stress / MAX_BENDING_STRESS - 1,
            "weld_not_thicker_than_bar": self.h / self.b - 1,
            "partial_cost": partial_cost / MAX_PARTIAL_COST - 1,
            "least_weld_height": 1 - self.h / MIN_WELD_HEIGHT,
            "deflection": self.deflection / MAX_DEFLECTION - 1,
            "buckling_load": 1 - self.buckling_load / LOAD,
        }

    def violations(self) -> dict[str, float]:
        """The constraints that fail, and by how much, relative to their limits."""
        return {name: value for name, value in self.constraints().items() if value > 0}


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
    """The certificate of a design; raises `ToolError`, naming every failing constraint, if it has no right to one."""
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

    # Registered by their decorators; named here because nothing else refers to them.
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
