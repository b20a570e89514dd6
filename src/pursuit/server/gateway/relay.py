"""One request of a client, sent to one server and answered as the client's era has it.

Owns: which notifications go with it, and the turn from a failure to what a client reads. Does not know: names, lists or
policy. Invariant: between the same eras the server's JSON is not touched, in either direction; a question of the server
is put to the client whose call it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from pursuit.core.tools import About, AnswerFn, CallFailed, NotifyFn, Tool, UpstreamError
from pursuit.server.errors import sendable
from pursuit.server.gateway.clients import Client, ClientRequest
from pursuit.server.gateway.pending_input import PendingCalls, Progress
from pursuit.server.gateway.protocol_versions import (
    ASKING,
    as_object,
    error_for,
    is_modern,
    is_wanted,
    log_level,
    params_for,
    result_for,
)
from pursuit.server.gateway.routing import NEEDED, LegacySessions, Routing, UpstreamChannel, needs_own
from pursuit.upstream.client import TASK_TTL_MS, McpUpstream
from pursuit.upstream.tasks import Handle, ToldFn, declared, followed, generation_of, handle_of, support
from pursuit.upstream.transport import ClientSide

# Tasks that servers behind the gateway make of calls, followed to their result for whoever called.
# Invariant: a client gets what a plain call would have had, whether it knows tasks or not; giving up reaches the
# server.

CALL = "tools/call"
PROGRESS = "notifications/progress"


def is_offered(visit: ClientRequest, about: About) -> bool:
    """Whether a server of the second generation may make a task of this request."""
    return visit.method == CALL and visit.guest.modern and not visit.aside and generation_of(about) == 2


def offering(visit: ClientRequest) -> None:
    """From here on the client looks to servers like one that follows tasks."""
    visit.guest = Client(declared(visit.guest.capabilities), silence=visit.guest.silence)


def as_task(params: Mapping[str, Any], tool: Tool, about: About) -> Mapping[str, Any]:
    """The parameters of a call; to a server of the first generation with `task` where its tool must be one."""
    if generation_of(about) != 1 or support(tool.definition) != "required":
        return params
    return {**params, "task": {"ttl": TASK_TTL_MS}}


async def finished(
    visit: ClientRequest,
    talk: UpstreamChannel,
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


def _told(visit: ClientRequest, handle: Handle) -> ToldFn:
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


MOST_ROUNDS = 10
PAUSE = 0.2
LIMITED = frozenset({"resources/read", "prompts/get", "completion/complete"})
"""What is no call of a tool and is answered soon, if at all."""

FREE = frozenset(
    {"tools/call", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "logging/setLevel"}
)
"""What is sent to any server: lists, which everybody must see, and calls, which have been at the gate."""

Barred = Callable[[str], str | None]
"""Why nothing else is sent to a server, or None."""

Note = Callable[[Mapping[str, Any]], None]
Around = Callable[[], AbstractAsyncContextManager[Note | None]]
"""What is done before and after the server is asked, however often the client is asked in between; gets the result."""


class Relay:
    """Sends requests on."""

    def __init__(self, lines: Routing, desks: LegacySessions, parking: PendingCalls, barred: Barred) -> None:
        self._lines = lines
        self._barred = barred
        self._desks = desks
        self._parking = parking

    async def send(
        self, visit: ClientRequest, upstream: McpUpstream, params: Mapping[str, Any], *, around: Around = nullcontext
    ) -> dict[str, Any]:
        """The server's answer; raises `MCPError` for the server's own error.

        Raises `CallFailed` or `UpstreamUnavailable` if there is none.
        """
        why = None if visit.method in FREE else self._barred(upstream.name)
        if why is not None:
            raise MCPError(
                INVALID_REQUEST, f"{visit.method}: {why}, and only for a call of a tool can a person be asked"
            )
        if visit.method in LIMITED:
            visit.limit.seconds = upstream.config.timeouts.read
        to_modern = visit.guest.modern
        about = await upstream.about()
        try:
            if to_modern and self._parking.holds(params):  # whatever the client says now of what it can
                result = await self._parking.go_on(visit, params)
            elif is_offered(visit, about):
                result = await self._offered(visit, upstream, params, around)
            elif (
                to_modern and not is_modern(about.protocol_version) and needs_own(visit.guest, log_level(visit.params))
            ):
                result = await self._lent(visit, upstream, about, params, around)
            else:
                async with around() as note, self._lines.talk(visit, upstream) as talk:
                    about = await talk.about()
                    with visit.limit.running():
                        result = await self._asked(visit, talk, params, about)
                    if note is not None:
                        note(result)
        except UpstreamError as error:
            from_modern = is_modern(about.protocol_version)
            found = error_for(visit.method, error, to_modern=to_modern, from_modern=from_modern)
            raise MCPError(found.code, found.message, found.data) from None
        from_modern = is_modern(about.protocol_version)
        return result_for(visit.method, result, to_modern=to_modern, from_modern=from_modern, info=about.server_info)

    async def _asked(
        self, visit: ClientRequest, talk: UpstreamChannel, params: Mapping[str, Any], about: About
    ) -> dict[str, Any]:
        """Sends it; a client of the old era is asked what a server of the new one wants to know."""
        body = params_for(
            params, to_modern=is_modern(about.protocol_version), level=None if visit.aside else visit.guest.level
        )
        progress = Progress(visit.token)
        hearing, wanted = self._hearing(visit, about, progress), progress.token is not None
        visit.sent = True
        result = await talk.request(visit.method, body, on_notify=hearing, progress=wanted, waiting=visit.queueing)
        result = await finished(visit, talk, result, on_notify=hearing)
        rounds = 0
        while not visit.guest.modern and result.get("resultType") == "input_required":
            rounds += 1
            if rounds > MOST_ROUNDS:
                raise UpstreamError(INTERNAL_ERROR, f"the server asked {MOST_ROUNDS} times and did not come to an end")
            body = await self._answered(visit, body, result)
            progress.restart()
            result = await talk.request(
                visit.method, body, on_notify=hearing, progress=wanted, waiting=visit.limit.waiting
            )
        return result

    async def _answered(self, visit: ClientRequest, body: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
        """The same request with the client's answers."""
        again = {key: value for key, value in body.items() if key not in ("inputResponses", "requestState")}
        questions: Any = asked.get("inputRequests")
        if isinstance(questions, Mapping) and questions:
            answers: dict[str, Any] = {}
            for key, question in cast("Mapping[str, Any]", questions).items():
                answers[key] = await _put(visit, question)
            again["inputResponses"] = answers
        else:
            await anyio.sleep(PAUSE)
        if "requestState" in asked:
            again["requestState"] = asked["requestState"]
        return again

    async def _lent(
        self, visit: ClientRequest, upstream: McpUpstream, about: About, params: Mapping[str, Any], around: Around
    ) -> dict[str, Any]:
        """A client of the new era at a server of the old one, over a connection for this call alone."""
        body = params_for(params, to_modern=False)
        level = log_level(visit.params)

        async def perform(side: ClientSide, on_notify: NotifyFn | None) -> dict[str, Any]:
            async with around() as note, self._desks.taken(upstream, side) as talk:
                await talk.about()  # the time of a start is not the call's
                if level is not None and "logging" in about.capabilities:
                    await _set_level(talk, level)
                wanted = visit.token is not None
                with visit.limit.running():
                    visit.sent = True
                    result = await talk.request(
                        visit.method, body, on_notify=on_notify, progress=wanted, waiting=visit.queueing
                    )
                    result = await finished(visit, talk, result, on_notify=on_notify)
                if note is not None:
                    note(result)
                return result

        if visit.method in ASKING and not visit.aside:
            return await self._parking.run(visit, params, perform)
        return await perform(ClientSide(capabilities=visit.guest.capabilities), None)

    async def _offered(
        self, visit: ClientRequest, upstream: McpUpstream, params: Mapping[str, Any], around: Around
    ) -> dict[str, Any]:
        """A client of the new era at a server that may make a task of the call, and ask within that."""
        body = params_for(params, to_modern=True)
        offering(visit)

        async def perform(side: ClientSide, on_notify: NotifyFn | None) -> dict[str, Any]:
            async with around() as note, self._lines.talk(visit, upstream) as talk:
                await talk.about()
                with visit.limit.running():
                    wanted = visit.token is not None
                    visit.sent = True
                    result = await talk.request(visit.method, body, on_notify=on_notify, progress=wanted)
                    result = await finished(visit, talk, result, answer=side.answer)
                if note is not None:
                    note(result)
                return result

        return await self._parking.run(visit, params, perform, foreign=True)

    def _hearing(self, visit: ClientRequest, about: About, progress: Progress) -> NotifyFn | None:
        """Who hears what belongs to this request; nobody where neither progress nor logs can come."""
        if progress.token is None and "logging" not in about.capabilities:
            return None
        level = log_level(visit.params)

        async def heard(method: str, params: Mapping[str, Any]) -> None:
            visit.limit.again()
            if method == "notifications/progress":
                told = progress.told(params)
                if told is not None:
                    await visit.tell(method, told)
            elif method != "notifications/message" or not visit.guest.modern or is_wanted(level, params):
                await visit.tell(method, params)

        return heard


async def _put(visit: ClientRequest, question: Any) -> Mapping[str, Any]:
    """A client's answer to what a server wants to know of it; a question that it cannot take is not put to it."""
    said = as_object(question)
    method, params = said.get("method"), said.get("params")
    if not isinstance(method, str) or not (params is None or isinstance(params, Mapping)):
        raise UpstreamError(INTERNAL_ERROR, "the server asks something, and its question is malformed")
    needed = NEEDED.get(method)
    if method == "roots/list" and not visit.guest.can("roots"):
        return {"roots": []}
    if needed is not None and not visit.guest.can(needed):
        reason = f"the server asks for {method} before it answers, and this client says that it cannot do that"
        raise UpstreamError(INVALID_REQUEST, reason)
    return await visit.ask(method, as_object(params))


async def _set_level(talk: UpstreamChannel, level: str) -> None:
    with suppress(UpstreamError):  # then it says what it says by itself
        await talk.request("logging/setLevel", {"level": level})


def no_answer(error: CallFailed | Exception) -> MCPError:
    """What a client is told when a server did not answer, where it is no tool's result."""
    return MCPError(INTERNAL_ERROR, sendable(str(error)))
