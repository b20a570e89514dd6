"""Whether a client's proposal fits its mission.

Owns: the checks before anything is begun. Stores nothing.
Invariant: a bad proposal of a client is an error to the client and counts nothing.
"""

from __future__ import annotations

from pursuit.core.events import IterationProposed
from pursuit.core.mission import ClientProposer, Proposal
from pursuit.core.state import MissionState
from pursuit.engine.driver import ToolSource
from pursuit.errors import Fault, InvalidArgument, ValidationFailed


async def check_proposal(state: MissionState, proposal: Proposal, source: ToolSource) -> None:
    """Raises with every fault if the mission takes no such proposal."""
    kind, tools, scripts = state.mission.proposer.kind, state.tools, state.mission.allow_scripted_strategies
    if not isinstance(state.mission.proposer, ClientProposer):
        raise InvalidArgument(f"this mission's proposer is {kind!r}; it takes no proposal", proposer=kind)
    faults: list[Fault] = []
    if proposal.script is not None and not scripts:
        faults.append(Fault(field="proposal.script", reason="this mission has allow_scripted_strategies = false"))
    offered = await source.tools_for(tools)
    for place, call in enumerate(proposal.tool_calls or ()):
        at = f"proposal.tool_calls[{place}]"
        names = [tool for tool in tools if _means(call.tool_name, tool)]
        if len(names) != 1:
            known = ", ".join(tools[:20])
            faults.append(Fault(field=f"{at}.tool_name", reason=f"{call.tool_name!r} is not one of {known}"))
            continue
        faults += [Fault(field=f"{at}.args", reason=reason) for reason in offered.check(names[0], call.args)]
    if faults:
        raise ValidationFailed(faults)


def is_of(begun: IterationProposed, proposal: Proposal) -> bool:
    """Whether an iteration was begun by this very proposal, told once more by a client that heard no answer."""
    calls = proposal.tool_calls or []
    return (
        begun.script == proposal.script
        and len(begun.calls) == len(calls)
        and all(
            _means(asked.tool_name, call.tool) and asked.args == call.args
            for asked, call in zip(calls, begun.calls, strict=True)
        )
    )


def _means(word: str, tool: str) -> bool:
    return word == tool or word == tool.partition(".")[2]
