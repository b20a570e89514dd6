"""One call of a client to the fixture server, the same to whoever answers it in either era of the protocol.

Owns: how the client is asked, told and known. Does not know: which tools there are. Invariant: a body asks once and
reads its answers once; whether that is a request to the client (the old era) or another round (the new one) is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]
Requests = Mapping[str, Mapping[str, Any]]
Answers = Mapping[str, Mapping[str, Any]]

_PUSHED: Mapping[str, tuple[Any, Any]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


class InputNeeded(Exception):
    """The new era's way to ask: this is the result, and the client calls again."""

    def __init__(self, requests: Requests, state: str | None) -> None:
        super().__init__("the client is asked")
        self.requests = requests
        self.state = state

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = {"resultType": "input_required", "inputRequests": self.requests}
        return result if self.state is None else {**result, "requestState": self.state}


class ToolFailed(Exception):
    """What a model should read as the tool's own error."""


class Call:
    """A request of a client while it is answered."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.params: Mapping[str, Any] = ctx.params or {}
        self.arguments: Mapping[str, Any] = self.params.get("arguments") or {}
        self.state: str | None = self.params.get("requestState")
        self.modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can(self, what: str, within: str | None = None) -> bool:
        """Whether the client says that it can do this."""
        said = self.ctx.session.client_capabilities
        told: Mapping[str, Any] = {} if said is None else said.model_dump(by_alias=True, exclude_none=True)
        return what in (told if within is None else told.get(within, {}))

    async def answers(self, requests: Requests, state: str | None = None) -> Answers:
        """What the client answers; all the questions are asked together."""
        if not self.modern:
            return {name: await self._push(request) for name, request in requests.items()}
        given: Answers = self.params.get("inputResponses") or {}
        if not requests.keys() <= given.keys() or (state is not None and self.state != state):
            raise InputNeeded(requests, state)
        return given

    async def _push(self, request: Mapping[str, Any]) -> dict[str, Any]:
        asked, answered = _PUSHED[request["method"]]
        related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
        got = await self.ctx.session.send_request(asked.model_validate(request), answered, metadata=related)
        return got.model_dump(by_alias=True, exclude_none=True)

    async def log(self, text: str) -> None:
        """Logs at the level "info", if the client wants to hear it."""
        await self.ctx.session.send_log_message("info", text, related_request_id=self.ctx.request_id)

    async def progress(self, done: float, total: float) -> None:
        await self.ctx.session.report_progress(done, total, f"{done:g} of {total:g}")


def form(message: str, **fields: Mapping[str, Any]) -> dict[str, Any]:
    """A question to a person, with these fields, all of them required."""
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sample(prompt: str, most: int = 100) -> dict[str, Any]:
    """A question to the client's model."""
    said = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    return {"method": "sampling/createMessage", "params": {"messages": said, "maxTokens": most}}


def roots() -> dict[str, Any]:
    return {"method": "roots/list", "params": {}}


def field(answer: Mapping[str, Any], name: str) -> Any:
    """What a person filled in; None where nothing was."""
    return (answer.get("content") or {}).get(name)


def whole(**body: Any) -> dict[str, Any]:
    """A result that asks nothing; the SDK leaves out of it what the client's era does not know."""
    return {"resultType": "complete", **body}


def missing(**capabilities: Mapping[str, Any]) -> MCPError:
    """The error for a client that did not declare what is needed."""
    return MCPError(
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"the client must declare {', '.join(capabilities)}",
        {"requiredCapabilities": capabilities},
    )
