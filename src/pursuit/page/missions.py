"""The missions: the list, what needs a person first, and one mission with its buttons."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, get_args
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import Response

from pursuit.core.caps import CAPS
from pursuit.core.state import MissionState
from pursuit.errors import Fault, ValidationFailed
from pursuit.page.app import Page, PageView
from pursuit.reports.plots import line_plot
from pursuit.reports.wording import best_words, figure, number, sign, why
from pursuit.service.queries import SHOWN_STATUSES, MissionFilter, ShownStatus
from pursuit.service.timeline import MissionNow

FILTERS: Final = ("status", "words", "caller", "queue", "since", "until")


def add(page: Page) -> None:
    """Adds the views of missions."""
    page.get("/missions", listing)
    page.get("/missions/live", listing_live)
    page.get("/missions/{mission_id}", mission)
    page.get("/missions/{mission_id}/live", mission_live)
    page.get("/missions/{mission_id}/course", course)
    page.get("/missions/{mission_id}/plots", plots)
    for verb, handler in (("pause", pause), ("resume", resume), ("abort", abort), ("complete", complete)):
        page.post(f"/missions/{{mission_id}}/{verb}", handler)
    page.post("/missions/{mission_id}/extend", extend)


async def listing(view: PageView) -> Response:
    """Missions: what needs a person, then what runs, then what ended."""
    shown = await _listing(view)
    return view.render("missions.html", title="Missions", **shown)


async def listing_live(view: PageView) -> Response:
    """The same list as it changes."""

    async def render() -> str:
        return view.text("_missions.html", **await _listing(view))

    return view.live(f"missions {view.request.url.query}", render)


async def _listing(view: PageView) -> dict[str, Any]:
    wanted = _filter(view)
    found = await view.service.overview(wanted, cursor=view.query.get("cursor"))
    chosen = {name: value for name in FILTERS if (value := view.query.get(name))}
    more = urlencode({**chosen, "cursor": found.next_cursor or ""})
    return {
        "found": found,
        "chosen": chosen,
        "more": more,
        "statuses": SHOWN_STATUSES,
        "callers": view.page.callers(),
        "query": view.request.url.query,
        "continued": "cursor" in view.query,
    }


def _filter(view: PageView) -> MissionFilter:
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


DONE: Final[Mapping[str, str]] = {
    "paused": "The mission is paused.",
    "resumed": "The mission goes on.",
    "allowed": "The mission may go on; the command below drives it.",
    "aborted": "The mission is ordered to end as terminated.",
    "completed": "The mission is ordered to end as completed.",
    "extended": "The budget is raised.",
}
"""What a button did, by the word that it puts into the address."""
_ENDED = ("completed", "terminated")


async def mission(view: PageView) -> Response:
    """One mission: why it runs or waits, its criteria, its budget, and its buttons."""
    shown = await _mission(view)
    notice = DONE.get(view.query.get("done", ""), "")
    return view.render("mission.html", notice=notice, **shown)


async def mission_live(view: PageView) -> Response:
    """The same as it changes."""
    mission_id = view.path("mission_id")

    async def render() -> str:
        return view.text("_mission.html", **await _mission(view))

    return view.live(f"mission {mission_id}", render, stream=mission_id)


async def course(view: PageView) -> Response:
    """The metrics and the budget over the iterations, for plots."""
    return view.json(await view.page.timelines.course(view.path("mission_id")))


async def plots(view: PageView) -> Response:
    """The same plots without script."""
    found = await view.page.timelines.course(view.path("mission_id"))
    # The plots escape their own few words; nothing else in them comes from a tool.
    drawn = [(row["metric"], Markup(_plot(row))) for row in found["metrics"]]  # noqa: S704
    return view.render("plots.html", title="Plots", mission_id=found["session_id"], plots=drawn)


def _plot(row: Mapping[str, Any]) -> str:
    target: Mapping[str, Any] = row["target"] or {}
    goal = f"{sign(target['op'])} {figure(target['target'])}" if target else ""
    return line_plot(row["points"], label=row["metric"], target=number(target.get("target")), goal=goal)


async def _mission(view: PageView) -> dict[str, Any]:
    now = await view.page.timelines.mission(view.path("mission_id"))
    found, status = now.status, now.status.status
    title, _, body = found.directive.strip().partition("\n")
    ended = status in _ENDED
    by_cap = ended and str(found.verdict_reason).startswith("max_")
    goes_on = found.resume is not None or found.next is not None
    return {
        "now": now,
        "mission": found,
        "title": title if len(title) <= 160 else f"{title[:160]}…",
        "body": body.strip() if len(title) <= 160 else found.directive,
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
    """Why it runs, waits or ended, in one sentence."""
    found, words = now.status, why(now.status)
    if found.resume is not None:
        return "It was started and no live process drives it."
    if found.next is not None:
        return f"I{words[1:]}."
    if found.status == "running":
        if now.model:
            return f"It asks {now.model} what to do next."
        tools = ", ".join(sorted({call.tool for call in now.calls}))
        place = f"iteration {found.iteration_count + 1:,}"
        return f"It runs {place}: {tools} is under way." if tools else f"It runs {place}."
    if found.status == "pending":
        return "It is accepted, and no process has driven it yet."
    if found.status == "paused":
        return f"It is paused: {words}." if words else "It is paused."
    if found.status == "waiting":
        detail = "" if found.waiting_detail is None else f" ({found.waiting_detail})"
        late = any(one.expired for one in found.pending_approvals)
        return f"It waits for {found.waiting_for}{detail}{'; its question has expired' if late else ''}."
    return words


def _back(view: PageView, done: str) -> Response:
    return view.redirect(f"/missions/{view.path('mission_id')}", done=done)


async def pause(view: PageView) -> Response:
    """Stops a mission where it is."""
    await view.service.pause(
        view.path("mission_id"), reason=view.form.get("reason") or None, caller=view.session.caller
    )
    return _back(view, "paused")


async def resume(view: PageView) -> Response:
    """Lets a mission go on; where missions are served, it is driven here."""
    mission_id, caller, runs = view.path("mission_id"), view.session.caller, view.page.runtime.runs
    state = await view.service.state(mission_id)
    if runs is None or state.status != "running":
        state = await view.service.resume(mission_id, caller=caller)
    if runs is None or not _drives_itself(state):
        return _back(view, "allowed")
    await view.page.runtime.runner.run(mission_id, caller=caller, begin=runs.begin)
    return _back(view, "resumed")


def _drives_itself(state: MissionState) -> bool:
    """Whether a mission needs no client that proposes, or lends its model."""
    return not state.mission.proposer.needs_client


async def abort(view: PageView) -> Response:
    """Ends a mission as terminated."""
    await view.service.abort(
        view.path("mission_id"), reason=view.form.get("reason") or None, caller=view.session.caller
    )
    return _back(view, "aborted")


async def complete(view: PageView) -> Response:
    """Ends a mission as completed, on the operator's word."""
    reason = view.form.get("reason") or None
    await view.service.complete(view.path("mission_id"), reason=reason, caller=view.session.caller)
    return _back(view, "completed")


async def extend(view: PageView) -> Response:
    """Raises caps of the budget."""
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
