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
    from pursuit.core.criteria import check, event, metric, predicate, succeeded
    from pursuit.core.mission import (
        Budget,
        ClientProposer,
        Fleet,
        Mission,
        Pace,
        Proposal,
        RepeatProposer,
        ReplayProposer,
        ScriptProposer,
        ToolCall,
    )
    from pursuit.core.search import SearchProposer
    from pursuit.errors import PursuitError, ValidationFailed
    from pursuit.runtime import Report, Runtime, scaffold
    from pursuit.server.problems.api import Problem
    from pursuit.upstream.functions import tool

__version__ = "0.1.0"

_HOMES = {
    "ScriptProposer": "pursuit.core.mission",
    "SearchProposer": "pursuit.core.search",
    "ReplayProposer": "pursuit.core.mission",
    "RepeatProposer": "pursuit.core.mission",
    "ClientProposer": "pursuit.core.mission",
    "Budget": "pursuit.core.mission",
    "Fleet": "pursuit.core.mission",
    "Mission": "pursuit.core.mission",
    "Pace": "pursuit.core.mission",
    "Problem": "pursuit.server.problems.api",
    "Proposal": "pursuit.core.mission",
    "PursuitError": "pursuit.errors",
    "Report": "pursuit.runtime",
    "Runtime": "pursuit.runtime",
    "ToolCall": "pursuit.core.mission",
    "ValidationFailed": "pursuit.errors",
    "check": "pursuit.core.criteria",
    "event": "pursuit.core.criteria",
    "metric": "pursuit.core.criteria",
    "predicate": "pursuit.core.criteria",
    "scaffold": "pursuit.runtime",
    "succeeded": "pursuit.core.criteria",
    "tool": "pursuit.upstream.functions",
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
