"""Calls of the servers' tools as tasks of ours, whether a server knows tasks or not.

Owns: which call is a task at once, and how one is made whose client does not wait. Does not know: generations, or what
a task is told and asked. Invariant: such a call goes the way of any other one: policy, a person's yes and the record
come first; what the server asks becomes a question of the task, and its progress the task's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit.core.tools import CallFailed, Tool
from pursuit.server.errors import Context, sendable
from pursuit.server.gateway.clients import Client, ClientRequest
from pursuit.server.gateway.lists import Lists
from pursuit.server.gateway.protocol_versions import as_object
from pursuit.server.gateway.relay import no_answer
from pursuit.server.gateway.upstreams import Upstreams
from pursuit.server.tasks.promotion import Plan, When
from pursuit.server.tasks.protocol import EXTENSION, capabilities_of
from pursuit.service.approvals import APPROVAL_ID
from pursuit.service.gateway import GatewayQuestions
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.record import finite

TASK_TOKEN = "pursuit-task"  # noqa: S105 - under it a server tells its progress
PROGRESS = "notifications/progress"
LOOK_EVERY = 1.0
Handler = Callable[[ClientRequest], Awaitable[dict[str, Any]]]


class DetachedRequest(ClientRequest):
    """A call whose client may be gone: a client of the new era, to whom questions go as results."""

    patient = True

    def __init__(self, ctx: Context, guest: Client, params: Mapping[str, Any]) -> None:
        super().__init__(ctx, guest)
        self.params = params
        self.task: TaskContext | None = None
        self.long = anyio.Event()
        self._remembered = False

    def taken(self) -> None:
        """The server calls it long: so do we."""
        self.long.set()

    async def remember(self, handle: Mapping[str, Any]) -> None:
        """Whoever goes on with the task after a crash asks the server for it."""
        if self.task is not None and not self._remembered:
            self._remembered = True
            await self.task.remember({"handle": handle})

    @property
    def token(self) -> Any:
        """Progress is wanted in any case: the call may be a task when it comes."""
        return TASK_TOKEN if self._asked_for is None else self._asked_for

    @property
    def _asked_for(self) -> Any:
        return as_object(self.params.get("_meta")).get("progressToken")

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells the task how far its call is; while the client still waits, the client."""
        if self.task is None:
            if method != PROGRESS or self._asked_for is not None:
                await super().tell(method, params)
        elif method == PROGRESS:
            message = params.get("message")
            await self.task.update_status(
                message if isinstance(message, str) else None,
                done=finite(params.get("progress")),
                total=finite(params.get("total")),
            )


class GatewayTaskCalls:
    """The calls of a gateway, for the door of tasks; `answer` makes a call that was admitted as a visit."""

    def __init__(
        self, roster: Upstreams, lists: Lists, answer: Handler, *, questions: GatewayQuestions, more: bool
    ) -> None:
        """`more`: there are tools besides those of the servers."""
        self._questions = questions
        self._more = more
        self._roster = roster
        self._lists = lists
        self._answer = answer

    async def plan(self, ctx: Context) -> Plan:
        """What a call would be as a task; any call can be one."""
        name = (ctx.params or {}).get("name")
        if not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, "tools/call needs the name of a tool")
        owner = self._roster.names.owner(name)
        if owner is None and not self._more:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(name)}")
        tool = None if owner is None else await self._lists.find(_visit(ctx, ctx.params or {}), *owner)
        origin = {} if owner is None else {"server": owner[0], "tool": owner[1]}
        return Plan(title=sendable(name)[:200], when="late" if tool is None else self._when(tool), origin=origin)

    def strict(self) -> bool:
        """Whether the operator says of any tool that it must be a task."""
        return any(said.task_only for server in self._roster.values() for said in server.config.tools.values())

    def performer(self, ctx: Context) -> Performance:
        """How the call of a request is made."""
        return Performance(ctx, self._answer, self._questions)

    def _when(self, tool: Tool) -> When:
        """At once where the operator says that it takes long, or the server that it must be a task."""
        said = self._roster[tool.server].config.tools.get(tool.name)
        if said is not None and said.task_only:
            return "must be"
        if said is not None and said.long is not None:
            return "at once" if said.long else "late"
        execution = as_object(tool.definition.get("execution"))
        return "at once" if execution.get("taskSupport") == "required" else "late"


class Performance:
    """One call, made as often as it takes answers to end it."""

    def __init__(self, ctx: Context, answer: Handler, questions: GatewayQuestions) -> None:
        self._ctx = ctx
        self._answer = answer
        self._questions = questions
        self._task: TaskContext | None = None
        self._visit: DetachedRequest | None = None
        self.long = anyio.Event()

    def attach(self, task: TaskContext) -> None:
        """From here on this task hears of progress."""
        self._task = task
        if self._visit is not None:
            self._visit.task = task

    async def answered_elsewhere(self, questions: Mapping[str, Any]) -> None:
        """Returns when no operator is asked any of these any more; what a server asks, only the client can answer."""
        ours = [key for key in questions if APPROVAL_ID.fullmatch(key)]
        if not ours:
            await anyio.sleep_forever()
        # That a question's time is over rings no bell.
        while any(row["approval_id"] in ours for row in await self._questions.open()):  # noqa: ASYNC110
            await anyio.sleep(LOOK_EVERY)

    async def perform(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes the call, or goes on with it."""
        self._visit = _visit(self._ctx, params)
        self._visit.task, self._visit.long = self._task, self.long
        try:
            return await self._answer(self._visit)
        except CallFailed as error:
            raise no_answer(error) from None


def _visit(ctx: Context, params: Mapping[str, Any]) -> DetachedRequest:
    """What the client can do, without tasks: those are ours, whatever the server does with the call."""
    able = {key: value for key, value in capabilities_of(ctx).items() if key != "tasks"}
    extensions = {key: value for key, value in as_object(able.pop("extensions", None)).items() if key != EXTENSION}
    kept = {**able, "extensions": extensions} if extensions else able
    return DetachedRequest(ctx, Client(kept), {key: value for key, value in params.items() if key != "task"})
