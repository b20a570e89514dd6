"""A mission as one HTML file: the report, the timeline, and the details of each call.

The file loads and runs nothing, so it can be opened from disk; folds replace the drawer.
"""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread
from markupsafe import Markup
from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.page.markup import environment
from pursuit.reports.html import metric_plots
from pursuit.reports.view import read
from pursuit.service.timeline import SharedMission, placed, shared_mission

_STYLE = Path(__file__).with_name("static") / "page.css"


def add(page: Page) -> None:
    page.get("/missions/{mission_id}/share", _download)


async def _download(view: PageView) -> Response:
    found = await shared_mission(view.service, view.path("mission_id"))
    name = f"{found.report.mission_id}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    body = await to_thread.run_sync(render_share, found)  # seconds for a long mission, while others run here
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def render_share(found: SharedMission) -> str:
    calls = [(one.call_id, one.intended.at, one.settled) for one in found.history.calls if one.intended is not None]
    calls.sort(key=lambda one: one[1])
    spans = [(at, at + (0.0 if end is None else end.seconds)) for _, at, end in calls]
    places = {call_id: place for (call_id, _, _), place in zip(calls, placed(spans), strict=True)}
    view = read(found.report)
    shown = {"found": found, "view": view, "plots": metric_plots(view.metrics), "places": places}
    style = Markup(_STYLE.read_text(encoding="utf-8"))  # noqa: S704 - our own
    return environment().get_template("share.html").render(**shown, style=style)
