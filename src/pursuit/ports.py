"""The ports of Pursuit: the protocols that other packages implement. Provisional until 1.0.

`docs/extend.md` has a complete example for each. A proposer is a `ProposerKind` that a package registers by an entry
point of the group `pursuit.proposers`; a `Placement` decides which process drives a mission, and when.
"""

from __future__ import annotations

from pursuit.core.mission import Mission, Proposal, ToolCall
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess, StoredObjective
from pursuit.core.state import MissionState
from pursuit.core.tools import Tool
from pursuit.ledger.placement import Placement
from pursuit.proposers.contract import (
    Blocked,
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

__all__ = [
    "Blocked",
    "Done",
    "DrivingPlace",
    "Failed",
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
    "Services",
    "SimpleKind",
    "StartedProcess",
    "StoredObjective",
    "Tool",
    "ToolCall",
    "View",
    "Waiting",
]
