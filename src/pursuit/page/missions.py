"""The missions: the list, what needs a person first, and one mission with its buttons."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from pursuit.errors import Fault, ValidationFailed
from pursuit.page.app import Page, View
from pursuit.service.queries import SHOWN_STATUSES, MissionFilter, ShownStatus

FILTERS: Final = ("status", "words", "caller", "queue", "since", "until")


def add(page: Page) -> None:
    """Adds the views of missions."""
    page.get("/missions", listing)
    page.get("/missions/live", listing_live)


async def listing(view: View) -> Response:
    """Missions: what needs a person, then what runs, then what ended."""
    shown = await _listing(view)
    return view.render("missions.html", title="Missions", **shown)


async def listing_live(view: View) -> Response:
    """The same list as it changes."""

    async def render() -> str:
        return view.text("_missions.html", **await _listing(view))

    return view.live(f"missions {view.request.url.query}", render)


async def _listing(view: View) -> dict[str, Any]:
    wanted = _filter(view)
    found = await view.service.overview(wanted, cursor=view.query.get("cursor"))
    chosen = {name: value for name in FILTERS if (value := view.query.get(name))}
    more = urlencode({**chosen, "cursor": found.get("next_cursor", "")})
    return {
        "found": found,
        "chosen": chosen,
        "more": more,
        "statuses": SHOWN_STATUSES,
        "callers": view.page.callers(),
        "query": view.request.url.query,
        "continued": "cursor" in view.query,
    }


def _filter(view: View) -> MissionFilter:
    """The filter in the address; raises with every fault."""
    faults: list[Fault] = []
    status = view.query.get("status") or None
    if status is not None and status not in get_args(ShownStatus):
        faults.append(Fault(field="status", reason=f"is not one of {', '.join(SHOWN_STATUSES)}"))
    times: dict[str, float | None] = {}
    for name in ("since", "until"):
        given = view.query.get(name)
        try:
            times[name] = datetime.fromisoformat(given).timestamp() if given else None
        except (ValueError, OverflowError):
            faults.append(Fault(field=name, reason="is not a date, such as 2026-11-16"))
    if faults:
        raise ValidationFailed(faults, "wrong filter")
    caller = view.query.get("caller") or None
    return MissionFilter(
        status=status,  # pyright: ignore[reportArgumentType] - it was checked
        words=view.query.get("words", ""),
        owner=None if caller is None else view.page.callers().get(caller, caller),
        queue=view.query.get("queue", ""),
        **times,
    )
