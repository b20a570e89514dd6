"""What a problem's server offers besides the tools of its own upstream.

Owns: the definitions of the brief (resource, prompt, tool) and of `submit_final`, and which of them the upstream has
already. Does not know: requests. Invariant: what the upstream has is its own; of ours nothing is added beside it, so
that a problem that was exported and taken in again is exported as it was. Which `submit_final` an attempt has is
decided once; of an upstream that nobody has seen yet it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from mcp.shared.exceptions import MCPError

from pursuit.errors import Fault, UpstreamUnavailable
from pursuit.problems.brief import (
    ADDRESS,
    ASSET,
    FINAL_ANSWER,
    PROMPT,
    SUBMIT,
    TOOL,
    asset_address,
    asset_name,
    more_limits,
    write_brief,
)
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.server.gateway.protocol_versions import as_object
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.pool import Pool

OWN = "own"
"""The form of a `submit_final` that is ours."""

MISNAMED = (
    "this problem cannot be worked at: its problem.toml names tools that its server does not have; "
    "whoever serves it reads which in the log, or by `pursuit problem show`"
)

FREE_TEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "minLength": 1, "description": "The answer; not only blanks."},
        "justification": {"type": "string", "description": "Why it is right."},
    },
    "required": ["answer"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What there is; `tools` are the names of the upstream's tools, and `briefed` whether it has the brief itself.

    `fixed` is the form that the attempt has already. `missing` says why an upstream has not been seen yet.
    """

    problem: Manifest
    tools: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    prompts: frozenset[str] = frozenset()
    definitions: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    fixed: str | None = None
    missing: str | None = None

    @property
    def briefed(self) -> bool:
        """Whether the upstream is a problem itself."""
        return ADDRESS in self.resources

    @property
    def assets(self) -> tuple[str, ...]:
        """The files that agents may read here; those of an upstream that is a problem itself are its own."""
        return () if self.briefed else self.problem.assets

    @property
    def form(self) -> str | None:
        """Which `submit_final` it is: ours, or the upstream's tool of this name; None if that is not known."""
        if self.fixed is not None or self.missing is not None:
            return self.fixed
        return next((name for name in (SUBMIT, FINAL_ANSWER) if name in self.tools), OWN)

    @property
    def hidden(self) -> frozenset[str]:
        """The upstream's tools that no agent sees under their own names: the judge, and what is shown as another."""
        replaced = {FINAL_ANSWER: {FINAL_ANSWER, SUBMIT}, OWN: {SUBMIT}}.get(self.form or "", set[str]())
        judge = {self.problem.scorer.tool} if self.problem.scorer.tool is not None else set[str]()
        return frozenset(replaced | judge)

    def faults(self) -> list[Fault]:
        """The tools that the manifest names and its server does not have: such a judge would be seen, a budget none."""
        if self.missing is not None:
            return []
        scorer, budget = self.problem.scorer, self.problem.budget
        named = [("scorer.tool", scorer.tool)] if scorer.tool is not None else []
        named += [(f"budget.evaluation_tools[{place}]", name) for place, name in enumerate(budget.evaluation_tools)]
        has = f"its server has no tool {{name!r}}; it has: {', '.join(sorted(self.tools)) or 'none'}"
        return [
            Fault(field=field, reason=has.format(name=name), source=str(self.problem.path))
            for field, name in named
            if name not in self.tools and name != SUBMIT
        ]

    def shown(self, tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A tool of the upstream as agents see it; None if they do not."""
        if tool.get("name") == self.form == FINAL_ANSWER:
            return {**tool, "name": SUBMIT}
        return None if tool.get("name") in self.hidden else tool

    def brief(self, *, citations: bool = True) -> str:
        """The brief of ours, with the tools as agents see them."""
        shown = [one for tool in self.definitions if (one := self.shown(tool)) is not None]
        asked = bool(self.definitions) or self.problem.server is None
        return write_brief(self.problem, shown if asked else None, citations=citations)

    def more_tools(self) -> list[dict[str, Any]]:
        """Our own tools that the upstream has not."""
        found: list[dict[str, Any]] = []
        if self.form == OWN:
            found.append(_submit_tool(self.problem))
        if TOOL not in self.tools:
            found.append(_brief_tool(self.assets))
        return found

    def more_resources(self) -> list[dict[str, Any]]:
        """Our own resources that the upstream has not."""
        if self.briefed:
            return []
        brief = {
            "uri": ADDRESS,
            "name": "design-brief",
            "title": "Design brief",
            "description": "The problem: statement, sources, tools, limits.",
            "mimeType": "text/markdown",
        }
        assets = [{"uri": asset_address(name), "name": asset_name(name)} for name in self.assets]
        return [brief, *assets]

    def more_prompts(self) -> list[dict[str, Any]]:
        """Our own prompt, unless the upstream has it."""
        if PROMPT in self.prompts:
            return []
        return [{"name": PROMPT, "title": "Design brief", "description": "The problem, as something to work at."}]


def _submit_tool(problem: Manifest) -> dict[str, Any]:
    return {
        "name": SUBMIT,
        "title": "Submit the answer",
        "description": "Hands in the answer. An attempt has one submission: the first valid one counts.",
        "inputSchema": dict(problem.submission or FREE_TEXT),
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False},
    }


def _brief_tool(assets: Sequence[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    files = ""
    if assets:
        files = f" With `{ASSET}` it gives that file of the problem instead."
        about = "A file of the problem to read; leave it out for the brief."
        properties[ASSET] = {"type": "string", "enum": [asset_name(name) for name in assets], "description": about}
    return {
        "name": TOOL,
        "title": "Design brief",
        "description": f"The problem: statement, sources, tools, limits. Costs no call. Read it first.{files}",
        "inputSchema": {"type": "object", "properties": properties, "additionalProperties": False},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }


# The brief of a server that is a problem itself, with the limits of the problem around it.
# Invariant: without further limits an answer passes untouched.

_PLACES = {"resources/read": "contents", "prompts/get": "messages", "tools/call": "content"}


def with_further(method: str, body: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    """An answer that holds the brief, with these words at its end."""
    key = _PLACES[method]
    parts = body.get(key)
    if not words or body.get("isError") or not isinstance(parts, list) or not parts:
        return body
    *others, last = cast("list[Any]", parts)
    part = as_object(last)
    if method == "prompts/get":
        return {**body, key: [*others, {**part, "content": _longer(as_object(part.get("content")), words)}]}
    return {**body, key: [*others, _longer(part, words)]}


def _longer(part: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    text = part.get("text")
    return {**part, "text": text + words} if isinstance(text, str) else part


# What a problem's own server has, asked of it directly.
# Invariant: nothing is called; a server that is a problem itself speaks for itself.

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
