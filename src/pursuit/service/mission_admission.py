"""Checks whether a mission can be started here: its tools exist, its names resolve, its fixed arguments fit.

Invariant: all faults at once; nothing is stored and nothing begins.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from pursuit.core.base_model import Broken, nearest
from pursuit.core.catalogue import Catalogue, is_control_tool
from pursuit.core.criteria import Check, EventSeen, MetricThreshold, MetricTrend, ToolCallSucceeded, describe
from pursuit.core.log_metrics import NUMBER
from pursuit.core.mission import (
    AGENT,
    AGENT_TURN,
    FLEET,
    SPAWN,
    AgentProposer,
    AnyProposer,
    AskedProposer,
    BestOfProposer,
    Fleet,
    Mission,
    ModelProposer,
    RepeatProposer,
    ReplayProposer,
    ScriptProposer,
    ToolCall,
)
from pursuit.core.search import MAX_CHOICES, MAX_PARAMETERS, Parameter, SearchProposer, as_number, broken_range
from pursuit.core.series import holds
from pursuit.core.state import SCRIPT_SOURCE
from pursuit.core.tools import SPAWN_TOOL, TURN_TOOL, Tool
from pursuit.errors import ExtraMissing, Fault, ModelUnavailable, ValidationFailed
from pursuit.proposers.language import OWN_SETTINGS, Models
from pursuit.proposers.objective import aim_of
from pursuit.proposers.search import require_search
from pursuit.sandbox import missing_modules
from pursuit.upstream.pool import Pool

Schema = Mapping[str, Any]
AT = "proposer.parameters"
WIDE_RANGE = 1_000
"""From low to high by this factor, an even search spends a thousandth of its trials on the lowest decade."""
MOST_STEPS = 32
LARGEST_INT = 2**53 - 1
LARGEST = sys.float_info.max


def searched(search: SearchProposer, schema: Schema) -> tuple[dict[str, Parameter], list[Fault]]:
    """The searched arguments with their bounds, from the mission or the tool's JSON Schema, and the faults.

    Without any parameters these are all arguments that are not fixed and can be searched.
    """
    faults: list[Fault] = []
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    found: dict[str, Parameter] = {}
    for name in search.parameters or [name for name in properties if name not in search.args]:
        given = search.parameters.get(name)
        if given is not None and properties and name not in properties and schema.get("additionalProperties") is False:
            reason = f"the tool has no such argument{nearest(name, list(properties))}"
            faults.append(Fault(field=f"{AT}.{name}", reason=reason))
            continue
        declared = _resolved(properties.get(name), schema)
        if given is None and _numeric(declared) is None and _choices(declared) is None:
            continue  # neither named by the mission nor searchable
        whole = _completed(name, given or Parameter(), declared, faults)
        if whole is not None:
            found[name] = whole
    faults += _missing(search, schema, found, faults)
    if not found and not faults:
        faults.append(Fault(field=AT, reason="there is nothing to search: every argument of the tool is fixed"))
    if len(found) > MAX_PARAMETERS:
        faults.append(Fault(field=AT, reason=f"{len(found)} arguments are too many; name at most {MAX_PARAMETERS}"))
    return found, faults


def corners(found: Mapping[str, Parameter], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Two calls at the ends of every range, and one for each further choice."""
    low = {name: one.choices[0] if one.choices else _typed(one, one.low) for name, one in found.items()}
    high = {name: one.choices[-1] if one.choices else _typed(one, _highest(one)) for name, one in found.items()}
    others = [{**low, name: choice} for name, one in found.items() for choice in (one.choices or ())[1:-1]]
    return [{**fixed, **point} for point in (low, high, *others)]


def _highest(parameter: Parameter) -> float | None:
    """The last number of the range that lies on its grid."""
    low, high, step = parameter.low, parameter.high, parameter.step
    if low is None or high is None or step is None:
        return high
    if parameter.kind == "int":
        return int(low) + (int(high) - int(low)) // int(step) * int(step)
    return low + math.floor((high - low) / step + 1e-9) * step


