"""One client at one problem: a middleware in front of the gateway.

Owns: which request is answered here, and what is added to what the gateway answers. Does not know: transports, how an
attempt is stored, or how a call is made. Invariant: what the upstream says passes untouched; no answer holds scoring
data unless the manifest shows the score.
"""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from pursuit import __version__
from pursuit.core.observe import leaves, lift
from pursuit.errors import AlreadySubmitted, InvalidArgument, PursuitError, UpstreamUnavailable
from pursuit.problems.attempts import Attempt
from pursuit.problems.brief import (
    ADDRESS,
    ASSET,
    PROMPT,
    SUBMIT,
    TOOL,
    asset_address,
    asset_at,
    asset_called,
    asset_name,
    more_limits,
)
from pursuit.problems.files import file_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.scoring import Expressions
from pursuit.server.errors import Context, about, sendable
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.protocol_versions import NEW_ONLY, OLD_ONLY, as_object, enveloped, is_modern
from pursuit.server.problems.listing import MISNAMED, OWN, Offer, with_further
from pursuit.server.problems.round_trips import Following, Legs
from pursuit.server.problems.submission import Aside, Submitting, refusal
from pursuit.server.problems.upstream_submission import Handler, UpstreamSubmission

# The calls of tools at one problem, as they are made: by a client that waits, or as a task that nobody waits for.
# Invariant: a call is counted before it is made; none outlives the time.


