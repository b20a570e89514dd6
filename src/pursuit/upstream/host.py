"""The tools of one mission: a catalogue, the policy and the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pursuit.core.catalogue import Catalogue
from pursuit.core.mission import MissionPolicy
from pursuit.core.tools import SPAWN_TOOL, CallFailed, ProgressFn, TaskCalls, Tool, ToolResult
from pursuit.errors import UpstreamUnavailable
from pursuit.policy.rules import (
    Layers,
    OperatorPolicy,
    Ruling,
    Tightening,
    conditional_rules,
    decide,
    decide_own,
    may_ask,
    without_lists,
)
from pursuit.upstream.functions import FunctionUpstream
from pursuit.upstream.pool import Pool, reads
from pursuit.upstream.resource_tools import read

_NO_POLICY = MissionPolicy()
LISTINGS = "listings"
"""The attribute of an upstream that counts its lists, where they may change."""


@dataclass(slots=True, kw_only=True)
class UpstreamTools:
    """The tools that the engine calls; `asking` is True if policy may ask a person.

    The catalogue follows the lists of the servers; `names` are the tools of the mission.
    """

    pool: Pool
    catalogue: Catalogue
    layers: Layers
    asking: bool
    names: Sequence[str] = ()
    task_calls: TaskCalls | None = None
    listings: dict[str, int] = field(default_factory=dict[str, int], repr=False)
    _rulings: dict[str, tuple[Tool, Ruling]] = field(default_factory=dict[str, tuple[Tool, Ruling]], repr=False)
    """Cached rulings for tools that no rule judges by arguments; the layers do not change."""

    async def refresh(self, names: Iterable[str]) -> None:
        """Updates the catalogue from newer lists of these tools' servers.

        A tool with an unchanged definition keeps its compiled schema. An unreachable server keeps its tools; calls may
        fail.
        """
        for server in {name.partition(".")[0] for name in names}:
            if server not in self.listings:
                continue
            upstream = self.pool.upstream(server)
            with suppress(UpstreamUnavailable):
                listed = await upstream.tools()
                number: int = getattr(upstream, LISTINGS)
                # Checks a changed tool again: the operator may have accepted it.
                if number != self.listings[server] or any(tool.changes is not None for tool in listed):
                    self.listings[server] = number
                    await self._take_over(server, listed)

    async def _take_over(self, server: str, listed: Sequence[Tool]) -> None:
        before = {tool.name: tool for tool in self.catalogue if tool.server == server}
        own = {name: tool for name, tool in before.items() if tool.method != "tools/call"}
        for tool in listed:
            fresh = tool if self.pool.pins is None else await self.pool.pins.look_again(tool)
            known = before.get(tool.name)
            same = known is not None and (known.digest, known.changes) == (fresh.digest, fresh.changes)
            own[tool.name] = known if known is not None and same else fresh
        if own != before:
            others = {name: tool for name, tool in self.catalogue.tools.items() if tool.server != server}
            tools = {**others, **{tool.qualified: tool for tool in own.values()}}
            self.catalogue = Catalogue(tools=tools, failures=self.catalogue.failures, warnings=self.catalogue.warnings)
            self.asking = may_ask(self.layers, [tools[name] for name in self.names if name in tools])

    def get(self, name: str) -> Tool | None:
        return self.catalogue.tools.get(name)

    def missing(self, name: str) -> str:
        return f"server {name.partition('.')[0]!r} does not offer {name!r} now"

    def check(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        return self.catalogue.check(name, arguments) if name in self.catalogue.tools else []

    def rule(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        known = self._rulings.get(tool.qualified)
        if known is not None and known[0] is tool:
            return known[1]
        ruling = decide(self.layers, tool, arguments)
        if not conditional_rules(self.layers, tool):
            self._rulings[tool.qualified] = (tool, ruling)
        return ruling

    def rule_step(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The ruling on an agent's step; the mission's list of tools does not apply to it."""
        return decide(without_lists(self.layers), tool, arguments)

    def rule_own(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The ruling on a check by command, which the operator wrote or trusted."""
        return decide_own(self.layers, tool, arguments)

    def call(
        self, tool: Tool, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult | Awaitable[ToolResult]:
        """Sends the call to its server; a plain function returns its result immediately."""
        try:
            upstream = self.pool.upstream(tool.server)
        except UpstreamUnavailable as error:
            raise CallFailed(error.message, sent=False) from None
        if tool.method != "tools/call":
            return _sent(read(upstream, tool, arguments))
        if isinstance(upstream, FunctionUpstream):
            return upstream.start(tool.name, arguments)
        return _sent(upstream.call(tool.name, arguments, call_id=call_id, on_progress=on_progress))

    @property
    def later(self) -> TaskCalls:
        if self.task_calls is None:
            raise CallFailed("the tool's calls are tasks, which this process does not run", sent=False)
        return self.task_calls


async def _sent(call: Awaitable[ToolResult]) -> ToolResult:
    try:
        return await call
    except UpstreamUnavailable as error:
        raise CallFailed(error.message, sent=False) from None


@dataclass(frozen=True, slots=True)
class ToolHost:
    """Provides missions with tools under the operator's policy, connecting only the servers that they name."""

    pool: Pool
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    later: TaskCalls | None = None

    def layers(
        self, names: Sequence[str] | None = None, mission: MissionPolicy | None = None, *more: Tightening
    ) -> Layers:
        """The operator's policy, tightened by a mission's list of tools, its policy, and `more`.

        The operator's rules include those of the network, about the current servers.
        """
        asked = self.pool.asked_first() if self.pool.network.ask else ()
        operator = replace(self.policy, rules=(*self.policy.rules, *asked)) if asked else self.policy
        if names is None:
            return Layers(operator=operator, tighter=more)
        own = mission or _NO_POLICY
        layer = Tightening(
            who="the mission",
            allowed=frozenset(names),
            deny=tuple(own.deny),
            ask=tuple(own.ask),
            mode=own.mode or "auto",
        )
        return Layers(operator=operator, tighter=(layer, *more))

    def caller_layers(self, *credentials: str | None) -> tuple[Tightening, ...]:
        return tuple(layer for name in credentials if name and (layer := self.policy.callers.get(name)))

    async def tools_for(
        self,
        names: Sequence[str],
        policy: MissionPolicy | None = None,
        callers: Sequence[str] = (),
        own: Sequence[Tool] = (),
    ) -> UpstreamTools:
        """The tools with these names, under the policies of the operator, the mission and each caller.

        `own` are the tools that the proposer performs itself. Raises `UpstreamUnavailable` if a server is missing: a
        mission without its tools would only waste its budget.
        """
        internal = {
            tool.qualified: tool
            for tool in (SPAWN_TOOL, *own)
            if tool.qualified in names and tool.server not in self.pool.names
        }
        servers = sorted({name.partition(".")[0] for name in names if name not in internal})
        catalogue = await self.pool.catalogue(servers, reading=reads(names)) if servers else Catalogue()
        if internal:
            catalogue = replace(catalogue, tools={**catalogue.tools, **internal})
        if catalogue.failures:
            raise UpstreamUnavailable("; ".join(catalogue.failures.values()), servers=sorted(catalogue.failures))
        layers = self.layers(names, policy, *self.caller_layers(*callers))
        offered = [tool for name in names if (tool := catalogue.tools.get(name)) is not None]
        return UpstreamTools(
            pool=self.pool,
            catalogue=catalogue,
            layers=layers,
            asking=may_ask(layers, offered),
            names=names,
            task_calls=self.later,
            listings={
                name: number
                for name in servers
                if (number := getattr(self.pool.upstream(name), LISTINGS, None)) is not None
            },
        )
