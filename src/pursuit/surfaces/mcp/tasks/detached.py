"""A request whose answer its client no longer waits for.

Owns: what a handler may still do with the request then. Does not know: tools. Invariant: a handler sees a client of the
new era, so what it wants to ask it returns as questions; its progress goes to whoever follows the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from mcp.server.session import ServerSession
from mcp_types import ClientCapabilities, InitializeRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.surfaces.mcp.failure import Context
from pursuit.tasks.execution import TaskContext


class DetachedSession:
    """The way back to a client: over its request while it waits, then into the task."""

    def __init__(self, session: ServerSession, task: TaskContext | None = None) -> None:
        self.client_params: InitializeRequestParams | None = session.client_params
        self.client_capabilities: ClientCapabilities | None = session.client_capabilities
        self.can_send_request = False
        self.task = task
        self._session = session

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tells how far the call is."""
        if self.task is not None:
            await self.task.update_status(message, done=progress, total=total)
        else:
            await self._session.report_progress(progress, total, message)


def detached(ctx: Context, session: DetachedSession, params: Mapping[str, Any]) -> Context:
    """The request as its handler sees it, with these parameters."""
    return replace(
        ctx,
        session=cast("ServerSession", session),
        protocol_version=max(MODERN_PROTOCOL_VERSIONS),
        params=params,
    )
