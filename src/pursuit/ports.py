"""The ports of Pursuit: the protocols that other packages implement. Provisional until 1.0.

`docs/extend.md` has a complete example for each. A proposer is a `ProposerKind` that a package registers by an entry
point of the group `pursuit.proposers`. `Runtime` takes a `Placement` (which worker drives a mission, and when), a
`TaskStore` (where the records of tasks live), a `ToolTraits` (what a tool may do) and a `Clock`.
"""

from __future__ import annotations

from pursuit.config.servers import ServerConfig
from pursuit.core.mission import Mission, Proposal, ToolCall
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess, StoredObjective
from pursuit.core.state import MissionState
from pursuit.core.tools import CheckPlace, Tool, ToolOverride, Traits
from pursuit.engine.context import Clock
from pursuit.ledger.contract import ANY, Draft, Head, StoredEvent, StreamPage, StreamRow, TaskStore, Wakeup
from pursuit.ledger.placement import Health, Job, Placement, Requirements, Reschedule, Serving, WorkerRow
from pursuit.proposers.contract import (
    Blocked,
    ChecksImpossible,
    Done,
    DrivingPlace,
    Failed,
    MissionAdmission,
    Performed,
    Proposed,
    Proposer,
    ProposerContext,
    ProposerKind,
    Services,
    SimpleKind,
    Waiting,
)
from pursuit.proposers.view import View
from pursuit.upstream.listing import KnownTraits, ToolTraits

__all__ = [
    "ANY",
    "Blocked",
    "CheckPlace",
    "ChecksImpossible",
    "Clock",
    "Done",
    "Draft",
    "DrivingPlace",
    "Failed",
    "Head",
    "Health",
    "Job",
    "KnownTraits",
    "Mission",
    "MissionAdmission",
    "MissionState",
    "Performed",
    "Placement",
    "Proposal",
    "Proposed",
    "Proposer",
    "ProposerContext",
    "ProposerFacts",
    "ProposerKind",
    "ProposerSettings",
    "Requirements",
    "Reschedule",
    "ServerConfig",
    "Services",
    "Serving",
    "SimpleKind",
    "StartedProcess",
    "StoredEvent",
    "StoredObjective",
    "StreamPage",
    "StreamRow",
    "TaskStore",
    "Tool",
    "ToolCall",
    "ToolOverride",
    "ToolTraits",
    "Traits",
    "View",
    "Waiting",
    "Wakeup",
    "WorkerRow",
]
