"""The view of workers and their queues, where the ledger is on PostgreSQL."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.service.run_loop import drain


def add(page: Page) -> None:
    """Adds the view."""
    page.get("/workers", _workers)
    page.get("/workers/live", _workers_live)
    page.post("/workers/{name}/drain", _drain)


async def _workers(view: PageView) -> Response:
    return view.render("workers.html", title="Workers", **await _found(view))


async def _workers_live(view: PageView) -> Response:
    async def render() -> str:
        return view.text("_workers.html", **await _found(view))

    return view.live("workers", render)


async def _found(view: PageView) -> dict[str, Any]:
    placement = view.service.placement
    return {"found": None if placement is None else await placement.health()}


async def _drain(view: PageView) -> Response:
    await drain(view.service, view.path("name"), caller=view.session.caller)
    return view.redirect("/workers")
