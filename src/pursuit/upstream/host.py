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
from pursuit.upstream.pool import Pool
from pursuit.upstream.resource_tools import is_resource_tool, read

LISTINGS = "listings"
"""The attribute of an upstream that counts its lists, where they may change."""


@dataclass(slots=True, kw_only=True)
class UpstreamTools:
    """What the engine calls; `asking` says whether policy may ask a person at all.

    The catalogue follows the lists of the servers; `names` are the tools of the mission.
    """

    pool: Pool
    catalogue: Catalogue
    layers: Layers
    asking: bool
    names: Sequence[str] = ()
    task_calls: TaskCalls | None = None
    listings: dict[str, int] = field(default_factory=dict[str, int], repr=False)
    """Which list of each server the catalogue has; servers whose tools never change are not in it."""
    _rulings: dict[str, tuple[Tool, Ruling]] = field(default_factory=dict[str, tuple[Tool, Ruling]], repr=False)
    """The ruling about each tool that no rule judges by its arguments: the layers do not change."""

    async def refresh(self, names: Iterable[str]) -> None:
        """Takes over the lists of the servers of these tools that are newer than the catalogue.

        A tool whose definition is the same stays, with its compiled schema. A server that cannot be asked now keeps
        its tools: the call fails, or does not.
        """
        for server in {name.partition(".")[0] for name in names}:
            if server not in self.listings:
                continue
            upstream = self.pool.upstream(server)
            with suppress(UpstreamUnavailable):
                listed = await upstream.tools()
                number: int = getattr(upstream, LISTINGS)
                # A changed tool is looked at again: the operator may have accepted it.
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
        """The tool, or None if its server does not offer it now."""
        return self.catalogue.tools.get(name)

    def missing(self, name: str) -> str:
        """Why a tool is not there."""
        return f"server {name.partition('.')[0]!r} does not offer {name!r} now"

    def check(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """The faults of the arguments by the tool's JSON Schema."""
        return self.catalogue.check(name, arguments) if name in self.catalogue.tools else []

    def rule(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The ruling of the policy about this call."""
        known = self._rulings.get(tool.qualified)
        if known is not None and known[0] is tool:
            return known[1]
        ruling = decide(self.layers, tool, arguments)
        if not conditional_rules(self.layers, tool):
            self._rulings[tool.qualified] = (tool, ruling)
        return ruling

    def rule_step(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The ruling about a step that an agent asks about; the mission's list of tools is not about it."""
        return decide(without_lists(self.layers), tool, arguments)

    def rule_own(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The ruling about a check by command, which the operator wrote or trusted."""
        return decide_own(self.layers, tool, arguments)

    def call(
        self, tool: Tool, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult | Awaitable[ToolResult]:
        """Sends the call to its server; a plain function answers at once."""
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
        """The calls whose answers come later, as tasks."""
        if self.task_calls is None:
            raise CallFailed("this process runs no tasks, and the tool's calls are tasks", sent=False)
        return self.task_calls


async def _sent(call: Awaitable[ToolResult]) -> ToolResult:
    """A server that cannot be reached is a call that failed."""
    try:
        return await call
    except UpstreamUnavailable as error:
        raise CallFailed(error.message, sent=False) from None


@dataclass(frozen=True, slots=True)
class ToolHost:
    """Gives missions their tools, connecting only the servers that they name, under the operator's policy."""

    pool: Pool
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    later: TaskCalls | None = None

    def layers(
        self, names: Sequence[str] | None = None, mission: MissionPolicy | None = None, *more: Tightening
    ) -> Layers:
        """The operator's policy, tightened by a mission's list of tools, by its own policy, and by `more`.

        The operator's rules include those of the network, about the current servers.
        """
        asked = self.pool.asked_first()
        operator = replace(self.policy, rules=(*self.policy.rules, *asked)) if asked else self.policy
        if names is None:
            return Layers(operator=operator, tighter=more)
        own = mission or MissionPolicy()
        layer = Tightening(
            who="the mission",
            allowed=frozenset(names),
            deny=tuple(own.deny),
            ask=tuple(own.ask),
            mode=own.mode or "auto",
        )
        return Layers(operator=operator, tighter=(layer, *more))

    def caller_layers(self, *credentials: str | None) -> tuple[Tightening, ...]:
        """The layers that the operator's policy adds for the callers with the tokens of these names."""
        return tuple(layer for name in credentials if name and (layer := self.policy.callers.get(name)))

    async def tools_for(
        self,
        names: Sequence[str],
        policy: MissionPolicy | None = None,
        callers: Sequence[str] = (),
        own: Sequence[Tool] = (),
    ) -> UpstreamTools:
        """The tools by these names, under the operator's policy, the mission's own and that for each caller.

        `own` are those that the proposer performs itself. Raises `UpstreamUnavailable` if a server is not there: a
        mission without its tools would only spend its budget.
        """
        internal = {
            tool.qualified: tool
            for tool in (SPAWN_TOOL, *own)
            if tool.qualified in names and tool.server not in self.pool.names
        }
        servers = sorted({name.partition(".")[0] for name in names if name not in internal})
        catalogue = await self.pool.catalogue(servers, reading=any(is_resource_tool(name) for name in names))
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
