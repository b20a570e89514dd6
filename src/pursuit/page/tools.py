"""The view of tools: servers with their health, tools with their permissions, and acceptance of changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from starlette.responses import Response

from pursuit.page.app import Page, PageView
from pursuit.service.toolbox import TRAITS


def add(page: Page) -> None:
    page.get("/tools", _tools)
    page.post("/tools/{server}/pin", _pin, scope="tools:call")


async def _tools(view: PageView) -> Response:
    found = await view.page.runtime.toolbox.overview()
    rows = sorted(found["tools"], key=lambda row: row["name"])
    offered = {server: list(tools) for server, tools in groupby(rows, key=lambda row: row["server"])}
    return view.render("tools.html", title="Tools", found=found, offered=offered, traits=TRAITS)


async def _pin(view: PageView) -> Response:
    toolbox = replace(view.page.runtime.toolbox, caller=view.session.caller)
    await toolbox.pin(view.path("server"))
    return view.redirect("/tools")
