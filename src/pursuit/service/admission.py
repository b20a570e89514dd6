"""Whether a mission can be started here: its tools exist, its names resolve, its fixed arguments fit.

Owns: the checks that need a catalogue. Stores nothing. Invariant: all faults at once, and nothing begins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, cast

from pursuit.core.catalogue import Catalogue, is_control_tool
from pursuit.core.criteria import Check, EventSeen, MetricThreshold, MetricTrend, ToolCallSucceeded
from pursuit.core.mission import (
    FLEET,
    SPAWN,
    AnyProposer,
    AskedProposer,
    Mission,
    RepeatProposer,
    ReplayProposer,
    ToolCall,
)
from pursuit.core.search import SearchProposer
from pursuit.core.state import SCRIPT_SOURCE
from pursuit.core.tools import SPAWN_TOOL
from pursuit.errors import Fault, ValidationFailed
from pursuit.proposers.language import Models
from pursuit.proposers.objective import aim_of
from pursuit.proposers.prompt import LIMIT
from pursuit.proposers.search import require_search
from pursuit.service.models import model_faults, prompt_warnings
from pursuit.service.search_space import corners, searched
from pursuit.upstream.pool import Pool

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A mission with its names made whole, and the tools that it may use."""

    mission: Mission
    tools: tuple[str, ...]
    denied: tuple[str, ...]
    """The tools that it names and denies itself."""
    parameters: dict[str, list[str]]
    warnings: tuple[str, ...]


async def admit(
    mission: Mission,
    pool: Pool,
    checks: Mapping[str, Mapping[str, Any]],
    models: Models | None = None,
    *,
    among: Collection[str] | None = None,
    room: int | None = None,
) -> Admitted:
    """Connects the servers that the mission needs and resolves every name in it; its language model is looked for.

    `among` are the models that it may have; None is any. `room` is how long a prompt for one may be.
    """
    if isinstance(mission.proposer, SearchProposer):
        require_search()
    reading = isinstance(mission.proposer, AskedProposer)
    catalogue = await pool.catalogue(_servers(mission, pool), reading=reading)
    if mission.fleet is not None:
        catalogue = replace(catalogue, tools={**catalogue.tools, SPAWN: SPAWN_TOOL})
    desk = _Desk(catalogue, checks)
    named = desk.allowlist(mission)
    if mission.fleet is not None:
        named = list(dict.fromkeys([*named, SPAWN]))
        if FLEET in pool.names:
            desk.fault("fleet", f"a server is called {FLEET!r}, as what starts children is; rename that server")
    tools = desk.permitted(mission, named)
    whole = desk.whole(mission, tools)
    if models is not None:
        desk.faults += await model_faults(mission, models, among)
    if desk.faults:
        raise ValidationFailed(desk.faults)
    admitted = Mission(**whole)
    return Admitted(
        mission=admitted,
        tools=tuple(tools),
        denied=tuple(name for name in named if name not in tools),
        parameters={name: list(catalogue.tools[name].input_schema.get("properties") or ()) for name in tools},
        warnings=(*_warnings(mission, tools, catalogue), *prompt_warnings(admitted, room or LIMIT)),
    )


def _servers(mission: Mission, pool: Pool) -> list[str] | None:
    """The servers that the allowlist names; None (all) if a word of it may mean any."""
    if mission.tool_allowlist is None:
        return None
    servers: list[str] = []
    for word in mission.tool_allowlist:
        server, dot, _ = word.partition(".")
        if not dot or _GLOB & set(server):
            return None
        servers.append(server)
    return [server for server in dict.fromkeys(servers) if server in pool.names]


