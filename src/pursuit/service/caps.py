"""Which caps an operator may raise.

Owns: the rules for an extended budget. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pursuit.core.mission import CAPS
from pursuit.core.state import MissionState
from pursuit.errors import Fault

WHOLE_CAPS = frozenset({"max_iterations", "max_tool_calls", "max_tokens"})


def cap_faults(caps: Mapping[str, float], state: MissionState) -> list[Fault]:
    """Everything that is wrong with new caps for this mission."""
    if not caps:
        return [Fault(field="budget", reason=f"give at least one of {', '.join(CAPS)}")]
    faults: list[Fault] = []
    for name, value in caps.items():
        before = state.budget.get(name)
        if before is None:
            faults.append(Fault(field=name, reason=f"is not a cap; the caps are {', '.join(CAPS)}"))
        elif value != -1 and not 0 < value < math.inf:
            faults.append(Fault(field=name, reason="must be a positive number, or -1 for no cap"))
        elif name in WHOLE_CAPS and value != int(value):
            faults.append(Fault(field=name, reason="must be a whole number"))
        elif before == -1 or (value != -1 and value < before):
            faults.append(Fault(field=name, reason=f"can only be raised; it is {before:g} now (-1 is no cap)"))
    after = {**state.budget, **caps}
    endless = after["max_iterations"] == -1 and after["max_wall_clock_seconds"] == -1
    if endless and not state.mission.budget.unbounded:
        faults.append(Fault(field="budget", reason="max_iterations or max_wall_clock_seconds must stay a real cap"))
    return faults
