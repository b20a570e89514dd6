"""The verbs about tools themselves: list them with what they may do, foresee a mission, call one.

Owns: the shapes that a listing has, and the order of a call by hand: schema, policy, a person, the effect. Knows no
surface. Invariant: what is called here is in the audit before it is sent, and policy holds as it does for missions.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from pursuit.core.base_model import nearest
from pursuit.core.budgets import learnt
from pursuit.core.catalogue import Catalogue
from pursuit.core.criteria import Check
from pursuit.core.events import AnyEvent, MissionCreated, ModelAnswer
from pursuit.core.fold import advance
from pursuit.core.mission import SPAWN, Mission, Proposal
from pursuit.core.pins import Changes
from pursuit.core.state import MissionState
from pursuit.core.tools import OWN_TOOLS, SPAWN_TOOL, CallFailed, Tool, ToolResult
from pursuit.engine.context import Deadline, Settings
from pursuit.engine.models import affordable, offered
from pursuit.engine.turn import REPAIRS, faults_in, qualified
from pursuit.errors import (
    ApprovalNeeded,
    Fault,
    InvalidArgument,
    PolicyDenied,
    PursuitError,
    UpstreamUnavailable,
    ValidationFailed,
)
from pursuit.policy.rules import Layers, conditional_rules, decide
from pursuit.policy.traits import effect, tool_approval_description
from pursuit.proposers.contract import (
    Blocked,
    Done,
    DrivingPlace,
    Failed,
    Proposer,
    ProposerContext,
    Turn,
    Waiting,
    kind_of,
)
from pursuit.proposers.language import ModelRequest, NoAnswer, WrappedModel
from pursuit.service.audit import OPERATOR, Audit, Caller
from pursuit.service.mission_admission import admit
from pursuit.upstream.host import ToolHost, UpstreamTools
from pursuit.upstream.resource_tools import is_resource_tool

MOST_FORESEEN = 200
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")
Approve = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of the configured servers; without an audit it only looks."""

    host: ToolHost
    audit: Audit | None = None
    caller: Caller = OPERATOR
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    settings: Settings = field(default_factory=Settings)
    disabled: Sequence[str] = ()

    async def listing(self, server: str | None = None) -> dict[str, Any]:
        """Every tool with what it may do and what policy says; a server that cannot be reached is in `failures`."""
        if server is not None:
            self._require(server)
        catalogue = await self.host.pool.catalogue(None if server is None else [server], strict=False)
        disabled = [name for name in self.disabled if server is None]
        return {**_listed(catalogue, self.host.layers(), catalogue), "disabled": disabled}

    async def overview(self) -> dict[str, Any]:
        """The listing, the servers with their health, and what they changed since their tools were accepted."""
        found, catalogue = await self._changes(None)
        failures = catalogue.failures
        servers = [
            {**row, **({"status": "failed", "error": failures[row["server"]]} if row["server"] in failures else {})}
            for row in self.host.pool.health()
        ]
        changed = [{**one.what, "difference": one.text} for one in found]
        return {**_listed(catalogue, self.host.layers(), catalogue), "servers": servers, "changed": changed}

    async def changed(self, server: str | None = None) -> dict[str, Any]:
        """What the servers changed since their tools were accepted, with the difference for a person."""
        found, catalogue = await self._changes(server)
        return {
            "changed": [{**one.what, "difference": one.text} for one in found],
            "failures": dict(catalogue.failures),
            "warnings": list(catalogue.warnings),
        }

    async def pin(self, server: str | None = None) -> dict[str, Any]:
        """Accepts what the servers changed; the audit says what. Returns it as `changed` does."""
        if self.audit is None or self.host.pool.pins is None:
            raise PursuitError("this toolbox has no ledger; it only looks")
        found, catalogue = await self._changes(server)
        for one in found:
            async with self.audit.control(self.caller, "tools pin", None, one.what):
                await self.host.pool.pins.accept(one, by=str(self.caller))
        rows = [{**one.what, "difference": one.text} for one in found]
        return {"accepted": rows, "failures": dict(catalogue.failures), "warnings": list(catalogue.warnings)}

    async def _changes(self, server: str | None) -> tuple[list[Changes], Catalogue]:
        if server is not None:
            self._require(server)
        catalogue = await self.host.pool.catalogue(None if server is None else [server], strict=False)
        found = {tool.changes.key: tool.changes for tool in catalogue if tool.changes is not None}
        return list(found.values()), catalogue

    async def foresee(self, mission: Mission) -> dict[str, Any]:
        """What policy would say to a mission: each tool that it names, and the calls that are known beforehand."""
        admitted = await admit(mission, self.host.pool, self.checks)
        named = (*admitted.tools, *admitted.denied)
        own = {SPAWN: SPAWN_TOOL} if mission.fleet is not None else {}
        own |= {tool.qualified: tool for tool in kind_of(mission.proposer).tools(mission.proposer)}
        servers = sorted({name.partition(".")[0] for name in named if name not in own})
        catalogue = await self.host.pool.catalogue(servers, reading=any(is_resource_tool(name) for name in named))
        catalogue = replace(catalogue, tools={**catalogue.tools, **own})
        layers = self.host.layers(named, mission.policy)
        chosen = {name: tool for name in named if (tool := catalogue.tools.get(name)) is not None}
        calls: list[dict[str, Any]] = []
        for name, args in _known_calls(admitted.mission, chosen):
            ruling = decide(layers, chosen[name], args)
            calls.append({"name": name, "args": dict(args), "decision": ruling.decision, "reason": ruling.reason})
        return {**_listed(catalogue, layers, chosen.values()), "calls": calls}

    async def call(self, name: str, arguments: Mapping[str, Any], *, approve: Approve | None = None) -> ToolResult:
        """Calls one tool by hand; `approve` puts the question to a person where policy wants one asked.

        Raises `ValidationFailed`, `PolicyDenied`, `ApprovalNeeded` or `UpstreamUnavailable`.
        """
        if self.audit is None:
            raise PursuitError("this toolbox has no audit; it only looks")
        async with self.audit.control(self.caller, "tools call", None, {"tool": name}):
            tool, catalogue = await self._find(name)
            faults = catalogue.check(tool.qualified, arguments)
            if faults:
                raise ValidationFailed(
                    [Fault(field=tool.qualified, reason=reason) for reason in faults],
                    "the arguments do not fit the tool's schema; nothing was called",
                )
            await self._permit(tool, arguments, approve)
            return await self._send(tool, arguments)

    async def _permit(self, tool: Tool, arguments: Mapping[str, Any], approve: Approve | None) -> None:
        ruling = decide(self.host.layers(), tool, arguments)
        if ruling.decision == "deny":
            raise PolicyDenied(f"{tool.qualified} is denied: {ruling.reason}", tool=tool.qualified)
        if ruling.decision == "allow":
            return
        if ruling.require > 1:
            raise PolicyDenied(
                f"{tool.qualified} needs the yes of {ruling.require} people ({ruling.reason}), and a call by hand has "
                "one; let a mission or a client of the gateway make it",
                tool=tool.qualified,
            )
        question = tool_approval_description(tool, arguments, ruling.reason)
        if approve is None:
            raise ApprovalNeeded(
                f"{tool.qualified} needs a yes: {ruling.reason}", tool=tool.qualified, question=question
            )
        if not await approve(question):
            raise PolicyDenied(f"{tool.qualified}: the answer was no", tool=tool.qualified)

    async def _send(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        timeout = tool.traits.timeout or self.settings.call_timeout
        result: ToolResult | None = None
        with Deadline(set(), timeout=timeout, ceiling=self.settings.call_ceiling, wall_clock_left=None) as limit:
            try:
                upstream = self.host.pool.upstream(tool.server)
                result = await upstream.call(
                    tool.name, arguments, call_id=f"hand-{secrets.token_hex(8)}", on_progress=limit.progressed
                )
            except CallFailed as error:
                raise UpstreamUnavailable(str(error), tool=tool.qualified) from None
        if result is None:
            raise UpstreamUnavailable(f"{tool.qualified}: {limit.why()}", tool=tool.qualified)
        return result

    async def _find(self, name: str) -> tuple[Tool, Catalogue]:
        """A tool by its qualified name, or by its bare one if only one server has it."""
        server = name.partition(".")[0]
        known = server in self.host.pool.names
        catalogue = await self.host.pool.catalogue([server] if known else None, strict=False)
        tool = catalogue.get(name)
        if tool is not None:
            return tool, catalogue
        if known and server in catalogue.failures:
            raise UpstreamUnavailable(catalogue.failures[server], server=server)
        _, faults = catalogue.resolve([name])
        reason = faults[0].reason if faults else f"no server offers a tool {name!r}"
        raise InvalidArgument(reason, tool=name)

    def _require(self, server: str) -> None:
        if server in self.disabled:
            raise InvalidArgument(f"server {server!r} is disabled in the configuration", server=server)
        known = self.host.pool.names
        if server not in known:
            advice = nearest(server, known) or f"; known: {', '.join(sorted(known)) or 'none'}"
            raise InvalidArgument(f"there is no server {server!r}{advice}", server=server)


def _listed(catalogue: Catalogue, layers: Layers, tools: Iterable[Tool]) -> dict[str, Any]:
    return {
        "mode": layers.mode,
        "tools": [tool_row(layers, tool) for tool in tools],
        "failures": dict(catalogue.failures),
        "warnings": list(catalogue.warnings),
    }


def tool_row(layers: Layers, tool: Tool) -> dict[str, Any]:
    """One tool: what it may do, why we think so, and what policy says of it without looking at arguments."""
    ruling = decide(layers, tool, {})
    return {
        "name": tool.qualified,
        "server": tool.server,
        "tool": tool.name,
        "description": tool.description,
        "is_mcp_tool": not tool.local,
        "effect": effect(tool),
        **{trait: getattr(tool.traits, trait) for trait in TRAITS},
        "why": dict(tool.traits.why),
        "decision": ruling.decision,
        "reason": ruling.reason,
        "when": [
            {
                "decision": rule.decision,
                "arguments": {path: str(one) for path, one in rule.arguments.items()},
                "reason": rule.reason,
            }
            for rule in conditional_rules(layers, tool)
        ],
    }


def _known_calls(mission: Mission, tools: Mapping[str, Tool]) -> list[tuple[str, Mapping[str, Any]]]:
    """The calls that stand in the mission itself, each once: of its proposer and of its checks."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, args in _written(mission):
        whole = name if name in tools else next((one for one in tools if one.partition(".")[2] == name), None)
        if whole is not None and (whole, args) not in found:
            found.append((whole, args))
        if len(found) == MOST_FORESEEN:
            break
    return found


def _written(mission: Mission) -> Iterable[tuple[str, Mapping[str, Any]]]:
    yield from mission.proposer.calls()
    for criterion in mission.criteria:
        if isinstance(criterion, Check) and criterion.tool_name is not None:
            yield criterion.tool_name, criterion.args


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Shows what a mission would do first: asks its proposer, calls no tool and stores nothing.

    A language model is really asked, for as long as a mission would; the plan says what that used.
    """

    host: ToolHost
    checks: Mapping[str, Mapping[str, Any]]
    place: DrivingPlace
    model_timeout: float = 600.0

    async def plan(self, mission: Mission) -> dict[str, Any]:
        """The first proposal of a mission, each of its calls with policy's word, and what asking for it used up."""
        admitted = await admit(mission, self.host.pool, self.checks, self.place.access.models)
        created = MissionCreated(
            mission=admitted.mission.model_dump(mode="json"),
            tools=list(admitted.tools),
            parameters=admitted.parameters,
            facts=admitted.mission.proposer.facts(),
        )
        state = advance(None, created)
        kind, settings = kind_of(admitted.mission.proposer), admitted.mission.proposer
        tools = await self.host.tools_for(admitted.tools, mission.policy, own=kind.tools(settings))
        spent = _Spent(state, self.model_timeout)

        async def past(after: int) -> list[tuple[int, AnyEvent]]:
            return [(1, created)] if after < 1 else []

        context = ProposerContext(
            mission=admitted.mission,
            tools=lambda: offered(state, tools),
            record=lambda model: _Counted(model, spent),
            past=past,
            place=self.place,
        )
        async with kind.open(settings, context) as proposer:
            shown = await _first(proposer, state, tools)
        frame: dict[str, Any] = {"proposer": mission.proposer.kind, "calls": []}
        return {**frame, **shown, "used": spent.as_json(), "warnings": list(admitted.warnings)}


async def _first(proposer: Proposer, state: MissionState, tools: UpstreamTools) -> dict[str, Any]:
    """What is proposed, mended as often as it would be in a mission."""
    reasons: Sequence[str] = ()
    for _ in range(1 + REPAIRS):
        answer = await proposer.propose(state, reasons)
        match answer:
            case Waiting(waiting_for="model"):
                return {"failed": [answer.detail]}
            case Waiting():
                return {"waiting_for": answer.waiting_for}
            case Failed() | Blocked():
                reasons = [answer.reason]
                if isinstance(answer, Blocked) or answer.final:
                    break
            case Done():
                return {"failed": [answer.reason]}
            case Turn():
                return {"failed": list(answer.failed)} if answer.failed else _turn(tools, answer)
            case Proposal():
                reasons = [str(fault) for fault in faults_in(state, tools, answer)]
                if not reasons:
                    return _shown(state, tools, answer)
    return {"failed": list(reasons)}


def _turn(tools: UpstreamTools, answer: Turn) -> dict[str, Any]:
    """The calls of a model's first answer; what is wrong with one of them is the reason why it would be refused."""
    calls: list[dict[str, Any]] = []
    for call in answer.calls:
        fault = call.fault or "; ".join(tools.check(call.tool, call.args) if tools.get(call.tool) is not None else ())
        decision, reason = ("deny", fault) if fault else _decision(tools, call.tool, call.args)
        calls.append({"name": call.tool, "args": call.args, "decision": decision, "reason": reason})
    return {"calls": calls, "script": answer.script, "rationale": answer.rationale}


def _decision(tools: UpstreamTools, name: str, args: Mapping[str, Any]) -> tuple[str, str]:
    """What policy says of a call."""
    tool = tools.get(name)
    if tool is None:
        return ("allow", "it is Pursuit's own") if name in OWN_TOOLS else ("deny", tools.missing(name))
    ruling = tools.rule(tool, args)
    return ruling.decision, ruling.reason


def _shown(state: MissionState, tools: UpstreamTools, proposal: Proposal) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for call in proposal.tool_calls or ():
        name = qualified(state, call.tool_name) or call.tool_name
        decision, reason = _decision(tools, name, call.args)
        calls.append({"name": name, "args": dict(call.args), "decision": decision, "reason": reason})
    return {"calls": calls, "script": proposal.script, "rationale": proposal.rationale}


@dataclass(slots=True)
class _Spent:
    """Counts what models used up, against the budget and the time that the mission would have."""

    state: MissionState
    timeout: float
    began: float = field(default_factory=anyio.current_time)
    unpriced: bool = False

    def as_json(self) -> dict[str, Any]:
        """The tokens and the cost; an unknown cost is None here, and nothing in the budget."""
        return {"tokens": self.state.tokens, "cost_usd": None if self.unpriced else self.state.cost_usd}

    def deadline(self) -> Deadline:
        """Until when the next question may take."""
        cap = self.state.budget["max_wall_clock_seconds"]
        left = None if cap == -1 else cap - (anyio.current_time() - self.began)
        return Deadline(set(), timeout=self.timeout, ceiling=self.timeout, wall_clock_left=left)


@dataclass(frozen=True, slots=True)
class _Counted(WrappedModel):
    """The same model; its answers are counted and not stored."""

    spent: _Spent

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Asks within the time that the mission would have."""
        state = self.spent.state
        request = affordable(state, request, self.terms)
        limit = self.spent.deadline()
        answer = await limit.bound(self.model.answer(request))
        if answer is None:
            raise NoAnswer(f"{self.name}: {limit.why()}")
        state.conversation.densest = learnt(state.conversation.densest, size=request.size, tokens=answer.input_tokens)
        state.tokens += answer.input_tokens + answer.output_tokens
        state.cost_usd = round(state.cost_usd + (answer.cost_usd or 0.0), 9)
        self.spent.unpriced = self.spent.unpriced or answer.cost_usd is None
        return answer
