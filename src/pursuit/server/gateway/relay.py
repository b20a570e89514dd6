"""Sends a client's request to a server, and answers it in the client's protocol version.

It also follows the tasks that a server makes of calls: the client gets the result of a plain call, whether it supports
tasks or not.

Invariant: between a client and a server of the same protocol generation JSON is not changed in either direction, except
for `_meta["pursuit/mayApprove"]` in calls of a client whose approvals do not count. A server's request goes to the
client whose call it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from pursuit.core.tools import AnswerFn, InitializeResult, NotifyFn, UpstreamError
from pursuit.server.errors import (
    LISTS,
    MAY_APPROVE,
    NEEDED_CAPABILITY,
    as_object,
    elicitation_channel,
    is_modern,
    is_wanted,
    log_level,
)
from pursuit.server.gateway.authorization import Authorizer
from pursuit.server.gateway.clients import ClientRequest, GatewayClient
from pursuit.server.gateway.pending_input import PROGRESS, PendingCalls, Progress
from pursuit.server.gateway.protocol_versions import (
    MAY_ASK,
    ROUND_TRIP_KEYS,
    error_for,
    params_for,
    result_for,
)
from pursuit.server.gateway.routing import (
    LOG_MESSAGE,
    LegacySessions,
    Routing,
    UpstreamChannel,
    needs_own_connection,
)
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.tasks import Handle, OnTaskStatus, follow_task, task_generation, task_handle, with_tasks_extension
from pursuit.upstream.transport import ClientFeatures

MAX_ROUNDS = 10
PAUSE = 0.2
"""Seconds before a call is repeated for a server that asks for a repetition without a question."""

TIMED_READS = frozenset({"resources/read", "prompts/get", "completion/complete"})
"""The methods with the server's read timeout."""

UNGUARDED = LISTS | {"tools/call", "logging/setLevel"}
"""The methods that need no policy here: lists, which all clients see, and calls, which the authorizer has permitted."""

Note = Callable[[Mapping[str, Any]], None]
Around = Callable[[], AbstractAsyncContextManager[Note | None]]
"""Entered once around the exchange with the server, however often the client is asked; the yielded note gets the
result.
"""


class Relay:
    def __init__(self, routing: Routing, sessions: LegacySessions, pending: PendingCalls, auth: Authorizer) -> None:
        self._routing = routing
        self._authorizer = auth
        self._sessions = sessions
        self._pending = pending

    async def send(
        self, request: ClientRequest, upstream: McpUpstream, params: Mapping[str, Any], *, around: Around = nullcontext
    ) -> dict[str, Any]:
        """The server's result. Raises `MCPError` for the server's error, `CallFailed` or `UpstreamUnavailable`."""
        if request.method not in UNGUARDED:
            await self.require(request, upstream.name, params)
        if request.method in TIMED_READS:
            request.timeout.seconds = upstream.config.timeouts.read
        to_modern = request.client.modern
        about = await upstream.about()
        if request.method == "tools/call" and elicitation_channel(request.ctx, self._authorizer.channels) is None:
            params = {**params, "_meta": {**as_object(params.get("_meta")), MAY_APPROVE: False}}
        try:
            if to_modern and self._pending.holds(params):  # even if the client no longer declares the capability
                result = await self._pending.resume(request, params)
            elif to_modern and not request.operator and request.method == "tools/call" and task_generation(about) == 2:
                result = await self._send_offering_task(request, upstream, params, around)
            elif to_modern and not is_modern(about.protocol_version) and needs_own_connection(request):
                result = await self._send_to_legacy(request, upstream, about, params, around)
            else:
                async with around() as note, self._routing.channel(request, upstream) as channel:
                    about = await channel.about()
                    with request.timeout.running():
                        result = await self._send(request, channel, params, about)
                    if note is not None:
                        note(result)
        except UpstreamError as error:
            from_modern = is_modern(about.protocol_version)
            found = error_for(request.method, error, to_modern=to_modern, from_modern=from_modern)
            raise MCPError(found.code, found.message, found.data) from None
        from_modern = is_modern(about.protocol_version)
        return result_for(request.method, result, to_modern=to_modern, from_modern=from_modern, info=about.server_info)

    async def require(
        self, request: ClientRequest, server: str, params: Mapping[str, Any], method: str | None = None
    ) -> None:
        """Raises `MCPError` if policy denies this client a request of this method, defined by MCP or not.

        `params` are the parameters for the server: a rule about a URI applies to the server's own URI.
        """
        why = await self._authorizer.denied(request.ctx, server, method or request.method, params)
        if why is not None:
            raise MCPError(INVALID_REQUEST, why)

    async def _send(
        self, request: ClientRequest, channel: UpstreamChannel, params: Mapping[str, Any], about: InitializeResult
    ) -> dict[str, Any]:
        """The result; if a modern server answers `input_required`, a legacy client is asked."""
        level = None if request.operator else request.client.level
        body = params_for(params, to_modern=is_modern(about.protocol_version), level=level)
        progress = Progress(request.token)
        on_notify = self._notifier(request, about, progress)
        result = await _result(request, channel, body, on_notify=on_notify, follow=on_notify)
        rounds = 0
        while not request.client.modern and result.get("resultType") == "input_required":
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise UpstreamError(INTERNAL_ERROR, f"the server asked {MAX_ROUNDS} times without a final result")
            body = await _with_answers(request, body, result)
            progress.restart()
            wanted, paused = progress.token is not None, request.timeout.paused
            result = await channel.request(request.method, body, on_notify=on_notify, progress=wanted, waiting=paused)
        return result

    async def _send_to_legacy(
        self,
        request: ClientRequest,
        upstream: McpUpstream,
        about: InitializeResult,
        params: Mapping[str, Any],
        around: Around,
    ) -> dict[str, Any]:
        """A modern client's request at a legacy server, over a connection only for this call."""
        body = params_for(params, to_modern=False)
        level = log_level(request.params) if "logging" in about.capabilities else None

        async def perform(side: ClientFeatures, on_notify: NotifyFn | None) -> dict[str, Any]:
            channel = self._sessions.channel(upstream, side)
            return await _exchange(request, channel, body, around, on_notify=on_notify, follow=on_notify, level=level)

        if request.method in MAY_ASK and not request.operator:
            return await self._pending.run(request, params, perform)
        return await perform(ClientFeatures(capabilities=request.client.capabilities), None)

    async def _send_offering_task(
        self, request: ClientRequest, upstream: McpUpstream, params: Mapping[str, Any], around: Around
    ) -> dict[str, Any]:
        """A modern client's call at a server that may make a task of it, and may ask within that task."""
        body = params_for(params, to_modern=True)
        # The server sees a client that supports tasks.
        request.client = GatewayClient(with_tasks_extension(request.client.capabilities), request.client.outbound)

        async def perform(side: ClientFeatures, on_notify: NotifyFn | None) -> dict[str, Any]:
            channel = self._routing.channel(request, upstream)
            return await _exchange(request, channel, body, around, on_notify=on_notify, answer=side.answer)

        return await self._pending.run(request, params, perform, foreign=True)

    def _notifier(self, request: ClientRequest, about: InitializeResult, progress: Progress) -> NotifyFn | None:
        """The callback that forwards notifications of a call; None if the client accepts neither progress nor logs."""
        if progress.token is None and "logging" not in about.capabilities:
            return None
        level = log_level(request.params)

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            request.timeout.reset()
            if method == PROGRESS:
                body = progress.params(params)
                if body is not None:
                    await request.notify(method, body)
            elif method != LOG_MESSAGE or not request.client.modern or is_wanted(level, params):
                await request.notify(method, params)

        return on_notify


