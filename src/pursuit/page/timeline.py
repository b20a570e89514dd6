"""The timeline of a mission: a row for each call and each request to a model, and the details of a row."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pursuit.errors import Fault, ValidationFailed
from pursuit.page.app import Page, PageView
from pursuit.service.timeline import placed

MAX_DIGITS = 13


def add(page: Page) -> None:
    page.view("/missions/{mission_id}/timeline", timeline, "timeline.html", stream="mission_id")
    page.get("/missions/{mission_id}/calls/{call_id}", call)
    page.get("/missions/{mission_id}/turns/{iteration:int}", turn)


async def timeline(view: PageView) -> dict[str, Any]:
    first, last, after, before = _numbers(view, "first", "last", "after", "before")
    found = await view.page.timelines.part(
        view.path("mission_id"),
        first=None if first is None else first - 1,
        last=None if last is None else last - 1,
        after=after,
        before=before,
    )
    now = view.service.clock.now()
    spans = [(row.started, row.ended or (now if row.outcome is None else row.started)) for row in found.rows]
    places = {row.seq: place for row, place in zip(found.rows, placed(spans), strict=True)}
    shown = {"title": "Timeline", "found": found, "rows": found.rows, "places": places}
    return {**shown, "query": view.request.url.query, "first": first, "last": last}


def _numbers(view: PageView, *names: str) -> list[int | None]:
    faults: list[Fault] = []
    values: list[int | None] = []
    for name in names:
        given = view.query.get(name, "")
        if given and not (given.isascii() and given.isdecimal() and 0 < len(given) < MAX_DIGITS and int(given)):
            faults.append(Fault(field=name, reason=f"{given[:40]!r} is not a whole number above 0"))
        else:
            values.append(int(given) if given else None)
    if faults:
        raise ValidationFailed(faults, "wrong address")
    return values


async def call(view: PageView) -> Response:
    (number,) = _numbers(view, "iteration")
    found = await view.page.timelines.call(view.path("mission_id"), view.path("call_id"), (number or 1) - 1)
    return _drawer(view, "_call.html", f"{found.row.tool}, iteration {number or 1}", call=found)


async def turn(view: PageView) -> Response:
    number = view.path("iteration")
    found = await view.service.conversations.shown(view.path("mission_id"), int(number) - 1)
    return _drawer(view, "_turn.html", f"The model's turn in iteration {number}", turn=found, number=number)


def _drawer(view: PageView, template: str, title: str, **shown: Any) -> Response:
    """A fragment for the drawer, or a full page without JavaScript."""
    if "hx-request" in view.request.headers:
        return view.fragment(template, title=title, **shown)
    return view.render("drawer.html", title=title, part=template, mission_id=view.path("mission_id"), **shown)
