"""A mission as one HTML file: the report, the timeline, and what is in the drawer of each call.

It loads nothing and runs nothing, so it opens from a disk as it does on the page: folds take the place of the drawer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread
from markupsafe import Markup
from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.page.markup import environment
from pursuit.reports.html import MAX_PLOTS, metric_plot
from pursuit.reports.view import read
from pursuit.service.sharing import everything
from pursuit.service.timeline import placed

_STYLE = Path(__file__).with_name("static") / "page.css"


def add(page: Page) -> None:
    """Adds the download."""
    page.get("/missions/{mission_id}/share", _download)


async def _download(view: PageView) -> Response:
    found = await everything(view.service, view.path("mission_id"))
    name = f"{found['report'].mission_id}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    body = await to_thread.run_sync(render_share, found)  # seconds for a long mission, while others run here
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def render_share(found: Mapping[str, Any]) -> str:
    """The file for what `everything` gave."""
    iterations: Sequence[dict[str, Any]] = found["iterations"]
    lay_out([call for row in iterations for call in row["calls"]])
    last: dict[str, Any] = {}
    for row in iterations:
        for call in row["calls"]:  # what changed against the call of the same tool before
            call["before"] = last.get(call.get("tool", ""))
            last[call.get("tool", "")] = call.get("args")
    view = read(found["report"].data)
    plots = [(one, Markup(metric_plot(one))) for one in view.metrics[:MAX_PLOTS]]  # noqa: S704 - our own SVG
    style = Markup(_STYLE.read_text(encoding="utf-8"))  # noqa: S704 - our own
    return environment().get_template("share.html").render(view=view, plots=plots, iterations=iterations, style=style)


def lay_out(calls: Sequence[dict[str, Any]]) -> None:
    """Gives each call its `left` and `width` in percent of the time of all calls, as on the page."""
    timed = sorted((call for call in calls if "at" in call), key=lambda call: call["at"])
    spans = [(call["at"], call["at"] + (call.get("seconds") or 0.0)) for call in timed]
    for call, place in zip(timed, placed(spans), strict=True):
        call["left"], call["width"] = 100 * place.left, 100 * place.width
