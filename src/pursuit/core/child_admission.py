"""Decides which child missions a mission may start: tools, policy, budget, proposer, depth and number. Pure.

Invariant: a child may do nothing that its parent may not, and text from a model never counts as the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from pursuit.core.budgets import RemainingBudget, child_id, is_spawn, reservation
from pursuit.core.caps import POOLED
from pursuit.core.criteria import Check
from pursuit.core.mission import SPAWN, Mission, MissionPolicy
from pursuit.core.proposing import settings_type
from pursuit.core.state import MissionState
from pursuit.core.tools import matches_tool
from pursuit.errors import Fault, ValidationFailed

COMPLETED, TERMINATED = "mission_completed", "mission_terminated"


class Refused(Exception):
    """A child that may not be started, with the outcome of its call."""

    def __init__(self, outcome: Literal["denied", "skipped"], reason: str) -> None:
        super().__init__(reason)
        self.outcome: Literal["denied", "skipped"] = outcome


class Spawns:
    """Admits children one by one out of one budget; `mutates` says which tools write."""

    def __init__(self, state: MissionState, budget: RemainingBudget, mutates: Callable[[str], bool]) -> None:
        self._state = state
        self._budget = budget
        self._mutates = mutates
        self._begun = len(state.children)
        self._busy: dict[str, str] = {}
        for call in state.open.calls.values() if state.open is not None else ():
            if is_spawn(state, call.tool) and call.outcome is None and call.task is not None:
                self._occupy(_tools(state, call.args)[0], child_id(call.task))

    def admit(self, args: Mapping[str, Any], name: str) -> dict[str, float]:
        """Returns the amounts reserved for this child. Raises `Refused`, having reserved nothing."""
        fleet = self._state.mission.fleet
        if fleet is None:
            raise Refused("denied", "this mission has no [fleet]")
        if self._begun >= fleet.max_children:
            raise Refused("denied", f"fleet.max_children is {fleet.max_children}, and all have been started")
        try:
            child = wanted_child(self._state, args)
        except ValidationFailed as error:
            faults = "; ".join(f"{fault.field}: {fault.reason}" for fault in error.faults)
            raise Refused("denied", f"this child cannot be started: {faults}") from None
        tools = child.tool_allowlist or []
        taken = next((tool for tool in tools if tool in self._busy), None)
        if taken is not None and not fleet.share_tools and fleet.at_once > 1:
            raise Refused(
                "denied",
                f"{taken} may write and {self._busy[taken]} uses it; wait for that child, give this one other tools, "
                "or set fleet.share_tools = true",
            )
        wanted = reservation(child.budget)
        if (short := self._budget.lacks(wanted)) is not None:
            raise Refused("skipped", f"not enough budget for this child: {short}")
        self._budget.take(wanted)
        self._begun += 1
        self._occupy(tools, name)
        return wanted

    def _occupy(self, tools: Sequence[str], name: str) -> None:
        self._busy.update({tool: name for tool in tools if self._mutates(tool)})


def is_authored(state: MissionState) -> bool:
    """True if the operator wrote what this mission proposes."""
    return state.operators_own and state.facts.authored


def wanted_child(state: MissionState, args: Mapping[str, Any]) -> Mission:
    """The child that these arguments ask for, within its parent's limits. Raises `ValidationFailed` with all faults."""
    tools, faults = _tools(state, args)
    faults += _proposer_faults(state, args)
    if args.get("observe") and not is_authored(state):  # rules that lift metrics decide which values count
        faults.append(
            Fault(field="observe", reason="a child inherits its parent's rules; only the operator may add others")
        )
    child: Mission | None = None
    try:
        child = Mission(**_data(state, args, tools))
    except ValidationFailed as error:
        faults += error.faults
    if child is not None:
        faults += [*_faults_of(state, child), *_check_faults(state, child)]
    if faults or child is None:
        raise ValidationFailed(faults)
    return child


def _data(state: MissionState, args: Mapping[str, Any], tools: Sequence[str]) -> dict[str, Any]:
    parent = state.mission
    rules = [rule.model_dump(mode="json") for rule in parent.observe if any(fnmatchcase(t, rule.tool) for t in tools)]
    own = cast("list[Any]", args["observe"]) if isinstance(args.get("observe"), list) else []
    works = _works_in_tree(args)
    data = {
        **args,
        "tool_allowlist": list(tools) or (None if works else [SPAWN]),
        "observe": [*rules, *own],
        "allow_scripted_strategies": parent.allow_scripted_strategies,
    }
    if not parent.lessons:
        data["lessons"] = False
    if works and parent.workspace is not None:
        data["workspace"] = parent.workspace.model_dump(mode="json")
    wall_clock = state.cap("max_wall_clock_seconds")
    budget = args.get("budget")
    if isinstance(budget, Mapping) and wall_clock is not None:
        data["budget"] = {"max_wall_clock_seconds": wall_clock, **cast("Mapping[str, Any]", budget)}
    if "proposer" not in args and parent.proposer.INHERITED:
        data["proposer"] = parent.proposer.model_dump(mode="json")
    if parent.policy is not None:
        data["policy"] = _policy(parent.policy, args.get("policy"), tools)
    return data


