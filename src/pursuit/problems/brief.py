"""The brief: all that an agent is told of a problem before it begins.

Owns: its words and their order. Pure. Invariant: one heading of the first level; nothing of the scorer or the baseline;
of a server that was not asked it says nothing but that its word counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.problems.manifest import Citation, CitationMode, Manifest

ADDRESS = "problem://design-brief"
ASSETS = "problem://assets/"
PROMPT = "design-brief"
TOOL = "design_brief"
SUBMIT = "submit_final"
LONGEST_LINE = 200


Tools = Sequence[Mapping[str, Any]]


def write_brief(problem: Manifest, tools: Tools | None = None, *, citations: bool = True) -> str:
    """The brief as Markdown; `tools` are the upstream's as agents see them, None if it was not asked."""
    if problem.server is None:
        tools = ()
    parts = [f"# {problem.title}", problem.summary, problem.statement]
    if citations and problem.citations:
        parts += ["## Sources", _sources(problem.citations, problem.visibility.citation_mode)]
    if problem.assets:
        parts += ["## Files", "\n".join(f"- `{ASSETS}{name}`" for name in problem.assets)]
    parts += ["## Tools", _tools(tools), "## Limits", _limits(problem), "## Submission", _submission(problem, tools)]
    return "\n\n".join(parts) + "\n"


def _sources(citations: Sequence[Citation], mode: CitationMode) -> str:
    return "\n".join(f"{place}. {_source(one, mode)}" for place, one in enumerate(citations, 1))


def _source(citation: Citation, mode: CitationMode) -> str:
    words = (citation.summary or citation.raw or "").strip() if mode != "raw" else (citation.raw or "").strip()
    if citation.url is not None:
        words += f" <{citation.url}>"
    if mode == "summary+raw" and citation.raw is not None and citation.summary is not None:
        words += f"\n   {citation.raw.strip()}"
    return words


def _tools(tools: Tools | None) -> str:
    rows = (
        ["- those of the problem's server, as it lists them"]
        if tools is None
        else [f"- `{one['name']}`{_about(one)}" for one in tools if one.get("name") not in (SUBMIT, TOOL)]
    )
    return "\n".join([*rows, f"- `{SUBMIT}`: hands in the answer, once."])


def _about(tool: Mapping[str, Any]) -> str:
    words = str(tool.get("description") or tool.get("title") or "").strip().partition("\n")[0][:LONGEST_LINE]
    return f": {words}" if words else ""


def _limits(problem: Manifest) -> str:
    budget = problem.budget
    tools = ", ".join(f"`{name}`" for name in budget.evaluation_tools)
    rows = [
        ("calls", None if budget.calls is None else f"- calls of tools: {budget.calls}"),
        ("evaluations", None if budget.evaluations is None else f"- evaluations ({tools}): {budget.evaluations}"),
        ("time", None if budget.wall_seconds is None else f"- seconds from the first call: {budget.wall_seconds:g}"),
    ]
    said = [words for _, words in rows if words is not None]
    return "\n".join([*said, "- submissions: 1; the first one counts."])


def _submission(problem: Manifest, tools: Tools | None) -> str:
    if tools is not None and any(one.get("name") == SUBMIT for one in tools):
        return f"`{SUBMIT}` takes what its schema says."
    own = "" if tools is not None else "what its schema says where the server has one of its own, else "
    if problem.submission is None:
        return f"`{SUBMIT}` takes {own}`answer` (a text) and, if you like, `justification`."
    schema = json.dumps(problem.submission, indent=2, ensure_ascii=False)
    return f"`{SUBMIT}` takes{f' {own}this' if own else ''}:\n\n```json\n{schema}\n```"
