"""The views that look over many missions: fleets, problems, the audit and the lessons."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.reports.html import AGENT_COLUMNS, COLUMNS, comparison_section
from pursuit.service.comparison import problem_page, problem_rows

AUDIT_ROWS: Final = 200
MOST_AUDIT_ROWS: Final = 5_000


def add(page: Page) -> None:
    """Adds the views."""
    page.get("/fleet", _fleets)
    page.get("/fleet/{mission_id}", _fleet)
    page.get("/fleet/{mission_id}/live", _fleet_live)
    page.get("/problems", _problems)
    page.get("/problems/{problem_id}", _problem)
    page.get("/audit", _audit)
    page.get("/audit/verify", _verify)
    page.get("/lessons", _lessons)


async def _fleets(view: PageView) -> Response:
    found = [await view.service.fleet(name) for name in await view.service.fleets()]
    return view.render("fleets.html", title="Fleet", fleets=found)


async def _fleet(view: PageView) -> Response:
    fleet = await view.service.fleet(view.path("mission_id"))
    return view.render("fleet.html", title="Fleet", fleet=fleet)


async def _fleet_live(view: PageView) -> Response:
    mission_id = view.path("mission_id")

    async def render() -> str:
        return view.text("_fleet.html", fleet=await view.service.fleet(mission_id))

    return view.live(f"fleet {mission_id}", render)


async def _problems(view: PageView) -> Response:
    rows = await problem_rows(view.service, Path.cwd())
    return view.render("problems.html", title="Problems", problems=rows)


async def _problem(view: PageView) -> Response:
    found = await problem_page(view.service, Path.cwd(), view.path("problem_id"))
    section = comparison_section(found)
    # The plots escape their own few words, as in a report.
    plots = [(axis, Markup(svg)) for axis, svg in section["plots"]]  # noqa: S704
    shown: dict[str, Any] = {"section": section, "plots": plots, "columns": COLUMNS, "agent_columns": AGENT_COLUMNS}
    return view.render("problem.html", title=found["title"], problem=found, **shown)


async def _audit(view: PageView) -> Response:
    mission_id = view.query.get("mission", "").strip()
    words = view.query.get("q", "").strip()
    found = None if not mission_id else await view.service.find(mission_id)
    lines = await view.service.audited(found, limit=MOST_AUDIT_ROWS if words else AUDIT_ROWS)
    wanted = words.lower().split()
    rows = [line for line in reversed(lines) if all(word in str(line).lower() for word in wanted)]
    return view.render("audit.html", title="Audit", rows=rows[:AUDIT_ROWS], mission=mission_id, words=words)


async def _verify(view: PageView) -> Response:
    expect = view.query.get("expect", "").strip() or None
    result = await view.service.verify(expect=expect)
    return view.render("verify.html", title="Verify", result=result, expect=expect)


async def _lessons(view: PageView) -> Response:
    words = view.query.get("q", "").strip()
    found: list[dict[str, Any]] = (await view.service.lessons(words, limit=20))["missions"] if words else []
    return view.render("lessons.html", title="Lessons", words=words, missions=found)