def _policy(parent: MissionPolicy, given: object, tools: Sequence[str]) -> object:
    """The child's policy with its parent's added; tools that the parent denies are already left out."""
    if given is not None and not isinstance(given, Mapping):
        return given
    own: Mapping[str, Any] = cast("Mapping[str, Any]", given or {})
    if not isinstance(own.get("ask", []), list):
        return own
    asked = [tool for tool in tools if any(matches_tool(word, tool) for word in parent.ask)]
    words = cast("list[Any]", own.get("ask", []))
    mode = "never" if "never" in (parent.mode, own.get("mode")) else own.get("mode") or parent.mode
    return {**own, "ask": [*words, *asked], "mode": mode}


def _tools(state: MissionState, args: Mapping[str, Any]) -> tuple[list[str], list[Fault]]:
    """The tools of a child (those of its parent that it asks for, or all of them), and the faults in its request."""
    theirs = [tool for tool in state.tools if tool != SPAWN]
    words = args.get("tool_allowlist")
    if words is None:
        none = Fault(field="tool_allowlist", reason="the parent has no tools to share")
        return theirs, [] if theirs or _works_in_tree(args) else [none]
    found: dict[str, None] = {}
    faults: list[Fault] = []
    for place, word in enumerate(cast("list[Any]", words) if isinstance(words, list) else [words]):
        names = [tool for tool in theirs if isinstance(word, str) and matches_tool(word, tool)]
        if not names and word != SPAWN:
            reason = f"{word!r} is not a tool of the parent; choose from {', '.join(theirs[:10]) or 'none'}"
            faults.append(Fault(field=f"tool_allowlist[{place}]", reason=reason))
        found.update(dict.fromkeys(names))
    if not found and not faults and args.get("fleet") is None:
        faults.append(Fault(field="tool_allowlist", reason="a child needs a tool"))
    return list(found), faults


def _works_in_tree(args: Mapping[str, Any]) -> bool:
    kind = settings_type(args.get("proposer"))
    return kind is not None and kind.WORKSPACE


def _proposer_faults(state: MissionState, args: Mapping[str, Any]) -> list[Fault]:
    given, parents = args.get("proposer"), state.mission.proposer
    if given is None and not parents.INHERITED:
        return [Fault(field="proposer", reason="must be given: the parent has no model that the child could use")]
    kind = settings_type(given)
    if kind is None:
        return []
    own = any(given == one.model_dump(mode="json") for one in parents.children())
    why = None if own else kind.CHILDREN or (None if is_authored(state) else kind.AUTHORS)
    return [] if why is None else [Fault(field="proposer", reason=why)]


def _faults_of(state: MissionState, child: Mission) -> Iterator[Fault]:
    for name in POOLED:
        if state.cap(name) is not None and getattr(child.budget, name) == -1:
            yield Fault(field=f"budget.{name}", reason="must be given: it is taken out of the parent's budget")
    longest, wanted = state.cap("max_wall_clock_seconds"), child.budget.max_wall_clock_seconds
    if longest is not None and (wanted == -1 or wanted > longest):
        yield Fault(field="budget.max_wall_clock_seconds", reason=f"can be at most {longest:g}, the parent's cap")
    if child.budget.on_exhausted != "stop":
        yield Fault(field="budget.on_exhausted", reason="a child always stops at its caps, which cannot be raised")
    fleet, own = state.mission.fleet, child.fleet
    if own is not None and fleet is not None and fleet.max_depth == 1:
        yield Fault(field="fleet", reason="the parent's fleet.max_depth is 1, so its children cannot start children")
    elif own is not None and fleet is not None:
        most = {"max_depth": fleet.max_depth - 1, "max_children": fleet.max_children, "at_once": fleet.at_once}
        for name, limit in most.items():
            if getattr(own, name) > limit:
                yield Fault(field=f"fleet.{name}", reason=f"can be at most {limit} in a child of this mission")
        if own.share_tools and not fleet.share_tools:
            yield Fault(field="fleet.share_tools", reason="the parent's children do not share tools")


def _check_faults(state: MissionState, child: Mission) -> Iterator[Fault]:
    """Yields a fault for each command that is not the parent's, and each key that only the operator may set."""
    same = state.mission.picks  # its children have its own criteria
    for place, check in enumerate(child.criteria):
        if not isinstance(check, Check):
            continue
        if check.command is not None and not (same and check in state.mission.criteria):
            yield Fault(field=f"criteria[{place}].command", reason="a child may run only its parent's commands")
        if not is_authored(state) and (check.idempotent or check.expect.file is not None):
            reason = "only the operator may declare a check idempotent, or have it look for files"
            yield Fault(field=f"criteria[{place}]", reason=reason)


def summary_of(session_id: str, state: MissionState, used: Mapping[str, float]) -> dict[str, Any]:
    """How a child ended, for its parent; of the events about the end, only the runtime's own is passed on."""
    end = COMPLETED if state.status == "completed" else TERMINATED
    seen = [name for name in state.events.counts() if name not in (COMPLETED, TERMINATED)]
    return {
        "session_id": session_id,
        "status": state.status,
        "verdict": state.verdict,
        "verdict_reason": state.verdict_reason,
        "iteration_count": state.iteration_count,
        "criteria": {result.criterion_id: result.status for result in state.results.values()},
        "metrics": state.metrics,
        "events": [{"event_name": end, "session_id": session_id}, *({"event_name": name} for name in seen)],
        "used": dict(used),
    }
