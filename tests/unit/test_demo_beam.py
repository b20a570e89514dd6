"""The demo server: its formulas against the literature, its tools through an MCP client."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from pursuit.demo.designs import Beam
from pursuit.demo.welded_beam import build_server, certificate, evaluation

PUBLISHED = {"h": 0.20572964, "l": 3.47048867, "t": 9.03662391, "b": 0.20572964}
STRONG = {"h": 0.3, "l": 4.0, "t": 9.0, "b": 0.3}


def test_the_published_optimum() -> None:
    result = evaluation(Beam(**PUBLISHED))
    assert result["metrics"]["cost"] == pytest.approx(1.724852, abs=1e-6)
    assert result["feasible"]
    assert result["metrics"]["max_violation"] <= 1e-6
    assert result["metrics"]["deflection"] == pytest.approx(0.01446, abs=1e-4)
    # At the optimum four limits are reached at once.
    limits = Beam(**PUBLISHED).constraints()
    active = {name for name, value in limits.items() if abs(value) < 1e-6}
    assert active == {"shear_stress", "bending_stress", "weld_not_thicker_than_bar", "buckling_load"}


@pytest.mark.parametrize(
    ("change", "violated"),
    [
        ({"h": 0.126, "l": 1.0}, "shear_stress"),
        ({"t": 3.0}, "bending_stress"),
        ({"h": 0.4}, "weld_not_thicker_than_bar"),
        ({"t": 10.0, "b": 2.0}, "partial_cost"),
        ({"h": 0.11}, "least_weld_height"),
        ({"t": 2.0}, "deflection"),
        ({"b": 0.11}, "buckling_load"),
    ],
)
def test_each_constraint_can_be_violated(change: dict[str, float], violated: str) -> None:
    result = evaluation(Beam(**{**STRONG, **change}))
    assert violated in result["violations"]
    assert not result["feasible"]
    assert result["metrics"]["max_violation"] == max(result["violations"].values()) > 0


def test_a_certificate_forgives_nothing() -> None:
    # Thinner by less than the tolerance of `evaluate`: feasible for people, not for the certifier.
    nearly = Beam(**{**PUBLISHED, "b": PUBLISHED["b"] * (1 - 1e-7)})
    assert evaluation(nearly)["feasible"]
    with pytest.raises(ToolError, match="bending_stress"):
        certificate(nearly)


async def test_both_tools_through_a_client() -> None:
    async with Client(build_server()) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == ["certify", "evaluate"]
        assert all(tool.output_schema and tool.annotations for tool in tools.values())
        safe: Any = {"idempotent_hint": True, "open_world_hint": False}
        assert tools["evaluate"].annotations == ToolAnnotations(read_only_hint=True, **safe)
        assert tools["certify"].annotations == ToolAnnotations(destructive_hint=False, **safe)

        evaluated = await client.call_tool("evaluate", PUBLISHED)
        assert evaluated.structured_content["metrics"]["cost"] == pytest.approx(1.724852, abs=1e-6)

        certified = await client.call_tool("certify", STRONG)
        cost = Beam(**STRONG).cost
        assert certified.structured_content == {
            "metrics": {"certified_cost": cost},
            "events": [{"event_name": "certified", "cost": cost}],
        }

        refused = await client.call_tool("certify", {**STRONG, "t": 2.0})
        assert refused.is_error
        words = "".join(getattr(block, "text", "") for block in refused.content)
        assert "bending_stress" in words
        assert "deflection" in words
        assert (await client.call_tool("evaluate", {**STRONG, "h": -1.0})).is_error
