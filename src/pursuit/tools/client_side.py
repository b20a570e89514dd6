"""What we are to a server.

Owns: the capabilities that we declare, and the answers to what a server of the old era asks of us. Does not know:
connections. Invariant: every question gets an answer or a proper error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_types import METHOD_NOT_FOUND

from pursuit.core.tools import AnswerFn, UpstreamError
from pursuit.tools.wire import Heard


@dataclass(slots=True, kw_only=True)
class ClientSide:
    """What we are to a server: what we say that we can do, and who answers what it asks of us.

    `heard` gets what a connection of its own hears outside of requests; without one it is for everybody.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: AnswerFn | None = None
    roots: Sequence[Mapping[str, Any]] = ()
    heard: Heard | None = None

    async def asked(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request of the server."""
        if method == "ping":
            return {}
        if method == "roots/list" and (self.roots or "roots" not in self.capabilities or self.answer is None):
            return {"roots": [dict(root) for root in self.roots]}
        if self.answer is None:
            what = {"elicitation/create": "Elicitation", "sampling/createMessage": "Sampling"}.get(method, method)
            raise UpstreamError(METHOD_NOT_FOUND, f"{what} not supported", None)
        return await self.answer(method, params)
