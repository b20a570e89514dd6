"""The brief: the text about a problem that an agent reads before it starts.

Invariant: one heading of the first level; no content of the scorer or the baseline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from posixpath import normpath
from typing import Any
from urllib.parse import quote, unquote

from pursuit.problems.manifest import Citation, CitationMode, Manifest, plain_number
from pursuit.problems.scorer import SUBMIT, TOOL

ADDRESS = "problem://design-brief"
ASSETS = "problem://assets/"
PROMPT = "design-brief"
ASSET = "asset"
"""The argument of the brief's tool that names a file."""

MAX_LINE = 200


Tools = Sequence[Mapping[str, Any]]


def asset_address(name: str) -> str:
    return ASSETS + quote(name, safe="/")


def asset_called(name: str, assets: Sequence[str]) -> str | None:
    """The asset with this name or address."""
    wanted = normpath(unquote(name.removeprefix(ASSETS)) if name.startswith(ASSETS) else name)
    return wanted if wanted in assets else None


def limit_rows(problem: Manifest) -> list[str]:
    budget = problem.budget
    tools = ", ".join(f"`{name}`" for name in budget.evaluation_tools)
    limits = {
        "tool calls": budget.calls,
        f"evaluations ({tools})": budget.evaluations,
        "seconds from the first call": budget.wall_seconds,
    }
    return [f"- {name}: {plain_number(limit)}" for name, limit in limits.items() if limit is not None]


def more_limits(problem: Manifest) -> str:
    """The limits that follow the brief of a server that is itself a problem; empty without further limits."""
    rows = limit_rows(problem)
    return "\n".join(["", "## Further limits", "", *rows, ""]) if rows else ""


def write_brief(
    problem: Manifest, tools: Tools | None = None, *, citations: bool = True, resources: bool = True
) -> str:
    """The brief as Markdown; `tools` are the upstream's tools as agents see them, None if they are not known.

    An agent in a mission has the tools of the server, without its `resources`.
    """
    if problem.server is None:
        tools = ()
    parts = [f"# {problem.title}", problem.summary, problem.statement]
    if citations and problem.citations:
        mode = problem.visibility.citation_mode
        sources = [f"{place}. {source_words(one, mode)}" for place, one in enumerate(problem.citations, 1)]
        parts += ["## Sources", "\n".join(sources)]
    if problem.assets:
        parts += ["## Files", _files(problem.assets, tools, resources=resources)]
    limits = "\n".join([*limit_rows(problem), "- submissions: 1; the first one counts."])
    parts += ["## Tools", _tools(tools), "## Limits", limits, "## Submission", _submission(problem, tools)]
    return "\n\n".join(parts) + "\n"


def _files(assets: Sequence[str], tools: Tools | None, *, resources: bool) -> str:
    """The files, and how to read them; a tool of the server with our tool's name cannot read them."""
    ways = ["as the resource with its address"] if resources else []
    if not resources or not any(one.get("name") == TOOL for one in tools or ()):
        ways.append(f"with the tool `{TOOL}` and its name as `{ASSET}`, which is not counted as a call")
    rows = [f"- `{name}`" + (f": `{asset_address(name)}`" if resources else "") for name in assets]
    return "\n".join([f"Read a file {', or '.join(ways)}:", "", *rows])


def source_words(citation: Citation, mode: CitationMode) -> str:
    words = (citation.summary or citation.raw or "").strip() if mode != "raw" else (citation.raw or "").strip()
    if citation.url is not None:
        words += f" <{citation.url}>"
    if mode == "summary+raw" and citation.raw is not None and citation.summary is not None:
        words += f"\n   {citation.raw.strip()}"
    return words


def _tools(tools: Tools | None) -> str:
    rows = (
        ["- the tools that the problem's server lists"]
        if tools is None
        else [f"- `{one['name']}`{_about(one)}" for one in tools if one.get("name") not in (SUBMIT, TOOL)]
    )
    return "\n".join([*rows, f"- `{SUBMIT}`: submits the answer, once."])


def _about(tool: Mapping[str, Any]) -> str:
    words = str(tool.get("description") or tool.get("title") or "").strip().partition("\n")[0][:MAX_LINE]
    return f": {words}" if words else ""


def _submission(problem: Manifest, tools: Tools | None) -> str:
    if tools is not None and any(one.get("name") == SUBMIT for one in tools):
        return f"The arguments of `{SUBMIT}` are in its schema."
    own = "" if tools is not None else "the arguments of its schema if the server has its own, else "
    if problem.submission is None:
        return f"`{SUBMIT}` takes {own}`answer` (a text) and, optionally, `justification`."
    schema = json.dumps(problem.submission, indent=2, ensure_ascii=False)
    return f"`{SUBMIT}` takes{f' {own}this' if own else ''}:\n\n```json\n{schema}\n```"
