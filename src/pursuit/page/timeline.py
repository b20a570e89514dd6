"""The timeline of a mission: one row for each call and each question to a model, and what is behind a row."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pursuit.errors import Fault, ValidationFailed
from pursuit.page.app import Page, PageView
from pursuit.service.timeline import placed

_LARGEST = 10**12


def add(page: Page) -> None:
    """Adds the timeline and its drawer."""
    page.get("/missions/{mission_id}/timeline", timeline)
    page.get("/missions/{mission_id}/timeline/live", timeline_live)
    page.get("/missions/{mission_id}/calls/{call_id}", call)
    page.get("/missions/{mission_id}/turns/{iteration}", turn)


async def timeline(view: PageView) -> Response:
    """A part of the timeline: the newest rows, those before an event, or those of some iterations."""
    return view.render("timeline.html", title="Timeline", **await _timeline(view))


async def timeline_live(view: PageView) -> Response:
    """The same part as it grows."""
    mission_id = view.path("mission_id")

    async def render() -> str:
        return view.text("_timeline.html", **await _timeline(view))

    return view.live(f"timeline {mission_id} {view.request.url.query}", render, stream=mission_id)


async def _timeline(view: PageView) -> dict[str, Any]:
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
    shown = {"found": found, "rows": found.rows, "places": places}
    return {**shown, "query": view.request.url.query, "first": first, "last": last}


def _numbers(view: PageView, *names: str) -> list[int | None]:
    """Parameters of the address that count from 1; raises with every fault."""
    faults: list[Fault] = []
    values: list[int | None] = []
    for name in names:
        given = view.query.get(name, "")
        if given and not (given.isascii() and given.isdecimal() and 0 < int(given[:13]) <= _LARGEST):
            faults.append(Fault(field=name, reason=f"{given[:40]!r} is not a number from 1 up"))
            given = ""
        values.append(int(given[:13]) if given else None)
    if faults:
        raise ValidationFailed(faults, "wrong address")
    return values


async def call(view: PageView) -> Response:
    """One call whole."""
    (number,) = _numbers(view, "iteration")
    found = await view.page.timelines.call(view.path("mission_id"), view.path("call_id"), (number or 1) - 1)
    return _drawer(view, "_call.html", f"{found['tool']}, iteration {number or 1}", call=found)


async def turn(view: PageView) -> Response:
    """What a model was asked in one iteration, as it was sent."""
    number = view.path("iteration")
    if not (number.isascii() and number.isdecimal() and 0 < int(number[:13]) <= _LARGEST):
        raise ValidationFailed([Fault(field="iteration", reason="is not a number from 1 up")], "wrong address")
    found = await view.service.prompt(view.path("mission_id"), int(number) - 1)
    return _drawer(view, "_turn.html", f"The model's turn in iteration {number}", turn=found, number=number)


def _drawer(view: PageView, template: str, title: str, **shown: Any) -> Response:
    """A part for the drawer, or without script a page of its own."""
    if "hx-request" in view.request.headers:
        return view.fragment(template, title=title, **shown)
    return view.render("drawer.html", title=title, part=template, mission_id=view.path("mission_id"), **shown)
