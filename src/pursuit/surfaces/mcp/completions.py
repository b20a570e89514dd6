"""Ids of missions for whoever is typing one.

Owns: the handler of `completion/complete`. Invariant: at most 100 values, the newest missions first, and a bounded
look at the ledger, however many missions it has.
"""

from __future__ import annotations

from mcp_types import CompleteRequestParams, CompleteResult, Completion, PromptReference

from pursuit.service import Service
from pursuit.surfaces.mcp.addresses import TEMPLATES
from pursuit.surfaces.mcp.failure import Context, on_the_wire

MOST_VALUES = 100
MOST_PAGES = 10
PAGE = 1_000
_PREFIX = "mission-"


class Completions:
    """Completes `id` in the resource templates and `session_id` of the prompt `review_mission`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def complete(self, ctx: Context, params: CompleteRequestParams) -> CompleteResult:
        """The missions whose id begins like this, with or without `mission-`; nothing for what is no id of ours."""
        if not _wants_mission(params):
            return CompleteResult(completion=Completion(values=[], total=0, has_more=False))
        with on_the_wire():
            found, all_seen = await self._matching(params.argument.value)
        values = found[:MOST_VALUES]
        total = len(found) if all_seen else None
        return CompleteResult(
            completion=Completion(values=values, total=total, has_more=not all_seen or len(found) > len(values))
        )

    async def _matching(self, typed: str) -> tuple[list[str], bool]:
        """Matching ids, newest first, and whether every mission was looked at."""
        found: list[str] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._service.list(cursor=cursor, limit=PAGE)
            ids: list[str] = [row["session_id"] for row in page["sessions"]]
            found += [one for one in ids if one.startswith(typed) or one.removeprefix(_PREFIX).startswith(typed)]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found, True
        return found, False


def _wants_mission(params: CompleteRequestParams) -> bool:
    if isinstance(params.ref, PromptReference):
        return params.ref.name == "review_mission" and params.argument.name == "session_id"
    return params.ref.uri in TEMPLATES.values() and params.argument.name == "id"
