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
    "more": "Your approval is recorded; another person must approve, too.",
}
"""The effect of an answer, by its keyword in the address."""


def add(page: Page) -> None:
    page.view("/approvals", inbox, "approvals.html")
    page.get("/approvals/{approval_id}", detail)
    page.post("/approvals/{approval_id}", answer, scope=SCOPE)
    page.post("/approvals/{approval_id}/reveal", detail, scope=SCOPE)


async def inbox(view: PageView) -> dict[str, Any]:
    notice = DONE.get(view.query.get("done", ""), "")
    return {"title": "Approvals", "notice": notice, "approvals": await Approvals(view.service).open()}


async def detail(view: PageView) -> Response:
    approval_id, reveal = view.path("approval_id"), view.request.method == "POST"  # the button that reveals secrets
    found = await Approvals(view.service).show(approval_id, reveal=reveal, caller=view.session.caller)
    if "hx-request" in view.request.headers:
        return view.fragment("_approval.html", one=found, csrf=view.session.csrf)
    return view.render("approval.html", title=f"May {found.tool} be called?", one=found)


async def answer(view: PageView) -> Response:
    said = cast("Permission", view.form.get("answer", ""))  # the service checks it
    reason, revealed = view.form.get("reason") or None, "revealed" in view.form
    answered = await Approvals(view.service).answer(
        view.path("approval_id"), said, reason=reason, caller=view.session.caller, channel="page", revealed=revealed
    )
    return view.redirect("/approvals", done="more" if answered.needs_more else said)
