"""The tools of one mission: a catalogue, a policy and a pool, as the engine wants to see them.

Owns: putting the three together. Knows no transport and no mission state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pursuit.errors import UpstreamUnavailable
from pursuit.tools.catalogue import Catalogue
from pursuit.tools.contract import CallFailed, ProgressFn, Tool, ToolResult
from pursuit.tools.functions import FunctionUpstream
from pursuit.tools.policy import AllowlistPolicy, Policy, Ruling
from pursuit.tools.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionTools:
    """What the engine's port `Tools` asks for."""

    pool: Pool
    catalogue: Catalogue
    policy: Policy

    def get(self, name: str) -> Tool | None:
        """The tool, or None if its server does not offer it now."""
        return self.catalogue.tools.get(name)

    def missing(self, name: str) -> str:
        """Why a tool is not there."""
        return f"server {name.partition('.')[0]!r} does not offer {name!r} now"

    def check(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """What is wrong with the arguments by the tool's JSON Schema."""
        return self.catalogue.check(name, arguments) if name in self.catalogue.tools else []

    def rule(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """What policy says."""
        return self.policy.decide(tool, arguments)

    def call(
        self, tool: Tool, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult | Awaitable[ToolResult]:
        """Sends it to its server; a plain function answers at once."""
        try:
            upstream = self.pool.upstream(tool.server)
        except UpstreamUnavailable as error:
            raise CallFailed(error.message) from None
        if isinstance(upstream, FunctionUpstream):
            return upstream.start(tool.name, arguments)
        return _sent(upstream.call(tool.name, arguments, call_id=call_id, on_progress=on_progress))


async def _sent(call: Awaitable[ToolResult]) -> ToolResult:
    """A server that cannot be reached is a call that failed."""
    try:
        return await call
    except UpstreamUnavailable as error:
        raise CallFailed(error.message) from None


@dataclass(frozen=True, slots=True)
class ToolHost:
    """Gives missions their tools, connecting only the servers that they name."""

    pool: Pool

    async def tools_for(self, names: Sequence[str]) -> MissionTools:
        """The tools by these names, under the one rule there is for now: what is on the list is allowed.

        Raises `UpstreamUnavailable` if one of their servers is not there: a mission without its tools would only
        spend its budget.
        """
        servers = sorted({name.partition(".")[0] for name in names})
        catalogue = await self.pool.catalogue(servers)
        if catalogue.failures:
            raise UpstreamUnavailable("; ".join(catalogue.failures.values()), servers=sorted(catalogue.failures))
        return MissionTools(
            pool=self.pool,
            catalogue=catalogue,
            policy=AllowlistPolicy(frozenset(names)),
        )
