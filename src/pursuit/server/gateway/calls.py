"""A call of a tool through the gateway: whose it is, whether it may be made, and what its client reads.

Owns: the order of the steps. Does not know: connections or eras. Invariant: no call reaches a server that policy did
not let through; what a model should read is a tool's result, with the server's own result untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from pursuit.core.tools import OUTCOME_META_KEY, CallFailed, Tool
from pursuit.errors import UpstreamUnavailable
from pursuit.server.errors import sendable
from pursuit.server.gateway.authorization import Authorizer
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.initialize import INFO
from pursuit.server.gateway.lists import Lists
from pursuit.server.gateway.protocol_versions import as_object, enveloped
from pursuit.server.gateway.relay import Relay, as_task
from pursuit.server.gateway.resources import Resources
from pursuit.server.gateway.upstreams import Upstreams
from pursuit.upstream.listing import is_offered

_failures: ContextVar[list[CallFailed | UpstreamUnavailable] | None] = ContextVar("failures", default=None)


@contextmanager
def failures() -> Generator[list[CallFailed | UpstreamUnavailable]]:
    """Why calls inside of the block got no answer of their server, which their results alone do not tell."""
    heard: list[CallFailed | UpstreamUnavailable] = []
    mark = _failures.set(heard)
    try:
        yield heard
    finally:
        _failures.reset(mark)


class Calls:
    """Calls tools of these servers; `patience` is how long a call may take for which nobody said otherwise."""

    def __init__(
        self,
        roster: Upstreams,
        *,
        relay: Relay,
        lists: Lists,
        resources: Resources,
        gate: Authorizer,
        patience: Callable[[], float],
        info: Mapping[str, Any],
    ) -> None:
        self._roster = roster
        self._relay = relay
        self._lists = lists
        self._resources = resources
        self._gate = gate
        self._patience = patience
        self._info = info

    async def call(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `tools/call`."""
        name, arguments = visit.params.get("name"), visit.params.get("arguments")
        if not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, "tools/call needs the name of a tool")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise MCPError(INVALID_PARAMS, "the arguments of a tool are an object")
        owner = self._roster.names.owner(name)
        if owner is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(name)}")
        try:
            return await self._call(visit, *owner, cast("Mapping[str, Any]", arguments or {}))
        except (CallFailed, UpstreamUnavailable) as error:
            heard = _failures.get()
            if heard is not None:
                heard.append(error)
            unknown = isinstance(error, CallFailed) and error.outcome == "unknown"
            return tool_error(visit, str(error), self._info, unknown=unknown)

    async def aside(self, visit: ClientRequest) -> dict[str, Any]:
        """A call of the operator's own; raises `CallFailed` and `UpstreamUnavailable`, and `MCPError` as servers do."""
        name = str(visit.params["name"])
        owner = self._roster.names.owner(name)
        if owner is None:
            raise CallFailed(f"Unknown tool: {sendable(name)}", sent=False)
        return await self._call(visit, *owner, as_object(visit.params["arguments"]))

    async def _call(self, visit: ClientRequest, server: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tool = await self._lists.find(visit, server, name)
        params: Mapping[str, Any] = visit.params
        if params["name"] != name:
            params = {**params, "name": name}
        if tool is None:
            tool = self._unlisted(server, name)
            if not visit.aside and not self._gate.lets_through(visit, tool, arguments):
                raise MCPError(INVALID_PARAMS, self._unknown(server, name))
        decide = self._gate.appoint if visit.aside else self._gate.admit
        passed = await decide(visit, tool, arguments)
        if passed.refusal is not None:
            return tool_error(visit, passed.refusal, self._info)
        if passed.question is not None:
            return enveloped(visit.method, passed.question, self._info)
        upstream = self._roster[server]
        said = tool.traits.timeout or upstream.config.timeouts.call
        # Only what somebody waits for is cut where nobody said when.
        visit.limit.seconds = said or (None if visit.patient or tool.long else self._patience())
        asked = as_task(passed.params(params), tool, await upstream.about())
        result = await self._relay.send(visit, upstream, asked, around=lambda: self._gate.recorded(passed))
        return self._gate.result(passed, self._resources.linked(server, result))

    def _unknown(self, server: str, name: str) -> str:
        return f"Unknown tool: {sendable(self._roster.names.qualified(server, name))}"

    def _unlisted(self, server: str, name: str) -> Tool:
        """A tool that is not on its server's list, of which nothing is known; one that is left out is not there."""
        config = self._roster[server].config
        if not is_offered(config, name):
            raise MCPError(INVALID_PARAMS, self._unknown(server, name))
        return Tool(server=server, name=name, input_schema={}, definition={}, operators=config.operators)


def tool_error(
    visit: ClientRequest, text: str, info: Mapping[str, Any] = INFO, *, unknown: bool = False
) -> dict[str, Any]:
    """A tool's result that says what went wrong; `info` is who says so, `unknown` that it may have taken effect."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": sendable(text)}], "isError": True}
    if unknown:
        result["_meta"] = {OUTCOME_META_KEY: "unknown"}
    return enveloped(visit.method, result, info) if visit.guest.modern else result
