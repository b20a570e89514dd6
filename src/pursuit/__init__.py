"""Pursuit pursues a goal until its criteria are met, its budget is spent, or it is provably stuck.

    from pursuit import Budget, Mission, Runtime, event, metric

    mission = Mission(
        directive="Size the beam",
        criteria=[metric("mass") <= 2.4, event("certified")],
        budget=Budget(max_iterations=50),
        allow_all_tools=True,
    )
    async with Runtime() as runtime:
        report = await runtime.pursue(mission)

Names are loaded when they are first used, which keeps `pursuit --help` fast.
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

_MODULES = {
    "pursuit.core.criteria": ("check", "event", "metric", "predicate", "succeeded"),
    "pursuit.core.mission": (
        "Budget", "ClientProposer", "Fleet", "Mission", "Pace", "Proposal", "RepeatProposer", "ReplayProposer",
        "ScriptProposer", "ToolCall",
    ),
    "pursuit.core.search": ("SearchProposer",),
    "pursuit.errors": ("PursuitError", "ValidationFailed"),
    "pursuit.runtime": ("Report", "Runtime", "scaffold"),
    "pursuit.server.problems.api": ("Problem",),
    "pursuit.upstream.functions": ("tool",),
}  # fmt: skip

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


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'pursuit' has no attribute {name!r}")
