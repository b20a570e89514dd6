"""Checks whether a mission can be started here: its tools exist, its names resolve, its fixed arguments fit.

Invariant: all faults are reported together; nothing is stored and nothing starts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from pursuit.config.commands import COMMANDS_SERVER
from pursuit.core.base_model import nearest
from pursuit.core.catalogue import Catalogue, is_control_tool
from pursuit.core.criteria import (
    AnyCriterion,
    Check,
    EventSeen,
    MetricThreshold,
    MetricTrend,
    Predicate,
    ToolCallSucceeded,
    describe,
)
from pursuit.core.log_metrics import NUMBER
from pursuit.core.mission import (
    FLEET,
    ONE_WAY,
    SPAWN,
    Mission,
)
from pursuit.core.proposing import refused_to_clients
from pursuit.core.series import holds
from pursuit.core.state import SCRIPT_SOURCE
from pursuit.core.tools import SPAWN_TOOL, Tool
from pursuit.errors import Fault, ValidationFailed, advice
from pursuit.proposers.contract import kind_of
from pursuit.proposers.language import Models
from pursuit.upstream.pool import Pool


def criteria_faults(mission: Mission, tools: Iterable[str]) -> list[Fault]:
    """Faults of criteria that these tools can never meet, or that would end the mission immediately."""
    required = [(place, one) for place, one in enumerate(mission.criteria) if one.required]
    if not required:
        reason = "none is required, so the mission would be completed at its first checkpoint; leave one required"
        return [Fault(field="criteria", reason=reason)]
    faults: list[Fault] = []
    reporting = {*tools, *(one.tool_name for one in mission.criteria if isinstance(one, Check) and one.tool_name)}
    if mission.proposer.facts().reports_metrics:
        reporting.add(SCRIPT_SOURCE)
    thresholds = [(place, one) for place, one in required if isinstance(one, MetricThreshold)]
    # Two sources are the same one if the same tools count under both.
    sources = {one.source: frozenset(tool for tool in reporting if _counts(one.source, tool)) for _, one in thresholds}
    for count, (place, one) in enumerate(thresholds):
        same = [o for _, o in thresholds[:count] if (o.metric, sources[o.source]) == (one.metric, sources[one.source])]
        broken = [other for other in same if _exclude([one, other])]
        if broken or (_exclude([one, *same]) and not _exclude(same)):
            others = [f"{describe(other)} ({other.criterion_id!r})" for other in broken or same]
            reason = f"{' and '.join([describe(one), *others])} can never {'all' if others[1:] else 'both'} be met"
            faults.append(Fault(field=f"criteria[{place}]", reason=reason))
    counts = [(place, _impossible_count(mission, one)) for place, one in required]
    return faults + [Fault(field=f"criteria[{place}]", reason=reason) for place, reason in counts if reason is not None]


def _impossible_count(mission: Mission, criterion: AnyCriterion) -> str | None:
    if isinstance(criterion, ToolCallSucceeded):
        one_each = mission.proposer.REPEATS
        for cap in ("max_tool_calls", "max_iterations") if one_each else ("max_tool_calls",):
            if -1 != (most := getattr(mission.budget, cap)) < criterion.min_count:
                return f"min_count = {criterion.min_count} cannot be reached: budget.{cap} is {most}"
    count = criterion.expect.count if isinstance(criterion, Check) else None
    if count is not None and (count.op, count.target) == ("<", 0):
        return "expect.count can never hold: it wants fewer than 0 matches"
    return None


def _exclude(thresholds: Sequence[MetricThreshold]) -> bool:
    """True if no number meets them all; trying their targets and numbers beside and between them is enough."""
    targets = sorted({one.target for one in thresholds})
    beside = [math.nextafter(one, way) for one in targets for way in (-math.inf, math.inf)]
    between = [(low + high) / 2 for low, high in pairwise(targets)]
    return not any(all(holds(one, value) for one in thresholds) for value in (*targets, *beside, *between))


_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    mission: Mission
    tools: tuple[str, ...]
    denied: tuple[str, ...]
    """The tools that the mission names and its own policy denies."""
    parameters: dict[str, list[str]]
    warnings: tuple[str, ...]


async def admit(
    mission: Mission,
    pool: Pool,
    checks: Mapping[str, Mapping[str, Any]],
    models: Models | None = None,
    *,
    among: Collection[str] | None = None,
    clients: Collection[str] | None = None,
    child: bool = False,
) -> Admitted:
    """Connects the servers that the mission needs, resolves every name in it, and checks its language model.

    `among` are the models that it may use; None allows any. `clients` are the proposer kinds of other packages
    that a client may name; None if the operator chose the proposer.
    """
    kind, settings = kind_of(mission.proposer.kind), mission.proposer
    kind.require()
    mission = kind.complete(mission)
    own = {tool.qualified: tool for tool in kind.tools(settings)}
    own |= {SPAWN: SPAWN_TOOL} if mission.fleet is not None else {}
    catalogue = await pool.catalogue(_servers(mission, pool, own.values()), reading=settings.ASKS_MODEL)
    catalogue = replace(catalogue, tools={**catalogue.tools, **own})
    resolver = _MissionTools(mission, catalogue, checks, models, among)
    if mission.names_no_tools:
        resolver.fault("tool_allowlist", ONE_WAY)
    named = list(dict.fromkeys([*resolver.allowlist(), *own]))
    resolver.proposer(pool, clients, child=child)
    if mission.fleet is not None and FLEET in pool.names:
        resolver.fault("fleet", f"the server name {FLEET!r} is reserved for child missions; rename the server")
    resolver.tools = resolver.permitted(named)
    whole = await resolver.whole()
    resolver.faults += criteria_faults(mission, resolver.tools)
    resolver.faults += _metrics_without_source(mission, [catalogue.tools[name] for name in resolver.tools])
    if resolver.faults:
        raise ValidationFailed(resolver.faults)
    admitted = Mission(**whole)
    return Admitted(
        mission=admitted,
        tools=tuple(resolver.tools),
        denied=tuple(name for name in named if name not in resolver.tools),
        parameters={name: list(catalogue.tools[name].input_schema.get("properties") or ()) for name in resolver.tools},
        warnings=(*_warnings(admitted, resolver.tools, catalogue), *resolver.warnings),
    )


async def proposer_faults(mission: Mission, models: Models) -> list[Fault]:
    resolver = _MissionTools(mission, Catalogue(), models=models)
    await kind_of(mission.proposer.kind).admit(mission.proposer, resolver)
    return resolver.faults


def _metrics_without_source(mission: Mission, tools: Sequence[Tool]) -> list[Fault]:
    """Metrics of criteria that no tool reports; checked only where the metrics of each tool are known."""
    if mission.proposer.facts().reports_metrics:
        return []
    faults: list[Fault] = []
    for place, criterion in enumerate(mission.criteria):
        if not isinstance(criterion, MetricThreshold | MetricTrend):
            continue
        counting = [tool for tool in tools if _counts(criterion.source, tool.qualified)]
        given = [name for tool in counting for name in tool.metrics or ()]
        given += [rule.metric for rule in mission.observe if any(_counts(rule.tool, one.qualified) for one in counting)]
        measuring = _measuring(mission).items()
        given += [name for tool, check in measuring if _counts(criterion.source, tool) for name in check.metrics]
        if not counting or any(tool.metrics is None for tool in counting):
            continue
        if not any(criterion.metric == name or criterion.metric.startswith(f"{name}.") for name in given):
            faults.append(Fault(field=f"criteria[{place}].metric", reason=_no_source(criterion.metric, given)))
    return faults


def _measuring(mission: Mission) -> dict[str, Check]:
    """The checks that report metrics, by the names under which they count as sources."""
    checks = (one for one in mission.criteria if isinstance(one, Check) and one.metrics)
    return {f"check:{one.criterion_id}": one for one in checks}


def _counts(source: str | None, tool: str) -> bool:
    """True if a tool matches a `source` as the user wrote it: a glob, or a name with or without its server."""
    return source is None or fnmatchcase(tool, source) or tool.partition(".")[2] == source


def _no_source(metric: str, given: Sequence[str]) -> str:
    known = f"; they report {', '.join(sorted(set(given)))}{nearest(metric, given)}" if given else ""
    return f"no command of this mission reports {metric!r}{known}; add it in pursuit.toml, as in " + advice(
        '`"{}" = \'{}=({})\'` in `[commands."{}".metrics]`', metric, metric, NUMBER, "NAME"
    )


def _servers(mission: Mission, pool: Pool, own: Iterable[Tool]) -> list[str] | None:
    """The servers that the allowlist names; None (all) if an entry may match any server or names none."""
    if mission.tool_allowlist is None:
        return None if mission.allow_all_tools else []
    servers: list[str] = []
    internal = {FLEET, *(tool.server for tool in own)}
    for word in mission.tool_allowlist:
        server, dot, _ = word.partition(".")
        if not dot or _GLOB & set(server) or (server not in pool.names and server not in internal):
            return None
        servers.append(server)
    return [server for server in dict.fromkeys(servers) if server in pool.names]


@dataclass(slots=True)
class _MissionTools:
    """Resolves the names of a mission and collects every fault; the `Admission` that its proposer gets."""

    mission: Mission
    catalogue: Catalogue
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    models: Models | None = None
    among: Collection[str] | None = None
    tools: Sequence[str] = ()
    row: dict[str, Any] = field(default_factory=dict[str, Any])
    faults: list[Fault] = field(default_factory=list[Fault])
    warnings: list[str] = field(default_factory=list[str])

    def fault(self, field: str, reason: str) -> None:
        self.faults.append(Fault(field=field, reason=reason))

    def allowlist(self) -> list[str]:
        mission = self.mission
        for reason in self.catalogue.failures.values():
            self.fault("tool_allowlist", reason)
        if mission.tool_allowlist is None and not mission.allow_all_tools:
            return []  # an agent needs no tools of ours
        if mission.tool_allowlist is None:
            tools = [tool.qualified for tool in self.catalogue if not is_control_tool(tool.name)]
            if not tools and not self.faults:
                self.fault("allow_all_tools", "no server offers any tool; configure one under [servers]")
            return tools
        down = set(self.catalogue.failures)
        words = [word for word in mission.tool_allowlist if word.partition(".")[0] not in down]
        return self._named("tool_allowlist", words)

    def proposer(self, pool: Pool, clients: Collection[str] | None, *, child: bool) -> None:
        """Checks the proposer: some run with the operator's rights, so only the operator's missions may name them."""
        settings = self.mission.proposer
        why = None if clients is None else refused_to_clients(settings, clients, child=child)
        if why is not None:
            self.fault("proposer.kind", f"{why}; name another proposer")
        for name in settings.RESERVED:
            if name in pool.names:
                self.fault("proposer.kind", f"the server name {name!r} is reserved for the agent; rename the server")

    def permitted(self, tools: list[str]) -> list[str]:
        policy = self.mission.policy
        if policy is None:
            return tools
        denied = self._named("policy.deny", policy.deny)
        self._named("policy.ask", policy.ask)
        left = [tool for tool in tools if tool not in denied]
        if tools and not left:
            self.fault("policy.deny", "denies every allowed tool; a mission needs at least one")
        return left

    def _named(self, field: str, words: Sequence[str]) -> list[str]:
        found, faults = self.catalogue.resolve(words)
        for fault in faults:
            self.fault(fault.field.replace("tools", field, 1), fault.reason)
        return found

    async def whole(self) -> dict[str, Any]:
        mission = self.mission
        data = mission.model_dump(mode="json")
        for place, criterion in enumerate(mission.criteria):
            at, row = f"criteria[{place}]", data["criteria"][place]
            match criterion:
                case MetricThreshold() | MetricTrend() | EventSeen() if criterion.source is not None:
                    row["source"] = self._source(f"{at}.source", criterion.source)
                case ToolCallSucceeded():
                    row["tool_name"] = self.tool(f"{at}.tool_name", criterion.tool_name)
                case Check():
                    self._check(at, criterion, row)
                case _:
                    pass
        for place, rule in enumerate(mission.observe):
            data["observe"][place]["tool"] = self._source(f"observe[{place}].tool", rule.tool)
        self.row = data["proposer"]
        await kind_of(mission.proposer.kind).admit(mission.proposer, self)
        return data

    def tool(self, field: str, name: str) -> str:
        tools = self.tools
        if name in tools:
            return name
        matching = [tool for tool in tools if tool.partition(".")[2] == name]
        if len(matching) == 1:
            return matching[0]
        if tools or not self.faults:
            known = ", ".join(tools[:10]) or "none"
            self.fault(field, f"{name!r} is not a single tool of this mission; its tools are {known}")
        return name

    def _source(self, field: str, pattern: str) -> str:
        tools = self.tools
        if (
            pattern == SCRIPT_SOURCE
            or pattern in _measuring(self.mission)
            or any(fnmatchcase(tool, pattern) for tool in tools)
        ):
            return pattern
        if not _GLOB & set(pattern):
            return self.tool(field, pattern)
        if tools or not self.faults:
            self.fault(field, f"{pattern!r} matches no tool of this mission")
        return pattern

    def arguments(self, field: str, tool: str, args: Mapping[str, Any]) -> None:
        if tool in self.catalogue.tools:
            for fault in self.catalogue.check(tool, args):
                self.fault(field, fault)

    def _check(self, at: str, check: Check, row: dict[str, Any]) -> None:
        if check.after is not None:
            row["after"] = self.tool(f"{at}.after", check.after)
        if check.tool_name is not None:
            row["tool_name"] = self.tool(f"{at}.tool_name", check.tool_name)
            self.arguments(f"{at}.args", row["tool_name"], check.args)
        elif check.check is not None and check.check not in self.checks:
            known = ", ".join(sorted(self.checks)) or "none"
            self.fault(f"{at}.check", f"no [checks.{check.check}] in the configuration; it has {known}")


def _warnings(mission: Mission, tools: Sequence[str], catalogue: Catalogue) -> list[str]:
    warnings = list(catalogue.warnings)
    facts = mission.proposer.facts()
    tools = [name for name in tools if name not in facts.tools]  # a turn gives no metrics
    if len(tools) > 1:
        for criterion in mission.criteria:
            unsourced = isinstance(criterion, MetricThreshold | MetricTrend | EventSeen) and criterion.source is None
            if unsourced and criterion.required:
                warnings.append(
                    f"criterion {criterion.criterion_id!r} accepts metrics of any of the {len(tools)} tools; "
                    "name the tool that counts with `source`"
                )
            vague = isinstance(criterion, Predicate) and not any(name in criterion.expression for name in tools)
            if vague and criterion.required and not facts.reports_metrics:
                warnings.append(
                    f"criterion {criterion.criterion_id!r} can be met by any of the {len(tools)} tools; name the tool "
                    "that counts in its expression (`tool_results` has it), or use a criterion with `source`"
                )
    for one in mission.criteria if mission.workspace is not None else ():
        if isinstance(one, Check) and one.tool_name and not one.tool_name.startswith(f"{COMMANDS_SERVER}."):
            why = f"calls {one.tool_name}, which checks its server's files instead of the agent's worktree"
            warnings.append(f"criterion {one.criterion_id!r} {why}; use `command`, or a tool of the server `commands`")
    tuned = [name for name in tools if catalogue.tools[name].input_schema.get("properties")]
    return [*warnings, *_mixed_designs(mission, tuned)]


def _mixed_designs(mission: Mission, tools: Sequence[str]) -> list[str]:
    """Warns if calls with different arguments can together meet a mission's limits; `tools` take arguments."""
    limits = [one for one in mission.criteria if isinstance(one, MetricThreshold) and one.required]
    sources = {name for one in limits for name in tools if _counts(one.source, name)}
    mixes = len(sources) > 1 or any(one.hold for one in limits)
    if not mixes or len(limits) < 2 or all(o.same_call for o in limits) or mission.proposer.REPEATS:
        return []
    names = ", ".join(one.criterion_id for one in limits)
    return [
        f"criteria {names} can be met by calls with different arguments; if one call must meet them all, let one tool "
        "report all these metrics, and set same_call = true in each"
    ]
