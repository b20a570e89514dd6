"""The views of missions: the list, starting with those that need a person, and a mission with its controls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from pursuit.core.caps import CAPS
from pursuit.core.state import FOR_PROVIDERS, TERMINAL, MissionState
from pursuit.errors import Fault, ValidationFailed
from pursuit.page.app import Page, PageView
from pursuit.reports.html import metric_plots
from pursuit.reports.view import MetricView, headline, metric_views
from pursuit.reports.wording import best_words, why
from pursuit.service.queries import SHOWN_STATUSES, MissionFilter, ShownStatus
from pursuit.service.service import Service
from pursuit.service.timeline import MissionNow

FILTERS: Final = ("status", "words", "caller", "queue", "since", "until")


ORDERS: Final = (
    ("pause", Service.pause, "paused"),
    ("abort", Service.abort, "aborted"),
    ("complete", Service.complete, "completed"),
)
"""Commands with a reason, and the keyword that each puts into the address."""


def add(page: Page) -> None:
    page.view("/missions", listing, "missions.html")
    page.get("/missions/{mission_id}", mission)
    page.live("/missions/{mission_id}", _mission, "_mission.html", stream="mission_id")
    page.get("/missions/{mission_id}/plots", plots)
    for verb, order, done in ORDERS:
        page.post(f"/missions/{{mission_id}}/{verb}", partial(_order, order, done))
    page.post("/missions/{mission_id}/resume", resume)
    page.post("/missions/{mission_id}/extend", extend)


async def listing(view: PageView) -> dict[str, Any]:
    wanted = _filter(view)
    found = await view.service.overview(wanted, cursor=view.query.get("cursor"))
    chosen = {name: value for name in FILTERS if (value := view.query.get(name))}
    more = urlencode({**chosen, "cursor": found.next_cursor or ""})
    return {
        "title": "Missions",
        "found": found,
        "chosen": chosen,
        "more": more,
        "statuses": SHOWN_STATUSES,
        "callers": view.page.callers(),
        "query": view.request.url.query,
        "continued": "cursor" in view.query,
    }


def _filter(view: PageView) -> MissionFilter:
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


DONE: Final[Mapping[str, str]] = {
    "paused": "The mission is paused.",
    "resumed": "The mission continues.",
    "allowed": "The mission may continue; run the command below.",
    "aborted": "The mission will end as terminated.",
    "completed": "The mission will end as completed.",
    "extended": "The budget was raised.",
}
"""The effect of a button, by its keyword in the address."""


async def mission(view: PageView) -> Response:
    shown = await _mission(view)
    notice = DONE.get(view.query.get("done", ""), "")
    return view.render("mission.html", notice=notice, plots=await _plots(view), **shown)


async def plots(view: PageView) -> Response:
    return view.fragment("_plots.html", plots=await _plots(view))


async def _plots(view: PageView) -> Sequence[tuple[MetricView, str]]:
    return metric_plots(metric_views(await view.page.timelines.metrics(view.path("mission_id"))))


async def _mission(view: PageView) -> dict[str, Any]:
    now = await view.page.timelines.mission(view.path("mission_id"))
    found, status = now.status, now.status.status
    title, body = headline(found.directive)
    ended = status in TERMINAL
    by_cap = ended and str(found.verdict_reason).startswith("max_")
    goes_on = found.resume is not None or found.next is not None
    return {
        "now": now,
        "mission": found,
        "title": title,
        "body": body,
        "sentence": _sentence(now),
        "best": best_words(found.best_point),
        "caps": [
            (name, use.cap.label_with_unit, use.limit)
            for name, use in found.budget.caps.items()
            if use.limit is not None
        ],
        "can": {
            "pause": status in ("pending", "running", "waiting", "interrupted"),
            "resume": status in ("paused", "failed") or (goes_on and view.page.runtime.runs is not None),
            "end": not ended,
            "extend": (not ended or by_cap) and found.parent is None,
        },
        "ended": ended,
    }


def _sentence(now: MissionNow) -> str:
    found, words = now.status, why(now.status)
    if found.resume is not None:
        return "It was interrupted: no process runs it."
    if found.next is not None:
        return f"I{words[1:]}."
    if found.status == "running":
        if now.model:
            return f"It asks {now.model} what to do next."
        tools = ", ".join(sorted({call.tool for call in now.calls}))
        place = f"iteration {found.iteration_count + 1:,}"
        return f"It runs {place}: {tools} is in progress." if tools else f"It runs {place}."
    if found.status == "pending":
        return "It is accepted and has not run yet."
    if found.status == "paused":
        return f"It is paused: {words}." if words else "It is paused."
    if found.status == "waiting":
        detail = "" if found.waiting_detail is None else f" ({found.waiting_detail})"
        late = any(one.expired for one in found.pending_approvals)
        if found.waiting_for in FOR_PROVIDERS:
            return f"It waits: {words}."
        return f"It waits for {found.waiting_for}{detail}{'; its question has expired' if late else ''}."
    return words


def _back(view: PageView, done: str) -> Response:
    return view.redirect(f"/missions/{view.path('mission_id')}", done=done)


async def _order(order: Callable[..., Awaitable[MissionState]], done: str, view: PageView) -> Response:
    reason = view.form.get("reason") or None
    await order(view.service, view.path("mission_id"), reason=reason, caller=view.session.caller)
    return _back(view, done)


async def resume(view: PageView) -> Response:
    """Lets a mission continue; drives it here if missions are served."""
    mission_id, caller, runs = view.path("mission_id"), view.session.caller, view.page.runtime.runs
    state = await view.service.state(mission_id)
    if runs is None or state.status != "running":
        state = await view.service.resume(mission_id, caller=caller)
    if runs is None or state.mission.proposer.needs_client:
        return _back(view, "allowed")
    await view.page.runtime.runner.run(mission_id, caller=caller, begin=runs.begin)
    return _back(view, "resumed")


async def extend(view: PageView) -> Response:
    caps: dict[str, float] = {}
    faults: list[Fault] = []
    for name in CAPS:
        given = view.form.get(name, "").strip()
        try:
            caps |= {name: float(given)} if given else {}
        except ValueError:
            faults.append(Fault(field=name, reason=f"{given[:40]!r} is not a number"))
    if faults:
        raise ValidationFailed(faults, "nothing was changed")
    await view.service.extend(view.path("mission_id"), caps, caller=view.session.caller)
    return _back(view, "extended")
