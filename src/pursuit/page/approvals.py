"""Approvals: an inbox of the calls that wait for a person, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.responses import Response

from pursuit.core.events import Permission
from pursuit.page.app import Page, View
from pursuit.service.approvals import Approvals

SCOPE: Final = "approvals:answer"
DONE: Final[Mapping[str, str]] = {
    "once": "Approved once.",
    "arguments": "Approved for these arguments.",
    "mission": "Approved for this tool in this mission.",
    "denied": "Denied.",
    "more": "Your yes counts; another person must agree.",
}
"""What an answer did, by the word that it puts into the address."""


def add(page: Page) -> None:
    """Adds the inbox."""
    page.get("/approvals", inbox)
    page.get("/approvals/live", inbox_live)
    page.get("/approvals/{approval_id}", detail)
    page.post("/approvals/{approval_id}", answer, scope=SCOPE)


async def inbox(view: View) -> Response:
    """The questions that wait, the oldest mission first."""
    notice = DONE.get(view.query.get("done", ""), "")
    return view.render("approvals.html", title="Approvals", notice=notice, **await _inbox(view))


async def inbox_live(view: View) -> Response:
    """The same as it changes."""

    async def render() -> str:
        return view.text("_approvals.html", **await _inbox(view))

    return view.live("approvals", render)


async def _inbox(view: View) -> dict[str, Any]:
    return {"approvals": await Approvals(view.service).open()}


async def detail(view: View) -> Response:
    """One question whole: its arguments, what changed, and the tool's definition. It is recorded that it was seen."""
    found = await Approvals(view.service).detail(view.path("approval_id"), caller=view.session.caller)
    if "hx-request" in view.request.headers:
        return view.fragment("_approval.html", one=found, csrf=view.session.csrf)
    return view.render("approval.html", title=f"May {found['tool']} be called?", one=found)


async def answer(view: View) -> Response:
    """A yes of some width, or a no; one that comes too late says so."""
    said = cast("Permission", view.form.get("answer", ""))  # the service checks it
    reason = view.form.get("reason") or None
    found = await Approvals(view.service).answer(
        view.path("approval_id"), said, reason=reason, caller=view.session.caller, channel="page"
    )
    waits = said != "denied" and found.get("required", 0) > len(found.get("approved_by", ()))
    return view.redirect("/approvals", done="more" if waits else said)