def _typed(parameter: Parameter, bound: float | None) -> float | int | None:
    return int(bound) if parameter.kind == "int" and bound is not None else bound


def _missing(
    search: SearchProposer, schema: Schema, found: Mapping[str, Parameter], faults: Sequence[Fault]
) -> list[Fault]:
    """The required arguments that are neither fixed nor searched."""
    named = {fault.field.removeprefix(f"{AT}.").partition(".")[0] for fault in faults}
    return [
        Fault(
            field="proposer.args",
            reason=f"the tool needs {name!r}: fix it here, or search it: parameters.{name} = {{}}",
        )
        for name in cast("Sequence[str]", schema.get("required") or ())
        if name not in found and name not in search.args and name not in named
    ]


def _completed(name: str, given: Parameter, declared: Schema, faults: list[Fault]) -> Parameter | None:
    """The parameter with what the schema says where it is silent; None, and faults, if bounds are lacking."""
    bounded = given.low is not None or given.high is not None
    choices = given.choices if given.choices is not None or bounded else _choices(declared)
    if choices is not None:
        return given if given.choices is not None else Parameter(choices=list(choices))
    low, high = _bounds(declared)
    fields: dict[str, Any] = {
        "low": given.low if given.low is not None else low,
        "high": given.high if given.high is not None else high,
        "step": given.step if given.step is not None or given.log else _step(declared),
        "log": given.log,
        "kind": given.kind or _numeric(declared) or "float",
    }
    if fields["kind"] == "int":
        fields = _whole(fields)
    if given.step is None and fields["step"] is not None and fields["low"] is not None:
        fields["low"] = _multiple(fields["low"], fields["step"])
    lacking = [bound for bound in ("low", "high") if fields[bound] is None]
    if lacking:
        words = " and ".join(lacking)
        reason = f"needs {words}: the tool's schema has no such bound; give it here, or fix the argument in args"
        faults.append(Fault(field=f"{AT}.{name}", reason=reason))
        return None
    broken = [*broken_range(fields), *_too_large(fields)]
    faults.extend(Fault(field=f"{AT}.{name}.{one.field}", reason=one.reason) for one in broken)
    return None if broken else Parameter(**fields)


