"""Tasks that servers behind the gateway make of calls, followed to their result for whoever called.

Owns: when a call is offered to a server as a task, and what its client hears while the server works at it. Does not
know: connections, or tasks of our own. Invariant: a client gets what a plain call would have had, whether it knows
tasks or not; giving up reaches the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.core.tools import About, AnswerFn, NotifyFn, Tool
from pursuit.surfaces.mcp.gateway.guests import Guest, Visit
from pursuit.surfaces.mcp.gateway.lines import Talk
from pursuit.surfaces.mcp.gateway.progress import Progress
from pursuit.upstream.client import TASK_TTL_MS
from pursuit.upstream.tasks import Handle, ToldFn, declared, followed, generation_of, handle_of, support

CALL = "tools/call"
PROGRESS = "notifications/progress"


def is_offered(visit: Visit, about: About) -> bool:
    """Whether a server of the second generation may make a task of this request."""
    return visit.method == CALL and visit.guest.modern and not visit.aside and generation_of(about) == 2


def offering(visit: Visit) -> None:
    """From here on the client looks to servers like one that follows tasks."""
    visit.guest = Guest(declared(visit.guest.capabilities), silence=visit.guest.silence)


def as_task(params: Mapping[str, Any], tool: Tool, about: About) -> Mapping[str, Any]:
    """The parameters of a call; to a server of the first generation with `task` where its tool must be one."""
    if generation_of(about) != 1 or support(tool.definition) != "required":
        return params
    return {**params, "task": {"ttl": TASK_TTL_MS}}


async def finished(
    visit: Visit,
    talk: Talk,
    result: dict[str, Any],
    *,
    answer: AnswerFn | None = None,
    on_notify: NotifyFn | None = None,
) -> dict[str, Any]:
    """The result of a call, also if the server answered it with a task."""
    handle = handle_of(result) if visit.method == CALL else None
    if handle is None:
        return result
    visit.taken()
    return await followed(talk, handle, told=_told(visit, handle), answer=answer, on_notify=on_notify)


def _told(visit: Visit, handle: Handle) -> ToldFn:
    """What the server says of its task, as progress: it has no numbers, so its words are counted."""
    progress, heard = Progress(visit.token), list[str]()

    async def told(task: Mapping[str, Any]) -> None:
        visit.limit.again()
        await visit.remember(handle.as_dict())
        words = task.get("statusMessage")
        if not isinstance(words, str) or words in heard[-1:]:
            return
        heard.append(words)
        said = progress.told({"progress": len(heard), "message": words})
        if said is not None:
            await visit.tell(PROGRESS, said)

    return told
