"""The operator's web page: missions, their state, cost and next steps, and pending approvals.

`pursuit serve --http` serves it beside MCP, `pursuit page` opens it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from starlette.routing import Route

from pursuit.page import approvals, missions, records, share, tasks, timeline, tools, workers
from pursuit.page.app import ROOT, Page
from pursuit.page.live import Live, LiveSettings
from pursuit.page.sessions import Sessions
from pursuit.runtime import Runtime

__all__ = ["ROOT", "VIEWS", "Sessions", "open_page"]

VIEWS: tuple[Callable[[Page], None], ...] = (
    missions.add,
    timeline.add,
    approvals.add,
    tasks.add,
    tools.add,
    records.add,
    share.add,
    workers.add,
)
"""Each adds the routes of one view."""


@asynccontextmanager
async def open_page(
    runtime: Runtime, sessions: Sessions, settings: LiveSettings | None = None
) -> AsyncGenerator[list[Route]]:
    async with anyio.create_task_group() as group:
        live = Live(runtime.runner.ledger, group, settings)
        yield [Page(runtime, sessions, live, VIEWS).route()]
        group.cancel_scope.cancel()