class ProblemCalls:
    """Answers the calls that the gateway hands it; `look` says what there is, `info` whose answers they are."""

    def __init__(
        self,
        attempt: Attempt,
        submitting: Submitting,
        following: Following,
        *,
        look: Callable[[], Awaitable[Offer]],
        info: Mapping[str, Any],
    ) -> None:
        self._attempt = attempt
        self._submitting = submitting
        self._handing_in = UpstreamSubmission(attempt, following, submitting.judged)
        self._following = following
        self._look = look
        self._info = info
        self._legs = Legs()

    async def __call__(self, visit: ClientRequest, answer: Handler) -> dict[str, Any]:
        """Answers one call; `answer` is how the gateway makes it."""
        name, arguments = visit.params.get("name"), visit.params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, Mapping)):
            return await answer(visit)  # it says what is wrong
        given = cast("Mapping[str, Any]", arguments or {})
        offer: Offer | None = None
        with anyio.move_on_after(self._attempt.seconds_left()):
            offer = await self._look()
        if offer is None:
            return self._ours(visit, refusal(await self._over()))
        if offer.faults():
            return self._ours(visit, refusal(InvalidArgument(MISNAMED)))
        if name == SUBMIT:
            return await self._submitted(visit, answer, offer, given)
        if name == TOOL and offer.briefed:  # free, as its description says
            return await answer(visit)
        return await self._counted(visit, answer, offer.form, given)

    def _ours(self, visit: ClientRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        """An answer of our own in the client's era."""
        return enveloped(visit.method, body, self._info) if visit.guest.modern else dict(body)

    async def _over(self) -> PursuitError:
        """Why nothing is done any more when the time is over: because of the submission, if there is one."""
        try:
            await self._attempt.refuse_second()
        except AlreadySubmitted as error:
            return error
        return await self._attempt.overran()

    async def _submitted(
        self, visit: ClientRequest, answer: Handler, offer: Offer, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            if offer.form is None:
                said = f"the problem's server has the last word on submissions, and cannot be reached: {offer.missing}"
                raise UpstreamUnavailable(f"{said}; nothing was recorded, so try again later")
            form = await self._attempt.fix_form(offer.form)
            if form == OWN:
                return self._ours(visit, await self._submitting.own(visit.ctx, given))
            return await self._handing_in.hand_in(visit, answer, form, given)
        except PursuitError as error:
            return self._ours(visit, refusal(error))

    async def _counted(
        self, visit: ClientRequest, answer: Handler, form: str | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A call of the upstream's tool; the later legs of one call are the same call, and end with the attempt."""
        name = str(visit.params["name"])
        number = self._legs.number(visit.params, name, given)
        try:
            if number is not None:
                await self._attempt.check_open()
            else:
                if form is not None:
                    await self._attempt.fix_form(form)
                number = await self._attempt.called(name, given)
        except PursuitError as error:
            return self._ours(visit, refusal(error))
        ok, asked, metrics = False, False, dict[str, float]()
        try:
            with anyio.move_on_after(self._attempt.seconds_left()):
                result = await answer(visit)
                asked = self._legs.note(result, number, name, given)
                if asked and visit.goes_on is not None:
                    self._following.follow(visit.goes_on, partial(self._cut, number))
                ok = not result.get("isError")
                with suppress(RecursionError):  # then it tells no numbers
                    metrics = dict(leaves(lift(name, result)[0]))
                return result
        finally:
            if not asked:
                with anyio.CancelScope(shield=True):
                    await self._attempt.answered(number, ok=ok, metrics=metrics)
        return self._ours(visit, refusal(await self._attempt.overran()))

    async def _cut(self, number: int, late: bool) -> None:
        """A call has ended whose client was asked; one that nobody came back to before the time was over has failed."""
        if late and self._legs.forget(number):
            await self._attempt.answered(number, ok=False)
            await self._attempt.overran()


Looked = Callable[[], Awaitable[Offer]]
Knows = Callable[[Context, str], Awaitable[bool]]
Chain = Callable[[Context, CallNext], Awaitable[HandlerResult]]
_DECLARED: Mapping[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
HELLO_SECONDS = 7.0
LOOK_SECONDS = 1.5
_BEGIN = "Read the brief ({address}, the prompt {prompt} or the tool {tool}), then work, then call {submit} once."


class ProblemHandler:
    """Answers one client; `chain` is the gateway, `look` asks the upstream what it has, `tasks` outlive a request.

    `knows` says whether the client sees a tool of a name, and `aside` calls one for the operator.
    """

    def __init__(
        self,
        problem: Manifest,
        attempt: Attempt,
        chain: Chain,
        look: Looked,
        *,
        aside: Aside,
        knows: Knows,
        expressions: Expressions,
        tasks: anyio.abc.TaskGroup,
        server_name: str | None = None,
        citations: bool = True,
    ) -> None:
        self._problem = problem
        self._attempt = attempt
        self._chain = chain
        self._seen = look
        self._knows = knows
        self._following = Following(attempt, tasks)
        self.submitting = Submitting(problem, attempt, aside=aside, expressions=expressions, tasks=tasks)
        info = info_of(problem, server_name)
        self.clerk = ProblemCalls(attempt, self.submitting, self._following, look=self._look, info=info)
        self._server_name = server_name
        self._citations = citations
        self._answers: dict[str, Callable[[Context], Awaitable[HandlerResult]]] = {
            "initialize": self._greet,
            "server/discover": self._greet,
            "tools/list": self._tools,
            "tools/call": self._call,
            "resources/list": self._resources,
            "resources/read": self._read,
            "prompts/list": self._prompts,
            "prompts/get": self._prompt,
        }

    def leave(self) -> None:
        """Its client has gone: nothing is under way or judged any more."""
        self.submitting.leave()
        self._following.leave()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers one message; what neither we nor the gateway answer is the SDK's."""
        answer = self._answers.get(ctx.method) if ctx.request_id is not None else None
        if answer is None or ctx.method in (OLD_ONLY if is_modern(ctx.protocol_version) else NEW_ONLY):
            return await self._chain(ctx, call_next)
        return await answer(ctx)

    async def _inner(self, ctx: Context) -> HandlerResult:
        """What the gateway answers."""
        return await self._chain(ctx, _nobody)

    async def _look(self) -> Offer:
        """What there is, with the form of a submission that the attempt has."""
        state = self._attempt.state
        return replace(await self._seen(), fixed=None if state is None else state.form)

    @property
    def _info(self) -> dict[str, Any]:
        return info_of(self._problem, self._server_name)

    def _ours(self, ctx: Context, body: Mapping[str, Any]) -> dict[str, Any]:
        """An answer of our own in the client's era."""
        return enveloped(ctx.method, body, self._info) if is_modern(ctx.protocol_version) else dict(body)

    async def _greet(self, ctx: Context) -> HandlerResult:
        body = dict(cast("Mapping[str, Any]", await self._inner(ctx)))
        briefed = False
        # Who asks in the new era may take a long silence for an old server; one of the old era waits.
        with anyio.move_on_after(LOOK_SECONDS if is_modern(ctx.protocol_version) else None):
            briefed = (await self._look()).briefed
        body["capabilities"] = {**_DECLARED, **as_object(body.get("capabilities"))}
        if briefed and self._server_name is None:
            return body
        if "serverInfo" in body:
            body["serverInfo"] = self._info
        else:
            body.pop("_meta", None)
            body = enveloped(ctx.method, body, self._info)
        begin = _BEGIN.format(address=ADDRESS, prompt=PROMPT, tool=TOOL, submit=SUBMIT)
        said = body.get("instructions")
        body["instructions"] = begin if not said else said if briefed else f"{begin}\n\n{said}"
        return body

    async def _tools(self, ctx: Context) -> HandlerResult:
        body = dict(await self._listed(ctx, "tools"))
        offer = await self._look()
        if offer.faults():
            raise MCPError(INTERNAL_ERROR, MISNAMED)
        shown = [offer.shown(as_object(one)) for one in body["tools"]]
        body["tools"] = [one for one in shown if one is not None]
        if not body.get("nextCursor"):
            body["tools"] += offer.more_tools()
        return body

    async def _resources(self, ctx: Context) -> HandlerResult:
        return await self._with_more(ctx, "resources", (await self._look()).more_resources())

    async def _prompts(self, ctx: Context) -> HandlerResult:
        return await self._with_more(ctx, "prompts", (await self._look()).more_prompts())

    async def _with_more(self, ctx: Context, kind: str, more: list[dict[str, Any]]) -> HandlerResult:
        body = dict(await self._listed(ctx, kind))
        if not body.get("nextCursor"):
            body[kind] = [*body[kind], *more]
        return body

    async def _listed(self, ctx: Context, kind: str) -> Mapping[str, Any]:
        """The upstream's list; one that it does not have is empty."""
        try:
            return cast("Mapping[str, Any]", await self._inner(ctx))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
        return self._ours(ctx, {kind: []})

    async def _brief(self) -> str:
        return (await self._look()).brief(citations=self._citations)

    async def _read(self, ctx: Context) -> HandlerResult:
        uri = (ctx.params or {}).get("uri")
        if not isinstance(uri, str):
            return await self._inner(ctx)
        if (await self._look()).briefed:
            return await self._inner(ctx) if uri != ADDRESS else await self._upstreams_brief(ctx)
        if uri == ADDRESS:
            return self._ours(ctx, _document(ADDRESS, await self._brief()))
        name = asset_at(uri, self._problem.assets)
        if name is not None:
            with about(ctx, uri):
                return self._ours(ctx, {"contents": [self._asset(uri, name)]})
        return await self._inner(ctx)

    async def _upstreams_brief(self, ctx: Context) -> HandlerResult:
        """The brief of an upstream that is a problem itself; what is limited here, too, is told at its end."""
        body = cast("Mapping[str, Any]", await self._inner(ctx))
        return dict(with_further(ctx.method, body, more_limits(self._problem)))

    def _asset(self, uri: str, name: str) -> dict[str, Any]:
        """What an asset holds; raises `InvalidArgument` without the machine's own words if it is not there now."""
        path = file_of(self._problem.folder, name)
        try:
            data = path.read_bytes() if isinstance(path, Path) else None
        except OSError:
            data = None
        if data is None:
            raise InvalidArgument(f"the file {sendable(name)!r} of this problem cannot be read now")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        try:
            return {"uri": uri, "mimeType": kind, "text": data.decode()}
        except UnicodeDecodeError:
            return {"uri": uri, "mimeType": kind, "blob": b64encode(data).decode()}

    async def _prompt(self, ctx: Context) -> HandlerResult:
        offer = await self._look()
        if (ctx.params or {}).get("name") != PROMPT or not offer.more_prompts():
            asked = offer.briefed and (ctx.params or {}).get("name") == PROMPT
            return await self._upstreams_brief(ctx) if asked else await self._inner(ctx)
        message = {"role": "user", "content": {"type": "text", "text": await self._brief()}}
        return self._ours(ctx, {"description": self._problem.summary, "messages": [message]})

    async def _call(self, ctx: Context) -> HandlerResult:
        """Refuses what is not there and tells the brief; every other call comes back to the clerk, also as a task."""
        params = ctx.params or {}
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, Mapping)):
            return await self._inner(ctx)  # it says what is wrong
        if name == SUBMIT:
            return await self._inner(ctx)
        offer = await self._look()
        if name in offer.hidden or not (name in offer.tools or name == TOOL or await self._knows(ctx, name)):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(name)}")
        asset = as_object(arguments).get(ASSET)
        if name == TOOL and TOOL not in offer.tools:
            return self._ours(ctx, await self._told(offer, asset))
        if name == TOOL and offer.briefed and asset is None:
            return await self._upstreams_brief(ctx)
        return await self._inner(ctx)

    async def _told(self, offer: Offer, asset: object) -> dict[str, Any]:
        """What our own tool answers: the brief, or the file that is asked for."""
        if asset is None:
            return {"content": [{"type": "text", "text": await self._brief()}], "isError": False}
        name = asset_called(asset, offer.assets) if isinstance(asset, str) else None
        try:
            if name is None:
                known = ", ".join(map(asset_name, offer.assets)) or "none"
                raise InvalidArgument(f"there is no file {sendable(str(asset))[:80]!r} here; known: {sendable(known)}")
            found = self._asset(asset_address(name), name)
        except InvalidArgument as error:
            return refusal(error)
        is_text = "text" in found
        block = {"type": "text", "text": found["text"]} if is_text else {"type": "resource", "resource": found}
        return {"content": [block], "isError": False}


def info_of(problem: Manifest, server_name: str | None) -> dict[str, Any]:
    """What a problem's server says that it is."""
    return {"name": server_name or problem.problem_id, "title": problem.title, "version": __version__}


async def _nobody(ctx: Context) -> HandlerResult:
    raise MCPError(METHOD_NOT_FOUND, f"Method not found: {sendable(ctx.method)}")


def _document(uri: str, text: str) -> dict[str, Any]:
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}
