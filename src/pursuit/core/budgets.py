"""The remaining budget of a mission: for calls, for its children, and for requests to a language model. Pure.

Invariant: the amounts that a mission and its children used and that it has lent never exceed its caps, as long as each
child stays within its own. An amount stays lent unless it is known to be unused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pursuit.core.caps import CAPS, POOLED, Budget, BudgetUse, CapUse
from pursuit.core.criteria import Check
from pursuit.core.events import CallIntended, CallSettled
from pursuit.core.mission import SPAWN, Mission
from pursuit.core.state import CallRecord, Child, MissionState

Amounts = Mapping[str, float]


def child_id(task_id: str) -> str:
    """The id of the child that a task runs. It is known before either exists, so there is never a second child."""
    return f"mission-{task_id.removeprefix('task-')[:16]}"


def is_spawn(state: MissionState, tool: str) -> bool:
    """True if a call of this tool starts a child; without a fleet, a server may have a tool of that name."""
    return tool == SPAWN and state.mission.fleet is not None


def reservation(budget: Budget) -> dict[str, float]:
    """The most that a child with this budget may use."""
    caps = budget.caps
    return {name: caps[name] for name in POOLED if caps[name] != -1}


def most_requests(mission: Mission) -> int | None:
    """The most requests, besides summaries, that a mission can make to its language model; None without a limit."""
    each, iterations = mission.proposer.max_requests_per_iteration, mission.budget.max_iterations
    return None if each is None or iterations == -1 else iterations * each


def used_of(state: MissionState) -> dict[str, float]:
    """The amounts that a mission and its children have used; without the cost if that is not known."""
    unknown = cost_unknown(state)
    return {name: _used(state, name) for name in POOLED if CAPS[name].unit != "usd" or not unknown}


def budget_use(state: MissionState, seconds: float | None = None) -> BudgetUse:
    """The caps and the amounts used, also by children; amounts reserved for running children count as used.

    `seconds` is its wall clock now; the default is that of its last event.
    """
    unknown = cost_unknown(state)
    rows: dict[str, CapUse] = {}
    for name, cap in CAPS.items():
        used: float | None = _sum(cap.own(state), state.lent.get(name, 0))
        match cap.unit:
            case "count":
                used = int(used)
            case "seconds":
                used = round(used if seconds is None else seconds, 3)
            case "usd":
                used = None if unknown else used
        rows[name] = CapUse(cap=cap, limit=state.cap(name), used=used)
    return BudgetUse(caps=rows, on_exhausted=state.mission.budget.on_exhausted)


def cost_unknown(state: MissionState) -> bool:
    return state.unpriced or any(child.unpriced for child in state.children.values())


def _used(state: MissionState, name: str) -> float:
    begun = state.open is not None and name == "max_iterations"
    return _sum(CAPS[name].own(state) + begun, state.lent.get(name, 0))


def kept_for_checks(state: MissionState) -> int:
    """The calls of `max_tool_calls` reserved for checks: as many as each needs, but the mission keeps at least one."""
    cap = state.budget["max_tool_calls"]
    if cap == -1 or not state.asks:
        return 0
    checks = [one for one in state.criteria if isinstance(one, Check)]
    return min(sum(1 + one.confirm for one in checks), max(0, int(cap) - 1))


class RemainingBudget:
    """The remaining amounts of a mission's caps while one batch of calls is admitted and the state does not change.

    Calls reserved for checks count as used, except for a check.
    """

    def __init__(self, state: MissionState, *, check: bool = False) -> None:
        self._state = state
        self._taken: dict[str, float] = {} if check else {"max_tool_calls": kept_for_checks(state)}

    @property
    def left(self) -> dict[str, float]:
        return {name: self._left(name) for name in POOLED if self._state.budget[name] != -1}

    def lacks(self, wanted: Amounts) -> str | None:
        short = [
            f"{name} = {amount:g}, but only {max(self._left(name), 0):g} is left"
            for name, amount in wanted.items()
            if self._state.budget[name] != -1 and amount > self._left(name)
        ]
        return "; ".join(short) or None

    def take(self, wanted: Amounts) -> None:
        for name, amount in wanted.items():
            self._taken[name] = _sum(self._taken.get(name, 0), amount)

    def _left(self, name: str) -> float:
        used = _sum(_used(self._state, name), self._taken.get(name, 0))
        return _sum(self._state.budget[name], -used)


def lend(state: MissionState, event: CallIntended) -> None:
    if event.task is None or not is_spawn(state, event.tool):
        return
    child = Child(session_id=child_id(event.task), call_id=event.call_id, reserved=event.reserved)
    state.children[child.session_id] = child
    for name, amount in event.reserved.items():
        state.lent[name] = _sum(state.lent.get(name, 0), amount)


def give_back(state: MissionState, call: CallRecord, event: CallSettled) -> None:
    """Replaces the amount reserved for a child by what it used, or keeps all of it if that is not known."""
    child = state.children.get(child_id(call.task)) if call.task is not None else None
    if child is None or child.outcome is not None:
        return
    child.outcome = event.outcome
    child.used = child.reserved if event.used is None else event.used
    child.unpriced = bool(event.used) and "max_cost_usd" not in child.used
    for name in {*child.reserved, *child.used}:
        change = child.used.get(name, 0) - child.reserved.get(name, 0)
        state.lent[name] = _sum(state.lent.get(name, 0), change)


def under_way(state: MissionState) -> list[str]:
    return [child.session_id for child in state.children.values() if child.outcome is None]


def _sum(one: float, other: float) -> float:
    """A sum of money or of counts: ten times 0.1 is 1."""
    return round(one + other, 9)


FIRST_RATE = 0.5
"""The initial estimate of tokens per byte: prose and JSON have 0.2 to 0.4, long rows of digits almost this."""
FIRST_EXTRA = 512
"""Tokens that a provider may add to the first request; later estimates include them."""
MARGIN = 1.25
"""The next request may be denser than the densest so far, because it holds other results."""
LEAST_ANSWER = 64
"""Shorter answers rarely contain a call, so the model is not asked if the budget allows only these."""


def estimate(size: int, densest: float | None) -> int:
    """The estimated tokens of a request of this many bytes, before it is sent.

    `densest` is the most tokens per byte of any answered request; the estimate is never below that.
    """
    if densest is None:
        return math.ceil(size * FIRST_RATE) + FIRST_EXTRA
    return math.ceil(size * densest * MARGIN)


def bytes_of(tokens: int, densest: float | None) -> int:
    """The size in bytes of the largest request with at most this token estimate."""
    if densest is None:
        return math.floor((tokens - FIRST_EXTRA) / FIRST_RATE)
    return math.floor(tokens / (densest * MARGIN))


def expected(state: MissionState, size: int) -> int:
    """The tokens of the next request of this size: the counted tokens of its beginning, and an estimate for the rest.

    A conversation only grows, so the last request that was counted is the beginning of the next one.
    """
    if state.conversation.counted_tokens and size >= state.conversation.counted_size:
        return state.conversation.counted_tokens + estimate(
            size - state.conversation.counted_size, state.conversation.densest
        )
    return estimate(size, state.conversation.densest)


def learnt(densest: float | None, *, size: int, tokens: int) -> float | None:
    """The most tokens per byte after one more answer; unchanged if the provider reports no tokens."""
    if size <= 0 or tokens <= 0:
        return densest
    return max(densest or 0.0, tokens / size)