async def _exchange(
    request: ClientRequest,
    opening: AbstractAsyncContextManager[UpstreamChannel],
    body: Mapping[str, Any],
    around: Around,
    *,
    on_notify: NotifyFn | None,
    follow: NotifyFn | None = None,
    answer: AnswerFn | None = None,
    level: str | None = None,
) -> dict[str, Any]:
    """Sends a call and returns its result; `follow` and `answer` serve the task that the server may make of it."""
    async with around() as note, opening as channel:
        await channel.about()  # the time for a server's start does not count for the call
        if level is not None:
            with suppress(UpstreamError):  # the server then uses its default level
                await channel.request("logging/setLevel", {"level": level})
        with request.timeout.running():
            result = await _result(request, channel, body, on_notify=on_notify, follow=follow, answer=answer)
        if note is not None:
            note(result)
        return result


async def _result(
    request: ClientRequest,
    channel: UpstreamChannel,
    body: Mapping[str, Any],
    *,
    on_notify: NotifyFn | None,
    follow: NotifyFn | None,
    answer: AnswerFn | None = None,
) -> dict[str, Any]:
    """Sends a request and returns its result, even if the server answers it with a task."""
    request.sent = True
    wanted = request.token is not None
    result = await channel.request(request.method, body, on_notify=on_notify, progress=wanted, waiting=request.queueing)
    handle = task_handle(result) if request.method == "tools/call" else None
    if handle is None:
        return result
    request.task_created()
    return await follow_task(channel, handle, told=_status(request, handle), answer=answer, on_notify=follow)


def _status(request: ClientRequest, handle: Handle) -> OnTaskStatus:
    """Converts status messages of a server's task to progress; its value is the number of messages so far."""
    progress, messages = Progress(request.token), list[str]()

    async def told(task: Mapping[str, Any]) -> None:
        request.timeout.reset()
        await request.keep_task_handle(handle.as_dict())
        message = task.get("statusMessage")
        if not isinstance(message, str) or message in messages[-1:]:
            return
        messages.append(message)
        body = progress.params({"progress": len(messages), "message": message})
        if body is not None:
            await request.notify(PROGRESS, body)

    return told


async def _with_answers(request: ClientRequest, body: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    again = {key: value for key, value in body.items() if key not in ROUND_TRIP_KEYS}
    questions: Any = asked.get("inputRequests")
    if isinstance(questions, Mapping) and questions:
        asks = cast("Mapping[str, Any]", questions).items()
        again["inputResponses"] = {key: await _ask(request, as_object(question)) for key, question in asks}
    else:
        await anyio.sleep(PAUSE)
    if "requestState" in asked:
        again["requestState"] = asked["requestState"]
    return again


async def _ask(request: ClientRequest, question: Mapping[str, Any]) -> Mapping[str, Any]:
    """A client's answer to a server's question; the client is asked only if it declares the capability."""
    method, params = question.get("method"), question.get("params")
    if not isinstance(method, str) or not (params is None or isinstance(params, Mapping)):
        raise UpstreamError(INTERNAL_ERROR, "the server's question is malformed")
    needed = NEEDED_CAPABILITY.get(method)
    if method == "roots/list" and not request.client.can("roots"):
        return {"roots": []}
    if needed is not None and not request.client.can(needed):
        reason = f"the server needs {method} before it answers, but the client does not declare that capability"
        raise UpstreamError(INVALID_REQUEST, reason)
    return await request.ask(method, as_object(params))
