"""Serves one problem to one client: a middleware in front of the gateway, and the gateway's `on_tool_call` middleware.

`ProblemHandler` adds the brief and `submit_final` to the gateway's answers, and decides which tools agents see.
`ProblemCalls` counts each call before it is made, and cancels it at the end of the time, even if it is a task.

Invariant: the answers of the problem's server are not changed; no answer contains scoring data unless the manifest
shows the score.
"""

from __future__ import annotations

import json
import mimetypes
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from pursuit import __version__
from pursuit.core.observe import leaves, lift
from pursuit.errors import InvalidArgument, PursuitError, UpstreamUnavailable
from pursuit.problems.brief import ADDRESS, ASSET, ASSETS, PROMPT, asset_address, asset_called
from pursuit.problems.files import file_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.scorer import SUBMIT, TOOL
from pursuit.server.errors import Context, as_object, is_modern, modern_result, resource_errors, sendable
from pursuit.server.gateway.protocol_versions import LEGACY_ONLY, MODERN_ONLY
from pursuit.server.gateway.tool_calls import CallTool, GatewayCall
from pursuit.server.problems.listing import MISNAMED, OWN, ProblemOffer, UpstreamListing
from pursuit.server.problems.submission import Submission, comes_back, refusal

MAX_PENDING = 1_000
"""Maximum remembered calls that wait for answers; a round trip of a forgotten call counts as a new call."""

