"""The operations on tools: list them with their traits, preview a mission, call a tool.

A manual call goes through schema, policy and approval, and then has its effect. Invariant: each call is in the audit
before it is sent, and policy applies as it does to missions.
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
from pursuit.core.tools import OWN_TOOLS, SPAWN_TOOL, CallFailed, Tool, ToolResult, Traits
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
from pursuit.upstream.pool import reads

MAX_FORESEEN = 200
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")
Approve = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of the configured servers; without an audit it is read-only."""

    host: ToolHost
    audit: Audit | None = None
    caller: Caller = OPERATOR
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    settings: Settings = field(default_factory=Settings)
    disabled: Sequence[str] = ()

    async def is_mcp_tool(self, name: str) -> bool:
        """True if an MCP server offers the tool; a function of this process is not an MCP tool."""
        tool = await self._offered(name)
        return tool is not None and not tool.local

    async def is_read_only(self, name: str) -> bool:
        """True if the tool only reads; false if it is unknown."""
        return (await self._traits(name)).read_only

    async def is_idempotent(self, name: str) -> bool:
        """True if a repeated call has no further effect; false if the tool is unknown."""
        return (await self._traits(name)).idempotent

    async def is_parallel_safe(self, name: str) -> bool:
        """True if calls of the tool may run concurrently; false if it is unknown."""
        return (await self._traits(name)).parallel_safe

    async def is_destructive(self, name: str) -> bool:
        """True if the tool may destroy data, or is unknown."""
        return (await self._traits(name)).destructive

    async def approval_description(self, name: str, arguments: Mapping[str, Any] | None = None) -> str | None:
        """The question to a person about a call that policy does not allow by itself; None if it does.

        It names tool, server, arguments (secrets are redacted) and the reason. An unknown tool needs approval.
        """
        tool, given = await self._offered(name), arguments or {}
        if tool is None:
            server, _, bare = name.rpartition(".")
            unknown = Tool(server=server or "?", name=bare, input_schema={}, definition={})
            return tool_approval_description(unknown, given, "the tool is unknown")
        ruling = decide(self.host.layers(), tool, given)
        return None if ruling.decision == "allow" else tool_approval_description(tool, given, ruling.reason)

    async def _traits(self, name: str) -> Traits:
        tool = await self._offered(name)
        return Traits() if tool is None else tool.traits

    async def _offered(self, name: str) -> Tool | None:
        server = name.partition(".")[0]
        if server not in self.host.pool.names:
            return None
        return (await self.host.pool.catalogue([server], reading=reads([name]), strict=False)).tools.get(name)

    async def listing(self, server: str | None = None) -> dict[str, Any]:
        catalogue = await self._catalogue(server)
        disabled = [name for name in self.disabled if server is None]
        return {**_listed(catalogue, self.host.layers(), catalogue), "disabled": disabled}

    async def _catalogue(self, server: str | None) -> Catalogue:
        if server is not None:
            self._require(server)
        return await self.host.pool.catalogue(None if server is None else [server], strict=False)

    async def overview(self) -> dict[str, Any]:
        found, catalogue = await self._changes(None)
        failures = catalogue.failures
        servers = [
            {**row, **({"status": "failed", "error": failures[row["server"]]} if row["server"] in failures else {})}
            for row in self.host.pool.health()
        ]
        return {**_listed(catalogue, self.host.layers(), catalogue), "servers": servers, "changed": _differences(found)}

    async def changed(self, server: str | None = None) -> dict[str, Any]:
        found, catalogue = await self._changes(server)
        return {"changed": _differences(found), **_troubles(catalogue)}

    async def pin(self, server: str | None = None) -> dict[str, Any]:
        if self.audit is None or self.host.pool.pins is None:
            raise PursuitError("this toolbox is read-only: it was made without a ledger")
        found, catalogue = await self._changes(server)
        for one in found:
            async with self.audit.control(self.caller, "tools pin", None, one.what):
                await self.host.pool.pins.accept(one, by=str(self.caller))
        return {"accepted": _differences(found), **_troubles(catalogue)}

    async def _changes(self, server: str | None) -> tuple[list[Changes], Catalogue]:
        catalogue = await self._catalogue(server)
        found = {tool.changes.key: tool.changes for tool in catalogue if tool.changes is not None}
        return list(found.values()), catalogue

    async def foresee(self, mission: Mission) -> dict[str, Any]:
        """The policy decisions for a mission: for each tool that it names, and for calls known beforehand."""
        admitted = await admit(mission, self.host.pool, self.checks)
        named = (*admitted.tools, *admitted.denied)
        own = {SPAWN: SPAWN_TOOL} if mission.fleet is not None else {}
        own |= {tool.qualified: tool for tool in kind_of(mission.proposer.kind).tools(mission.proposer)}
        servers = sorted({name.partition(".")[0] for name in named if name not in own})
        catalogue = await self.host.pool.catalogue(servers, reading=reads(named))
        catalogue = replace(catalogue, tools={**catalogue.tools, **own})
        layers = self.host.layers(named, mission.policy)
        chosen = {name: tool for name in named if (tool := catalogue.tools.get(name)) is not None}
        calls: list[dict[str, Any]] = []
        for name, args in _known_calls(admitted.mission, chosen):
            ruling = decide(layers, chosen[name], args)
            calls.append({"name": name, "args": dict(args), "decision": ruling.decision, "reason": ruling.reason})
        return {**_listed(catalogue, layers, chosen.values()), "calls": calls}

    async def plan(self, mission: Mission, place: DrivingPlace) -> dict[str, Any]:
        """The first proposal of a mission: runs its proposer without calling a tool or storing anything.

        A language model gets real requests, as many as in a mission; the plan includes their use.
        """
        admitted = await admit(mission, self.host.pool, self.checks, place.access.models)
        created = MissionCreated(
            mission=admitted.mission.model_dump(mode="json"),
            tools=list(admitted.tools),
            parameters=admitted.parameters,
            facts=admitted.mission.proposer.facts(),
        )
        state = advance(None, created)
        kind, settings = kind_of(admitted.mission.proposer.kind), admitted.mission.proposer
        tools = await self.host.tools_for(admitted.tools, mission.policy, own=kind.tools(settings))
        spent = _Spent(state, self.settings.model_timeout)

        async def past(after: int) -> list[tuple[int, AnyEvent]]:
            return [(1, created)] if after < 1 else []

        context = ProposerContext(
            mission=admitted.mission,
            tools=lambda: offered(state, tools),
            record=lambda model: _Counted(model, spent),
            past=past,
            place=place,
        )
        async with kind.open(settings, context) as proposer:
            shown = await _first(proposer, state, tools)
        frame: dict[str, Any] = {"proposer": mission.proposer.kind, "calls": []}
        return {**frame, **shown, "used": spent.as_json(), "warnings": list(admitted.warnings)}

    async def call(self, name: str, arguments: Mapping[str, Any], *, approve: Approve | None = None) -> ToolResult:
        """Calls one tool manually; `approve` asks a person where policy requires approval.

        Raises `ValidationFailed`, `PolicyDenied`, `ApprovalNeeded` or `UpstreamUnavailable`.
        """
        if self.audit is None:
            raise PursuitError("this toolbox is read-only: it was made without an audit")
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
                f"{tool.qualified} needs approval by {ruling.require} people ({ruling.reason}), but a manual call can "
                "get only one; call it from a mission or through the gateway",
                tool=tool.qualified,
            )
        question = tool_approval_description(tool, arguments, ruling.reason)
        if approve is None:
            raise ApprovalNeeded(
                f"{tool.qualified} needs approval: {ruling.reason}", tool=tool.qualified, question=question
            )
        if not await approve(question):
            raise PolicyDenied(f"{tool.qualified} was denied by the user", tool=tool.qualified)

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
            raise InvalidArgument(f"server {server!r} is not configured{advice}", server=server)


