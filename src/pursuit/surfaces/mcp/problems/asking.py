"""What a problem's own server has, asked of it directly.

Owns: the questions behind an `Offer`, and the brief that agents read for certain. Does not know: clients or attempts.
Invariant: nothing is called; a server that is a problem itself speaks for itself.
"""

from __future__ import annotations

from typing import Any, cast

from mcp.shared.exceptions import MCPError

from pursuit.errors import UpstreamUnavailable
from pursuit.problems.brief import ADDRESS, more_limits
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.surfaces.mcp.gateway.eras import as_object
from pursuit.surfaces.mcp.problems.offer import Offer
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.pool import Pool

Besides = tuple[frozenset[str], frozenset[str]]


async def besides(upstream: McpUpstream) -> Besides:
    """The addresses of its resources, and the names of its prompts."""
    can = (await upstream.about()).capabilities
    resources = await upstream.entries("resources") if "resources" in can else []
    prompts = await upstream.entries("prompts") if "prompts" in can else []
    return (
        frozenset(str(as_object(one).get("uri")) for one in resources),
        frozenset(str(as_object(one).get("name")) for one in prompts),
    )


async def asked_brief(problem: Manifest, *, citations: bool = True) -> tuple[str, Offer]:
    """The brief as agents read it, and what it was made of. Raises `UpstreamUnavailable`."""
    if problem.server is None:
        offer = Offer(problem=problem)
        return offer.brief(citations=citations), offer
    async with Pool({UPSTREAM: problem.server}, {}) as pool:
        upstream = cast("McpUpstream", pool.upstream(UPSTREAM))  # what a `ServerConfig` becomes
        tools = await upstream.tools()
        resources, prompts = await besides(upstream)
        offer = Offer(
            problem=problem,
            tools=frozenset(tool.name for tool in tools),
            resources=resources,
            prompts=prompts,
            definitions=tuple(tool.definition for tool in tools),
        )
        if not offer.briefed:
            return offer.brief(citations=citations), offer
        return await _own_brief(upstream) + more_limits(problem), offer


async def _own_brief(upstream: McpUpstream) -> str:
    try:
        read: dict[str, Any] = await upstream.request("resources/read", {"uri": ADDRESS})
    except MCPError as error:
        raise UpstreamUnavailable(f"the server does not give its own brief: {error.message}") from None
    return "\n".join(str(as_object(one).get("text", "")) for one in read.get("contents", ()))