HELLO_SECONDS = 7.0
LOOK_SECONDS = 1.5
_DECLARED: Mapping[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
_BEGIN = "Read the brief ({address}, the prompt {prompt} or the tool {tool}), then work, then call {submit} once."

Chain = Callable[[Context, CallNext], Awaitable[HandlerResult]]


class RoundTrips:
    """The calls that asked their client, by tool, arguments and the state that the client returns.

    Invariant: a request continues a call only with the same tool and arguments, and once for each question; any other
    request is another call. A server may ask without a state.
    """

    def __init__(self) -> None:
        self._asked: list[tuple[tuple[str, str | None], int]] = []

    def note(self, call: GatewayCall, number: int, result: Mapping[str, Any]) -> bool:
        """True if the result of the call with this number asks its client; then the call is remembered."""
        state = result.get("requestState")
        if result.get("resultType") != "input_required" or not (state is None or isinstance(state, str)):
            return False
        if len(self._asked) >= MAX_PENDING:
            return False
        self._asked.append(((_digest(call), state), number))
        return True

    def number(self, call: GatewayCall) -> int | None:
        """The number of the call that a request continues; None for another call."""
        if not comes_back(call.params):
            return None
        state = call.params.get("requestState")
        key = _digest(call), state if isinstance(state, str) else None
        place = next((place for place, (its_key, _) in enumerate(self._asked) if its_key == key), None)
        return None if place is None else self._asked.pop(place)[1]

    def forget(self, number: int) -> bool:
        """Forgets a call; returns whether it was waiting for its client."""
        before, self._asked = self._asked, [one for one in self._asked if one[1] != number]
        return len(self._asked) < len(before)


def _digest(call: GatewayCall) -> str:
    return sha256(json.dumps([call.name, call.arguments], sort_keys=True).encode()).hexdigest()


class ProblemCalls:
    """The calls of one attempt, as the gateway's `on_tool_call` middleware.

    It uses the latest listing of `ProblemHandler`.
    """

    def __init__(self, listing: UpstreamListing, submission: Submission) -> None:
        self._attempt = submission.attempt
        self.listing = listing
        self.submission = submission
        self._round_trips = RoundTrips()

    def close(self) -> None:
        self.submission.close()
        self.submission.watcher.close()

    async def __call__(self, call: GatewayCall, call_next: CallTool) -> dict[str, Any]:
        offer = self.listing.latest
        if call.name == TOOL and offer.briefed:  # free, as its description says
            return await call_next(call)
        try:
            if call.name == SUBMIT:
                return await self._submit(call, call_next, offer)
            number = await self._number(call, offer)
        except PursuitError as error:
            return refusal(error)
        return await self._counted(call, call_next, number)

    async def _submit(self, call: GatewayCall, call_next: CallTool, offer: ProblemOffer) -> dict[str, Any]:
        if offer.form is None:
            reason = f"the problem's server decides about submissions, and cannot be reached: {offer.missing}"
            raise UpstreamUnavailable(f"{reason}; nothing was recorded, so try again later")
        form = await self._attempt.fix_form(offer.form)
        if form == OWN:
            return await self.submission.submit(call.request.ctx, call.arguments)
        return await self.submission.pass_on(call, call_next, form)

    async def _number(self, call: GatewayCall, offer: ProblemOffer) -> int:
        """The number of a call; it counts unless it is another round trip of an earlier one."""
        number = self._round_trips.number(call)
        if number is not None:
            await self._attempt.check_open()
            return number
        if offer.form is not None:
            await self._attempt.fix_form(offer.form)
        return await self._attempt.called(call.name, call.arguments)

    async def _counted(self, call: GatewayCall, call_next: CallTool, number: int) -> dict[str, Any]:
        ok, asks, metrics = False, False, dict[str, float]()
        try:
            with anyio.move_on_after(self._attempt.seconds_left()):
                result = await call_next(call)
                asks = self._round_trips.note(call, number, result)
                if asks and call.request.pending is not None:
                    self.submission.watcher.watch(call.request.pending, partial(self._ended, number))
                ok = not result.get("isError")
                with suppress(RecursionError):  # a result that is nested too deep has no readable metrics
                    metrics = leaves(lift(call.name, result)[0])
                return result
        finally:
            if not asks:
                with anyio.CancelScope(shield=True):
                    await self._attempt.answered(number, ok=ok, metrics=metrics)
        return refusal(await self._attempt.overran())

    async def _ended(self, number: int, late: bool) -> None:
        """A call fails if its client does not return before the end of the time."""
        if late and self._round_trips.forget(number):
            await self._attempt.answered(number, ok=False)
            await self._attempt.overran()


@dataclass(slots=True, eq=False, kw_only=True)
class ProblemHandler:
    """Answers one client; `chain` is the gateway, and `has_tool` tells if a client sees a tool there.

    `server_name` is the server name that the operator chose.
    """

    calls: ProblemCalls
    chain: Chain
    has_tool: Callable[[Context, str], Awaitable[bool]]
    server_name: str | None
    citations: bool
    submission: Submission = field(init=False)
    _problem: Manifest = field(init=False)
    _info: dict[str, Any] = field(init=False)
    _handlers: dict[str, Callable[[Context], Awaitable[HandlerResult]]] = field(init=False)

    def __post_init__(self) -> None:
        self.submission = self.calls.submission
        self._problem = self.submission.problem
        self._info = info_of(self._problem, self.server_name)
        self._handlers = {
            "initialize": self._initialize,
            "server/discover": self._initialize,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
        }

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers one message; passes on the rest to the gateway or the SDK."""
        handler = self._handlers.get(ctx.method) if ctx.request_id is not None else None
        if handler is None or ctx.method in (LEGACY_ONLY if is_modern(ctx.protocol_version) else MODERN_ONLY):
            return await self.chain(ctx, call_next)
        return await handler(ctx)

    async def _gateway(self, ctx: Context) -> HandlerResult:
        return await self.chain(ctx, _not_found)

    def _own_result(self, ctx: Context, body: dict[str, Any]) -> dict[str, Any]:
        return modern_result(ctx.method, body, self._info) if is_modern(ctx.protocol_version) else body

    async def _initialize(self, ctx: Context) -> HandlerResult:
        body = dict(cast("Mapping[str, Any]", await self._gateway(ctx)))
        briefed = False
        # A modern client may take a long silence for a legacy server; a legacy client waits.
        with anyio.move_on_after(LOOK_SECONDS if is_modern(ctx.protocol_version) else None):
            briefed = (await self.calls.listing.look()).briefed
        body["capabilities"] = {**_DECLARED, **as_object(body.get("capabilities"))}
        if briefed and self.server_name is None:
            return body
        if "serverInfo" in body:
            body["serverInfo"] = self._info
        else:
            body.pop("_meta", None)
            body = modern_result(ctx.method, body, self._info)
        begin = _BEGIN.format(address=ADDRESS, prompt=PROMPT, tool=TOOL, submit=SUBMIT)
        given = body.get("instructions")
        body["instructions"] = begin if not given else given if briefed else f"{begin}\n\n{given}"
        return body

    async def _list_tools(self, ctx: Context) -> HandlerResult:
        body = await self._list(ctx, "tools")
        offer = await self.calls.listing.look()
        if offer.faults():
            raise MCPError(INTERNAL_ERROR, MISNAMED)
        shown = [offer.shown(as_object(one)) for one in body["tools"]]
        body["tools"] = [one for one in shown if one is not None]
        if not body.get("nextCursor"):
            body["tools"] += offer.more_tools()
        return body

    async def _list_resources(self, ctx: Context) -> HandlerResult:
        return await self._list(ctx, "resources", (await self.calls.listing.look()).more_resources())

    async def _list_prompts(self, ctx: Context) -> HandlerResult:
        return await self._list(ctx, "prompts", (await self.calls.listing.look()).more_prompts())

    async def _list(self, ctx: Context, kind: str, more: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The server's list, or an empty one, with `more` on its last page."""
        try:
            body = dict(cast("Mapping[str, Any]", await self._gateway(ctx)))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            body = self._own_result(ctx, {kind: []})
        if more is not None and not body.get("nextCursor"):
            body[kind] = [*body[kind], *more]
        return body

    async def _server_brief(self, ctx: Context, offer: ProblemOffer) -> HandlerResult:
        """The brief of a server that is itself a problem, with the limits of this one."""
        return offer.with_limits(ctx.method, cast("Mapping[str, Any]", await self._gateway(ctx)))

    async def _read_resource(self, ctx: Context) -> HandlerResult:
        uri = (ctx.params or {}).get("uri")
        if not isinstance(uri, str):
            return await self._gateway(ctx)
        offer = await self.calls.listing.look()
        if uri == ADDRESS:
            if offer.briefed:
                return await self._server_brief(ctx, offer)
            brief = {"uri": ADDRESS, "mimeType": "text/markdown", "text": offer.brief(citations=self.citations)}
            return self._own_result(ctx, {"contents": [brief]})
        name = asset_called(uri, offer.assets) if uri.startswith(ASSETS) else None
        if name is None:
            return await self._gateway(ctx)
        with resource_errors(ctx, uri):
            return self._own_result(ctx, {"contents": [self._asset(uri, name)]})

    def _asset(self, uri: str, name: str) -> dict[str, Any]:
        """The content of an asset; raises `InvalidArgument`, without the reason of the operating system."""
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

    async def _get_prompt(self, ctx: Context) -> HandlerResult:
        offer = await self.calls.listing.look()
        if (ctx.params or {}).get("name") != PROMPT:
            return await self._gateway(ctx)
        if not offer.more_prompts():
            return await (self._server_brief(ctx, offer) if offer.briefed else self._gateway(ctx))
        message = {"role": "user", "content": {"type": "text", "text": offer.brief(citations=self.citations)}}
        return self._own_result(ctx, {"description": self._problem.summary, "messages": [message]})

    async def _call_tool(self, ctx: Context) -> HandlerResult:
        """Answers the brief, and refuses tools that agents do not see; passes all other calls to `ProblemCalls`."""
        params = ctx.params or {}
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, Mapping)):
            return await self._gateway(ctx)  # its answer names the fault
        offer: ProblemOffer | None = None
        with anyio.move_on_after(None if name == TOOL else self.submission.attempt.seconds_left()):
            offer = await self.calls.listing.look()
        if offer is None:
            return self._own_result(ctx, refusal(await self.submission.attempt.overran()))
        known = name in offer.tools or name in (TOOL, SUBMIT)
        hidden = name in offer.hidden and name != SUBMIT
        if hidden or not (known or await self.has_tool(ctx, name)):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(name)}")
        asset = as_object(arguments).get(ASSET)
        if name == TOOL and TOOL not in offer.tools:
            return self._own_result(ctx, self._brief_result(offer, asset))
        if offer.faults():
            return self._own_result(ctx, refusal(InvalidArgument(MISNAMED)))
        if name == TOOL and offer.briefed and asset is None:
            return await self._server_brief(ctx, offer)
        return await self._gateway(ctx)

    def _brief_result(self, offer: ProblemOffer, asset: object) -> dict[str, Any]:
        if asset is None:
            text = offer.brief(citations=self.citations)
            return {"content": [{"type": "text", "text": text}], "isError": False}
        name = asset_called(asset, offer.assets) if isinstance(asset, str) else None
        try:
            if name is None:
                known = ", ".join(offer.assets) or "none"
                raise InvalidArgument(f"there is no file {sendable(str(asset))[:80]!r} here; known: {sendable(known)}")
            found = self._asset(asset_address(name), name)
        except InvalidArgument as error:
            return refusal(error)
        is_text = "text" in found
        block = {"type": "text", "text": found["text"]} if is_text else {"type": "resource", "resource": found}
        return {"content": [block], "isError": False}


def info_of(problem: Manifest, server_name: str | None) -> dict[str, Any]:
    return {"name": server_name or problem.problem_id, "title": problem.title, "version": __version__}


async def _not_found(ctx: Context) -> HandlerResult:
    raise MCPError(METHOD_NOT_FOUND, f"Method not found: {sendable(ctx.method)}")