def _listed(catalogue: Catalogue, layers: Layers, tools: Iterable[Tool]) -> dict[str, Any]:
    return {
        "mode": layers.mode,
        "tools": [tool_row(layers, tool) for tool in tools],
        **_troubles(catalogue),
    }


def _troubles(catalogue: Catalogue) -> dict[str, Any]:
    return {"failures": dict(catalogue.failures), "warnings": list(catalogue.warnings)}


def _differences(found: Sequence[Changes]) -> list[dict[str, Any]]:
    return [{**one.what, "difference": one.text} for one in found]


def tool_row(layers: Layers, tool: Tool) -> dict[str, Any]:
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
    """The calls that the mission itself names, without repetitions: of its proposer and of its checks."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, args in _written(mission):
        whole = name if name in tools else next((one for one in tools if one.partition(".")[2] == name), None)
        if whole is not None and (whole, args) not in found:
            found.append((whole, args))
        if len(found) == MAX_FORESEEN:
            break
    return found


def _written(mission: Mission) -> Iterable[tuple[str, Mapping[str, Any]]]:
    yield from mission.proposer.calls()
    for criterion in mission.criteria:
        if isinstance(criterion, Check) and criterion.tool_name is not None:
            yield criterion.tool_name, criterion.args


async def _first(proposer: Proposer, state: MissionState, tools: UpstreamTools) -> dict[str, Any]:
    """The first proposal, corrected as often as in a mission."""
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
            case Turn(failed=failed) if failed:
                return {"failed": list(failed)}
            case Turn():
                faults = (call.fault or "; ".join(tools.check(call.tool, call.args)) for call in answer.calls)
                calls = [
                    _foreseen(tools, one.tool, one.args, why) for one, why in zip(answer.calls, faults, strict=True)
                ]
                return {"calls": calls, "script": answer.script, "rationale": answer.rationale}
            case Proposal():
                reasons = [str(fault) for fault in faults_in(state, tools, answer)]
                if not reasons:
                    named = ((qualified(state, one.tool_name) or one.tool_name, one) for one in answer.tool_calls or ())
                    calls = [_foreseen(tools, name, one.args) for name, one in named]
                    return {"calls": calls, "script": answer.script, "rationale": answer.rationale}
    return {"failed": list(reasons)}


def _foreseen(tools: UpstreamTools, name: str, args: Mapping[str, Any], fault: str = "") -> dict[str, Any]:
    """A call with the decision of policy; a faulty call is denied."""
    if fault:
        decision, reason = "deny", fault
    elif (tool := tools.get(name)) is not None:
        ruling = tools.rule(tool, args)
        decision, reason = ruling.decision, ruling.reason
    elif name in OWN_TOOLS:
        decision, reason = "allow", "it is Pursuit's own"
    else:
        decision, reason = "deny", tools.missing(name)
    return {"name": name, "args": dict(args), "decision": decision, "reason": reason}


@dataclass(slots=True)
class _Spent:
    """Counts the use of models against the budget and the time that the mission would have."""

    state: MissionState
    timeout: float
    began: float = field(default_factory=anyio.current_time)
    unpriced: bool = False

    def as_json(self) -> dict[str, Any]:
        """The tokens and the cost; an unknown cost is None here and counts as 0 in the budget."""
        return {"tokens": self.state.tokens, "cost_usd": None if self.unpriced else self.state.cost_usd}

    def deadline(self) -> Deadline:
        cap = self.state.budget["max_wall_clock_seconds"]
        left = None if cap == -1 else cap - (anyio.current_time() - self.began)
        return Deadline(set(), timeout=self.timeout, ceiling=self.timeout, wall_clock_left=left)


@dataclass(frozen=True, slots=True)
class _Counted(WrappedModel):
    """A model whose answers are counted and not stored."""

    spent: _Spent

    async def answer(self, request: ModelRequest) -> ModelAnswer:
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
