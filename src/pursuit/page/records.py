"""The views of problems and of the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.reports.html import AGENT_COLUMNS, COLUMNS, comparison_section
from pursuit.service.comparison import problem_page, problem_rows

AUDIT_ROWS: Final = 200
MAX_AUDIT_ROWS: Final = 5_000


def add(page: Page) -> None:
    page.get("/problems", _problems)
    page.get("/problems/{problem_id}", _problem)
    page.get("/audit", _audit)
    page.get("/audit/verify", _verify)


async def _problems(view: PageView) -> Response:
    rows = await problem_rows(view.service, Path.cwd())
    return view.render("problems.html", title="Problems", problems=rows)


async def _problem(view: PageView) -> Response:
    found = await problem_page(view.service, Path.cwd(), view.path("problem_id"))
    section = comparison_section(found)
    shown: dict[str, Any] = {"section": section, "columns": COLUMNS, "agent_columns": AGENT_COLUMNS}
    return view.render("problem.html", title=found["title"], problem=found, **shown)


async def _audit(view: PageView) -> Response:
    mission_id = view.query.get("mission", "").strip()
    words = view.query.get("q", "").strip()
    found = None if not mission_id else await view.service.find(mission_id)
    lines = await view.service.audited(found, limit=MAX_AUDIT_ROWS if words else AUDIT_ROWS)
    wanted = words.lower().split()
    rows = [line for line in reversed(lines) if all(word in str(line).lower() for word in wanted)]
    return view.render("audit.html", title="Audit", rows=rows[:AUDIT_ROWS], mission=mission_id, words=words)


async def _verify(view: PageView) -> Response:
    expect = view.query.get("expect", "").strip() or None
    result = await view.service.verify(expect=expect)
    return view.render("verify.html", title="Verify", result=result, expect=expect)