class _Desk:
    """Collects every fault while it makes the names of a mission whole."""

    def __init__(self, catalogue: Catalogue, checks: Mapping[str, Mapping[str, Any]]) -> None:
        self.catalogue = catalogue
        self.checks = checks
        self.faults: list[Fault] = []

    def fault(self, field: str, reason: str) -> None:
        self.faults.append(Fault(field=field, reason=reason))

    def allowlist(self, mission: Mission) -> list[str]:
        for reason in self.catalogue.failures.values():
            self.fault("tool_allowlist", reason)
        if mission.tool_allowlist is None:
            tools = [tool.qualified for tool in self.catalogue if not is_control_tool(tool.name)]
            if not tools and not self.faults:
                self.fault("allow_all_tools", "no server offers any tool; configure one under [servers]")
            return tools
        down = set(self.catalogue.failures)
        words = [word for word in mission.tool_allowlist if word.partition(".")[0] not in down]
        tools, faults = self.catalogue.resolve(words)
        for fault in faults:
            self.fault(fault.field.replace("tools", "tool_allowlist", 1), fault.reason)
        return tools

    def permitted(self, mission: Mission, tools: list[str]) -> list[str]:
        """The tools without those that the mission's own policy denies; every word of that policy must find one."""
        if mission.policy is None:
            return tools
        denied = self._named("policy.deny", mission.policy.deny)
        self._named("policy.ask", mission.policy.ask)
        left = [tool for tool in tools if tool not in denied]
        if tools and not left:
            self.fault("policy.deny", "denies every tool that is allowed; a mission needs one at least")
        return left

    def _named(self, field: str, words: Sequence[str]) -> list[str]:
        found, faults = self.catalogue.resolve(words)
        for fault in faults:
            self.fault(fault.field.replace("tools", field, 1), fault.reason)
        return found

    def whole(self, mission: Mission, tools: Sequence[str]) -> dict[str, Any]:
        """The mission as plain data with qualified names."""
        data = mission.model_dump(mode="json")
        for place, criterion in enumerate(mission.criteria):
            at, row = f"criteria[{place}]", data["criteria"][place]
            match criterion:
                case MetricThreshold() | MetricTrend() | EventSeen() if criterion.source is not None:
                    row["source"] = self._source(f"{at}.source", criterion.source, tools)
                case ToolCallSucceeded():
                    row["tool_name"] = self._tool(f"{at}.tool_name", criterion.tool_name, tools)
                case Check():
                    self._check(at, criterion, row, tools)
                case _:
                    pass
        for place, rule in enumerate(mission.observe):
            data["observe"][place]["tool"] = self._source(f"observe[{place}].tool", rule.tool, tools)
        self._proposer(mission, data["proposer"], tools)
        return data

    def _tool(self, field: str, name: str, tools: Sequence[str]) -> str:
        if name in tools:
            return name
        matching = [tool for tool in tools if tool.partition(".")[2] == name]
        if len(matching) == 1:
            return matching[0]
        if tools or not self.faults:
            known = ", ".join(tools[:10]) or "none"
            self.fault(field, f"{name!r} is not one tool of this mission; its tools are {known}")
        return name

    def _source(self, field: str, pattern: str, tools: Sequence[str]) -> str:
        if pattern == SCRIPT_SOURCE or any(fnmatchcase(tool, pattern) for tool in tools):
            return pattern
        if not _GLOB & set(pattern):
            return self._tool(field, pattern, tools)
        if tools or not self.faults:
            self.fault(field, f"{pattern!r} matches no tool of this mission")
        return pattern

    def _arguments(self, field: str, tool: str, args: Mapping[str, Any]) -> None:
        if tool in self.catalogue.tools:
            for fault in self.catalogue.check(tool, args):
                self.fault(field, fault)

    def _check(self, at: str, check: Check, row: dict[str, Any], tools: Sequence[str]) -> None:
        if check.after is not None:
            row["after"] = self._tool(f"{at}.after", check.after, tools)
        if check.tool_name is not None:
            row["tool_name"] = self._tool(f"{at}.tool_name", check.tool_name, tools)
            self._arguments(f"{at}.args", row["tool_name"], check.args)
        elif check.check is not None:
            named = self.checks.get(check.check)
            if named is None:
                known = ", ".join(sorted(self.checks)) or "none"
                self.fault(f"{at}.check", f"no [checks.{check.check}] in the configuration; it has {known}")
            elif not _is_argv(named.get("command")):
                self.fault(f"{at}.check", f"[checks.{check.check}] needs command, a list of words")

    def _proposer(self, mission: Mission, row: dict[str, Any], tools: Sequence[str]) -> None:
        match mission.proposer:
            case RepeatProposer(tool_name=name, args=args):
                row["tool_name"] = self._tool("proposer.tool_name", name, tools)
                self._arguments("proposer.args", row["tool_name"], args)
            case SearchProposer() as search:
                self._search(mission, search, row, tools)
            case ReplayProposer(proposals=proposals):
                for place, proposal in enumerate(proposals):
                    if proposal.script is not None and not mission.allow_scripted_strategies:
                        field = f"proposer.proposals[{place}].script"
                        self.fault(field, "a script that is replayed needs allow_scripted_strategies = true")
                    self._calls(f"proposer.proposals[{place}]", proposal.tool_calls or (), tools)
            case _:
                pass

    def _search(self, mission: Mission, search: SearchProposer, row: dict[str, Any], tools: Sequence[str]) -> None:
        """The search with its bounds; a few calls at its corners must fit the tool's schema."""
        name = row["tool_name"] = self._tool("proposer.tool_name", search.tool_name, tools)
        if search.then is not None:
            row["then"] = self._tool("proposer.then", search.then, tools)
            if row["then"] == name:
                self.fault("proposer.then", f"{name} is the tool that is searched; name another, or leave it out")
        if name not in self.catalogue.tools:
            return
        found, faults = searched(search, self.catalogue.tools[name].input_schema)
        aim, broken = aim_of(mission, search, name)
        faults += broken
        if search.then is not None and not broken and not aim.wanted and search.trials is None:
            reason = f"needs a number: no required threshold of {name} says when {search.then} is due"
            faults.append(Fault(field="proposer.trials", reason=reason))
        self.faults += faults
        if not faults:
            reasons = [reason for args in corners(found, search.args) for reason in self.catalogue.check(name, args)]
            for reason in dict.fromkeys(reasons):
                self.fault("proposer.parameters", reason)
        row["parameters"] = {key: one.model_dump(mode="json") for key, one in found.items()}

    def _calls(self, at: str, calls: Sequence[ToolCall], tools: Sequence[str]) -> None:
        for place, call in enumerate(calls):
            name = self._tool(f"{at}.tool_calls[{place}].tool_name", call.tool_name, tools)
            self._arguments(f"{at}.tool_calls[{place}].args", name, call.args)


