"""What a gateway says of itself: of one server, what that says; of several, all of it together.

Owns: the answers to the handshake and to discovery. Does not know: requests. Invariant: a server that cannot be reached
now costs the client nothing but its own part.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import anyio
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from pursuit import __version__
from pursuit.errors import PursuitError
from pursuit.surfaces.mcp.gateway.eras import as_object, enveloped, is_modern
from pursuit.surfaces.mcp.gateway.lines import HELLO_SECONDS
from pursuit.tools.contract import About
from pursuit.tools.session import McpUpstream

INFO: Mapping[str, Any] = {
    "name": "pursuit-gateway",
    "title": "Pursuit gateway",
    "version": __version__,
}
# What a server that is not there now may have when it comes back.
_ANYTHING: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True},
    "prompts": {"listChanged": True},
}
_ROUTED = frozenset({"tools", "resources", "prompts", "completions", "logging"})
"""What a client of several servers can ask for: here it is known whose it is."""

TASKS = "io.modelcontextprotocol/tasks"
_log = logging.getLogger(__name__)

Found = Mapping[str, About | None]
"""What each server says about itself; None of one that cannot be reached."""


async def everyone(
    upstreams: Mapping[str, McpUpstream], about: Callable[[McpUpstream], Awaitable[About]] = McpUpstream.about
) -> Found:
    """Asks all servers, side by side; `about` is how one is asked."""
    found: dict[str, About | None] = dict.fromkeys(upstreams)

    async def ask(name: str, upstream: McpUpstream) -> None:
        try:
            found[name] = await about(upstream)
        except PursuitError as error:
            _log.warning("%s", error.message)

    # One that hangs must not keep the client from all the others.
    with anyio.move_on_after(HELLO_SECONDS if len(found) > 1 else None):
        async with anyio.create_task_group() as asking:
            for name, upstream in upstreams.items():
                asking.start_soon(ask, name, upstream)
    return found


def initialized(params: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """The answer to `initialize`."""
    asked = params.get("protocolVersion")
    result: dict[str, Any] = {
        "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities(found, modern=False),
        "serverInfo": server_info(found),
    }
    words = instructions(found)
    return result if words is None else {**result, "instructions": words}


def discovered(found: Found) -> dict[str, Any]:
    """The answer to `server/discover`."""
    result: dict[str, Any] = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": capabilities(found, modern=True),
    }
    words = instructions(found)
    body = result if words is None else {**result, "instructions": words}
    return enveloped("server/discover", body, server_info(found))


def server_info(found: Found) -> Mapping[str, Any]:
    """Who answers: the server itself if there is only one."""
    if len(found) == 1:
        about = next(iter(found.values()))
        if about is not None and about.server_info is not None:
            return about.server_info
    return INFO


def instructions(found: Found) -> str | None:
    """The servers' own words: of one as they are, of several under their names."""
    said = {name: about.instructions for name, about in found.items() if about is not None and about.instructions}
    if len(found) == 1:
        return next(iter(said.values()), None)
    return "\n\n".join(f"## {name}\n{words}" for name, words in said.items()) or None


def capabilities(found: Found, *, modern: bool) -> dict[str, Any]:
    """What all servers together can do, as a client of this era is told."""
    union: dict[str, Any] = {}
    for about in found.values():
        mine = dict(_ANYTHING) if about is None else _translated(about, modern=modern)
        union = _merged(union, mine)
    if len(found) > 1:
        # A task's id does not say whose it is, and neither does an extension's method.
        return {key: value for key, value in union.items() if key in _ROUTED}
    return union


def _translated(about: About, *, modern: bool) -> dict[str, Any]:
    from_modern = is_modern(about.protocol_version)
    given = dict(about.capabilities)
    if from_modern == modern:
        return given
    # Tasks of the two eras are not the same, and are not translated.
    if modern:
        given.pop("tasks", None)
    elif TASKS in (known := as_object(given.get("extensions"))):
        given["extensions"] = {key: value for key, value in known.items() if key != TASKS}
    return given


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    union = dict(one)
    for key, value in other.items():
        mine = union.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            union[key] = _merged(cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", value))
        elif not mine:
            union[key] = value
    return union
