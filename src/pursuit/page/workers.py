"""The view of workers and their queues, for a ledger on PostgreSQL."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.service.run_loop import drain


def add(page: Page) -> None:
    page.view("/workers", _workers, "workers.html")
    page.post("/workers/{name}/drain", _drain)


async def _workers(view: PageView) -> dict[str, Any]:
    placement = view.service.placement
    return {"title": "Workers", "found": None if placement is None else await placement.health()}


async def _drain(view: PageView) -> Response:
    await drain(view.service, view.path("name"), caller=view.session.caller)
    return view.redirect("/workers")
