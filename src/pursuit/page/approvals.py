"""Approvals: an inbox of the calls that wait for a person, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.responses import Response

from pursuit.core.events import Permission
from pursuit.page.app import Page, PageView
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
    page.post("/approvals/{approval_id}/reveal", detail, scope=SCOPE)


async def inbox(view: PageView) -> Response:
    """The questions that wait, the oldest mission first."""
    notice = DONE.get(view.query.get("done", ""), "")
    return view.render("approvals.html", title="Approvals", notice=notice, **await _inbox(view))


async def inbox_live(view: PageView) -> Response:
    """The same as it changes."""

    async def render() -> str:
        return view.text("_approvals.html", **await _inbox(view))

    return view.live("approvals", render)


async def _inbox(view: PageView) -> dict[str, Any]:
    return {"approvals": await Approvals(view.service).open()}


async def detail(view: PageView) -> Response:
    """One question whole: its arguments, what changed, and the tool's definition. It is recorded that it was seen."""
    approval_id, reveal = view.path("approval_id"), view.request.method == "POST"  # the button that reveals secrets
    found = await Approvals(view.service).detail(approval_id, reveal=reveal, caller=view.session.caller)
    if "hx-request" in view.request.headers:
        return view.fragment("_approval.html", one=found.asked, found=found, csrf=view.session.csrf)
    return view.render("approval.html", title=f"May {found.asked.tool} be called?", one=found.asked, found=found)


async def answer(view: PageView) -> Response:
    """A yes of some width, or a no; one that comes too late says so."""
    said = cast("Permission", view.form.get("answer", ""))  # the service checks it
    reason, revealed = view.form.get("reason") or None, "revealed" in view.form
    answered = await Approvals(view.service).answer(
        view.path("approval_id"), said, reason=reason, caller=view.session.caller, channel="page", revealed=revealed
    )
    return view.redirect("/approvals", done="more" if answered.needs_more else said)
