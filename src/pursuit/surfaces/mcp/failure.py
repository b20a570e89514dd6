"""How our errors look on the wire, where a tool's answer is not the place for them.

Owns: the table from errors to JSON-RPC codes. Knows no handler. Invariant: what goes out says what was wrong and what
to do, is bounded, and can be encoded; nothing of ours arrives as a bare internal error.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.errors import (
    InvalidArgument,
    LedgerUnavailable,
    PursuitError,
    SessionNotFound,
    UpstreamUnavailable,
    ValidationFailed,
)

RESOURCE_NOT_FOUND = -32002
"""What 2025-era clients expect; since 2026-07-28 it is invalid params."""

Context = ServerRequestContext[Any, Any]
MOST_TEXT = 4_000


def wire_error(error: PursuitError) -> MCPError:
    """The error as JSON-RPC has it: whose fault it is by its code, ours in `data`."""
    ours = isinstance(error, LedgerUnavailable | UpstreamUnavailable)
    message = error.message
    if isinstance(error, ValidationFailed):
        message = f"{message}: {'; '.join(map(str, error.faults))}"
    return MCPError(INTERNAL_ERROR if ours else INVALID_PARAMS, sendable(message), _data(error))


@contextmanager
def on_the_wire() -> Generator[None]:
    """Errors of ours leave as errors of the protocol."""
    try:
        yield
    except PursuitError as error:
        raise wire_error(error) from error


@contextmanager
def about(ctx: Context, uri: str) -> Generator[None]:
    """The same for work on a resource: that there is none leaves in the code that the connection's era has for it."""
    try:
        yield
    except (SessionNotFound, InvalidArgument) as error:
        code = INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else RESOURCE_NOT_FOUND
        raise MCPError(code, sendable(error.message), {"uri": sendable(uri), **_data(error)}) from error
    except PursuitError as error:
        raise wire_error(error) from error


def one_page(params: PaginatedRequestParams | None) -> None:
    """Refuses a cursor where everything is on the first page."""
    if params is not None and params.cursor is not None:
        raise wire_error(InvalidArgument("this list has one page; ask without a cursor", cursor=params.cursor[:100]))


def sendable(text: str) -> str:
    """Text that can be encoded, of a bounded length."""
    whole = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return whole.encode(errors="replace").decode()


def _data(error: PursuitError) -> dict[str, Any]:
    written = json.dumps(error.details, ensure_ascii=False, default=str).encode(errors="replace")
    return {"code": error.code, "details": json.loads(written)}
