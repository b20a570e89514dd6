"""Pursuit works at a goal until its criteria are met, its budget is spent, or it is provably stuck.

    from pursuit import Budget, Mission, Runtime, event, metric

    mission = Mission(
        directive="Size the beam",
        criteria=[metric("mass") <= 2.4, event("certified")],
        budget=Budget(max_iterations=50),
        allow_all_tools=True,
    )
    async with Runtime() as runtime:
        report = await runtime.pursue(mission)

Names are loaded when first used: a command line that only prints its help pays for none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pursuit.app import Report, Runtime, scaffold
    from pursuit.errors import PursuitError, ValidationFailed
    from pursuit.model.build import check, event, metric, predicate, succeeded
    from pursuit.model.fleet import Fleet
    from pursuit.model.mission import (
        Budget,
        ClientProposer,
        Mission,
        Pace,
        Proposal,
        RepeatProposer,
        ReplayProposer,
        ScriptProposer,
        ToolCall,
    )
    from pursuit.model.search import SearchProposer
    from pursuit.surfaces.mcp.problems.api import Problem
    from pursuit.tools.functions import tool

__version__ = "0.1.0"

_HOMES = {
    "ScriptProposer": "pursuit.model.mission",
    "SearchProposer": "pursuit.model.search",
    "ReplayProposer": "pursuit.model.mission",
    "RepeatProposer": "pursuit.model.mission",
    "ClientProposer": "pursuit.model.mission",
    "Budget": "pursuit.model.mission",
    "Fleet": "pursuit.model.fleet",
    "Mission": "pursuit.model.mission",
    "Pace": "pursuit.model.mission",
    "Problem": "pursuit.surfaces.mcp.problems.api",
    "Proposal": "pursuit.model.mission",
    "PursuitError": "pursuit.errors",
    "Report": "pursuit.app",
    "Runtime": "pursuit.app",
    "ToolCall": "pursuit.model.mission",
    "ValidationFailed": "pursuit.errors",
    "check": "pursuit.model.build",
    "event": "pursuit.model.build",
    "metric": "pursuit.model.build",
    "predicate": "pursuit.model.build",
    "scaffold": "pursuit.app",
    "succeeded": "pursuit.model.build",
    "tool": "pursuit.tools.functions",
}

__all__ = [
    "Budget",
    "ClientProposer",
    "Fleet",
    "Mission",
    "Pace",
    "Problem",
    "Proposal",
    "PursuitError",
    "RepeatProposer",
    "ReplayProposer",
    "Report",
    "Runtime",
    "ScriptProposer",
    "SearchProposer",
    "ToolCall",
    "ValidationFailed",
    "check",
    "event",
    "metric",
    "predicate",
    "scaffold",
    "succeeded",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pursuit' has no attribute {name!r}")
    return getattr(import_module(home), name)
