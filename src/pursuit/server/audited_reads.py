"""Records what clients read, if `[audit] reads = true`: middleware of the mission server and of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware

from pursuit.server.errors import READS, Context, as_object, caller_of
from pursuit.service.audit import Audit

_READS = READS | {"tasks/get", "tasks/result", "tasks/list", "subscriptions/listen"}
_NAMED = ("uri", "name", "taskId", "ref", "notifications")
"""The parameter that names the object of each read."""


def audited_reads(audit: Audit, only_reads: Callable[[str], bool]) -> list[ServerMiddleware[Any]]:
    """The middleware that records each read-only request before it; `only_reads` recognises read-only tools."""

    async def recorded(ctx: Context, call_next: CallNext) -> HandlerResult:
        params: dict[str, Any] = dict(ctx.params or {})
        name, arguments = params.get("name"), as_object(params.get("arguments"))
        if ctx.method in _READS:
            given = {key: params[key] for key in _NAMED if isinstance(params.get(key), str | Mapping)}
            await audit.read(caller_of(ctx), ctx.method, None, given)
        elif ctx.method == "tools/call" and isinstance(name, str) and only_reads(name):
            session = arguments.get("session_id")
            mission = session if isinstance(session, str) else None
            await audit.read(caller_of(ctx), f"call {name}", mission, arguments)
        return await call_next(ctx)

    return [recorded] if audit.reads else []