def _multiple(low: float, step: float) -> float:
    """The first multiple of the step from here on: multiples count from 0."""
    try:
        if low.is_integer() and step.is_integer():
            return float(-(-int(low) // int(step)) * int(step))
        return math.ceil(low / step - 1e-9) * step
    except OverflowError:
        return low  # such a step does not fit its range, which is said of the range


def _too_large(fields: Mapping[str, Any]) -> Iterator[Broken]:
    """Bounds are floating point numbers, which tell only ints up to here from their neighbours."""
    for name in ("low", "high"):
        if fields["kind"] == "int" and abs(fields[name]) > LARGEST_INT:
            yield Broken(f"must be within {LARGEST_INT} of 0 for an int; give a narrower range in parameters", name)


def _whole(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an int whose bounds in the schema were none: the range becomes the whole numbers within."""
    low, high = cast("float | None", fields["low"]), cast("float | None", fields["high"])
    return {
        **fields,
        "low": None if low is None else float(math.ceil(low)),
        "high": None if high is None else float(math.floor(high)),
    }


def _resolved(declared: object, schema: Schema) -> Schema:
    """The declaration behind local references and beside `null`."""
    for _ in range(MOST_STEPS):
        if not isinstance(declared, Mapping):
            return {}
        here = cast("Schema", declared)
        target = here.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            declared = _followed(schema, target[2:].split("/"))
            continue
        forms = [form for form in cast("Sequence[Any]", here.get("anyOf") or ()) if form != {"type": "null"}]
        if len(forms) == 1:
            declared = forms[0]
            continue
        return here
    return {}


def _followed(schema: Schema, path: Sequence[str]) -> object:
    found: Any = schema
    for word in path:
        found = cast("Schema", found).get(word) if isinstance(found, Mapping) else None
    return found


def _numeric(declared: Schema) -> Literal["int", "float"] | None:
    return "int" if declared.get("type") == "integer" else "float" if declared.get("type") == "number" else None


def _choices(declared: Schema) -> Sequence[Any] | None:
    """The listed values, each once; 1 and true are the same to a search."""
    listed = declared.get("enum")
    if isinstance(listed, list):
        values = [one for one in cast("list[Any]", listed) if one is None or isinstance(one, bool | int | float | str)]
        once = [one for place, one in enumerate(values) if one not in values[:place]]
        return once[:MAX_CHOICES] or None
    return [False, True] if declared.get("type") == "boolean" else None


def _bounds(declared: Schema) -> tuple[float | None, float | None]:
    """The least and the greatest number; an excluded bound is the next number inside."""
    whole = _numeric(declared) == "int"
    low, high = as_number(declared.get("minimum")), as_number(declared.get("maximum"))
    above, below = as_number(declared.get("exclusiveMinimum")), as_number(declared.get("exclusiveMaximum"))
    if above is not None:
        inside = math.floor(above) + 1.0 if whole else _inside(above, 1)
        low = inside if low is None else max(low, inside)
    if below is not None:
        inside = math.ceil(below) - 1.0 if whole else _inside(below, -1)
        high = inside if high is None else min(high, inside)
    return low, high


def _inside(bound: float, sign: int) -> float:
    """A number next to an excluded bound that twelve digits can tell from it."""
    return max(-LARGEST, min(LARGEST, bound + sign * (abs(bound) * 1e-9 or 1e-9)))


def _step(declared: Schema) -> float | None:
    step = as_number(declared.get("multipleOf"))
    return None if step is None or step <= 0 else step


async def model_faults(mission: Mission, models: Models, among: Collection[str] | None = None) -> list[Fault]:
    """Why a mission's model cannot be asked, before anything is spent.

    A mission that the operator did not write spends the operator's keys: its model must be `among` these.
    """
    if not isinstance(mission.proposer, ModelProposer):
        return []
    names = {"proposer.model": mission.proposer.model}
    names |= {f"proposer.fallback[{place}]": name for place, name in enumerate(mission.proposer.fallback)}
    faults = [
        Fault(
            field=f"proposer.settings.{key}",
            reason="settings must not change the model, the budget's caps or the request as a whole; remove it, and "
            "use the proposer's own keys model, max_tokens and temperature",
        )
        for key in OWN_SETTINGS
        if key in mission.proposer.settings
    ]
    for field, name in names.items():
        faults += await _one_model(mission, models, among, field, name)
    return faults


async def _one_model(
    mission: Mission, models: Models, among: Collection[str] | None, field: str, name: str
) -> list[Fault]:
    if among is not None and name not in among:
        return [Fault(field=field, reason=_not_yours(name, among))]
    try:
        await models.check(name)
    except (ExtraMissing, ModelUnavailable) as error:
        return [Fault(field=field, reason=error.message)]
    if mission.budget.max_cost_usd != -1 and not models.priced(name):
        reason = (
            f"the price of {name} is not known, so this cap cannot be kept; "
            f'give the price under [prices."{name}"] in pursuit.toml, or cap max_tokens instead'
        )
        return [Fault(field="budget.max_cost_usd", reason=reason)]
    return []


def criteria_faults(mission: Mission, tools: Iterable[str]) -> list[Fault]:
    """Why criteria can never be the end of a mission with these tools, or are its end at once."""
    required = [(place, one) for place, one in enumerate(mission.criteria) if one.required]
    if not required:
        reason = "none is required, so the mission would be completed at its first checkpoint; leave one required"
        return [Fault(field="criteria", reason=reason)]
    faults: list[Fault] = []
    reporting = {*tools, *(one.tool_name for one in mission.criteria if isinstance(one, Check) and one.tool_name)}
    if isinstance(mission.proposer, ScriptProposer):
        reporting.add(SCRIPT_SOURCE)
    thresholds = [(place, one) for place, one in required if isinstance(one, MetricThreshold)]
    # Two sources are the same one if the same tools count under both.
    sources = {one.source: frozenset(tool for tool in reporting if _counts(one.source, tool)) for _, one in thresholds}
    for count, (place, one) in enumerate(thresholds):
        for _, other in thresholds[:count]:
            same = one.metric == other.metric and sources[one.source] == sources[other.source]
            if same and _exclude(one, other):
                reason = f"{describe(one)} and {describe(other)} ({other.criterion_id!r}) can never both be met"
                faults.append(Fault(field=f"criteria[{place}]", reason=reason))
    return faults


def _exclude(one: MetricThreshold, other: MetricThreshold) -> bool:
    """Whether no number meets both thresholds: their targets, and numbers beside and between them, are all there is."""
    low, high = sorted((one.target, other.target))
    tried = (math.nextafter(low, -math.inf), low, (low + high) / 2, high, math.nextafter(high, math.inf))
    return not any(holds(one, value) and holds(other, value) for value in tried)


def _not_yours(name: str, among: Collection[str]) -> str:
    """Why a client may not choose this model, and what to do."""
    known = f"; it may be {', '.join(sorted(among))}" if among else ""
    return (
        f"{name} may not be chosen here, because it is paid with the operator's key{known}; the operator can add "
        f'client_models = ["{name}"] to pursuit.toml'
    )


_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A mission with its names made whole, and the tools that it may use."""

    mission: Mission
    tools: tuple[str, ...]
    denied: tuple[str, ...]
    """The tools that it names and its own policy denies."""
    parameters: dict[str, list[str]]
    warnings: tuple[str, ...]


async def admit(
    mission: Mission,
    pool: Pool,
    checks: Mapping[str, Mapping[str, Any]],
    models: Models | None = None,
    *,
    among: Collection[str] | None = None,
    agents: bool = True,
) -> Admitted:
    """Connects the servers that the mission needs and resolves every name in it; its language model is looked for.

    `among` are the models that it may have; None is any. `agents` is whether its proposer may be an agent.
    """
    if isinstance(mission.proposer, SearchProposer):
        require_search()
    best_of = isinstance(mission.proposer, BestOfProposer)
    if isinstance(mission.proposer, BestOfProposer) and mission.fleet is None:
        most = len(mission.proposer.agents)
        mission = mission.model_copy(update={"fleet": Fleet(max_children=most, at_once=most)})
    reading = isinstance(mission.proposer, AskedProposer)
    catalogue = await pool.catalogue(_servers(mission, pool), reading=reading)
    if mission.fleet is not None:
        catalogue = replace(catalogue, tools={**catalogue.tools, SPAWN: SPAWN_TOOL})
    agent = isinstance(mission.proposer, AgentProposer)
    if agent:
        catalogue = replace(catalogue, tools={**catalogue.tools, AGENT_TURN: TURN_TOOL})
    resolver = _MissionTools(catalogue, checks)
    named = resolver.allowlist(mission)
    if agent:
        named = list(dict.fromkeys([*named, AGENT_TURN]))
    if agent or best_of:
        resolver.agent(pool, allowed=agents)
    if mission.fleet is not None:
        named = list(dict.fromkeys([*named, SPAWN]))
        if FLEET in pool.names:
            resolver.fault("fleet", f"a server is called {FLEET!r}, as what starts children is; rename that server")
    tools = resolver.permitted(mission, named)
    whole = resolver.whole(mission, tools)
    resolver.faults += criteria_faults(mission, tools)
    resolver.faults += _metrics_without_source(mission, [catalogue.tools[name] for name in tools])
    if models is not None:
        resolver.faults += await model_faults(mission, models, among)
    if resolver.faults:
        raise ValidationFailed(resolver.faults)
    admitted = Mission(**whole)
    return Admitted(
        mission=admitted,
        tools=tuple(tools),
        denied=tuple(name for name in named if name not in tools),
        parameters={name: list(catalogue.tools[name].input_schema.get("properties") or ()) for name in tools},
        warnings=(*_warnings(mission, tools, catalogue), *_wide_ranges(mission.proposer, admitted.proposer)),
    )


def _metrics_without_source(mission: Mission, tools: Sequence[Tool]) -> list[Fault]:
    """The metrics of criteria that no tool can give; found only where it is known what each tool gives."""
    if isinstance(mission.proposer, ScriptProposer):
        return []
    faults: list[Fault] = []
    for place, criterion in enumerate(mission.criteria):
        if not isinstance(criterion, MetricThreshold | MetricTrend):
            continue
        counting = [tool for tool in tools if _counts(criterion.source, tool.qualified)]
        given = [name for tool in counting for name in tool.metrics or ()]
        given += [rule.metric for rule in mission.observe if any(_counts(rule.tool, one.qualified) for one in counting)]
        if not counting or any(tool.metrics is None for tool in counting):
            continue
        if not any(criterion.metric == name or criterion.metric.startswith(f"{name}.") for name in given):
            faults.append(Fault(field=f"criteria[{place}].metric", reason=_no_source(criterion.metric, given)))
    return faults


def _counts(source: str | None, tool: str) -> bool:
    """Whether a tool counts under a source as the user wrote it: a glob, or a name with or without its server."""
    return source is None or fnmatchcase(tool, source) or tool.partition(".")[2] == source


def _no_source(metric: str, given: Sequence[str]) -> str:
    known = f"; they give {', '.join(sorted(set(given)))}{nearest(metric, given)}" if given else ""
    return (
        f"no command of this mission gives {metric!r}{known}; add it to [commands.NAME.metrics] in pursuit.toml, as in "
        f"{metric} = '{metric}=({NUMBER})'"
    )


def _servers(mission: Mission, pool: Pool) -> list[str] | None:
    """The servers that the allowlist names; None (all) if a word of it may mean any, or names none."""
    if mission.tool_allowlist is None:
        return None if mission.allow_all_tools else []
    servers: list[str] = []
    for word in mission.tool_allowlist:
        server, dot, _ = word.partition(".")
        if not dot or _GLOB & set(server) or (server not in pool.names and server not in (FLEET, AGENT)):
            return None
        servers.append(server)
    return [server for server in dict.fromkeys(servers) if server in pool.names]


class _MissionTools:
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

    def agent(self, pool: Pool, *, allowed: bool) -> None:
        """An agent runs commands with the operator's rights, so only a mission that the operator wrote may name one."""
        if not allowed:
            self.fault("proposer.kind", "agent is for mission files of the operator alone; name another proposer")
        if AGENT in pool.names:
            self.fault("proposer.kind", f"a server is called {AGENT!r}, as the agent's own is; rename that server")

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
            case ScriptProposer(script=source):
                for one in missing_modules(source):
                    self.faults.append(
                        Fault(field="proposer.script", reason=str(one), line=one.line, column=one.column)
                    )
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
    tools = [name for name in tools if name != AGENT_TURN]  # a turn gives no metrics
    if len(tools) > 1:
        for criterion in mission.criteria:
            unsourced = isinstance(criterion, MetricThreshold | MetricTrend | EventSeen) and criterion.source is None
            if unsourced and criterion.required:
                warnings.append(
                    f"criterion {criterion.criterion_id!r} believes any of the {len(tools)} tools; "
                    "name the tool that counts with `source`"
                )
    return [*warnings, *_one_by_one(mission.proposer, tools, catalogue)]


def _wide_ranges(given: AnyProposer, admitted: AnyProposer) -> list[str]:
    """A warning for each range of several decades whose scale the mission does not say."""
    if not isinstance(given, SearchProposer) or not isinstance(admitted, SearchProposer):
        return []
    said = {name for name, one in given.parameters.items() if one.model_fields_set & {"log", "step"}}
    return [
        f"{name} is searched evenly from {one.low:g} to {one.high:g}, so small values are hardly tried; "
        f"[proposer.parameters] {name} = {{ log = true }} tries each magnitude as often (log = false keeps it)"
        for name, one in admitted.parameters.items()
        if name not in said and one.low is not None and one.high is not None
        if one.step is None and one.low > 0 and one.high / one.low >= WIDE_RANGE
    ]


def _one_by_one(proposer: AnyProposer, tools: Sequence[str], catalogue: Catalogue) -> list[str]:
    """A warning if the calls of a batch do not run side by side."""
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