def _is_argv(value: object) -> bool:
    words = cast("list[object]", value) if isinstance(value, list) else []
    return bool(words) and all(isinstance(word, str) for word in words)


def _warnings(mission: Mission, tools: Sequence[str], catalogue: Catalogue) -> list[str]:
    warnings = list(catalogue.warnings)
    if not any(criterion.required for criterion in mission.criteria):
        warnings.append("no criterion is required, so the mission is completed at its first checkpoint")
    if len(tools) > 1:
        for criterion in mission.criteria:
            unsourced = isinstance(criterion, MetricThreshold | MetricTrend | EventSeen) and criterion.source is None
            if unsourced and criterion.required:
                warnings.append(
                    f"criterion {criterion.criterion_id!r} believes any of the {len(tools)} tools; "
                    "say whose word counts with `source`"
                )
    return [*warnings, *_one_by_one(mission.proposer, tools, catalogue)]


def _one_by_one(proposer: AnyProposer, tools: Sequence[str], catalogue: Catalogue) -> list[str]:
    """That a batch will not run side by side."""
    if not isinstance(proposer, SearchProposer) or proposer.batch == 1:
        return []
    name = proposer.tool_name
    meant = [tool for tool in tools if name in (tool, tool.partition(".")[2])]
    if not meant or catalogue.tools[meant[0]].traits.parallel_safe:
        return []
    server, _, tool = meant[0].partition(".")
    return [
        f"proposer.batch is {proposer.batch}, but {meant[0]} is not known to be safe beside itself, so its calls run "
        f"one after the other; if it is, say [servers.{server}.tools.{tool}] parallel_safe = true"
    ]
