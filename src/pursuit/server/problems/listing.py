"""The tools, resources and prompts that agents see: those of the problem's server, the brief and `submit_final`.

Invariant: the server's own tools, resources and prompts come first, and the problem adds only missing ones; so a
problem that is served, used as a server of another problem, and served again stays the same. The kind of `submit_final`
of an attempt is decided once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import anyio

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import CallFailed, Tool, UpstreamError
from pursuit.errors import Fault, UpstreamUnavailable, advice
from pursuit.problems.attempts import Attempt
from pursuit.problems.brief import ADDRESS, ASSET, PROMPT, asset_address, more_limits, write_brief
from pursuit.problems.manifest import UPSTREAM, Manifest
from pursuit.problems.scorer import FINAL_ANSWER, SUBMIT, TOOL
from pursuit.server.errors import as_object
from pursuit.server.logs import event
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.pool import Pool

OWN = "own"
"""The form of a submission to the problem's own `submit_final`; any other form is the name of the server's tool."""

MISNAMED = (
    "this problem cannot be used: its problem.toml names tools that its server lacks; "
    f"the operator finds them in the log, or with `{advice('pursuit problem show {}', 'ID')}`"
)
FREE_TEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "minLength": 1, "description": "The answer; not blank."},
        "justification": {"type": "string", "description": "Why it is right."},
    },
    "required": ["answer"],
    "additionalProperties": False,
}
_BRIEF_KEYS = {"resources/read": "contents", "prompts/get": "messages", "tools/call": "content"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemOffer:
    """The names of the tools, resources and prompts of the problem's server, and the tools' definitions.

    `fixed` is the form of the attempt's submission once it is decided. `missing` is the reason why the server is not
    known yet.
    """

    problem: Manifest
    tools: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    prompts: frozenset[str] = frozenset()
    definitions: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    fixed: str | None = None
    missing: str | None = None

    def with_tools(self, tools: Sequence[Tool]) -> Self:
        definitions = tuple(tool.definition for tool in tools)
        return replace(self, tools=frozenset(tool.name for tool in tools), definitions=definitions)

    async def with_others(self, upstream: McpUpstream) -> Self:
        can = (await upstream.about()).capabilities
        resources = await upstream.entries("resources") if "resources" in can else []
        prompts = await upstream.entries("prompts") if "prompts" in can else []
        return replace(
            self,
            resources=frozenset(str(as_object(one).get("uri")) for one in resources),
            prompts=frozenset(str(as_object(one).get("name")) for one in prompts),
        )

    @property
    def briefed(self) -> bool:
        """True if the server is itself a problem and has the brief."""
        return ADDRESS in self.resources

    @property
    def assets(self) -> tuple[str, ...]:
        """The files that agents may read."""
        return () if self.briefed else self.problem.assets

    @property
    def form(self) -> str | None:
        """The form of a submission; None if the server is not known yet."""
        if self.fixed is not None or self.missing is not None:
            return self.fixed
        return next((name for name in (SUBMIT, FINAL_ANSWER) if name in self.tools), OWN)

    @property
    def hidden(self) -> frozenset[str]:
        """The server's tools that agents do not see under their own names: the scorer, and renamed tools."""
        replaced = {FINAL_ANSWER: {FINAL_ANSWER, SUBMIT}, OWN: {SUBMIT}}.get(self.form or "", set[str]())
        scorer = {self.problem.scorer.tool} if self.problem.scorer.tool is not None else set[str]()
        return frozenset(replaced | scorer)

    def faults(self) -> list[Fault]:
        """Faults: tools that the manifest names and the server lacks, or evaluation tools that agents lack."""
        if self.missing is not None:
            return []
        scorer, budget = self.problem.scorer, self.problem.budget
        named = [("scorer.tool", scorer.tool)] if scorer.tool is not None else []
        named += [(f"budget.evaluation_tools[{place}]", name) for place, name in enumerate(budget.evaluation_tools)]
        has = f"its server lacks the tool {{name!r}}; it has: {', '.join(sorted(self.tools)) or 'none'}"
        seen = f"agents lack the tool {{name!r}}, so it is never counted; they have: {', '.join(self._seen) or 'none'}"
        source = str(self.problem.path)
        found = [(at, has.format(name=name)) for at, name in named if name not in self.tools and name != SUBMIT]
        unseen = (self.tools & self.hidden) - {SUBMIT}
        found += [(at, seen.format(name=name)) for at, name in named if at != "scorer.tool" and name in unseen]
        return [Fault(field=field, reason=reason, source=source) for field, reason in found]

    @property
    def _seen(self) -> list[str]:
        return sorted({*self.tools, SUBMIT} - (self.hidden - {SUBMIT}))

    def shown(self, tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A tool of the server as agents see it; None if it is hidden."""
        if tool.get("name") == self.form == FINAL_ANSWER:
            return {**tool, "name": SUBMIT}
        return None if tool.get("name") in self.hidden else tool

    def brief(self, *, citations: bool = True) -> str:
        shown = [one for tool in self.definitions if (one := self.shown(tool)) is not None]
        known = bool(self.definitions) or self.problem.server is None
        return write_brief(self.problem, shown if known else None, citations=citations)

    def more_tools(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self.form == OWN:
            found.append(_submit_tool(self.problem))
        if TOOL not in self.tools:
            found.append(_brief_tool(self.assets))
        return found

    def more_resources(self) -> list[dict[str, Any]]:
        if self.briefed:
            return []
        brief = {
            "uri": ADDRESS,
            "name": "design-brief",
            "title": "Design brief",
            "description": "The problem: statement, sources, tools, limits.",
            "mimeType": "text/markdown",
        }
        assets = [{"uri": asset_address(name), "name": name} for name in self.assets]
        return [brief, *assets]

    def more_prompts(self) -> list[dict[str, Any]]:
        if PROMPT in self.prompts:
            return []
        return [{"name": PROMPT, "title": "Design brief", "description": "The problem as a task to work on."}]

    def with_limits(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The brief of a server that is itself a problem, followed by the limits that this problem adds."""
        key, words = _BRIEF_KEYS[method], more_limits(self.problem)
        parts = body.get(key)
        if not words or body.get("isError") or not isinstance(parts, list) or not parts:
            return dict(body)
        *others, last = cast("list[Any]", parts)
        part = as_object(last)
        if method == "prompts/get":
            return {**body, key: [*others, {**part, "content": _longer(as_object(part.get("content")), words)}]}
        return {**body, key: [*others, _longer(part, words)]}


def _longer(part: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    text = part.get("text")
    return {**part, "text": text + words} if isinstance(text, str) else part


def _submit_tool(problem: Manifest) -> dict[str, Any]:
    return {
        "name": SUBMIT,
        "title": "Submit the answer",
        "description": "Submits the answer. An attempt has one submission: the first valid one counts.",
        "inputSchema": dict(problem.submission or FREE_TEXT),
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False},
    }


def _brief_tool(assets: Sequence[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    files = ""
    if assets:
        files = f" With `{ASSET}` it returns that file of the problem instead."
        about = "A file of the problem to read; omit it for the brief."
        properties[ASSET] = {"type": "string", "enum": list(assets), "description": about}
    return {
        "name": TOOL,
        "title": "Design brief",
        "description": f"The problem: statement, sources, tools, limits. Costs no call. Read it first.{files}",
        "inputSchema": {"type": "object", "properties": properties, "additionalProperties": False},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }


class UpstreamListing:
    """Lists the tools of the problem's server each time, its resources and prompts once.

    `seconds` limits how long a server that answered before may delay a request that does not need its answer.
    """

    def __init__(
        self, problem: Manifest, attempt: Attempt, upstream: Callable[[], McpUpstream], *, seconds: float
    ) -> None:
        self._attempt = attempt
        self._upstream = upstream
        self._seconds = seconds
        self._complete = False
        self._offer = ProblemOffer(problem=problem, missing="it was not asked yet")
        self._logged: set[str] = set()

    @property
    def latest(self) -> ProblemOffer:
        """The latest listing, with the form of the attempt's submission."""
        state = self._attempt.state
        return replace(self._offer, fixed=None if state is None else state.form)

    async def look(self) -> ProblemOffer:
        """The server's listing; the last one if the server cannot be reached; nothing if it never could be."""
        known = self._offer.missing is None
        with anyio.move_on_after(self._seconds if known else None):
            try:
                await self._ask(self._upstream())
            except UpstreamUnavailable as error:
                if not known:
                    self._offer = replace(self._offer, missing=error.message)
        return self.latest

    async def _ask(self, upstream: McpUpstream) -> None:
        offer = replace(self._offer, missing=None).with_tools(await upstream.tools())
        if not self._complete:
            with suppress(UpstreamUnavailable):  # the server declared a list and refuses it
                offer = await offer.with_others(upstream)
                self._complete = True
        self._offer = offer
        for fault in offer.faults():
            if str(fault) not in self._logged:
                self._logged.add(str(fault))
                event(_log, logging.ERROR, "the problem cannot be used", why=str(fault))


async def server_faults(problem: Manifest, server: ServerConfig) -> list[Fault]:
    """The faults in the list of tools of the problem's server. Raises `UpstreamUnavailable`."""
    async with Pool({UPSTREAM: server}, {}) as pool:
        upstream = cast("McpUpstream", pool.upstream(UPSTREAM))
        offer = ProblemOffer(problem=problem).with_tools(await upstream.tools())
        names = Counter(as_object(one).get("name") for one in await upstream.entries("tools"))
    repeated = [f"lists {names[name]} tools named {name!r}" for name in sorted(offer.tools) if names[name] > 1]
    return [*offer.faults(), *(Fault(field="server", reason=why, source=str(problem.path)) for why in repeated)]


async def asked_brief(problem: Manifest, *, citations: bool = True) -> tuple[str, ProblemOffer]:
    """The brief as agents read it, and the listing that it is made from. Raises `UpstreamUnavailable`."""
    offer = ProblemOffer(problem=problem)
    if problem.server is None:
        return offer.brief(citations=citations), offer
    async with Pool({UPSTREAM: problem.server}, {}) as pool:
        upstream = cast("McpUpstream", pool.upstream(UPSTREAM))  # the type of upstream for a `ServerConfig`
        offer = await offer.with_tools(await upstream.tools()).with_others(upstream)
        if not offer.briefed:
            return offer.brief(citations=citations), offer
        try:
            read: dict[str, Any] = await upstream.request("resources/read", {"uri": ADDRESS})
        except (UpstreamError, CallFailed) as error:
            raise UpstreamUnavailable(f"the server does not return its own brief: {error}") from None
        own = "\n".join(str(as_object(one).get("text", "")) for one in read.get("contents", ()))
        return own + more_limits(problem), offer
