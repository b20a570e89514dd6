"""Pursuit pursues a goal until its criteria are met, its budget is spent, or it is provably stuck.

    from pursuit import Budget, Mission, Runtime, event, metric

    mission = Mission(
        directive="Size the beam",
        criteria=[metric("mass") <= 2.4, event("certified")],
        budget=Budget(max_iterations=50),
        allow_all_tools=True,
    )
    async with Runtime() as runtime:
        handle = await runtime.start(mission)
        report = await handle.run()

Names are loaded when they are first used, which keeps `pursuit --help` fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pursuit.config.configuration import Configuration
    from pursuit.core.approvals import Approval
    from pursuit.core.best import BestPoint
    from pursuit.core.caps import Budget, BudgetUse, CapUse
    from pursuit.core.criteria import check, event, metric, predicate, succeeded
    from pursuit.core.history import Call, Iteration
    from pursuit.core.mission import Fleet, Mission, Pace, Proposal, ToolCall
    from pursuit.core.report import ApprovalRow, Status
    from pursuit.demo.mission_templates import scaffold
    from pursuit.errors import PursuitError, ValidationFailed
    from pursuit.proposers.client import ClientProposer
    from pursuit.proposers.python import PythonProposer
    from pursuit.proposers.repeat import RepeatProposer
    from pursuit.proposers.replay import ReplayProposer
    from pursuit.proposers.script import ScriptProposer
    from pursuit.proposers.search.settings import SearchProposer
    from pursuit.proposers.view import View, call, done, nothing, script, wait
    from pursuit.reports.report import Report, Trial
    from pursuit.runtime import MissionApprovals, MissionHandle, Runtime, Update, run
    from pursuit.sandbox import leave
    from pursuit.server.gateway.upstreams import GatewayOptions
    from pursuit.server.problems.api import Problem
    from pursuit.server.serve import serve
    from pursuit.upstream.functions import tool

__version__ = "0.1.0"

_MODULES = {
    "pursuit.config.configuration": ("Configuration",),
    "pursuit.core.approvals": ("Approval",),
    "pursuit.core.best": ("BestPoint",),
    "pursuit.core.caps": ("Budget", "BudgetUse", "CapUse"),
    "pursuit.core.criteria": ("check", "event", "metric", "predicate", "succeeded"),
    "pursuit.core.history": ("Call", "Iteration"),
    "pursuit.core.mission": ("Fleet", "Mission", "Pace", "Proposal", "ToolCall"),
    "pursuit.core.report": ("ApprovalRow", "Status"),
    "pursuit.proposers.client": ("ClientProposer",),
    "pursuit.proposers.python": ("PythonProposer",),
    "pursuit.proposers.repeat": ("RepeatProposer",),
    "pursuit.proposers.replay": ("ReplayProposer",),
    "pursuit.proposers.script": ("ScriptProposer",),
    "pursuit.proposers.search.settings": ("SearchProposer",),
    "pursuit.demo.mission_templates": ("scaffold",),
    "pursuit.errors": ("PursuitError", "ValidationFailed"),
    "pursuit.proposers.view": ("View", "call", "done", "nothing", "script", "wait"),
    "pursuit.reports.report": ("Report", "Trial"),
    "pursuit.runtime": ("MissionApprovals", "MissionHandle", "Runtime", "Update", "run"),
    "pursuit.sandbox": ("leave",),
    "pursuit.server.gateway.upstreams": ("GatewayOptions",),
    "pursuit.server.problems.api": ("Problem",),
    "pursuit.server.serve": ("serve",),
    "pursuit.upstream.functions": ("tool",),
}  # fmt: skip

__all__ = [
    "Approval",
    "ApprovalRow",
    "BestPoint",
    "Budget",
    "BudgetUse",
    "Call",
    "CapUse",
    "ClientProposer",
    "Configuration",
    "Fleet",
    "GatewayOptions",
    "Iteration",
    "Mission",
    "MissionApprovals",
    "MissionHandle",
    "Pace",
    "Problem",
    "Proposal",
    "PursuitError",
    "PythonProposer",
    "RepeatProposer",
    "ReplayProposer",
    "Report",
    "Runtime",
    "ScriptProposer",
    "SearchProposer",
    "Status",
    "ToolCall",
    "Trial",
    "Update",
    "ValidationFailed",
    "View",
    "call",
    "check",
    "done",
    "event",
    "leave",
    "metric",
    "nothing",
    "predicate",
    "run",
    "scaffold",
    "script",
    "serve",
    "succeeded",
    "tool",
    "wait",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'pursuit' has no attribute {name!r}")
