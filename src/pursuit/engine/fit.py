"""Whether a proposal fits its mission: its tools, their schemas, its scripts.

Owns: the reasons that go back to whoever proposed. Pure but for the schemas that the tools know.
"""

from __future__ import annotations

from pursuit.engine.run import Tools
from pursuit.model.mission import Proposal
from pursuit.model.state import MissionState


def faults_in(state: MissionState, tools: Tools, proposal: Proposal, *, own: bool) -> list[str]:
    """Why a proposal cannot be carried out as it is; a script that is not our `own` needs permission."""
    faults: list[str] = []
    if proposal.script is not None and not own and not state.mission.allow_scripted_strategies:
        faults.append("script: this mission has allow_scripted_strategies = false")
    for place, call in enumerate(proposal.tool_calls or ()):
        name = qualified(state, call.tool_name)
        if name is None:
            known = ", ".join(state.tools[:20])
            faults.append(f"tool_calls[{place}].tool_name: {call.tool_name!r} is not a tool of this mission ({known})")
            continue
        faults.extend(f"tool_calls[{place}].args: {fault}" for fault in tools.check(name, call.args))
    return faults


def qualified(state: MissionState, name: str) -> str | None:
    """The tool's full name; a bare one is accepted if it is unique."""
    if name in state.tools:
        return name
    matching = [tool for tool in state.tools if tool.partition(".")[2] == name]
    return matching[0] if len(matching) == 1 else None
